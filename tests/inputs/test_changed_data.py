"""Data that change under a run: noticed, whatever a file's size and time say."""

import json
import os
import shutil

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fl_app.cli import main
from fl_app.run.results import RunFolder
from murmur.learning.array_file import from_bytes, to_bytes
from murmur.learning.data import own_data
from murmur.learning.data.datasets import digits
from murmur.learning.data.digests import differing, digests_of
from murmur.learning.data.examples import DataError
from murmur.learning.data.tables import table
from tests.fl_app.running import interrupt, run_inline

FEW = ["federation.num_clients=3", "federation.public=0", "strategy=fedavg", "model=mlp"]


def keeping_its_stamp(path, write):
    """Write a file anew; size and time are those of before."""
    before = path.stat()
    write()
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def pixels(path, flipped=False, more=0):
    rng = np.random.default_rng(0)
    rows = ["label," + ",".join(f"p{n}" for n in range(4))]
    for number in range(60 + more):
        label = (number + flipped) % 2
        rows.append(f"{label}," + ",".join(map(str, rng.integers(100, 256, 4))))
    path.write_text("\n".join(rows) + "\n")


def pictures(root, level=100):
    for number in range(20):
        path = root / "ab"[number % 2] / f"{number}.pgm"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), level + number).save(path)


def arrays(path, level=0):
    images = np.full((40, 4, 4), level, np.uint8)
    np.savez(path, images=images, labels=np.arange(40) % 2)


def visits(path, people="ABCDEFGHIJKL", times=1):
    rows = np.arange(60 * times)
    columns = {"x": rows / 7, "ill": rows % 2, "patient": [people[row % 12] for row in rows]}
    pd.DataFrame(columns).to_csv(path, index=False)


def test_a_cache_gives_the_file_that_is_there(tmp_path):
    cache = tmp_path / "cache"
    file = tmp_path / "x.csv"
    pixels(file)
    old = own_data.csv(path=file, cache=cache)
    keeping_its_stamp(file, lambda: pixels(file, flipped=True))
    new = own_data.csv(path=file, cache=cache)
    assert np.array_equal(new.train.labels, 1 - old.train.labels)
    arrays(tmp_path / "x.npz")
    assert own_data.npz(path=tmp_path / "x.npz", cache=cache).train.images.max() == 0
    keeping_its_stamp(tmp_path / "x.npz", lambda: arrays(tmp_path / "x.npz", 255))
    assert own_data.npz(path=tmp_path / "x.npz", cache=cache).train.images.min() == 1
    pictures(tmp_path / "x")
    settings = {"root": tmp_path / "x", "size": 4, "cache": cache, "test_fraction": 0}
    before = own_data.image_folder(**settings).train.images
    one = tmp_path / "x" / "a" / "0.pgm"
    keeping_its_stamp(one, lambda: Image.new("L", (4, 4), 255).save(one))
    after = own_data.image_folder(**settings).train.images
    assert after[0].min() == 1 and np.array_equal(after[1:], before[1:])


