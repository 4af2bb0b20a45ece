"""A foreign app behind the Guard: what it may, what it costs, and when its device answers."""

import os
import subprocess
import sys
import time
import zlib

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAvg
from numpy.testing import assert_allclose

from fl_app.cli import main
from fl_app.device.node_settings import DeviceError
from murmur.compat.flower_runtime import TaskInput
from murmur.flower import private
from murmur.privacy.accounting import Threat, epsilon
from murmur.privacy.audit import empirical_epsilon
from murmur.privacy.ledger import Ledger
from murmur.privacy.ledger.chain import LedgerSigner
from murmur.privacy.policy import Policy
from murmur.privacy.policy_terms import GuardRules
from murmur.privacy.receipt import Receipt
from murmur.privacy.run_header import ServerKey
from murmur.round.task import REFUSED, SIGNED
from murmur_guard import guard as guarding
from murmur_guard.guard import AppError, _Watched, sandbox_of
from murmur_guard.guarded import pack_frame, unpack_frame
from murmur_guard.sandbox import start
from tests.fl_app.device.bundles import COUNTING, HARMFUL, LEAKING, TORCH, bundle
from tests.guarded_devices import (
    SUPERLINK,
    TASK,
    Clock,
    Federation,
    charges,
    device,
    guard_of,
    needs_lock,
    started,
)
from tests.murmur.flower.nodes import POLICY, app_of, record, without_noise

pytestmark = [needs_lock, pytest.mark.usefixtures("own_folders")]

EPSILON = 0.5  # an audit of so few runs can find twice that
MODEL = {"0": np.zeros(3, np.float32)}


def test_an_unmodified_numpy_app_trains_and_evaluates(tmp_path, monkeypatch):
    without_noise(monkeypatch)
    grid = Federation(tmp_path, [bundle()])
    terms = {"metrics": {"loss": (0, 1)}, "evaluate": {"accuracy": (0, 1)}}
    # The others' own app has no such loss: the middle of the range.
    result = started(grid, MODEL, clip=10.0, **terms)
    assert_allclose(result.arrays["0"].numpy(), np.full(3, 2 / 3), atol=1e-4)
    assert result.train_metrics_clientapp[1]["loss"] == pytest.approx((0.25 + 1.0) / 3, abs=1e-4)
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == pytest.approx(0.75, abs=1e-4)
    assert charges(grid.guards[0]) == 2
    assert grid.clocks[0].slept == [400.0, 400.0]  # no phase of the protocol has waited
    facts = [r.content["device"] for r in grid.replies if "device" in r.content]
    assert sorted(bool(fact["guarded"]) for fact in facts) == [False, False, True]


@pytest.mark.federation
def test_an_unmodified_torch_app_trains_with_workers_and_a_state_of_its_own(tmp_path, monkeypatch):
    without_noise(monkeypatch)
    grid = Federation(tmp_path, [bundle(TORCH.replace("WORKERS", "2"))])
    rng = np.random.default_rng(0)
    model = {
        "0.weight": rng.normal(size=(4, 3)).astype(np.float32),
        "0.bias": np.zeros(4, np.float32),
        "1.weight": np.ones(4, np.float32),
        "1.bias": np.zeros(4, np.float32),
        "1.running_mean": np.zeros(4, np.float32),
        "1.running_var": np.ones(4, np.float32),
        "1.num_batches_tracked": np.array(0, np.int64),
        "2.weight": rng.normal(size=(2, 4)).astype(np.float32),
        "2.bias": np.zeros(2, np.float32),
    }
    result = started(grid, model, rounds=2, metrics={"rounds": (0, 3)}, clip=10.0)
    assert not np.array_equal(result.arrays["0.weight"].numpy(), model["0.weight"])
    # The app counts its rounds in Context.state; the two others are the middle of the range.
    seen = [result.train_metrics_clientapp[n]["rounds"] for n in (1, 2)]
    assert_allclose(seen, [(1 + 3) / 3, (2 + 3) / 3], atol=1e-4)
    assert not (grid.guards[0].folder / "errors.log").exists()


