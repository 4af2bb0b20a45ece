"""Who has which examples: pool, clients, what is held out, and pilots made of public data alone."""

from collections import Counter

import numpy as np
import pandas
import pytest
from sklearn.neighbors import KNeighborsClassifier

from fl_app.config import renamed
from fl_app.config.compose import compose
from fl_app.config.errors import ConfigError
from fl_app.run import population as module
from fl_app.run.population import image_population, population
from murmur.learning.data.partitions import IID

WORDS = ["strategy=privatekt", "federation.num_clients=10", "federation.public=300"]


def of(*words):
    return population(compose([*WORDS, *words]))


def rows_of(people):
    return np.concatenate(people.shards)


def test_validation_examples_are_nobodys_and_models_are_scored_on_them_only_when_asked():
    people = of("federation.validation=100")
    parts = [people.public_rows, people.held_out, rows_of(people)]
    assert len(people.held_out) == 100
    assert sorted(np.concatenate(parts)) == list(range(len(people.dataset.train)))
    assert np.array_equal(people.dataset.test.labels, of().dataset.test.labels)
    chosen = of("federation.validation=100", "federation.score=validation")
    train = people.dataset.train
    assert np.array_equal(chosen.dataset.test.images, train.images[people.held_out])
    assert all(map(np.array_equal, chosen.shards, people.shards))


def test_a_pilot_holds_public_examples_alone_and_is_scored_on_others():
    people = of("federation.pilot=48", "features=pca", "features.components=20")
    public, held_out, drawn = set(people.public_rows), set(people.held_out), set(rows_of(people))
    assert people.sizes == (48,) * 10
    assert drawn <= public - held_out
    assert held_out < public
    assert len(people.public) == len(public) - len(held_out)
    assert people.dataset.test.images.shape == (30, 20, 1, 1)


def test_images_are_those_of_the_same_population():
    people = image_population(compose([*WORDS, "federation.validation=100"]))
    assert np.array_equal(people.held_out, of("federation.validation=100").held_out)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["federation.validation=5000"], "validation=5000"),
        (["federation.score=validation"], "federation.validation above 0"),
        (["federation.pilot=0"], "pilot=0"),
        (["federation.pilot=5", "federation.public=2"], "public=2"),
    ],
)
def test_what_cannot_be_held_out_is_refused(words, says):
    with pytest.raises(ConfigError, match=says):
        of(*words)


def test_a_partition_that_leaves_a_client_empty_is_refused(monkeypatch):
    def all_to_the_first(self, labels, num_clients, num_classes, rng):
        return [np.arange(len(labels)), *[np.arange(0)] * (num_clients - 1)]

    monkeypatch.setattr(IID, "__call__", all_to_the_first)
    said = r"partition=IID: leaves 10 of 11 clients without examples \(the first is client 1\)"
    with pytest.raises(ConfigError, match=said):
        of("partition=iid", "federation.num_clients=11")


def test_a_partition_under_its_earlier_name_is_answered_with_the_present_one():
    with pytest.raises(ConfigError, match="set partition=privatekt_authors"):
        compose(["partition=legacy"])
    assert renamed.current("partition=legacy") == "partition=privatekt_authors"
    assert renamed.current("partition.alpha=1") == "partition.alpha=1"
    recorded = {"partition": {"_target_": "murmur.learning.data.partitions.Legacy", "alpha": 0.5}}
    present = compose(["partition=privatekt_authors"]).partition._target_
    assert renamed.present_targets(recorded)["partition"] == {"_target_": present, "alpha": 0.5}


PATIENTS, VISITS = 60, 20


@pytest.fixture
def visits(tmp_path):
    """Visits of 60 patients who are told apart by a number, and whose labels are coins."""
    rng = np.random.default_rng(0)
    patients = rng.permutation(np.repeat(np.arange(PATIENTS), VISITS))
    coins = rng.integers(0, 2, PATIENTS * VISITS)
    lines = [f"{p}.5,p{p:03},{coin}" for p, coin in zip(patients, coins, strict=True)]
    (tmp_path / "visits.csv").write_text("\n".join(["mark,patient,label", *lines]) + "\n")
    return [
        *("dataset=table", f"dataset.path={tmp_path / 'visits.csv'}", "dataset.client=patient"),
        *("strategy=privatekt", "partition=natural"),
        *("federation.public=0", "federation.num_clients=20"),
    ]


def patients_of(images):
    """Whose rows these are, by the mark."""
    return set(np.floor(images[:, 0, 0, 0]).astype(int).tolist())


@pytest.mark.parametrize(
    "words",
    [[], ["federation.pilot=3", "federation.num_clients=9"], ["federation.score=validation"]],
)
def test_nobody_is_on_two_sides_of_a_split(visits, words):
    wanted = ["federation.public=360", *words]
    is_pilot = "federation.pilot=3" in words
    if not is_pilot:
        wanted.append("federation.validation=100")
    people = population(compose([*visits, *wanted]))
    data = image_population(compose([*visits, *wanted])).dataset
    sides = [patients_of(people.public), patients_of(data.test.images)]
    sides.append(patients_of(data.train.images[people.held_out]))
    if not is_pilot:
        sides.append(patients_of(data.train.images[rows_of(people)]))
        assert all(len(rows) == VISITS for rows in people.shards)
        assert len(people.public) == 360
    assert all(sides)
    assert sum(map(len, sides)) == len(set().union(*sides))
    assert people.split_by_rows == ""


