"""Tables as a device's data: through the real ClientApp, by its owner's words alone."""

import json

import numpy as np
import pandas
import pytest
from datasets import Dataset

from fl_app.engines.deploy import device_overrides
from tests.fl_app.device_under_test import (
    CLIENTS,
    MINE,
    OPEN,
    Device,
    answer_without_data,
    model_size,
    question,
    report,
)

INPUTS = [f"x{number}" for number in range(64)]
WORDS = [
    *("strategy=fedavg", "model=linear", "strategy.local.epochs=1"),
    *(f"federation.num_clients={CLIENTS}", "federation.public=0", "run_dir=/nowhere/run-a"),
]


def device_of(folder, suffix, change=lambda frame: frame):
    """A device whose clients' rows lie in tables, with a column that no model sees."""
    folder.mkdir()
    device = Device(folder, OPEN)
    for client in MINE:
        with np.load(folder / f"{client}.npz") as held:
            rows, labels = held["images"].reshape(-1, 64), held["labels"]
        np.savez(folder / f"{client}.npz", images=rows, labels=labels)
        frame = pandas.DataFrame(rows.astype(np.float64), columns=INPUTS)
        frame = change(frame.assign(ill=labels, name="Ms X")[["name", "ill", *reversed(INPUTS)]])
        path = folder / f"{client}{suffix}"
        match suffix:
            case ".csv":
                frame.to_csv(path, index=False)
            case ".parquet":
                frame.to_parquet(path)
            case ".saved":
                Dataset.from_pandas(frame).save_to_disk(path)
    device.node_config |= {"data": str(folder / f"{{client}}{suffix}"), "shape": "64,1,1"}
    if suffix != ".npz":
        device.node_config |= {"inputs": ",".join(INPUTS), "label": "ill"}
    del device.node_config["public"]
    return device


def asked(device):
    reply = device.ask(WORDS, question(np.zeros(model_size(WORDS), np.float32)))
    return reply, report(reply)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """What a device answers that has the same numbers in .npz files."""
    reply, told = asked(device_of(tmp_path_factory.mktemp("plain") / "device", ".npz"))
    assert sorted(told["clients"]) == list(MINE)
    return bits(reply)


def bits(reply):
    arrays = reply.content.array_records["contribution"]
    return {name: array.data for name, array in arrays.items()}


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".saved"])
def test_a_table_is_answered_from_like_an_array_of_its_numbers(tmp_path, plain, suffix):
    device = device_of(tmp_path / "device", suffix)
    reply, told = asked(device)
    assert sorted(told["clients"]) == list(MINE) and not told["refused"]
    assert bits(reply) == plain
    assert not (device.state / "cache").exists()  # no copy of the table


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda frame: frame.assign(x3=np.nan), {}),
        (lambda frame: frame.assign(x3="much"), {}),
        (lambda frame: frame.assign(ill="flu"), {}),
        (lambda frame: frame.assign(ill=10), {}),
        (lambda frame: frame.drop(columns="x3"), {}),
        (lambda frame: frame.iloc[1:], {}),  # fewer rows than were published
        (lambda frame: frame, {"label": "well"}),
        (lambda frame: frame, {"inputs": "x0,x1"}),
        (lambda frame: frame, {"inputs": "name"}),
        (lambda frame: frame, {"data": "nowhere/{client}.parquet"}),
        (lambda frame: frame, {"data": "FOLDER/{client}"}),  # of something else
    ],
)
def test_a_table_that_does_not_fit_is_answered_with_blank_rows_and_told_to_its_owner_alone(
    tmp_path, change, words
):
    """A refusal would tell of what lies in a file; the answer is charged like any other."""
    device = device_of(tmp_path / "device", ".parquet", change)
    for client in MINE:
        (device.folder / str(client)).mkdir()
    device.node_config |= {k: v.replace("FOLDER", str(device.folder)) for k, v in words.items()}
    _, told = asked(device)
    assert told["clients"] == list(MINE) and not told["refused"]
    assert [int(client) for client, *_ in device.charged()] == list(MINE)
    assert all(f"the data of client {client}" in device.log() for client in MINE)


def test_nothing_but_the_charged_release_depends_on_a_row(tmp_path, monkeypatch):
    answer_without_data(monkeypatch, lambda half, task: np.zeros(650, np.int64))
    told = []
    for name, value in (("one", 0.0), ("other", 1e30)):
        device = device_of(tmp_path / name, ".parquet", lambda frame, v=value: frame.assign(x3=v))
        reply, found = asked(device)
        assert sorted(found["clients"]) == list(MINE)
        told.append((bits(reply), found, device.charged()))
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("labels", "classes"), [((0, 1), 2), ((1, 2), ["1", "2"]), (("well", "ill"), ["ill", "well"])]
)
def test_devices_are_told_the_names_of_classes_that_are_not_0_and_on(tmp_path, labels, classes):
    frame = pandas.DataFrame({"a": np.arange(8.0), "label": np.resize(labels, 8)})
    frame.to_csv(tmp_path / "x.csv", index=False)
    words = ["dataset=table", f"dataset.path={tmp_path / 'x.csv'}", "federation.public=0"]
    said = device_overrides([*words, "strategy=fedavg", "engine=deploy", "engine.superlink=here"])
    assert f"federation.devices.classes={json.dumps(classes)}" in said