def served(grid, rounds, key=None):
    """How often its app finds that it was asked, in the last of a server's ``rounds``."""
    strategy = private(
        FedAvg(fraction_evaluate=0.0),
        **{"epsilon": 8.0, "delta": 1e-5, "clip": 10.0},
        metrics={"rounds": (0, 9)},
        server_key=key,
    )
    result = strategy.start(grid, record(MODEL), num_rounds=rounds, timeout=100)
    mean = result.train_metrics_clientapp[rounds]["rounds"]
    return round(mean * 3 - 2 * 4.5, 3)  # the two others are the middle of the range


@pytest.fixture
def keys(tmp_path):
    paths = [tmp_path / name for name in ("one.key", "another.key")]
    for path in paths:
        ServerKey.generate().save(path)
    return paths


def test_an_apps_state_is_of_a_run_and_its_server(tmp_path, monkeypatch, keys):
    """Each server goes on where the one before ended, for a round is answered once."""
    without_noise(monkeypatch)
    grid = Federation(tmp_path, [bundle(COUNTING)])
    one, another = keys
    assert served(grid, 1, one) == 1
    assert served(grid, 2, another) == 1  # the run's number is the same
    assert served(grid, 3, one) == 2
    assert served(grid, 4) == 1  # nothing is signed: the SuperLink's
    assert served(grid, 5) == 2
    grid.superlink = "elsewhere.example:9092"
    assert served(grid, 6) == 1
    assert served(grid, 7, one) == 3  # whichever SuperLink it speaks through


def test_a_guarded_device_gives_a_receipt_of_a_run_that_is_over(tmp_path, monkeypatch, keys):
    grid = Federation(tmp_path, [bundle(COUNTING)])
    folder = grid.guards[0].folder
    with (folder / "policy.yaml").open("a") as policy:
        policy.write("\nreceipts: run, sizes\n")
    served(grid, 1, keys[0])
    (path,) = tmp_path.glob("murmur-results/*/receipts/*.json")
    signer = LedgerSigner.from_pem((folder / "ledger.sqlite.key").read_bytes())
    receipt = Receipt.read(path.read_bytes(), signer.public_key)
    assert [entry.round for entry in receipt.entries] == [1]
    assert receipt.peers == "any" and receipt.statement is not None
    assert grid.clocks[0].slept == [400.0]  # no app was called for it


def test_a_signature_that_does_not_hold_opens_no_servers_state(tmp_path, monkeypatch, keys):
    without_noise(monkeypatch)
    grid = Federation(tmp_path, [bundle(COUNTING)])
    assert served(grid, 1, keys[0]) == 1

    def forged(message, place):
        if SIGNED in message.content:
            words = message.content[SIGNED]["words"]
            message.content[SIGNED]["words"] = [bytes(len(word)) for word in words]
        return message

    grid.spoil = forged
    assert served(grid, 2, keys[0]) == 1


WAYS = "huge malformed nested endless bomb disk memory ends dies crashes hangs raises"


@pytest.mark.parametrize("way", WAYS.split())
@pytest.mark.federation
def test_a_harmful_app_costs_its_device_a_zero_update(tmp_path, monkeypatch, way):
    without_noise(monkeypatch)
    grid = Federation(tmp_path, [bundle(HARMFUL)], seconds=8.0)
    model = {"0": np.full(3, 0.5, np.float32)}
    grid.plain = app_of(lambda place: lambda arrays: {n: a + 0.3 for n, a in arrays.items()})
    result = started(grid, model, config=ConfigRecord({"does": way}))
    assert_allclose(result.arrays["0"].numpy(), 0.5 + 0.2, atol=1e-4)
    own = grid.guards[0]
    assert charges(own) == 1 and grid.clocks[0].slept == [400.0]
    assert "the app" in (own.folder / "errors.log").read_text()
    sizes = {len(array.data) for r in grid.replies for array in _arrays(r)}
    assert len(sizes) == 1
    assert not [p for p in _processes() if str(own.folder) in p]


def _arrays(reply):
    return [a for held in reply.content.array_records.values() for a in held.values()]


def _processes():
    done = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def _size(value):
    if isinstance(value, Array):
        return len(value.data)
    return len(value) if isinstance(value, bytes) else len(repr(value))


