"""Whatever a server sends, a device refuses with a reason, charges nothing more, and stays up."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.round.task import REFUSED
from tests.fl_app.device_under_test import (
    MINE,
    OPEN,
    POOL,
    STRICT,
    Device,
    model_size,
    question,
    report,
)

SMALL = ["model=mlp", "model.hidden=[4]"]
RECORD = [*SMALL, "privacy.unit=record"]
GAMMA = ["strategy.gamma=0.1", "privacy.epsilon=inf", "privacy.threat=local"]
EVALUATE = "evaluate"


@dataclass(frozen=True)
class Case:
    """An algorithm as an honest server runs it: its words, and what goes with the model."""

    words: list[str]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    policy: str = STRICT
    clients: tuple[int, ...] = MINE
    purpose: str | None = None


CASES = {
    "privatekt": Case([*SMALL, "strategy.local.epochs=1"], {"indices": np.arange(3)}),
    "nbafl": Case(["strategy=nbafl", *RECORD]),
    "kd_dpfl": Case(["strategy=kd_dpfl", *RECORD, "strategy.labelling.epochs=1"], clients=(7,)),
    "kd_dpfl, labels": Case(
        ["strategy=kd_dpfl", *RECORD, "strategy.labelling.epochs=1"],
        {"indices": np.arange(POOL)},
        clients=(3,),
        purpose="label",
    ),
    "dpfl_bnn": Case(["strategy=dpfl_bnn", *GAMMA, "model.channels=[]", "model.hidden=8"]),
    "dpsgd_fedavg": Case(["strategy=dpsgd_fedavg", *RECORD]),
    "dp_fedavg": Case(["strategy=dp_fedavg", *SMALL], {"clip": np.array([1.0])}, OPEN),
    "fedavg": Case(["strategy=fedavg", *SMALL], policy=OPEN),
    "protected counts": Case(
        ["strategy=fedavg", *SMALL, "evaluation=protected_counts"], {}, OPEN, purpose=EVALUATE
    ),
    "protected clustering": Case(
        ["strategy=clustering", "model.hidden=[8]", "evaluation=protected_clustering"],
        {},
        OPEN,
        purpose=EVALUATE,
    ),
}


def honest(case: Case, words: list[str], **changed: Any) -> RecordDict:
    """The question of an honest server, and what is ``changed`` in it."""
    model = np.random.default_rng(0).normal(0, 0.1, model_size(words)).astype(np.float32)
    asked = {"clients": case.clients, "purpose": case.purpose, "arrays": case.arrays}
    return question(changed.pop("model", model), **{**asked, **changed})


def raw(data: bytes, dtype: str = "float32", shape: tuple[int, ...] = (4,)) -> ArrayRecord:
    """A model record whose array holds arbitrary bytes."""
    return ArrayRecord({"model": Array(dtype, shape, "numpy.ndarray", data)})


def npy(shape: str, size: int = 16) -> bytes:
    """An array file whose header states ``shape``, with ``size`` bytes behind it."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(size)


def zipped() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, model=np.zeros(4, np.float32))
    return stream.getvalue()


def changes(size: int) -> dict[str, dict[str, Any]]:
    """What a hostile server changes in a question, by name."""
    models = {
        "longer": np.zeros(size + 1, np.float32),
        "empty": np.zeros(0, np.float32),
        "a table": np.zeros((size, 1), np.float32),
        "enormous": np.zeros(10**6, np.float32),
        "of doubles": np.zeros(size),
        "of integers": np.zeros(size, np.int32),
        "of bytes swapped": np.zeros(size, ">f4"),
        "of complex numbers": np.zeros(size, np.complex64),
        "with NaN": np.full(size, np.nan, np.float32),
        "with infinity": np.append(np.zeros(size - 1, np.float32), np.float32(np.inf)),
    }
    rounds = {"round": [0, -1, 51, 2**63 - 1, "1", 1.5, True, [1], b"1", None]}
    clients: list[Any] = [
        *([], [99], [-3], [3, 3], [3.0, 3.25], ["3", "03"], [True], [b"3"], 3, "all", None),
        [2**62],
        list(range(10**4)),
    ]
    purposes = ["", "x" * 10**6, 5, ["train"], "train ", "label as well"]
    return {
        **{f"model {name}": {"model": values} for name, values in models.items()},
        **{f"round={value!r}": {"round": value} for value in rounds["round"]},
        **{f"clients={value!r:.30}": {"clients": value} for value in clients},
        **{f"purpose={value!r:.20}": {"purpose": value} for value in purposes},
    }


