"""Regression and several labels on devices: the task is the owner's, and a server's must be his."""

import csv
import re

import numpy as np
import pandas
import pytest

from fl_app.config.errors import ConfigError
from fl_app.config.overrides import to_run_config
from fl_app.device import received
from fl_app.device.agreement import device_config
from fl_app.device.data import OwnData, device_population, terms_of
from fl_app.device.node_settings import DeviceError, OwnerSettings
from fl_app.run import offer
from fl_app.run.model_folder import SavedModel
from fl_app.tools import doctor
from fl_app.tools.export import export
from murmur.learning.features import pca
from murmur.privacy.ledger import Ledger
from murmur.round.task import REFUSED
from tests.federation.loopback import POLICY
from tests.fl_app.device.test_devices import run_devices, weights
from tests.fl_app.device.test_received import Past, changed
from tests.fl_app.device_under_test import CLIENTS, MINE, OPEN, Device, question, report
from tests.fl_app.running import run_inline
from tests.node_keys import openssh

ROWS = 120
LABELS = ("pain", "fever", "cough")
SIZES = "federation.devices.sizes=[40,40,40]"
WORDS = [
    *("model=linear", "federation.num_clients=3", "federation.num_rounds=2"),
    *("federation.quorum=1.0", "federation.round_timeout=5", "federation.public=0"),
    *("privacy.noise=seeded", "partition=natural", "federation.offer_model=any"),
    *("dataset=table", "dataset.client=who", "dataset.inputs=[age,stay]", "dataset.split=rows"),
    *("strategy=dpsgd_fedavg", "privacy.unit=record", "strategy.local.lot_size=10"),
    *("privacy.epsilon=8", "privacy.delta=1e-6"),
]
TASKS = {
    "regression": ["task=regression", "dataset.label=price", "dataset.label_range=[0,300]"],
    "multilabel": ["task=multilabel", "dataset.labels=[pain,fever,cough]"],
}
OWN = {
    "regression": {"label_range": "0,300", "label": "price"},
    "multilabel": {"labels": ",".join(LABELS)},
}


@pytest.fixture(scope="module", params=TASKS)
def task(request):
    return request.param


@pytest.fixture(scope="module")
def words(task, tmp_path_factory):
    """A table of three people and of others' test rows, and the words of a run over it."""
    folder = tmp_path_factory.mktemp("table")
    rng = np.random.default_rng(0)
    for name in ("stays", "test"):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["age", "stay", "price", *LABELS, "who"])
            for row in range(ROWS):
                age, stay = rng.random(2).round(3)
                price = round(50 + 100 * age + 120 * stay, 2)
                labels = [int(age > 0.5), int(stay > 0.5), int(age + stay > 1)]
                rows.writerow([age, stay, price, *labels, f"{name} {row // 40}"])
    paths = [f"dataset.{key}={folder / f'{name}.csv'}" for key, name in
             (("path", "stays"), ("test_path", "test"))]  # fmt: skip
    return [*WORDS, *TASKS[task], *paths]


@pytest.fixture(scope="module")
def files(words, tmp_path_factory):
    """What a simulation gives its clients, and the policy of an owner who takes any model."""
    folder = tmp_path_factory.mktemp("files")
    export(folder, words, shards=True)
    policy = POLICY.replace("[privatekt, fedavg]", "[dpsgd_fedavg]") + "model: any\n"
    policy = policy.replace(
        "{randomized_response: {max_epsilon: 3.0}}",
        "{discrete_gaussian: {min_noise_multiplier: 0.001}, "
        "gaussian: {min_noise_multiplier: 0.001}}",
    )
    (folder / "policy.yaml").write_text(policy)
    table = "".join(f"{client} {openssh(client)}\n" for client in range(3))
    (folder / "enrolled.txt").write_text(table)
    return folder


def owners(task):
    return {"shape": "2,1,1", "classes": None, **OWN[task]}