def _shape(reply):
    """Names, lengths and types of all that leaves in a reply."""
    shape = {}
    for name, held in reply.content.items():
        for key, value in held.items():
            parts = value if isinstance(value, list) else [value]
            sizes = [_size(part) for part in parts]
            shape[name, key] = type(value).__name__, sizes
    return shape


def leaking_run(folder, row, ways, **terms):
    """The result, and all else that leaves a device whose first row is ``row``."""
    grid = Federation(folder / str(row), [bundle(LEAKING)], rows=f"{row},1,1\n")
    config = ConfigRecord({"does": ways})
    result = started(grid, MODEL, config=config, metrics={"loss": (0, 1)}, **terms)
    told = [_shape(reply) for reply in grid.replies if not reply.has_error()]
    told.sort(key=repr)
    return result, (told, grid.clocks[0].slept, charges(grid.guards[0]))


LEAKS = "sizes names metrics time output update"


@pytest.mark.parametrize(
    "way",
    ["errors", *(pytest.param(way, marks=pytest.mark.federation) for way in LEAKS.split())],
)
def test_what_leaves_tells_of_a_record_by_the_clipped_update_alone(tmp_path, monkeypatch, way):
    """A whole run of an app that tells of its first row in every way that it has."""
    without_noise(monkeypatch)
    (one, first), (other, second) = (leaking_run(tmp_path, row, way) for row in (0, 3))
    failed = [log.read_text() for log in tmp_path.glob("*/guarded-0/device/errors.log")]
    assert len(failed) == (way == "errors"), failed
    assert first == second
    moved = other.arrays["0"].numpy() - one.arrays["0"].numpy()
    if way == "update":
        assert 0 < np.linalg.norm(moved) <= 1 / 3 + 1e-4
    elif way == "errors":  # an app that fails answers with a zero, and the middle of the range
        assert np.array_equal(moved, np.zeros(3))
    else:
        assert np.array_equal(moved, np.zeros(3))
        assert one.train_metrics_clientapp == other.train_metrics_clientapp


@pytest.mark.long
@pytest.mark.parametrize(("noise", "runs"), [(True, 40), (False, 24)])
def test_an_audit_of_an_app_that_leaks_finds_no_more_than_its_budget(
    tmp_path, monkeypatch, noise, runs
):
    """Of whole runs on two devices' data, by the model and by all else. Without noise it does."""
    if not noise:
        without_noise(monkeypatch)
    models = {}
    others = {}
    for row in (-1, 1):
        seen = [
            leaking_run(tmp_path / str(number), row, LEAKS, epsilon=EPSILON)
            for number in range(runs)
        ]
        models[row] = [float(result.arrays["0"].numpy().sum()) for result, _ in seen]
        others[row] = [zlib.crc32(repr(told).encode()) for _, told in seen]
    assert empirical_epsilon(others[-1], others[1], confidence=0.95) == 0
    found = empirical_epsilon(models[-1], models[1], delta=1e-5, confidence=0.95)
    assert (found <= EPSILON) == noise


# The instant -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("took", "leaves"), [(0.0, 400.0), (59.0, 400.0), (399.9, 400.0), (401.0, 800.0)]
)
def test_an_answer_leaves_at_the_instant_that_the_policy_fixes(tmp_path, monkeypatch, took, leaves):
    clock = Clock()
    guard = guard_of(device(tmp_path), clock)

    def answered(message, context, app, guarded, alone):
        app.started = True
        clock.now += took
        return Message(RecordDict(), reply_to=message)

    monkeypatch.setattr(guarding, "protect", answered)
    began = clock.now
    message = Message(RecordDict(), dst_node_id=101, message_type="train")
    guard.reply(TaskInput(message, None, "", "", b"", SUPERLINK), None)
    assert clock.now - began == pytest.approx(leaves)
    assert (guard.folder / "errors.log").exists() == (took > 400)


