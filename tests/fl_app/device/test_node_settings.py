"""On a device its owner decides: neither policy nor files follow from what a server sends."""

import time

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fl_app import client_app
from fl_app.config.overrides import to_run_config
from fl_app.device import agreement, service
from fl_app.device.agreement import run_name
from fl_app.device.hosts import DeviceHost
from fl_app.device.node_settings import SIMULATED, DeviceError, NodeSettings, is_simulated
from murmur.round.task import REFUSED
from tests.fl_app.device_under_test import MINE, OPEN, Device, model_size, question, report
from tests.fl_app.devices import DIGITS, device_config
from tests.fl_app.running import SMALL

POLICY = """
expires: 2099-01-01
servers: any
algorithms: [privatekt]
mechanisms: {randomized_response: {max_epsilon: 3.0}}
epsilon_per_release: 9.0
epsilon_per_lifetime: 20.0
delta: 1.0e-5
threat: local
minimum_surviving_clients: 2
allow_seeded_noise: false
allow_non_private: false
"""


@pytest.fixture
def device(tmp_path):
    """A device's node-config, with its owner's policy and state folder."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    return device_config(tmp_path, clients=0)


def ask(config, node_config, run_id=7, round=1):
    words = to_run_config([*config, f"run_dir=/nowhere/run-{run_id}"])
    settings = NodeSettings.device(node_config, run_name(words, run_id))
    node = DeviceHost(agreement.device_config(words, settings.owner), settings)
    model = node.trainer.initial(np.random.default_rng(0))
    arrays = ArrayRecord({"model": Array(model), "indices": Array(np.arange(3))})
    task = ConfigRecord({"round": round, "clients": [0]})
    reply = node.answer(RecordDict({"model": arrays, "task": task}))
    return node, dict(reply.config_records["report"])


def hostile(tmp_path, *overrides):
    """What a server would send that wants no policy, and its own choice of folder."""
    small = [word for word in SMALL if word != "privacy.noise=seeded"]
    small += ["privacy=paper", "federation.num_rounds=5", *DIGITS]
    return [*small, f"dataset.cache={tmp_path}/elsewhere", *overrides]


EMPTY = ["state", "policy", "data", "public", "num_clients", "peers", "label"]


@pytest.mark.parametrize("key", EMPTY)
def test_an_empty_word_of_the_owner_s_is_refused_and_not_read_as_none(device, key):
    """Such as a shell's variable that is not set: a ledger would begin anew in each folder."""
    device[key] = ""
    with pytest.raises(DeviceError, match=f"^{key} in .*: is empty; give it a value, or leave"):
        NodeSettings.device(device, "run")


def test_a_device_with_an_empty_state_folder_answers_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    device = Device(tmp_path)
    device.node_config["state"] = ""
    before = sorted(tmp_path.iterdir())
    reply = device.ask(device.words("strategy=votes"), question(np.zeros(3, np.float32)))
    assert (reply.error.code, reply.error.reason) == (1, REFUSED)  # no client was touched
    with pytest.raises(DeviceError, match="state"):
        service.Device(device.node_config)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("round", [1, "one"])
def test_a_reply_is_dated_as_its_question(tmp_path, monkeypatch, round):
    """When it was made tells how long training took, and so how many records there are."""
    began = []
    monkeypatch.setattr(client_app, "is_simulated", lambda _: began.append(time.time()))
    device = Device(tmp_path, OPEN)
    words = device.words("strategy=fedavg", "model=mlp", "privacy.secure_aggregation=off")
    asked = question(np.zeros(model_size(words), np.float32), round=round)
    reply = device.ask(words, asked)
    assert reply.metadata.created_at <= began[0]
    assert reply.has_error() == (round == "one")  # it is no number


def test_device_answers_within_its_policy_and_keeps_its_files_to_itself(tmp_path, device):
    node, report = ask(hostile(tmp_path), device)
    assert report["clients"] == [0]
    assert (tmp_path / "state" / "ledger.sqlite").exists()
    assert not (tmp_path / "elsewhere").exists()
    assert node.ledger.clients() == ["0"]


def test_device_without_a_policy_refuses_everything(tmp_path, device):
    del device["policy"]
    node, report = ask(hostile(tmp_path), device)
    assert report["clients"] == []
    assert report["reasons"] == [REFUSED]
    assert node.ledger.clients() == []


@pytest.mark.parametrize(
    "wish",
    [
        ["privacy.epsilon=1e6"],
        ["privacy.epsilon=inf"],
        ["strategy=fedavg", "privacy=none"],
        ["privacy.noise=seeded"],
        ["privacy.delta=0.1"],
    ],
    ids=lambda words: words[0],
)
def test_server_cannot_talk_a_device_out_of_its_policy(tmp_path, device, wish):
    node, report = ask(hostile(tmp_path, *wish), device)
    assert report["clients"] == []
    assert node.ledger.clients() == []


def test_lifetime_counts_over_all_runs_of_a_device(tmp_path, device):
    allowed = [
        bool(ask(hostile(tmp_path), device, run_id=run, round=run)[1]["clients"])
        for run in (1, 2, 3, 4)
    ]
    assert allowed == [True, True, False, False]


def test_simulated_nodes_are_known_by_their_engine():
    assert is_simulated({SIMULATED: True})
    assert not is_simulated({"partition-id": 0, "num-partitions": 2})


def test_a_device_on_which_somebody_starts_ray_is_still_a_device():
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        assert not is_simulated({})
        assert ray.get(ray.remote(Node).remote().is_simulated.remote())
    finally:
        ray.shutdown()


class Node:
    """What Flower's simulation makes an actor of."""

    def is_simulated(self):
        return is_simulated({})


def test_what_a_client_remembers_of_one_run_stays_out_of_the_next(tmp_path):
    device = Device(tmp_path)
    words = ["strategy=dpfl_bnn", "privacy.threat=local", "model.channels=[]", "model.hidden=8"]
    for run, number in (("one", 5), ("..", 1), ("one", 6)):
        asked = device.words(*words, f"run_dir=/nowhere/{run}")
        content = question(np.zeros(model_size(asked), np.float32), round=number)
        assert report(device.ask(asked, content))["clients"] == list(MINE)
    kept = sorted((device.state / "clients").glob("*/3/*.safetensors"))
    assert [path.stem for path in kept].count("6") == 1 and len({p.parent for p in kept}) == 2