def damaged(content: RecordDict) -> dict[str, RecordDict]:
    """Messages whose records are not what they should be."""
    model, task = content["model"], content["task"]
    return {
        "empty": RecordDict(),
        "no task": RecordDict({"model": model}),
        "no model": RecordDict({"task": task}),
        "task of arrays": RecordDict({"model": model, "task": raw(b"")}),
        "model of settings": RecordDict({"model": task, "task": task}),
        "model without model": RecordDict({"model": ArrayRecord(), "task": task}),
        "no bytes": RecordDict({"model": raw(b""), "task": task}),
        "an archive": RecordDict({"model": raw(zipped()), "task": task}),
        "a pickle": RecordDict({"model": raw(b"\x80\x04cos\nsystem\n."), "task": task}),
        "a size beyond memory": RecordDict({"model": raw(npy("(10**9, 10**9)")), "task": task}),
        "a huge size": RecordDict({"model": raw(npy("(4000000000000,)")), "task": task}),
        "a negative size": RecordDict({"model": raw(npy("(-4,)")), "task": task}),
        "a nested header": RecordDict({"model": raw(npy("(" * 300)), "task": task}),
        "cut short": RecordDict({"model": raw(npy("(5,)")), "task": task}),
        "masks that nobody agreed on": RecordDict(
            {"model": model, "task": task, "secure_sum": ConfigRecord({"phase": "mask"})}
        ),
        "a phase that is off": RecordDict(
            {"secure_sum": ConfigRecord({"phase": "advertise", "clients": [3], "messages": [b""]})}
        ),
    }


@pytest.fixture
def device(tmp_path, request):
    return Device(tmp_path, CASES[request.param].policy if hasattr(request, "param") else STRICT)


def refuses(device: Device, words: list[str], content: RecordDict, kind: str = "train") -> None:
    """Nobody answers, the server reads what it always reads, and the ledger stays as it was."""
    before = device.charged()
    reply = device.ask(words, content, kind, fresh=False)
    said = refusals(reply)
    assert set(said) == {REFUSED}
    assert device.charged() == before


def refusals(reply: Any) -> list[str]:
    """The reasons; an answer that holds anything else is none."""
    if reply.has_error():
        return [reply.error.reason]
    (record,) = reply.content.config_records.values()
    assert not reply.content.array_records and record["clients"] == []
    return record["reasons"]


@pytest.mark.parametrize("name", CASES)
def test_malformed_messages_are_refused_and_the_next_honest_one_is_answered(tmp_path, name):
    case, device = CASES[name], Device(tmp_path, CASES[name].policy)
    words = device.words(*case.words)
    content = honest(case, words)
    hostile = {
        **{k: honest(case, words, **v) for k, v in changes(model_size(words)).items()},
        **damaged(content),
        **{f"without {array}": honest(case, words, arrays={}) for array in case.arrays},
        **{
            f"{array} of text": honest(case, words, arrays={array: np.array(["a", "b"])})
            for array in case.arrays
        },
    }
    if case.purpose:
        hostile["without a purpose, as training"] = honest(case, words, purpose="train", round=99)
    for what, message in hostile.items():
        try:
            refuses(device, words, message)
        except AssertionError as error:
            raise AssertionError(what) from error
    assert device.charged() == []
    found = report(device.ask(words, content, fresh=False))
    assert found["clients"] == list(case.clients), found
    assert [entry[0] for entry in device.charged()] == [str(client) for client in case.clients]


@pytest.mark.parametrize("name", CASES)
def test_a_repeated_round_gets_the_stored_answer_and_an_altered_one_is_refused(tmp_path, name):
    case, device = CASES[name], Device(tmp_path, CASES[name].policy)
    words = device.words(*case.words)
    content = honest(case, words)
    kind = case.purpose if case.purpose == EVALUATE else "train"
    first = device.ask(words, content, kind).content
    again = device.ask(words, content, "query").content  # neither process nor kind matters
    name = "rows" if "rows" in first["contribution"] else "sum"
    assert first["contribution"][name].data == again["contribution"][name].data
    assert len(device.charged()) == len(case.clients)
    model = np.full(model_size(words), 0.05, np.float32)
    refuses(device, words, honest(case, words, model=model))
    refuses(device, words, honest(case, words, clients=case.clients[:1], extra=1))
    assert len(device.charged()) == len(case.clients)


