"""Splits of one data set that number, order or spell their classes each for itself.

They agree by the names of their classes in every reader. A class that a given test split alone has
is refused, or its rows are dropped where that is asked for; splits that Murmur draws keep a row of
each class for training.
"""

import json

import datasets
import numpy as np
import pytest

from fl_app.config.compose import compose
from fl_app.config.errors import ConfigError
from fl_app.run.population import image_population
from murmur.learning.data.examples import keep_classes, split_owners, split_test
from tests.inputs.readers import write
from tests.inputs.test_files import folder_of

SMALL = ("federation.num_clients=2", "federation.public=0", "seed=1")


def population(kind, **settings):
    """Who has what of a data set, as a run has it."""
    words = [f"dataset.{key}={value}" for key, value in settings.items()]
    return image_population(compose([f"dataset={kind}", *words, *SMALL]))


def tables(folder, train, test, form="csv", **settings):
    """Two files, a row for each label; the data set."""
    paths = []
    for name, labels in (("train", train), ("test", test)):
        rows = {"a": [float(row) for row in range(len(labels))], "label": list(labels)}
        paths.append(write(folder, form, rows, name))
    return population("table", path=paths[0], test_path=paths[1], **settings).dataset


INCOMES = ["<=50K", ">50K", "<=50K"]
SPELLINGS = {
    "periods": (["<=50K.", ">50K."], r"'>50K\.' \(nearest: '>50K'\)"),
    "capitals": (["<=50k", ">50K"], r"that no training row has: '<=50k' \(nearest: '<=50K'\)"),
    "spaces inside": (["<= 50K", ">50K"], r"'<= 50K' \(nearest: '<=50K'\)"),
    "numbers": (["0", "1"], r"has: '0', '1'; training rows have '<=50K', '>50K'"),
    "a third class": (["<=50K", "unknown"], "only the test set has 'unknown'"),
}


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("kind", SPELLINGS)
def test_a_test_table_that_spells_a_class_in_another_way_is_refused(tmp_path, form, kind):
    labels, said = SPELLINGS[kind]
    with pytest.raises(ConfigError, match=f"{said}.*dataset.unseen=drop"):
        tables(tmp_path, INCOMES, labels, form)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_test_rows_of_other_classes_are_dropped_where_that_is_asked_for(tmp_path, form):
    labels = [">50K", "<=50K.", "?", "<=50K", "?"]
    data = tables(tmp_path, INCOMES, labels, form, unseen="drop")
    assert (data.num_classes, data.classes) == (2, ("<=50K", ">50K"))
    assert data.train.labels.tolist() == [0, 1, 0]
    assert data.test.labels.tolist() == [1, 0]
    assert data.test.images.ravel().tolist() == [0, 3]
    assert any("3 test rows" in note and "(<=50K., ?)" in note for note in data.notes)


def test_all_test_rows_cannot_be_dropped(tmp_path):
    with pytest.raises(ConfigError, match="has: 'no', 'yes'; training"):
        tables(tmp_path, INCOMES, ["yes", "no"], unseen="drop")


def test_classes_that_are_named_stay_where_rows_are_dropped(tmp_path):
    named = {"classes": "['?', '<=50K', '>50K']", "unseen": "drop"}
    data = tables(tmp_path, INCOMES, ["?", ">50K"], **named)
    assert (data.num_classes, data.test.labels.tolist()) == (3, [2])


def test_another_word_for_what_is_done_with_such_rows_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="unseen=keep: must be"):
        tables(tmp_path, INCOMES, ["?"], unseen="keep")


def saved(folder, **splits):
    """A saved data set whose splits have (names, numbers), or labels as they are."""
    made = {}
    for split, labels in splits.items():
        kinds = None
        if isinstance(labels, tuple):
            names, labels = labels
            label = datasets.ClassLabel(names=names)
            kinds = datasets.Features({"a": datasets.Value("float64"), "label": label})
        rows = {"a": np.arange(len(labels)) + 0.5, "label": labels}
        made[split] = datasets.Dataset.from_dict(rows, features=kinds)
    place = folder / "saved"
    place.mkdir()
    for split, rows in made.items():
        rows.save_to_disk(place / split)
    (place / "dataset_dict.json").write_text(json.dumps({"splits": list(made)}))
    return str(place)


