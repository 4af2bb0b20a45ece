"""The data card: at most twelve lines, no row, before the first client trains."""

import os
import pty
import re
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pytest
from PIL import Image
from rich.cells import cell_len

from fl_app.api import data_card, run
from fl_app.cli import main
from fl_app.config.compose import compose
from fl_app.config.errors import ConfigError
from fl_app.config.settings import DeviceDataSpec
from fl_app.device.data import load_own
from fl_app.device.node_settings import OwnerSettings
from fl_app.run.data_card import (
    HEADING,
    MAX_LINES,
    ClassRows,
    Column,
    SplitRows,
    owners_shown,
)
from fl_app.run.population import image_population
from fl_app.run.results import RunFolder
from murmur.learning.data.own_data import npz
from tests.fl_app.running import command

FEDAVG = ["engine=inline", "strategy=fedavg", "federation.public=0", "federation.num_rounds=1"]
FEDAVG += ["strategy.local.epochs=1"]
PROJECT = Path(__file__).parents[3]


def table(folder, count=60):
    """A table whose cells stand nowhere else; its file, its cells as text, and as numbers."""
    rng = np.random.default_rng(7)
    frame = pandas.DataFrame(
        {
            "dose": (rng.random(count) * 700 + 1000).round(4),
            "weight": (rng.random(count) * 70 + 30).round(5),
            "who": [f"zebra{7919 * (row % 15)}" for row in range(count)],
            "surname": [f"Quagga-{104729 * row}" for row in range(count)],
            "label": ["ham" if row % 3 else "spam" for row in range(count)],
        }
    )
    path = folder / "people.csv"
    frame.to_csv(path, index=False)
    numbers = [float(value) for name in ("dose", "weight") for value in frame[name]]
    texts = [*map(str, numbers), *frame["who"].unique(), *frame["surname"]]
    words = ["dataset=table", f"dataset.path={path}", "dataset.client=who"]
    words += ["dataset.inputs=[dose,weight]", "partition=natural", "federation.num_clients=12"]
    return words, texts, numbers


def cells_in(content, texts, numbers):
    """The cells that stand in ``content``: as text, or as the bytes of a number."""
    found = [text for text in texts if text.encode() in content]
    for number in numbers:
        for form in ("<f", "<d"):
            if struct.pack(form, number) in content:
                found.append(str(number))
    return found