def test_a_file_that_changes_while_it_is_decoded_is_kept_under_no_key(tmp_path, monkeypatch):
    file = tmp_path / "x.csv"
    pixels(file)
    decode = own_data._shaped

    def overtaken(*arguments):
        pixels(file, flipped=True)
        return decode(*arguments)

    monkeypatch.setattr(own_data, "_shaped", overtaken)
    with pytest.raises(DataError, match="its files changed while they were read; run again"):
        own_data.csv(path=file, cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_digests_say_which_part_is_another(tmp_path):
    def read(**other):
        visits(tmp_path / "x.csv", **other)
        return digests_of(table(path=str(tmp_path / "x.csv"), label="ill", client="patient"))

    known = read()
    assert differing(known, read()) == []
    # The same numbers, but another person.
    assert differing(known, read(people="ABCDEFGHIJKM")) == ["owners"]
    assert differing(known, read(times=2)) == ["content", "labels", "owners", "shapes"]
    two = digits()
    assert differing(digests_of(two), digests_of(digits(split_seed=1))) == ["content", "labels"]


# What is read, the words of a run, how it changes, and which parts then differ.
CHANGES = {
    "labels of a file of pixels": (
        lambda root: pixels(root / "x.csv"),
        ["dataset=csv", "dataset.path={root}/x.csv"],
        lambda root: pixels(root / "x.csv", flipped=True),
        "labels",
    ),
    "rows of a file of pixels": (
        lambda root: pixels(root / "x.csv"),
        ["dataset=csv", "dataset.path={root}/x.csv"],
        lambda root: pixels(root / "x.csv", more=20),
        "content, labels, shapes",
    ),
    "people of a table": (
        lambda root: visits(root / "x.csv"),
        [
            *("dataset=table", "dataset.path={root}/x.csv", "dataset.label=ill"),
            *("dataset.client=patient", "partition=natural", "federation.num_clients=4"),
        ],
        lambda root: visits(root / "x.csv", people="ABCDEFGHIJKM"),
        "owners",
    ),
    "pictures of a folder": (
        lambda root: pictures(root / "x"),
        ["dataset=image_folder", "dataset.root={root}/x", "dataset.size=4"],
        lambda root: pictures(root / "x", level=50),
        "content",
    ),
    "a class's name": (
        lambda root: pictures(root / "x"),
        ["dataset=image_folder", "dataset.root={root}/x", "dataset.size=4"],
        lambda root: (root / "x" / "b").rename(root / "x" / "c"),
        "labels",
    ),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_resume_and_rerun_say_what_has_changed(kind, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("MURMUR_CACHE", str(tmp_path / "cache"))
    write, words, change, parts = CHANGES[kind]
    write(tmp_path)
    words = [*FEW, *(word.format(root=tmp_path) for word in words)]
    cut = interrupt(tmp_path / "cut", *words, before=2)
    shutil.copytree(cut, tmp_path / "copy")
    assert main(["resume", str(tmp_path / "copy")]) == 0
    done = tmp_path / "copy"
    capsys.readouterr()
    forget()
    change(tmp_path)
    rows = (cut / "rounds.jsonl").read_bytes()
    assert main(["resume", str(cut)]) == 2
    said = capsys.readouterr().err
    assert f"dataset: has changed since this run began ({parts})" in said
    assert (cut / "rounds.jsonl").read_bytes() == rows
    forget()
    assert main(["rerun", str(done), "--out", str(tmp_path / "again")]) == 1
    assert f"the data are not those of the run ({parts})" in capsys.readouterr().err
    forget()
    assert main(["rerun", str(tmp_path / "again"), "--out", str(tmp_path / "third")]) == 0
    assert "the data" not in capsys.readouterr().err


def forget():
    """Let this process read data anew, as another one would."""
    from fl_app.run import population

    for kept in (population._dataset, population._digests, population._images):
        kept.cache_clear()
    population._population.cache_clear()


def test_a_checkpoint_of_before_there_were_digests_goes_on(tmp_path):
    cut = interrupt(tmp_path / "cut", before=2)
    path = cut / "checkpoint.safetensors"
    arrays, facts = from_bytes(path.read_bytes())
    assert set(facts.pop("data")) == {"content", "labels", "owners", "shapes"}
    path.write_bytes(to_bytes(arrays, facts))
    (cut / "data-digests.json").unlink()
    assert main(["resume", str(cut)]) == 0
    assert RunFolder(cut).metrics() is not None


def test_digests_of_data_are_for_the_runs_user_and_in_no_report(tmp_path):
    run = run_inline(tmp_path / "run")
    file = run.path / "data-digests.json"
    assert file.stat().st_mode & 0o077 == 0
    assert main(["report", str(run.path), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert not any(value in page for value in json.loads(file.read_text()).values())