@pytest.mark.parametrize("name", ["dp_fedavg", "fedavg", "protected counts"])
def test_an_unprotected_algorithm_gets_nothing_from_an_owner_who_wants_protection(tmp_path, name):
    device, words = Device(tmp_path), None
    words = device.words(*CASES[name].words)
    refuses(device, words, honest(CASES[name], words))


WISHES = {
    "privatekt": ["privacy.epsilon=1e6", "privacy.epsilon=inf", "privacy.noise=seeded"],
    "nbafl": ["privacy.epsilon=1e6", "privacy.epsilon=inf", "privacy.delta=0.3"],
    "kd_dpfl": ["privacy.epsilon=1e6", "privacy.noise=seeded"],
    "kd_dpfl, labels": ["privacy.epsilon=1e6", "privacy.epsilon=inf"],
    "dpfl_bnn": ["strategy.gamma=0.49", "strategy.noise=false"],
    "dpsgd_fedavg": ["privacy.epsilon=1e6", "privacy.epsilon=inf"],
    "protected counts": ["evaluation.counts.epsilon=30", "privacy.noise=seeded"],
}


@pytest.mark.parametrize("name", WISHES)
def test_a_server_that_asks_for_less_protection_than_the_owner_wants_gets_nothing(tmp_path, name):
    case, device = CASES[name], Device(tmp_path, CASES[name].policy)
    for wish in WISHES[name]:
        words = device.words(*case.words, *wish.split())
        before = device.charged()
        assert set(refusals(device.ask(words, honest(case, words)))) == {REFUSED}
        assert "policy" in device.log().splitlines()[-2], wish
        assert device.charged() == before == []


@pytest.mark.parametrize(
    "wish",
    [
        "strategy=no_such_algorithm",
        "strategy=fedavg strategy.name=privatekt",
        "strategy.name=fedavg",
        "strategy.client._target_=clients.fedavg.FedAvgClient",
        "+dataset.anything._target_=os.system",
        "privacy._target_=subprocess.Popen",
        "privacy._tar''get_=subprocess.Popen",
        "'strategy.client={_tar''get_: os.system}'",
        "privacy.epsilon=${oc.env:HOME}",
        "privacy.epsilon=$''{oc.env:HOME}",
        "strategy.K=1000000 strategy.K=much",
        "strategy.K=1000000",
        "strategy.K=-1",
        "strategy.K=1.5",
        "evaluation=protected_counts evaluation.counts.epsilon=1e6",
        "privacy.epsilon=1,2",
        "federation.num_rounds=-5",
        "hydra.searchpath=[file:///tmp]",
    ],
)
def test_settings_that_are_no_settings_of_this_application_are_refused(tmp_path, wish):
    device = Device(tmp_path)
    plain = device.words(*CASES["privatekt"].words)
    content = honest(CASES["privatekt"], plain)
    reply = device.ask([], content, overrides=" ".join([*plain_text(plain), wish]))
    assert set(refusals(reply)) == {REFUSED}
    assert device.charged() == []
    assert report(device.ask(plain, content))["clients"] == list(MINE)


def plain_text(words: list[str]) -> list[str]:
    return [f"'{word}'" for word in words]


def test_a_million_labels_are_refused_and_cost_nothing(tmp_path):
    case, device = CASES["privatekt"], Device(tmp_path)
    words = device.words(*case.words, "strategy.K=100")
    for indices in (np.arange(10**6), np.zeros(10**6, np.int64), np.arange(POOL + 1)):
        refuses(device, words, honest(case, words, arrays={"indices": indices}))


def test_two_spellings_of_one_client_do_not_answer_twice_for_one_charge(tmp_path):
    """Found here: ids were converted, and [3.0, 3.25] became client 3 twice."""
    case, device = CASES["privatekt"], Device(tmp_path)
    words = device.words(*case.words)
    for ids in ([3.0, 3.25], ["3", "03"], [3, True]):
        if len({type(i) for i in ids}) == 1:
            refuses(device, words, honest(case, words, clients=ids))


def test_a_list_of_ten_million_ids_fills_neither_memory_nor_the_log(tmp_path):
    case, device = CASES["privatekt"], Device(tmp_path)
    words = device.words(*case.words)
    refuses(device, words, honest(case, words, clients=list(range(10**7))))
    assert (device.state / "errors.log").stat().st_size < 10_000


