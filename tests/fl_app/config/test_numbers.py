"""Numbers of models, partitions, feature maps and data sets, out of all bounds: one sentence.

What is possible may run.
"""

import contextlib
from pathlib import Path

import numpy as np
import pytest
import yaml

from fl_app.config.compose import compose
from fl_app.config.errors import ConfigError
from fl_app.run import population as people
from fl_app.run.hosts import build_trainer

CONF = Path(__file__).resolve().parents[3] / "conf"
NUMBERS = ["100000000000000000000", "99999999999", "1e20", "1e300", "-1", "2.5", "nan", "-inf"]
COMMON = ["engine=inline", "tracking=none", "strategy=fedavg", "privacy=none"]
COMMON += ["federation.num_clients=4", "federation.public=10"]
# Files that need others, or libraries and data that are not here.
GROUPS = ("model", "partition", "features", "dataset")
NOT_HERE = {"backbone", "encoder", "bins", "cifar10", "svhn", "medmnist", "pneumonia_mnist"}
NOT_HERE |= {"mnist", "fashion_mnist", "huggingface", "flower"}


def numbers_in(node, prefix):
    """Dotted keys under which a number or a list stands, or nothing where one may stand."""
    for key, value in node.items():
        if key.startswith("_") or key == "server_may_set":
            continue
        if isinstance(value, dict):
            yield from numbers_in(value, f"{prefix}.{key}")
        elif not isinstance(value, str | bool):
            yield f"{prefix}.{key}", value


def cases(*groups):
    """(group, file, key, list or number) of all files of ``groups``."""
    for group in groups:
        for path in sorted((CONF / group).glob("*.yaml")):
            if path.stem not in NOT_HERE:
                for key, value in numbers_in(yaml.safe_load(path.read_text()), group):
                    yield pytest.param(group, path.stem, key, value, id=f"{path.stem}.{key}")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Small data of each form; words that make a run of each file of ``conf``."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    images = rng.random((60, 1, 28, 28), np.float32)
    np.savez(folder / "images.npz", images=images, labels=np.arange(60) % 3)
    pixels = [f"p{column}" for column in range(16)]
    rows = [f"{row % 3}," + ",".join(map(str, range(row, row + 16))) for row in range(60)]
    (folder / "pixels.csv").write_text("\n".join([",".join(["label", *pixels]), *rows]))
    rows = [f"{row % 2},word{row % 5} and others {row},{row % 10}" for row in range(60)]
    (folder / "texts.csv").write_text("\n".join(["label,text,who", *rows]))
    (folder / "pictures").mkdir()
    for name in "xy":
        (folder / "pictures" / name).mkdir()
        for number in range(20):
            picture(folder / "pictures" / name / f"{number}.png", rng)
    pictures = ["dataset=npz", f"dataset.path={folder}/images.npz", "dataset.num_classes=3"]
    texts = ["dataset=table", f"dataset.path={folder}/texts.csv", "dataset.text=text"]
    texts += ["dataset.client=who"]
    words = {
        "model": pictures,
        "partition": ["dataset=digits"],
        "features": ["dataset=digits"],
        "npz": pictures,
        "csv": [f"dataset.path={folder}/pixels.csv"],
        "table": texts[1:],
        "image_folder": [f"dataset.root={folder}/pictures", "federation.public=0"],
        "digits": [],
        "text_lstm": texts,
        "text_transformer": texts,
        "words": texts,
        "natural": [*texts, "features=words"],
    }
    with contextlib.chdir(folder):  # a number may be the name of a folder there
        yield words


def picture(path, rng):
    from PIL import Image

    Image.fromarray(rng.integers(0, 255, (9, 9), np.uint8)).save(path)


def built(words):
    """What is built of data and model before a run: nothing if it is refused."""
    config = compose(words)
    return build_trainer(config, people.population(config).dataset)


def words_of(files, group, name):
    model = [] if group == "model" else ["model=linear"]
    # The file itself comes first: what follows are settings of its own.
    return [*COMMON, *model, f"{group}={name}", *files.get(name, files.get(group, []))]


def refused_or_built(files, group, name, key, value):
    """None, or what is wrong with how ``key`` was refused."""
    written = value
    try:
        built([*words_of(files, group, name), f"{key}={written}"])
    except ConfigError as error:
        said = str(error)
        number = written.strip("[]").split(",")[0]
        if "\n" in said or not any(
            name in said for name in (key.rpartition(".")[2], number, str(float(number)))
        ):
            return f"{key}={written}: {said}"
    return None


def faults(files, group, name, key, value):
    """What is wrong with the refusals of ``NUMBERS``; ``value``: what the file of ``conf`` has."""
    found = []
    for number in NUMBERS:
        written = number
        if isinstance(value, list):
            written = f"[{','.join([number] * max(1, len(value)))}]"
        found.append(refused_or_built(files, group, name, key, written))
    return [each for each in found if each]


@pytest.mark.parametrize(
    ("group", "name", "key", "value"),
    [
        ("model", "clustering", "model.latent", 10),
        ("model", "text_transformer", "model.depth", 2),
        ("model", "cnn_groupnorm", "model.groups", 8),
        ("partition", "privatekt_authors", "partition.local_size", None),
        ("features", "words", "features.size", 1024),
        ("dataset", "npz", "dataset.num_classes", None),
        ("dataset", "table", "dataset.length", 64),
    ],
)
def test_numbers_out_of_all_bounds_are_one_sentence(files, group, name, key, value):
    """A sample; all of them are in ``test_all_numbers``."""
    assert faults(files, group, name, key, value) == []