def files_below(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def test_the_card_is_in_the_folder_before_the_first_round(tmp_path, monkeypatch):
    words, _, _ = table(tmp_path)
    held = []

    append = RunFolder.append_row

    def note(folder, row):
        held.append((row["round"], (folder.path / "data.txt").read_text()))
        append(folder, row)

    monkeypatch.setattr(RunFolder, "append_row", note)
    run([*FEDAVG, *words, f"run_dir={tmp_path / 'run'}"], progress=False)
    assert held[0][0] == 0 and held[0][1].startswith(f"{HEADING}\n")


def test_own_data_are_printed_in_full_and_a_known_set_in_one_line(tmp_path, capsys):
    words, _, _ = table(tmp_path)
    assert main([*FEDAVG, *words, f"run_dir={tmp_path / 'own'}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = [
        line for line in lines[: lines.index(next(x for x in lines if "budget:" in x))] if line
    ]
    assert [re.split(r" {2,}", line)[0] for line in first if line[0] != " "] == [
        *("data", "rows", "owners", "classes", "inputs", "left out", "clients"),
    ]
    assert "columns that are not among the inputs: surname" in " ".join(first)
    few = ["federation.num_clients=4", f"run_dir={tmp_path / 'digits'}"]
    assert main([*FEDAVG, *few]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "data: digits; training 1,437, pool 0, validation 0, test 360; 10 classes; pictures of "
        "8 × 8, grey, within 0 to 1"
    )
    assert lines[1].startswith("budget: ")


def test_a_sweep_says_it_once_for_each_data_set_before_its_jobs(tmp_path, capsys):
    words, _, _ = table(tmp_path)
    sweep = ["-m", *FEDAVG, *words, "seed=1,2", "strategy.local.learning_rate=0.1,0.2"]
    assert main([*sweep, f"results_dir={tmp_path}"]) == 0
    said = capsys.readouterr().out
    assert said.count("\nowners    ") == 1 and said.index("owners    ") < said.index("┃")


def test_four_classes_where_a_person_has_two_are_seen_at_once(tmp_path, capsys):
    labels = ["spam", "ham", "Spam", "ham", "spam", "ham."] * 20
    frame = pandas.DataFrame({"a": range(120), "label": labels})
    frame.to_csv(tmp_path / "x.csv", index=False)
    words = ["dataset=table", f"dataset.path={tmp_path / 'x.csv'}", "dataset.test_fraction=0"]
    assert main(["data", *words, "federation.public=0"]) == 0
    assert "classes   4, as training: Spam: 20, ham: 40, ham.: 20, spam: 40" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_no_card_has_more_than_twelve_lines_or_a_line_wider_than_the_terminal(width):
    plain = data_card(["federation.num_clients=4"])
    held = plain.clients
    assert held is not None
    names = [f"{'類' * (number % 30)}{number}" for number in range(1000)]
    odd = replace(
        plain,
        is_own=True,
        source=f"table path=/{'very-long/' * 30}file.csv test_path=/{'x' * 200}",
        rows=SplitRows(10**9, 10**9, 10**9, 10**9),
        owners=10**9,
        owner_rows=(1, 10**9),
        classes=tuple(ClassRows(name, SplitRows(9, 9, 9, 9)) for name in names),
        columns=tuple(Column(f"{name}\x1b[31m\n", -1e30, 1e30) for name in names),
        left_out=tuple(f"column {name!r}, an index, and {'more ' * 40}" for name in names),
        clients=replace(held, partition=f"QuantitySkew(groups={names})"),
    )
    for card in (plain, odd, replace(plain, classes=odd.classes), replace(odd, columns=())):
        lines = card.lines(width)
        assert len([HEADING, *lines]) <= MAX_LINES == 12
        assert max(map(cell_len, lines)) <= width
        assert all(line.isprintable() and line == line.rstrip() for line in lines)
        assert [line.split()[0] for line in lines if line[0] != " "][3] == "classes"
    said = " ".join("\n".join(odd.lines(width)).partition("inputs")[0].split())
    if width > 40:  # where there is hardly room for a class
        [more] = re.findall(r"and ([\d,]+) more", said)
        assert said.count("/9/9/9") + int(more.replace(",", "")) == 1000


def test_of_too_many_classes_those_that_a_split_lacks_are_shown():
    plain = data_card(["federation.num_clients=4"])
    classes = [ClassRows(f"class {number}", SplitRows(9, 0, 0, 1)) for number in range(500)]
    classes[321] = ClassRows("odd", SplitRows(0, 0, 0, 1))
    card = replace(plain, rows=SplitRows(4491, 0, 0, 500), classes=tuple(classes))
    assert "500, as training/test: odd: 0/1, class 0: 9/1," in " ".join(card.lines(80))


def test_a_pilot_and_devices_say_where_clients_rows_are(tmp_path):
    pilot = data_card(["federation.public=400", "federation.pilot=20"])
    assert pilot.rows == SplitRows(1037, 360, 40, 360)
    assert pilot.left_out == ("1,037 training rows: a pilot draws clients' rows from the pool",)
    devices = ["engine=deploy", "engine.superlink=here", "federation.public=100"]
    server = data_card([*devices, "federation.num_clients=3"])
    assert server.rows == SplitRows(1337, 100, 0, 360) and server.clients is None
    assert server.left_out == ("1,337 training rows: clients' data are on their devices",)


@pytest.mark.parametrize(
    ("words", "clients", "rows", "classes", "unused"),
    [
        (["partition=iid"], 10, (143, 144), None, 0),
        (["partition=shards", "partition.classes_per_client=3"], 10, None, (3, 3), 0),
        (["partition=virtual", "partition.size=7"], 3000, (7, 7), None, 0),
        (
            [
                "partition=quantity_skew",
                "partition.exponent=null",
                "partition.groups={a: {count: 2, size: 100}, b: {count: 3, size: 7}}",
            ],
            *(5, (7, 100), None, 1216),
        ),
    ],
)
def test_the_partitions_shape(words, clients, rows, classes, unused):
    card = data_card([*words, "federation.public=0", f"federation.num_clients={clients}"])
    assert card.clients is not None and card.clients.count == clients
    assert rows in (None, card.clients.rows) and classes in (None, card.clients.classes)
    said = [f"{unused:,} training rows, which the partition gives to no client"] if unused else []
    assert list(card.left_out) == said


def test_bounds_lie_outside_of_the_values_and_are_no_value(tmp_path):
    values = np.array([[-0.0372, 18.0], [0.0001, 94.0], [7e8, 55.5], [1.5, 20.25]], np.float32)
    np.savez(tmp_path / "x.npz", images=values, labels=np.array([0, 1, 0, 1]))
    words = ["dataset=npz", f"dataset.path={tmp_path / 'x.npz'}", "dataset.test_fraction=0"]
    words += [f"dataset.cache={tmp_path}", "federation.public=0", "federation.num_clients=2"]
    card = data_card(words)
    assert (card.low, card.high) == (-0.04, 7e8)
    assert "2 numbers within -0.04 to 7e+08" in str(card)
    columns = pandas.DataFrame({"a": values[:, 0], "b": values[:, 1], "label": [0, 1, 0, 1]})
    columns.to_parquet(tmp_path / "x.parquet")
    words = ["dataset=table", f"dataset.path={tmp_path / 'x.parquet'}", *words[2:3], *words[4:]]
    assert data_card(words).columns == (Column("a", -0.04, 7e8), Column("b", 10.0, 100.0))


def test_settings_that_are_wrong_are_one_sentence_about_what_was_typed():
    with pytest.raises(ConfigError, match=r"dataset\.path=nowhere\.csv"):
        data_card(["dataset=table", "dataset.path=nowhere.csv"])
    status, said = command("data", "dataset=table", "dataset.path=nowhere.csv")
    assert status == 2 and said.count("\n") == 1
    status, said = command("data", "--rows", "0")
    assert status == 2 and "at least 1" in said


def on_terminal(folder, *words):
    """What `murmur WORDS` shows on a terminal of 80 columns; it runs in ``folder``."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "COLUMNS": "80", "HOME": str(folder)}
    environment["MURMUR_CACHE"] = str(folder / "cache")
    started = subprocess.Popen(
        [sys.executable, "-m", "fl_app", *words],
        cwd=folder,
        env=environment,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            more = os.read(ours, 1 << 16)
        except OSError:  # of a terminal that nobody has open any more
            break
        if not more:
            break
        shown += more
    assert started.wait() == 0, shown.decode()
    os.close(ours)
    return shown.decode().replace("\r", "")


def test_rows_are_shown_on_a_terminal_and_written_nowhere(tmp_path):
    (tmp_path / "home").mkdir()
    words, texts, numbers = table(tmp_path)
    words += ["federation.public=0", "dataset.test_fraction=0"]
    shown = on_terminal(tmp_path / "home", "data", *words, "--rows", "3")
    lines = shown.splitlines()
    assert max(map(cell_len, lines)) <= 80
    heads = [line for line in lines if line.startswith("row ")]
    assert [head.partition(" (")[0] for head in heads] == ["row 0", "row 29", "row 59"]
    frame = pandas.read_csv(tmp_path / "people.csv")
    for head, row in zip(heads, (0, 29, 59), strict=True):
        assert f"class {frame['label'][row]}, owner " in head
        inputs = lines[lines.index(head) + 1]
        pattern = r"dose ([\d.]+), weight ([\d.]+)"
        dose, weight = map(float, re.fullmatch(pattern, inputs).groups())
        assert (dose, weight) == pytest.approx((frame["dose"][row], frame["weight"][row]), rel=1e-6)
    for path in files_below(tmp_path / "home"):
        assert cells_in(path.read_bytes(), texts, numbers) == [], path


def test_rows_that_would_go_elsewhere_than_to_a_terminal_are_refused_before_a_file_is_read(
    tmp_path,
):
    words, _, _ = table(tmp_path)
    status, said = command("data", *words, "--rows", "3")
    assert status == 2 and said.count("\n") == 1
    assert "rows and owners are shown on a terminal and written nowhere" in said
    status, said = command("data", "dataset=table", "dataset.path=nowhere.csv", "--rows", "3")
    assert status == 2 and "nowhere.csv" not in said


@pytest.fixture
def scribes(tmp_path):
    """94 owners' folders with two pictures of each of two classes; settings for 40 clients."""
    for owner in range(94):
        for kind in ("cat", "dog"):
            place = tmp_path / "scribes" / f"w{owner:02}" / kind
            place.mkdir(parents=True)
            for number in range(2):
                picture = Image.new("L", (4, 4), 2 * owner + number)
                picture.save(place / f"{number}.png")
    words = ["dataset=image_folder", f"dataset.root={tmp_path / 'scribes'}", "dataset.owners=1"]
    words += ["dataset.size=4", "partition=natural", "federation.num_clients=40", "seed=7"]
    return [*words, "federation.public=40", f"dataset.cache={tmp_path / 'cache'}"]


def test_of_more_owners_than_clients_it_says_how_many_were_drawn_and_of_each_what_it_became(
    scribes, tmp_path
):
    card = data_card(scribes)
    assert card.owners == 75 and card.rows == SplitRows(260, 40, 0, 76)
    assert card.left_out == (
        "100 training rows of 25 owners who are no clients: seed=7 draws 40 of 65",
    )
    assert "40, 4 rows and 2 classes each: Natural" in str(card)
    (tmp_path / "home").mkdir()
    shown = on_terminal(tmp_path / "home", "data", *scribes, "--owners").splitlines()
    said = dict(line.removeprefix("owner ").split(": ") for line in shown if "owner w" in line)
    assert list(said) == [f"w{owner:02}" for owner in range(94)]
    kinds = [re.sub(r"client \d+", "client", role) for role in said.values()]
    assert {kind: kinds.count(kind) for kind in sorted(set(kinds))} == {
        "client (4 rows)": 40,
        "no client (4 rows)": 25,
        "public pool (4 rows)": 10,
        "test set": 19,
    }
    # Client 0 is the first of those drawn, in the order of their ids, and has its pictures.
    first = next(owner for owner, role in said.items() if role == "client 0 (4 rows)")
    people = image_population(compose(scribes))
    own = people.dataset.train.images[people.shards[0], 0, 0, 0] * 255
    number = int(first[1:])
    assert sorted(own.round().astype(int).tolist()) == 2 * [2 * number] + 2 * [2 * number + 1]
    status, error = command("data", *scribes, "--owners")
    assert status == 2 and "--owners: rows and owners are shown on a terminal" in error
    with pytest.raises(ConfigError, match="--owners: nothing says whose a row is"):
        owners_shown(compose(["dataset=digits"]))


def test_a_device_reads_an_owners_folder_as_the_simulation_does(scribes, tmp_path):
    people = image_population(compose(scribes))
    terms = DeviceDataSpec([1, 4, 4], ["cat", "dog"])
    for client in (0, 39):
        rows = people.shards[client]
        owner = people.dataset.owner_ids[people.dataset.owners[rows[0]]]
        place = str(tmp_path / "scribes" / owner)
        own = load_own(place, OwnerSettings((client,), None, None), terms, tmp_path / "own").train
        assert np.array_equal(own.images, people.dataset.train.images[rows])
        assert np.array_equal(own.labels, people.dataset.train.labels[rows])


def test_a_picture_and_a_text_are_shown_as_they_were_understood(tmp_path):
    (tmp_path / "home").mkdir()
    pixels = np.zeros((2, 4, 6), np.uint8)
    pixels[1, :, 3:] = 255  # black, then white
    np.savez(tmp_path / "x.npz", images=pixels, labels=np.array([0, 1]))
    words = ["dataset=npz", f"dataset.path={tmp_path / 'x.npz'}", "dataset.test_fraction=0"]
    words += ["federation.public=0", "federation.num_clients=2"]
    shown = on_terminal(tmp_path / "home", "data", *words, "--rows", "2").splitlines()
    assert shown[-4:] == [6 * " " + 6 * "@"] * 4
    frame = pandas.DataFrame({"text": ["good day", "bad"], "label": [0, 1]})
    frame.to_csv(tmp_path / "x.csv", index=False)
    words = ["dataset=table", f"dataset.path={tmp_path / 'x.csv'}", "dataset.text=text", *words[2:]]
    words += ["strategy=fedavg", "dataset.vocabulary=64"]
    shown = on_terminal(tmp_path / "home", "data", *words, "--rows", "2").splitlines()
    assert re.fullmatch(r"\d+, \d+", shown[-3]) and re.fullmatch(r"\d+", shown[-1])
    assert "texts of 1 to 2 words" in " ".join(shown)


def test_a_data_set_of_ones_own_class_is_own_data(tmp_path, monkeypatch):
    (tmp_path / "conf" / "dataset").mkdir(parents=True)
    (tmp_path / "conf" / "dataset" / "hers.yaml").write_text("_target_: .hers.Hers\n")
    (tmp_path / "hers.py").write_text(
        "from murmur.learning.data.datasets import digits\n\n\ndef Hers():\n    return digits()\n"
    )
    status, _ = command("--config-dir", tmp_path, "data", "dataset=hers")
    assert status == 0
    card = data_card(["dataset=hers"])
    assert card.is_own and card.source == "Hers" and len(card.classes) == 10


def test_a_device_reader_leaves_no_note_of_classes(tmp_path):
    """Notes are what was left out: the card has the classes."""
    np.savez(tmp_path / "x.npz", images=np.zeros((4, 2, 2), np.uint8), labels=np.arange(4))
    found = npz(path=tmp_path / "x.npz", test_fraction=0, cache=tmp_path)
    assert found.notes == () and found.classes == ("0", "1", "2", "3")
