"""Devices in one process: each hosts a client with its own files, and the results are the same.

``tests/deploy`` does the same with Flower's real processes, of which one run takes a minute.
"""

import pytest
from flwr.app import Context, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.task_identity import TaskIdentity
from safetensors.numpy import load_file

from fl_app.cli import main
from fl_app.client_app import app as client_app
from fl_app.config.errors import ConfigError
from fl_app.config.overrides import to_run_config
from fl_app.engines.deploy import device_overrides
from fl_app.engines.inline import FIRST_NODE, InlineGrid
from fl_app.run.results import RunFolder
from fl_app.server_app import app as server_app
from fl_app.tools.export import export
from murmur.compat import flower_grid
from murmur.privacy.ledger import Ledger
from murmur.privacy.run_header import ServerKey
from murmur.round.task import REFUSED, RunError
from murmur.secure_sum.server import SecureServer
from tests.clock import Clock
from tests.federation.loopback import POLICY
from tests.fl_app.running import run_inline
from tests.node_keys import openssh, told

WORDS = [
    "strategy=privatekt",  # where a test chooses no other
    "federation.num_clients=3",
    "federation.num_rounds=2",
    "federation.quorum=1.0",
    "federation.round_timeout=0.1",
    "federation.public=400",
    "privacy.noise=seeded",
    "strategy.local.epochs=1",
]
DEPLOY = ["engine=deploy", "engine.superlink=none"]
RUNS = {
    "privatekt": ["strategy=privatekt", "privacy.epsilon=8"],
    "nbafl": ["strategy=nbafl", "federation.devices.sizes=[346,346,345]"],
    "masked": [
        "strategy=fedavg",
        "privacy.secure_aggregation=on",
        "federation.devices.sizes=[346,346,345]",
    ],
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with what a simulation of WORDS gives its clients, and an owner's policy."""
    folder = tmp_path_factory.mktemp("files")
    export(folder, WORDS, shards=True)
    policy = POLICY.replace("[privatekt, fedavg]", "[privatekt, fedavg, nbafl]")
    also = "{discrete_gaussian: {min_noise_multiplier: 0.001}, randomized_response: {"
    policy = policy.replace("{randomized_response: {", also)
    (folder / "policy.yaml").write_text(policy)
    table = "".join(f"{client} {openssh(client)}\n" for client in range(3))
    (folder / "enrolled.txt").write_text(table)
    return folder


class Devices(InlineGrid):
    """Nodes with an owner each; ``off``: numbers of those that are switched off."""

    def __init__(self, run_config, configs, off):
        super().__init__(client_app, run_config, len(configs))
        self._contexts = {
            FIRST_NODE + n: Context(
                run_id=1, node_id=FIRST_NODE + n, node_config=c, state=RecordDict(), run_config={}
            )
            for n, c in enumerate(configs)
            if n not in off
        }
        for context in self._contexts.values():
            context.run_config = run_config

    def get_nodes(self):
        return [NodeInfo(node_id=n, public_key=told(n - FIRST_NODE)) for n in self.get_node_ids()]


class Losing(Devices):
    """A network that loses whatever is sent for the first time, or the answer to it."""

    known = frozenset()

    def push_messages(self, messages):
        sent = list(messages)
        new = [m for m in sent if m.metadata.group_id not in self.known]
        self.known |= {message.metadata.group_id for message in new}
        super().push_messages(self.delivered(sent, new))
        for message in new:
            self._replies.pop(message.metadata.message_id, None)
        for number, message in enumerate(sent):
            if not message.metadata.message_id:
                message.metadata.__dict__["_message_id"] = f"lost-{len(self.known)}-{number}"
        return [message.metadata.message_id for message in sent]


class LosingMessages(Losing):
    def delivered(self, sent, new):
        return [message for message in sent if message not in new]


class LosingAnswers(Losing):
    def delivered(self, sent, new):
        return sent


def run_devices(
    files,
    folder,
    *words,
    off=(),
    name="run",
    hosted=(0, 1, 2),
    usual=WORDS,
    network=Devices,
    **changed,
):
    """A run of that name over devices whose states are in ``folder``; its own folder.

    ``hosted``: the clients of each device, such as 3 or "3,7".
    """
    table = f"federation.enrolled={files}/enrolled.txt"
    typed = [*DEPLOY, table, *usual, f"run_dir={folder}/{name}", *words]
    run_config = to_run_config([*typed, *device_overrides(typed)])
    sizes = next((w for w in words if "devices.sizes" in w), "=[]").partition("=")[2].strip("[]")
    configs = [
        {
            "shape": "1,8,8",
            "classes": 10,
            "sizes": sizes,
            "clients": clients,
            "data": f"{files}/client-{{client}}.npz",
            "public": f"{files}/public.npz",
            "policy": f"{files}/policy.yaml",
            "state": f"{folder}/state-{number}",
            **changed,
        }
        for number, clients in enumerate(hosted)
    ]
    TaskIdentity.task_id = TaskIdentity.run_id = 1
    TaskIdentity.node_id = SUPERLINK_NODE_ID
    context = Context(
        run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=run_config
    )
    server_app(network(run_config, configs, off), context)
    return RunFolder(folder / name)


def weights(folder):
    return {name: w.tobytes() for name, w in load_file(folder / "model/model.safetensors").items()}


@pytest.mark.parametrize("network", [Devices, LosingMessages, LosingAnswers])
@pytest.mark.parametrize("name", RUNS)
def test_devices_give_the_result_of_a_simulation_bit_for_bit(
    files, tmp_path, monkeypatch, name, network
):
    """Also where Flower loses everything once: whoever is silent is asked again, and pays once."""
    monkeypatch.setattr(flower_grid, "time", Clock())
    monkeypatch.setattr(flower_grid, "MAX_LOOK_SECONDS", 0.01)
    own = run_devices(files, tmp_path, *RUNS[name], network=network)
    words = [word for word in RUNS[name] if "devices" not in word]
    simulated = run_inline(tmp_path / "inline", *WORDS, *words, small=["engine=inline"])
    assert weights(own.path) == weights(simulated.path)
    kept = ("round", "accuracy", "loss", "epsilon_proven", "answered", "failed")
    devices, inline = ([[r.get(k) for k in kept] for r in f.rows()] for f in (own, simulated))
    assert devices == inline
    for client in range(3):
        with Ledger(tmp_path / f"state-{client}" / "ledger.sqlite", create=False) as ledger:
            assert ledger.clients() == [str(client)]
            assert len(list(ledger.entries(client, "run"))) == 2


def test_round_goes_on_without_a_device_that_is_off_and_names_it(files, tmp_path):
    run = run_devices(files, tmp_path, "federation.quorum=0.6", off=[1])
    assert [row["answered"] for row in run.rows()] == [0, 2, 2]
    assert list(run.rows()[1]["failed"]) == ["1"]
    assert "no node that hosts it is online" in run.rows()[1]["failed"]["1"]
    assert not (tmp_path / "state-1").exists()


def test_nobody_pays_for_a_round_that_cannot_count(files, tmp_path):
    with pytest.raises(RunError, match="fewer than 3 of 3 clients are online"):
        run_devices(files, tmp_path, "federation.num_rounds=5", off=[1])
    assert not (tmp_path / "state-0" / "ledger.sqlite").exists()


def test_resumed_run_has_the_same_result_and_no_device_pays_twice(files, tmp_path, monkeypatch):
    """The server dies after a round was answered and before its checkpoint was written."""
    whole = run_devices(files, tmp_path / "whole", "federation.num_rounds=3")
    save = RunFolder.save_checkpoint

    def die(folder, checkpoint):
        if checkpoint.run.round == 2:
            raise KeyboardInterrupt
        save(folder, checkpoint)

    monkeypatch.setattr(RunFolder, "save_checkpoint", die)
    with pytest.raises(KeyboardInterrupt):
        run_devices(files, tmp_path / "cut", "federation.num_rounds=3")
    monkeypatch.setattr(RunFolder, "save_checkpoint", save)
    cut = run_devices(files, tmp_path / "cut", "federation.num_rounds=3")
    assert weights(cut.path) == weights(whole.path)
    for client in range(3):
        with Ledger(tmp_path / f"cut/state-{client}/ledger.sqlite", create=False) as ledger:
            assert len(ledger.events(client)) == 3


def test_second_run_that_asks_the_same_is_charged_under_its_own_name(files, tmp_path):
    first, second = (run_devices(files, tmp_path, name=name) for name in ("one", "two"))
    assert weights(first.path) == weights(second.path)
    for client in range(3):
        with Ledger(tmp_path / f"state-{client}/ledger.sqlite", create=False) as ledger:
            charged = [(e.run, e.round) for e in ledger.entries(client) if e.kind == "charge"]
            assert charged == [("one", 1), ("one", 2), ("two", 1), ("two", 2)]


def test_second_run_under_the_same_name_is_refused_and_why_is_in_each_devices_log(files, tmp_path):
    first = run_devices(files, tmp_path, "federation.num_rounds=3")
    elsewhere = tmp_path / "elsewhere" / "run"
    with pytest.raises(RunError, match=REFUSED):
        run_devices(files, tmp_path, "federation.num_rounds=3", f"run_dir={elsewhere}", "seed=1")
    assert [row["answered"] for row in first.rows()] == [0, 3, 3, 3]
    for client in range(3):
        log = (tmp_path / f"state-{client}" / "errors.log").read_text()
        assert "a new run needs a name of its own" in log
        with Ledger(tmp_path / f"state-{client}/ledger.sqlite", create=False) as ledger:
            assert len(ledger.events(client)) == 3


@pytest.mark.parametrize("names", ["policy", "public"])
def test_devices_error_keeps_its_text_to_itself(files, tmp_path, names):
    with pytest.raises(RunError) as error:
        run_devices(files, tmp_path, "federation.num_rounds=3", **{names: f"{files}/no-such-file"})
    assert "its own log says why" in str(error.value)
    assert "no-such-file" not in str(error.value)
    assert "no-such-file" in (tmp_path / "state-0" / "errors.log").read_text()


def test_devices_data_that_are_gone_are_answered_with_blank_records_and_told_to_their_owner(
    files, tmp_path
):
    run = run_devices(files, tmp_path, data=f"{files}/no-such-folder")
    assert [row["answered"] for row in run.rows()] == [0, 3, 3]
    assert "no-such-folder" in (tmp_path / "state-0" / "errors.log").read_text()
    written = [path for path in run.path.rglob("*") if path.is_file()]
    assert all(b"no-such-folder" not in path.read_bytes() for path in written)


@pytest.mark.parametrize("wish", ["strategy.name=${oc.env:HOME}", "privacy.delta=${oc.env:SECRET}"])
def test_device_does_not_read_its_environment_for_a_server(tmp_path, monkeypatch, wish):
    from flwr.app import ArrayRecord, ConfigRecord, Message

    monkeypatch.setenv("SECRET", "0.123")
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    record = RecordDict({"model": ArrayRecord(), "task": ConfigRecord()})
    message = Message(record, dst_node_id=1, message_type="train")
    message.metadata.__dict__["_message_id"] = "m"
    (tmp_path / "policy.yaml").write_text(POLICY)
    config = {"clients": 0, "state": str(tmp_path), "policy": str(tmp_path / "policy.yaml")}
    context = Context(1, 1, config, RecordDict(), to_run_config([*DEPLOY, wish]))
    reply = client_app(message, context)
    assert reply.error.reason == REFUSED
    assert "interpolation" in (tmp_path / "errors.log").read_text()


def test_a_sum_that_lacks_a_device_says_how_many_it_needs(files, tmp_path):
    words = [*RUNS["masked"], "federation.num_rounds=5", "federation.quorum=0.5"]
    words += ["privacy.secure_sum.minimum=1.0"]
    with pytest.raises(RunError) as error:
        run_devices(files, tmp_path, *words, off=[1])
    said = str(error.value)
    assert "no client answered" not in said
    assert "a sum needs 3 clients, and 2 are there" in said
    assert "1 client (1): not asked: no node that hosts it is online" in said


@pytest.mark.parametrize("name", RUNS)
def test_devices_that_pin_the_servers_key_answer_its_runs_alone(files, tmp_path, name, capsys):
    key = ServerKey.generate()
    key.save(tmp_path / "server.key")
    policy = (files / "policy.yaml").read_text()
    pinned = policy.replace("servers: any", f"servers: [{key.public_key}]")
    assert pinned != policy
    (tmp_path / "policy.yaml").write_text(pinned)
    own = {"policy": f"{tmp_path}/policy.yaml"}
    words = [*RUNS[name], f"federation.server_key={tmp_path}/server.key"]
    run = run_devices(files, tmp_path, *words, **own)
    assert [row["answered"] for row in run.rows()] == [0, 3, 3]
    with Ledger(tmp_path / "state-0" / "ledger.sqlite", create=False) as ledger:
        kinds = [entry.kind for entry in ledger.entries()]
        assert kinds[:3] == ["run", "question", "charge"]
        assert kinds.count("confirmed") == (2 if name == "masked" else 0)
    for state in range(3):  # each owner alone, by the signed statement
        path = str(tmp_path / f"state-{state}")
        assert main(["verify", str(run.path), "--mine", "--state", path]) == 0
        assert "does not contradict what this device was asked" in capsys.readouterr().out
    signed = run.statement_path.read_bytes()
    run_devices(files, tmp_path, *words, **own)  # as `murmur resume` does: it asks nothing more
    assert run.statement_path.read_bytes() == signed
    with pytest.raises(ConfigError, match="the run was signed as ended after 2 rounds"):
        run_devices(files, tmp_path, *words, "federation.num_rounds=3", **own)
    unsigned = run_devices(files, tmp_path, *RUNS[name], name="unsigned", **own)
    assert [row["answered"] for row in unsigned.rows()] == [0, 0, 0]


def test_a_server_that_is_killed_in_a_secure_sum_states_all_of_it(
    files, tmp_path, monkeypatch, capsys
):
    ServerKey.generate().save(tmp_path / "server.key")
    words = [*RUNS["masked"], f"federation.server_key={tmp_path}/server.key"]

    def die(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SecureServer, "total", die)
        with pytest.raises(KeyboardInterrupt):
            run_devices(files, tmp_path, *words)
    run = run_devices(files, tmp_path, *words)
    for state in range(3):
        path = str(tmp_path / f"state-{state}")
        assert main(["verify", str(run.path), "--mine", "--state", path]) == 0
        assert "2 confirmed secure sums" in capsys.readouterr().out
