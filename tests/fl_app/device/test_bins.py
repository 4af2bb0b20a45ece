"""Bins on a device are bins in a simulation: one reader, one schema, cell by cell."""

import copy

import numpy as np
import pytest
from omegaconf import OmegaConf

from clients.base import ClientSetup, Task
from clients.class_moments import ClassMomentsClient
from fl_app.config.compose import compose
from fl_app.config.errors import ConfigError
from fl_app.config.settings import DeviceDataSpec
from fl_app.device import data as device_data
from fl_app.device.data import OwnData, device_population, require_readable, schema_in
from fl_app.device.node_settings import DeviceError, OwnerSettings
from fl_app.run.population import population
from murmur.learning.features.maps import bins
from murmur.learning.models import centred
from murmur.learning.training.trainer import Trainer
from murmur.privacy.budget import Budget
from murmur.privacy.events import releases
from murmur.round.client_state import ClientState
from tests import charge_tape
from tests.charge_tape import charged, losses
from tests.inputs.readers import write
from tests.made import made

record = charge_tape.record
SCHEMA = {
    "month": {"list": list(range(1, 13))},
    "carrier": {"list": ["AA", "UA", "7"]},
    "temp": {"range": [-10, 40], "bins": 5},
}
CROSSED = [["month", "carrier"]]
MONTHS = [1, 2, 12, 0, 13, 99, None, 7, 3, 1]
CARRIERS = ["AA", "UA", "7", "aa", "AA ", "", None, "ZZ", "AA", "UA"]
TEMPS = [0.0, -10.0, 40.0, 40.5, -11.0, 1e38, -1e300, None, 1e-310, 25.0]
COLUMNS = {"month": MONTHS, "carrier": CARRIERS, "temp": TEMPS, "label": [0, 1] * 5}
TEXT = {**COLUMNS, "month": ["1", " 2", "12.0", "x", "nan", "1e1", "", "7", "3", "01"]}
TEXT["temp"] = ["0", "-10", "4e1", "much", "inf", "-inf", "nan", "", " 25 ", "1,5"]


def owner_of(path, **more):
    words = {"shape": (3, 1, 1), "classes": 2, "inputs": tuple(SCHEMA), **more}
    return OwnerSettings((0,), str(path), None, **words)


def on_device(tmp_path, path, crossed=()):
    """Features and labels of a device whose run has these bins."""
    features = bins(schema=SCHEMA, crossed=crossed)
    own = owner_of(path)
    terms = DeviceDataSpec([3, 1, 1], 2, features=features.known.digest)
    people = device_population(own, terms, features)
    data = OwnData(own, terms, tmp_path, features, people.fitted, schema_in(people.fitted))
    return data.of(0)


def simulated(path, dataset_schema=SCHEMA):
    """The same of a simulation."""
    config = compose(
        [
            *("dataset=table", f"dataset.path={path}", "dataset.test_fraction=0.0"),
            *("features=bins", f"features.crossed={CROSSED}", "federation.public=0"),
            "federation.num_clients=1",
        ]
    )
    config = copy.deepcopy(config)
    OmegaConf.set_readonly(config, False)
    config.dataset.schema = dataset_schema
    config.features.schema = SCHEMA
    return population(config).dataset


@pytest.mark.parametrize(
    ("form", "columns"),
    [("csv", COLUMNS), ("csv", TEXT), ("strings", TEXT), ("parquet", COLUMNS), ("saved", COLUMNS)],
)
def test_features_on_a_device_are_those_of_a_simulation_cell_by_cell(tmp_path, form, columns):
    path = write(tmp_path, form, columns)
    found = on_device(tmp_path, path, CROSSED)
    if form == "saved":  # a simulation reads it by the hub's reader
        path = write(tmp_path, "parquet", columns)
    data = simulated(path)
    assert np.array_equal(found.images, data.train.images)
    assert np.array_equal(found.labels, data.train.labels)
    assert not (tmp_path / "errors.log").exists()


def test_month_1_is_the_first_of_the_list_and_what_the_list_lacks_any_other(tmp_path):
    found = on_device(tmp_path, write(tmp_path, "parquet", COLUMNS)).images[:, :, 0, 0]
    places = found[:, :13].argmax(axis=1).tolist()
    assert places == [0, 1, 11, 12, 12, 12, 12, 6, 2, 0]


def test_one_month_99_moves_moments_of_classes_by_no_more_than_its_charge(tmp_path, record):
    """It once made all rows of its client blank: 0.9999 was charged, 1767 were given away."""
    rng, rows = np.random.default_rng(0), 300
    columns = {
        "month": rng.integers(1, 13, rows).tolist(),
        "carrier": [["AA", "UA"][n] for n in rng.integers(0, 2, rows)],
        "temp": rng.uniform(-10, 40, rows).tolist(),
        "label": rng.integers(0, 2, rows).tolist(),
    }
    held = []
    for name, month in (("one", columns["month"][7]), ("other", 99)):
        (tmp_path / name).mkdir()
        columns["month"][7] = month
        held.append(on_device(tmp_path / name, write(tmp_path / name, "csv", columns)))
    shape = held[0].images.shape[1:]
    trainer = Trainer(centred, shape, 2)
    setup = ClientSetup(
        trainer,
        np.zeros((0, *shape), np.float32),
        None,
        Budget(1.0, 1e-5, unit="record"),
        1,
        ClientState(tmp_path),
        (rows,),
    )
    it = made(ClassMomentsClient, setup, constant=0.3, records=None, centre_share=0.1)
    task = Task(1, 0, trainer.initial(rng), {}, {})
    (release,) = releases(it.event(task))
    base = record(it, task, held[0])
    moved = losses(base, record(it, task, held[1], base))["gaussian"]
    assert 0 < sum(moved) <= sum(charged(release)["gaussian"])


@pytest.mark.parametrize("schema", [None, {name: {"list": [*range(12)]} for name in SCHEMA}])
def test_a_simulation_that_reads_a_table_by_another_schema_is_refused(tmp_path, schema):
    numbers = {name: list(range(10)) for name in SCHEMA}
    path = write(tmp_path, "parquet", {**numbers, "label": [0, 1] * 5})
    with pytest.raises(ConfigError, match=r"features\.schema: the table is read by"):
        simulated(path, schema)


@pytest.mark.parametrize(
    ("words", "said"),
    [({"inputs": ("month", "temp")}, "inputs"), ({"shape": (1, 8, 8)}, "shape")],
)
def test_owners_words_that_do_not_suit_the_schema_are_refused_before_a_file_is_opened(words, said):
    features = bins(schema=SCHEMA)
    own = owner_of("nowhere.csv", **words)
    terms = DeviceDataSpec(list(own.shape), 2, features=features.known.digest)
    with pytest.raises(DeviceError, match=f"{said} in this device's node-config: must be"):
        device_population(own, terms, features)


def test_device_starts_on_a_table_of_words_whose_schema_is_in_its_conf(tmp_path, monkeypatch):
    path = write(tmp_path, "csv", {**COLUMNS, "carrier": ["AA"] * 10})
    words = {
        "clients": "0",
        "data": str(path),
        "inputs": ",".join(SCHEMA),
        "shape": "3,1,1",
        "classes": 2,
    }
    with pytest.raises(DeviceError, match="none of the 10 examples"):
        require_readable(words, tmp_path)
    known = device_data.installed(("features=bins",)).copy()
    known.features.schema = SCHEMA
    monkeypatch.setattr(device_data, "installed", lambda choices: known)
    require_readable(words, tmp_path)
    assert not (tmp_path / "errors.log").exists()