@pytest.fixture(scope="module")
def finished(task, words, files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return run_devices(files, folder, SIZES, usual=words, **owners(task))


def test_devices_give_the_result_and_the_charges_of_a_simulation(task, words, finished, tmp_path):
    simulated = run_inline(tmp_path / "inline", *words, small=["engine=inline"])
    assert weights(finished.path) == weights(simulated.path)
    score = "r2" if task == "regression" else "f1"
    kept = ("round", score, "loss", "epsilon_proven", "answered", "failed")
    devices, inline = ([[r.get(k) for k in kept] for r in f.rows()] for f in (finished, simulated))
    assert devices == inline
    with Ledger(simulated.path / "ledger.sqlite", create=False) as ledger:
        charged = [entry.body for entry in ledger.entries(0) if entry.kind == "charge"]
    state = finished.path.parent / "state-0"
    with Ledger(state / "ledger.sqlite", create=False) as ledger:
        mine = [entry.body for entry in ledger.entries(0) if entry.kind == "charge"]
    assert mine == charged and len(mine) == 2


def test_shares_hold_labels_as_they_are(task, files):
    with np.load(files / "client-0.npz") as held:
        assert held["labels"].dtype == np.float32
        assert held["labels"].shape == ((40,) if task == "regression" else (40, 3))


class Own(Past):
    """Offers to a device whose owner says ``own``."""

    own: dict

    def config(self, policy=""):
        found = super().config(policy)
        return {**found, "sizes": "40,40,40", **self.own}


def test_a_device_keeps_a_model_of_its_owners_task_and_range_alone(task, words, files, finished):
    folder = finished.path.parent
    typed = ["engine=deploy", "engine.superlink=none", f"federation.enrolled={files}/enrolled.txt"]
    past = Own(files, folder, [*typed, *words, SIZES])
    past.own = owners(task)
    found, _ = received.received_model(past.state)
    saved = SavedModel.load(finished.path)
    assert found.objective == saved.objective and found.objective.kind == task
    assert np.array_equal(found.trainer.parameters(), saved.trainer.parameters())
    before = past.kept()
    told = saved.about["task"]
    for wrong in ({**told, "high": 301.0}, {**told, "kind": "classification"}, None):
        content = offer.content_of(changed(past, task=wrong))
        assert past.offer(content) == offer.answer().deflate()
    assert past.kept() == before
    log = (past.state / "errors.log").read_text()
    assert log.count("offers: task: is not that of the run that this device has agreed to") == 3


MALFORMED = {
    "one end": ({"label_range": "60"}, "label_range"),
    "three ends": ({"label_range": "0,1,2"}, "label_range"),
    "text": ({"label_range": "0,sixty"}, "label_range"),
    "no end": ({"label_range": "0,inf"}, "label_range"),
    "the wrong way": ({"label_range": "60,0"}, "label_range"),
    "nothing between": ({"label_range": "3,3"}, "label_range"),
    "empty": ({"label_range": ""}, "label_range"),
    "one label": ({"labels": "pain"}, "labels"),
    "a label twice": ({"labels": "pain,pain"}, "labels"),
    "no name": ({"labels": "pain,,cough"}, "labels"),
    "no label": ({"labels": " "}, "labels"),
    "both": ({"labels": "pain,cough", "label_range": "0,60"}, "labels"),
    "classes too": ({"label_range": "0,60", "classes": 3}, "label_range"),
    "classes beside labels": ({"labels": "pain,cough", "classes": 2}, "labels"),
    "pictures": ({"label_range": "0,60", "inputs": None}, "label_range"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_an_owners_malformed_word_on_labels_is_named(case):
    said, key = MALFORMED[case]
    config = {"clients": 0, "data": "stays.csv", "inputs": "age,stay", **said}
    with pytest.raises(DeviceError, match=f"^{key} in this device's node-config: "):
        OwnerSettings.of(config)


def owner(**said):
    return OwnerSettings.of({"clients": 3, "shape": "2,1,1", **said})


REFUSING = {
    "a regression of classes": ({"classes": 2}, ["task=regression"], "task=regression: by its"),
    "classes of numbers": (OWN["regression"], [], "task=classification: by its owner's word"),
    "labels of numbers": (OWN["regression"], ["task=multilabel"], "task=multilabel: by its"),
    "no such task": (OWN["regression"], ["task=ranking"], "task=ranking: on a device it must be"),
    "another range": (
        OWN["regression"],
        ["task=regression", "federation.devices.label_range=[0,1e-300]"],
        "federation.devices.label_range=.* another range",
    ),
    "a range of classes": (
        {"classes": 2},
        ["federation.devices.label_range=[0,300]"],
        "federation.devices.label_range=.* another range",
    ),
    "a range without an end": (
        OWN["regression"],
        ["task=regression", "federation.devices.label_range=[0,inf]"],
        "federation.devices.label_range=inf: on a device",
    ),
}


@pytest.mark.parametrize("case", REFUSING)
def test_a_run_of_another_task_or_range_is_refused_by_name(case):
    said, asked, reason = REFUSING[case]
    with pytest.raises(ConfigError, match=reason):
        device_config(to_run_config(["strategy=fedavg", *asked]), owner(**said))


def test_the_owners_range_is_the_runs_with_or_without_a_servers_word():
    for more in ([], ["federation.devices.label_range=[0,300]"]):
        words = to_run_config(["strategy=fedavg", "task=regression", *more])
        config = device_config(words, owner(**OWN["regression"]))
        assert config.federation.devices.label_range == [0, 300]


HOSTILE = {
    "of classes": (["strategy=nbafl"], "strategy=nbafl learns classification only"),
    "evaluation": (
        ["strategy=fedavg", "evaluation=protected_counts"],
        "clients' protected evaluation counts classes",
    ),
}


@pytest.mark.parametrize("data", ["{client}.npz", "nowhere"])
@pytest.mark.parametrize("case", HOSTILE)
def test_what_reads_classes_is_refused_whatever_the_data(case, data, tmp_path, opened):
    asked, reason = HOSTILE[case]
    device = Device(tmp_path, OPEN)
    device.node_config |= {"classes": None, "label_range": "0,9"}
    device.node_config |= {"data": str(tmp_path / data), "inputs": "a"}
    words = [
        *("task=regression", "federation.public=0", f"federation.num_clients={CLIENTS}"),
        *("run_dir=/nowhere/run-a", *asked),
    ]
    opened.clear()
    reply = device.ask(words, question(np.zeros(65, np.float32)))
    assert reply.error.reason == REFUSED and report(reply)["refused"] == list(MINE)
    assert reason in device.log()
    assert not device.charged()
    assert not any(re.search(r"\d\.npz|nowhere$", path) for path in opened)


def table_of(folder, suffix, task, odd):
    """Six rows of a client's table, and with ``odd`` that label in the last of them."""
    frame = pandas.DataFrame({"age": np.arange(1.0, 7), "stay": 0.5})
    frame["price"] = np.arange(10.0, 70, 10)
    for place, name in enumerate(LABELS):
        frame[name] = np.arange(6) % (place + 2) == 0
    column = "price" if task == "regression" else "fever"
    if odd is not None:
        frame[column] = [*frame[column][:-1].astype(object), odd]
    path = folder / f"x{suffix}"
    if suffix == ".csv":
        frame.to_csv(path, index=False)
    elif suffix == ".parquet":
        if odd is not None:
            frame[column] = frame[column].map(str)
        frame.to_parquet(path)
    else:
        names = [column] if task == "regression" else list(LABELS)
        labels = np.array(frame[names].values.tolist())
        images = frame[["age", "stay"]].to_numpy()
        np.savez(path, images=images, labels=labels[:, 0] if task == "regression" else labels)
    return path


@pytest.mark.parametrize("odd", [None, "much", "", np.nan, np.inf, 1e300, -3.5])
@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_a_label_that_cannot_be_read_blanks_its_row_alone(tmp_path, task, suffix, odd):
    said = {"data": str(table_of(tmp_path, suffix, task, odd)), **OWN[task]}
    if suffix != ".npz":
        said["inputs"] = "age,stay"
    own = owner(**said)
    found = OwnData(own, terms_of(own), tmp_path).of(3)
    blank = odd is not None and not (odd == -3.5 and task == "regression")
    shape = (6,) if task == "regression" else (6, 3)
    assert found.labels.dtype == np.float32 and found.labels.shape == shape
    assert found.images[:5, 0].ravel().tolist() == [1, 2, 3, 4, 5]
    if task == "regression":
        assert found.labels[:5].tolist() == [10, 20, 30, 40, 50]
    else:
        assert found.labels[:5].tolist() == [[1, 1, 1], [0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 0, 1]]
    assert (tmp_path / "errors.log").exists() == blank
    if blank:
        assert not found.images[5].any() and not found.labels[5].any()


@pytest.mark.parametrize("sizes", ["", "1,1,1,4"])
@pytest.mark.parametrize("features", [None, pca(components=1)])
def test_blank_records_have_the_tasks_type_and_shape(tmp_path, task, sizes, features):
    own = owner(data=str(tmp_path / "none.csv"), inputs="age,stay", sizes=sizes, **OWN[task])
    terms = terms_of(own)
    people = device_population(own, terms)
    assert people.dataset.objective == own.objective
    assert people.dataset.num_classes == (1 if task == "regression" else 3)
    fitted = None
    if features is not None:
        fitted = features.fit(np.random.default_rng(0).random((9, 2, 1, 1), np.float32))
    data = OwnData(own, terms, tmp_path, features, fitted)
    count = 4 if sizes else 1
    for found in (data.of(3), data.blank(3)):
        assert found.labels.dtype == np.float32 and not found.labels.any()
        assert found.labels.shape == ((count,) if task == "regression" else (count, 3))
        assert len(found.images) == count


def test_replies_with_and_without_an_unreadable_label_are_alike_but_for_their_numbers(
    task, tmp_path
):
    told = []
    for name, odd in (("one", None), ("other", "much")):
        folder = tmp_path / name
        folder.mkdir()
        device = Device(folder, OPEN)
        path = table_of(folder, ".csv", task, odd)
        device.node_config |= {
            **owners(task),
            "data": f"{path}",
            "clients": 3,
            "inputs": "age,stay",
        }
        device.node_config["sizes"] = ",".join(["6"] * CLIENTS)
        words = [
            *(f"task={task}", "strategy=fedavg", "model=linear", "strategy.local.epochs=1"),
            *(f"federation.num_clients={CLIENTS}", "federation.public=0", "run_dir=/nowhere/a"),
        ]
        size = 3 if task == "regression" else 9
        reply = device.ask(words, question(np.zeros(size, np.float32), clients=[3]))
        assert report(reply)["clients"] == [3], device.log()
        assert ("1 of 6 rows" in device.log()) == (odd is not None)
        told.append((report(reply), len(reply.content.deflate()), device.charged()))
    assert told[0] == told[1]


def test_the_owners_card_shows_the_task(task, tmp_path, capsys):
    path = table_of(tmp_path, ".csv", task, None)
    said = {"clients": 3, "shape": "2,1,1", "data": path, "inputs": "age,stay", **OWN[task]}
    doctor.main(["device", "--node-config", " ".join(f'{k}="{v}"' for k, v in said.items())])
    shown = capsys.readouterr().out
    if task == "regression":
        assert re.search(r"labels +numbers in the public range 0 to 300", shown)
    else:
        assert re.search(r"labels +3, as training: pain: 3, fever: 2, cough: 2", shown)