def test_rows_of_a_client_may_be_public_only_where_that_is_asked_for_and_said(visits):
    asked = [*visits, "dataset.split=rows", "federation.public=360", "federation.num_clients=60"]
    people = population(compose(asked))
    train = people.dataset.train.images
    assert len(patients_of(people.public) & patients_of(train[rows_of(people)])) > 50
    assert "dataset.split=rows" in people.split_by_rows


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["federation.public=19"], r"federation\.public=19: owners .* whole, .*the fewest: 20"),
        (["federation.validation=19"], r"federation\.validation=19: owners .* whole"),
        (["dataset.test_fraction=0.01"], r"test_fraction=0\.01: owners .* dataset\.split=rows"),
        (["dataset.split=patients"], r"dataset\.split=patients: must be .*owners.*rows"),
        (["federation.num_clients=61"], "the data have 48 owners for clients"),
    ],
)
def test_a_split_that_no_whole_owner_fits_is_refused(visits, words, says):
    with pytest.raises(ConfigError, match=says):
        population(compose([*visits, *words]))


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("DebianDescriptions/descriptions.csv.gz", ["inputs=[text]", "label=section", "length=4"]),
        ("Flights/flights.csv.gz", ["inputs=[hour,distance]", "label=late"]),
    ],
)
def test_owners_of_real_tables_stay_whole_and_are_as_many_as_pandas_counts(data_root, file, words):
    path = data_root / file
    if not path.exists():
        pytest.skip(f"MURMUR_DATA has no {file}")
    asked = ["strategy=privatekt", "dataset=table", f"dataset.path={path}"]
    asked += [f"dataset.{word}" for word in words]
    asked += ["dataset.client=owner", "partition=natural", "federation.num_clients=700"]
    people = population(compose([*asked, "federation.public=2000", "federation.validation=500"]))
    owners = people.dataset.owners
    sizes = pandas.read_csv(path, dtype=str, keep_default_na=False)["owner"].value_counts()
    kept = np.bincount(owners)
    assert len(owners) + len(people.dataset.test) == sizes.sum()
    assert Counter(kept.tolist()) <= Counter(sizes.tolist())  # whole, each of them
    rows = [people.public_rows, people.held_out, *people.shards]
    met = [owner for part in rows for owner in np.unique(owners[part]).tolist()]
    assert len(met) == len(set(met))
    assert all(kept[owners[part[0]]] == len(part) for part in people.shards)
    assert abs(len(people.public) - 2000) < 50


@pytest.mark.parametrize(("split", "low", "high"), [("owners", 0.4, 0.6), ("rows", 0.8, 1.0)])
def test_a_model_that_remembers_patients_scores_as_a_coin_on_labels_that_are_coins(
    tmp_path, split, low, high
):
    words = ["strategy=privatekt", "dataset=table", "dataset.client=patient"]
    words.append(f"dataset.split={split}")
    words += ["partition=natural", "federation.public=0", "federation.num_clients=45"]
    patients, scores = np.repeat(np.arange(PATIENTS), VISITS), []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        marks, coins = rng.normal(size=(PATIENTS, 8)), rng.integers(0, 2, PATIENTS)
        frame = pandas.DataFrame(marks[patients]).add_prefix("m")
        path = tmp_path / f"{seed}.parquet"
        frame.assign(patient=patients, label=coins[patients]).to_parquet(path)
        people = population(compose([*words, f"dataset.path={path}"]))
        data, rows = people.dataset, rows_of(people)
        model = KNeighborsClassifier(1)
        model.fit(data.train.images[rows, :, 0, 0], data.train.labels[rows])
        scores.append(model.score(data.test.images[:, :, 0, 0], data.test.labels))
    assert low < np.mean(scores) <= high, scores


def test_too_many_clients_are_told_of_virtual_ones():
    with pytest.raises(ConfigError, match=r"num_clients=5000: more clients .*partition=virtual"):
        of("federation.num_clients=5000")


def test_virtual_clients_share_private_rows_and_the_run_says_so():
    people = of("partition=virtual", "federation.num_clients=5000", "partition.size=3")
    assert people.sizes == (3,) * 5000
    private = np.setdiff1d(np.arange(len(people.dataset.train)), people.public_rows)
    drawn = np.concatenate([people.shards[client] for client in range(3000)])
    assert np.array_equal(np.unique(drawn), private)
    assert "clients share examples" in people.warnings[0]
    assert of().warnings == ()


def gives(monkeypatch, rows, **more):
    """Let ``partition=iid`` be a class of one's own that gives everybody ``rows``."""
    module._population.cache_clear()
    module._images.cache_clear()
    monkeypatch.setattr(IID, "__call__", lambda self, labels, clients, *_: [rows] * clients)
    for name, value in more.items():
        monkeypatch.setattr(IID, name, value, raising=False)


@pytest.mark.parametrize(("first", "clients"), [(0, 2), (-1, 1), (10_000, 1)])
def test_a_partition_may_neither_give_an_example_twice_unsaid_nor_one_of_nobodys(
    monkeypatch, first, clients
):
    gives(monkeypatch, np.array([first]))
    with pytest.raises(ConfigError, match="none go out twice"):
        of("partition=iid", f"federation.num_clients={clients}", "federation.clients_per_round=1")


def test_a_partition_that_says_it_shares_examples_is_stated(monkeypatch):
    gives(monkeypatch, np.arange(2), shared=True)
    assert "clients share examples" in of("partition=iid", "seed=77").warnings[0]


@pytest.mark.parametrize("unit", ["client", "record"])
def test_features_are_not_fitted_on_images_that_clients_hold(unit):
    words = ["features=pca", "features.components=20", "features.fitted_on=digits"]
    words.append(f"privacy.unit={unit}")
    with pytest.raises(ConfigError, match="fitted_on=digits: holds images that are private"):
        of(*words, "features.fitted_images=50")