def test_what_starts_no_app_is_answered_at_once(tmp_path):
    clock = Clock()
    guard = guard_of(device(tmp_path), clock)
    grid = Federation(tmp_path / "grid", [])
    context = next(iter(grid._contexts.values()))
    message = Message(RecordDict({"arrays": record(MODEL)}), dst_node_id=101, message_type="train")
    reply = guard.answer(TASK, TaskInput(message, context, "", "", bundle(), SUPERLINK))
    assert "wrap the server's strategy" in reply.error.reason
    assert clock.slept == [] and charges(guard) == 0


# What one process may -----------------------------------------------------------------------------


def watched(code, **changes):
    rules = {"app_seconds": 1.0, "memory": 300 << 20, "disk": 1 << 30, "processes": 20, **changes}
    rules = GuardRules(bundles=(), data=(), answer_seconds=9.0, cpu_seconds=9, **rules)
    own = sandbox_of(rules)
    command = [sys.executable, "-I", "-c", code]
    with open(os.devnull, "rb") as nothing:
        return _Watched(start(own, command, {}, nothing), rules)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import time; time.sleep(100)", "ended after 1 s"),
        ("pass", "ended without a reply"),
        ("import os; os.write(1, b'123')", "ended without a reply"),
        ("import os; os.write(1, (1 << 40).to_bytes(8, 'little'))", "is of 1099511627784 bytes"),
        ("import sys\nwhile True: sys.stderr.write('x' * 65536)", "ended after 1 s"),
        ("import os\nfor _ in range(9): os.fork()\nimport time; time.sleep(50)", "processes"),
        ("import os\nos.fork()\nx = b'x' * (200 << 20)\nwhile True: pass", "MiB of memory"),
    ],
)
def test_a_process_that_takes_too_much_is_ended_with_all_that_it_started(code, said):
    child = watched(code, app_seconds=1.0 if "after" in said else 30.0)
    try:
        with pytest.raises(AppError, match=said):
            child.answer(1 << 16)
        assert len(child.printed()) <= guarding._LOG
    finally:
        child.end()
    assert guarding._processes(child._locked.group) == []


def test_a_reply_is_taken_up_to_its_own_length():
    frame = pack_frame({"a": 1}, [b"one", b""])
    child = watched(f"import os; os.write(1, {frame!r} + b'more')\nwhile True: pass")
    try:
        assert unpack_frame(child.answer(1 << 16), 100) == ({"a": 1}, [b"one", b""])
    finally:
        child.end()


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        pack_frame({}, [b"x"])[:-1],
        pack_frame({}, [b"x"]) + b"x",
        pack_frame({"x": "y" * 200}, []),
        b"\x06\0\0\0\0\0\0\0\x02\0\0\0[]",
        b'\x12\0\0\0\0\0\0\0\x0e\0\0\0{"sizes":[-1]}',
        b'\x12\0\0\0\0\0\0\0\x0e\0\0\0{"sizes":[99]}',
        b'\x13\0\0\0\0\0\0\0\x0f\0\0\0{"sizes":[1.0]}',
        b'\x16\0\0\0\0\0\0\0\x12\0\0\0{"sizes":"nothing"}',
    ],
)
def test_frames_that_are_none_are_refused(frame):
    with pytest.raises((ValueError, TypeError, KeyError, AttributeError, Exception)):
        unpack_frame(frame, 100)


def test_an_app_finds_nothing_of_its_guards(tmp_path, monkeypatch):
    """Its environment, its descriptors, its node-config, and where it writes."""
    monkeypatch.setenv("SECRET", "the owner's")
    tells = """
import os
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
app = ClientApp()
@app.train()
def train(message, context):
    found = {"environment": float(any("SECRET" in key or "MURMUR" in key for key in os.environ))}
    known = {"data", "partition-id", "num-partitions"}
    found["config"] = float(len(set(context.node_config) - known))
    found["records"] = float(len(set(message.content) - {"arrays", "config"}))
    found["descriptors"] = 0.0
    for number in range(1000):
        try:
            os.fstat(number)
            found["descriptors"] += 1
        except OSError:
            pass
    content = RecordDict({"arrays": message.content["arrays"], "m": MetricRecord(found)})
    return Message(content, reply_to=message)
"""
    grid = Federation(tmp_path, [bundle(tells)])
    without_noise(monkeypatch)
    names = {"environment": (0, 2), "config": (0, 2), "records": (0, 2), "descriptors": (0, 20)}
    found = started(grid, MODEL, metrics=names).train_metrics_clientapp[1]
    values = {name: 3 * found[name] - high for name, (_, high) in names.items()}
    # The null device, the answer, and its log as standard output and standard error.
    expected = {"environment": 0, "config": 0, "records": 0, "descriptors": 4}
    assert values == pytest.approx(expected, abs=0.01)