def test_an_unknown_kind_of_message_reaches_no_client(tmp_path):
    case, device = CASES["privatekt"], Device(tmp_path)
    words = device.words(*case.words)
    with pytest.raises(ValueError, match=r"(?i)message type|category"):
        device.ask(words, honest(case, words), "destroy")
    assert device.charged() == []


scalars = st.one_of(
    st.integers(-3, 12),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=4),
    st.booleans(),
    st.binary(max_size=4),
)
values = st.one_of(
    scalars,
    st.lists(st.integers(-2, 10), max_size=5),
    st.lists(st.floats(0, 10), max_size=4),
    st.lists(st.sampled_from(["3", "7", "03"]), max_size=3),
    st.lists(st.booleans(), max_size=3),
)
dtypes = st.sampled_from(["f4", "f8", "i8", "u1", "c8", "?", "S3", "f2", ">f4"])
shapes = st.lists(st.integers(0, 6), max_size=3)
mutations = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.sampled_from(["round", "clients", "purpose", "x"]), values),
        st.tuples(st.just("drop"), st.sampled_from(["round", "clients", "task", "model"])),
        st.tuples(st.just("array"), st.sampled_from(["model", "indices", "y"]), dtypes, shapes),
        st.tuples(st.just("bytes"), st.sampled_from(["model", "indices"]), st.binary(max_size=99)),
        st.tuples(st.just("scale"), st.floats(width=32)),
        st.tuples(st.just("record"), st.sampled_from(["secure_sum", "metrics", "hosted"]), values),
        st.tuples(st.just("round"), st.integers(1, 50)),
    ),
    min_size=1,
    max_size=3,
)


def mutated(case: Case, words: list[str], steps: list[tuple]) -> RecordDict:
    content = honest(case, words)
    for kind, *rest in steps:
        task, arrays = content.config_records.get("task"), content.array_records.get("model")
        if kind == "set" and task is not None:
            task[rest[0]] = rest[1]
        elif kind == "round" and task is not None:
            task["round"] = rest[0]
        elif kind == "drop":
            content.pop(rest[0], None)
            if task is not None:
                task.pop(rest[0], None)
        elif kind == "array" and arrays is not None:
            arrays[rest[0]] = Array(np.ones(rest[2], rest[1]))
        elif kind == "bytes" and arrays is not None:
            arrays[rest[0]] = raw(rest[1])["model"]
        elif kind == "scale" and arrays is not None and "model" in arrays:
            model = honest(case, words)["model"]["model"].numpy()
            with np.errstate(all="ignore"):
                arrays["model"] = Array(model * np.float32(rest[0]))
        elif kind == "record":
            name = rest[0]
            content[name] = MetricRecord() if name == "metrics" else ConfigRecord({"x": rest[1]})
    return content


@pytest.fixture(scope="module")
def besieged(tmp_path_factory):
    """One device, and every charge that an answer of its has been seen for."""
    device = Device(tmp_path_factory.mktemp("besieged"))
    return device, device.words(*CASES["privatekt"].words), set()


@settings(max_examples=1000, derandomize=True)
@given(steps=mutations)
def test_thousand_malformed_messages_release_nothing_that_was_not_charged(besieged, steps):
    """No crash, no hang; each client's answer to a round is one, charged, and stays the same."""
    device, words, seen = besieged
    content = mutated(CASES["privatekt"], words, steps)
    reply = device.ask(words, content, fresh=False)
    if reply.has_error() or "report" not in reply.content.config_records:
        return
    found = report(reply)
    assert len(set(found["clients"])) == len(found["clients"])
    if not found["clients"]:
        assert not reply.content.array_records
        return
    total = reply.content["contribution"]["sum"].numpy()
    assert found["weight"] == len(found["clients"])
    if not found["packed"]:
        assert (total.sum(axis=1) == len(found["clients"])).all()
    task = content["task"]
    seen |= {(str(client), "run-a", task["round"], "train") for client in found["clients"]}


def test_after_the_siege_the_ledger_holds_the_releases_and_no_others(besieged):
    device, words, seen = besieged
    charged = [entry[:4] for entry in device.charged()]
    assert len(set(charged)) == len(charged) > 10
    assert set(charged) == seen
    unused = min(set(range(1, 51)) - {entry[2] for entry in charged}, default=None)
    if unused is not None:
        content = honest(CASES["privatekt"], words, round=unused)
        assert report(device.ask(words, content))["clients"] == list(MINE)