@pytest.mark.parametrize(
    ("train", "test", "right"),
    [
        ((["no", "yes"], [0, 1]), (["yes", "no"], [0, 0, 1]), [1, 1, 0]),
        ((["no", "yes", "perhaps"], [0, 1, 2]), (["perhaps", "yes"], [1, 0]), [1, 2]),
        ((["no", "yes"], [1, 0]), ["yes", "no", "yes"], [1, 0, 1]),
        (["no", "yes"], (["yes", "no"], [0, 1]), [1, 0]),
    ],
)
def test_declared_classes_of_two_splits_agree_by_name(tmp_path, train, test, right):
    data = population("huggingface", path=saved(tmp_path, train=train, test=test)).dataset
    assert data.test.labels.tolist() == right
    assert data.classes[:2] == ("no", "yes")


@pytest.mark.parametrize(
    ("train", "test", "said"),
    [
        ((["no", "yes"], [0, 1]), (["No", "Yes"], [0, 1]), r"'No' \(nearest: 'no'\)"),
        ((["no", "yes"], [0, 1]), [0, 1], "training rows have 'no', 'yes'"),
        ((["no", "yes"], [0, 0]), (["no", "yes"], [0, 1]), "only the test set has 'yes'"),
    ],
)
def test_declared_classes_that_are_not_trained_on_are_refused(tmp_path, train, test, said):
    with pytest.raises(ConfigError, match=said):
        population("huggingface", path=saved(tmp_path, train=train, test=test))


def test_a_declared_class_stays_where_its_rows_are_dropped(tmp_path):
    names = ["no", "yes", "perhaps"]
    path = saved(tmp_path, train=(names, [0, 1]), test=(names, [2, 1]))
    data = population("huggingface", path=path, unseen="drop").dataset
    assert (data.num_classes, data.test.labels.tolist()) == (3, [1])


@pytest.mark.parametrize(
    ("test", "said"),
    [
        (("Cat", "dog"), r"'Cat' \(nearest: 'cat'\)"),
        (("cats", "dogs"), r"'cats' \(nearest: 'cat'\), 'dogs' \(nearest: 'dog'\)"),
        (("cat", "dog", "horse"), "only the test set has 'horse'"),
    ],
)
def test_test_folders_of_other_names_are_refused(tmp_path, test, said):
    names = ["train/cat/a", "train/dog/b", *(f"test/{name}/c" for name in test)]
    root = folder_of(tmp_path / "x", *names)
    own = {"root": root, "size": 6, "cache": tmp_path / "cache"}
    with pytest.raises(ConfigError, match=said):
        population("image_folder", **own)
    if "dog" in test:
        data = population("image_folder", **own, unseen="drop").dataset
        assert data.classes == ("cat", "dog") and set(data.test.labels) <= {0, 1}


def arrays(folder, train, test):
    labels = {"labels": np.array(train), "test_labels": np.array(test)}
    images = {"images": np.zeros((len(train), 3)), "test_images": np.ones((len(test), 3))}
    np.savez(folder / "x.npz", **images, **labels)
    return {"path": folder / "x.npz", "cache": folder / "cache"}


@pytest.mark.parametrize(
    ("train", "test", "right"),
    [
        (["no", "yes"], ["yes", "no", "no"], [1, 0, 0]),
        ([3, 5], ["5", "3"], [1, 0]),
        (["b", "a", "a"], ["b"], [1]),
    ],
)
def test_labels_of_an_array_may_be_names_and_agree_by_them(tmp_path, train, test, right):
    data = population("npz", **arrays(tmp_path, train, test)).dataset
    assert data.test.labels.tolist() == right


@pytest.mark.parametrize(
    ("train", "test", "said"),
    [
        (["no", "yes"], ["No", "yes"], r"'No' \(nearest: 'no'\)"),
        ([1, 2], [0, 1], "only the test set has '0'"),
        (["no", "yes"], [0, 1], "training rows have 'no', 'yes'"),
    ],
)
def test_labels_of_a_test_array_that_no_training_row_has_are_refused(tmp_path, train, test, said):
    with pytest.raises(ConfigError, match=said):
        population("npz", **arrays(tmp_path, train, test))