def test_nothing_of_an_app_stays_but_its_state(tmp_path):
    """Not for longer than 30 days."""
    states = device(tmp_path / "guarded-0") / "apps"
    states.mkdir()
    month = time.time() - 31 * 24 * 3600
    (states / "old.state").touch()
    os.utime(states / "old.state", (month, month))
    grid = Federation(tmp_path, [bundle()])
    before = set(grid.guards[0].folder.rglob("*"))
    started(grid, MODEL)
    assert sorted(path.suffix for path in states.iterdir()) == [".message", ".state"]
    assert not (states / "old.state").exists()
    made = {path.name for path in set(grid.guards[0].folder.rglob("*")) - before}
    assert not {"app", "plain", "scratch"} & made


# What an owner says -------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [True, False])
def test_owner_may_name_the_bundles_that_may_run(tmp_path, named):
    archive = bundle()
    import hashlib

    digest = hashlib.sha256(archive if named else b"another").hexdigest()
    grid = Federation(tmp_path, [archive], bundles=f"[{digest}]")
    message = Message(RecordDict({"a": ConfigRecord()}), dst_node_id=101, message_type="train")
    reply = grid.answer(message, next(iter(grid._contexts.values())))
    assert (reply.error.reason == REFUSED) != named


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"answer_seconds": 60}, "must be above app_seconds=60"),
        ({"app_seconds": 0}, "guard.app_seconds='0': must be a number above 0"),
        ({"memory_mib": "much"}, "guard.memory_mib='much': must be a whole number"),
        ({"bundles": "[abc]"}, "guard.bundles=.*must be any, or a list of SHA-256"),
        ({"bundles": "[]"}, "guard.bundles=.*must be any"),
        ({"data": "[here]"}, "guard.data=.*must be absolute paths"),
        ({"data": "[/no/such/folder]"}, "/no/such/folder: of guard.data"),
        ({"processes": "3\n  more: 4"}, "'more' in guard is not known"),
    ],
)
def test_a_policy_that_makes_no_sense_is_said(tmp_path, changes, said):
    with pytest.raises(DeviceError, match=said):
        guard_of(device(tmp_path, **changes))


def test_a_device_without_rules_for_apps_runs_none(tmp_path):
    folder = device(tmp_path)
    (folder / "policy.yaml").write_text(POLICY)
    assert Policy.load(folder / "policy.yaml").guard is None
    with pytest.raises(DeviceError, match="has no `guard`"):
        guard_of(folder)


def test_a_device_whose_folder_an_app_could_read_is_refused(tmp_path):
    with pytest.raises(DeviceError, match=r"lies in .*, which an app may read"):
        guard_of(device(tmp_path, data=f"[{tmp_path}]"))


def test_a_device_in_a_folder_of_packages_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    with pytest.raises(DeviceError, match=f"lies in {tmp_path}, which an app may read"):
        guard_of(device(tmp_path))


def test_a_machine_that_locks_nothing_in_is_refused_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(guarding, "missing", lambda: "bubblewrap is not installed")
    with pytest.raises(DeviceError, match=r"^no foreign app is locked in: bubblewrap is not inst"):
        guard_of(device(tmp_path))


@pytest.mark.parametrize("parts", ["[namespaces]", "[landlock, seccomp]"])
def test_an_old_policy_that_does_without_parts_is_told(tmp_path, parts):
    folder = device(tmp_path)
    policy = folder / "policy.yaml"
    policy.write_text(f"{policy.read_text().rstrip()}\n  without: {parts}\n")
    with pytest.raises(DeviceError, match=r"guard.without=.*take the key out"):
        guard_of(folder)
    policy.write_text(policy.read_text().replace(parts, "[]"))
    assert guard_of(folder).rules.processes == 60