OWN = """
import numpy as np
from murmur.learning.data.datasets import Dataset, Examples

def part(labels):
    return Examples(np.zeros((len(labels), 1, 2, 2), np.float32), np.array(labels))

def pets(names=("cat", "dog", "cow"), train=(0, 1), test=(1, 0)):
    return Dataset("pets", part(train), part(test), len(names), (1, 2, 2), classes=tuple(names))
"""


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["dataset.test=[0,2]"], r"'cow' \(nearest: 'dog'\)|only the test set has 'cow'"),
        (["dataset.train=[1,1]"], "only the test set has 'cat'"),
        (["dataset.names=['\u00e9','e\u0301',b]"], "\u00e9 stand twice"),
        (["dataset.test=[1,1]"], None),
    ],
)
def test_data_sets_of_own_classes_obey_the_same_rule(tmp_path, monkeypatch, settings, said):
    (tmp_path / "conf/dataset").mkdir(parents=True)
    keys = "names: [cat, dog, cow]\ntrain: [0, 1]\ntest: [1, 0]\n"
    (tmp_path / "conf/dataset/pets.yaml").write_text(f"# Pets.\n_target_: .pets.pets\n{keys}")
    (tmp_path / "pets.py").write_text(OWN)
    monkeypatch.setenv("MURMUR_PLUGINS", str(tmp_path))
    words = ["dataset=pets", *settings, *SMALL]
    if said is None:
        assert image_population(compose(words)).dataset.num_classes == 3
        return
    with pytest.raises(ConfigError, match=said):
        image_population(compose(words))


def test_a_server_of_devices_may_have_a_pool_without_the_classes_of_its_test_set(tmp_path):
    own = arrays(tmp_path, [0] * 12, [0, 1, 2])
    words = [f"dataset.{key}={value}" for key, value in own.items()]
    devices = ["engine=deploy", "federation.num_clients=2", "federation.public=12"]
    people = image_population(compose(["dataset=npz", *words, *devices]))
    assert people.dataset.num_classes == 3


@pytest.mark.parametrize(
    ("names", "train", "fits"),
    [
        ("[yes, no]", ["no", "yes"], False),
        ("[no, yes, perhaps]", ["no", "yes"], False),
        ("[no, yes]", ["no", "yes"], True),
        ("[no, yes]", [0, 1], True),
    ],
)
def test_a_server_numbers_classes_as_its_devices_do(tmp_path, names, train, fits):
    own = arrays(tmp_path, train, train)
    words = ["dataset=npz", *(f"dataset.{key}={value}" for key, value in own.items())]
    words += ["engine=deploy", "federation.num_clients=2", "federation.public=2"]
    config = compose([*words, f"+federation.devices.classes={names}"])
    if fits:
        assert image_population(config).dataset.num_classes == 2
        return
    with pytest.raises(ConfigError, match=r"devices\.classes=.*the server's data have the classes"):
        image_population(config)


RARE = np.array([0] * 40 + [1] * 40 + [2])


@pytest.mark.parametrize("seed", range(8))
def test_a_test_set_that_is_drawn_leaves_a_row_of_each_class(seed):
    train, test = split_test(RARE, 0.9, seed)
    assert set(RARE[train]) == {0, 1, 2}
    assert sorted([*train, *test]) == list(range(len(RARE)))
    two = np.array([0, 0, 1, 1, 2, 2])
    train, test = split_test(two, 0.5, seed)
    assert set(two[train]) == {0, 1, 2} and len(test)


@pytest.mark.parametrize("seed", range(8))
def test_an_owner_of_each_class_stays_where_owners_are_held_out(seed):
    owners = np.arange(len(RARE)) // 10
    for train, test in (split_test(RARE, 0.6, seed, owners), split_owners(owners, 0.6, seed, RARE)):
        assert set(RARE[train]) == {0, 1, 2}
        assert not set(owners[train]) & set(owners[test]) and len(test)


def test_validation_examples_leave_a_row_of_each_class(tmp_path):
    labels = [0] * 10 + [1] * 10 + [2]
    own = arrays(tmp_path, labels, [0, 1])
    for seed in range(6):
        words = [f"dataset.{key}={value}" for key, value in own.items()]
        words += [*SMALL[:2], f"seed={seed}", "federation.validation=18"]
        people = image_population(compose(["dataset=npz", *words]))
        rest = np.concatenate(list(people.shards))
        assert set(people.dataset.train.labels[rest]) == {0, 1, 2}


def test_rows_go_back_by_chance_and_not_by_their_place():
    labels = np.array([0, 1, 1, 1, 1])
    back = set()
    for seed in range(40):
        rng = np.random.default_rng(seed)
        kept = keep_classes("n", np.arange(1, 5), np.arange(1), labels, rng)[1]
        back.add(int(kept[1]))
    assert back == {1, 2, 3, 4}


def test_owners_who_have_each_a_class_of_their_own_cannot_be_held_out():
    labels = np.array([0, 0, 1, 1])
    with pytest.raises(ValueError, match=r"test_fraction=0\.5: training keeps rows of each class"):
        split_test(labels, 0.5, 0, labels)