def test_a_named_pipe_among_the_data_is_refused(tmp_path):
    folder = device(tmp_path)
    os.mkfifo(tmp_path / "data" / "pipe")
    with pytest.raises(DeviceError, match=r"data/pipe: is a named pipe, into which an app could"):
        guard_of(folder)


# A server without Murmur --------------------------------------------------------------------------

ALONE = "{epsilon: 2, clip: 0.5}"


def test_a_server_without_murmur_gets_each_update_under_the_whole_noise(tmp_path, monkeypatch):
    from flwr.serverapp.strategy import FedAvg as Plain

    policy = POLICY.replace("secure_aggregation", "local")
    settings = {"unprotected": ALONE, "policy": policy}
    grid = Federation(tmp_path, [bundle()] * 2, **settings)
    grid._contexts.popitem()
    result = Plain(fraction_evaluate=1.0).start(grid, record(MODEL), num_rounds=1, timeout=100)
    told = [reply for reply in grid.replies if not reply.has_error()]
    assert [set(reply.content) for reply in told] == [{"arrays", "metrics"}] * 2
    assert all(dict(r.content["metrics"]) == {"num-examples": 1} for r in told)
    assert result.evaluate_metrics_clientapp == {}
    guard = grid.guards[0]
    assert grid.clocks[0].slept == [400.0]  # the evaluation has started nothing
    with Ledger(guard.folder / "ledger.sqlite", expected=None) as ledger:
        (entry,) = [each for each in ledger.entries("0") if each.kind == "charge"]
    spent = epsilon(entry.event, 1e-5, Threat.LOCAL, assumptions=["honest_app"]).epsilon
    assert spent == pytest.approx(2.0, rel=1e-3) and spent <= 2.0
    # Again, the same bytes and no second charge.
    message = grid.asked_messages[0]
    again = grid.answer(message, next(iter(grid._contexts.values())))
    assert [a.data for a in _arrays(again)] in [[a.data for a in _arrays(r)] for r in told]
    assert charges(guard) == 1


def test_alone_an_update_is_clipped_and_a_failure_is_the_model_as_it_was(tmp_path, monkeypatch):
    without_noise(monkeypatch)
    for number, (archive, moved) in enumerate([(bundle(), 0.5), (bundle(HARMFUL), 0.0)]):
        grid = Federation(tmp_path / str(number), [archive], unprotected=ALONE)
        content = RecordDict({"arrays": record(MODEL), "config": ConfigRecord({"does": "ends"})})
        message = Message(content, dst_node_id=101, message_type="train")
        reply = grid.answer(message, next(iter(grid._contexts.values())))
        assert np.linalg.norm(_arrays(reply)[0].numpy()) == pytest.approx(moved, abs=1e-5)


def test_alone_a_policy_that_allows_less_refuses_before_the_app_starts(tmp_path):
    policy = POLICY.replace("epsilon_per_release: 100", "epsilon_per_release: 1")
    grid = Federation(tmp_path, [bundle()], unprotected=ALONE, policy=policy)
    message = Message(RecordDict({"arrays": record(MODEL)}), dst_node_id=101, message_type="train")
    reply = grid.answer(message, next(iter(grid._contexts.values())))
    assert reply.error.reason == REFUSED
    assert charges(grid.guards[0]) == 0 and grid.clocks[0].slept == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"--node-config": "x"}, "--node-config=x: must be pairs"),
        ({"--node-config": "a=[["}, "--node-config=a=[[: "),
        ({"--device": "/no/such"}, "/no/such/policy.yaml is not valid"),
        ({"--superexec-auth-secret-file": "/no/such"}, "/no/such"),
    ],
)
def test_words_that_make_no_sense_are_said_before_anything_starts(tmp_path, capsys, words, said):
    secret = tmp_path / "secret"
    secret.write_bytes(b"x")
    given = {
        "--device": str(device(tmp_path)),
        "--superexec-auth-secret-file": str(secret),
        **words,
    }
    assert main(["guard", *(part for pair in given.items() for part in pair)]) == 2
    told = capsys.readouterr().err
    assert told.startswith("murmur guard: ") and said in told and told.count("\n") == 1
