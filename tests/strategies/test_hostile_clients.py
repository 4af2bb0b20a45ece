"""Forged answers against every strategy: rejected, counted by client, without a trace in the model.

What a node can say in the right form stays possible: nothing here stops a client from lying about
its own data (docs/threat-model.md).
"""

from __future__ import annotations

import copy
import functools
import io
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fl_app.config.compose import compose
from fl_app.engines.inline import FIRST_NODE, InlineGrid
from fl_app.run.validated import ValidatedRun
from fl_app.testing import Grid
from murmur.learning.codec import LabelCodec
from murmur.learning.sums import SumAccumulator
from murmur.privacy.events import NonPrivateEvent
from murmur.round.aggregator import Aggregator
from murmur.round.cohorts import Weights
from murmur.round.collectors import MaskedSum
from murmur.round.phase import Phase as RoundPhase
from murmur.round.question import Question
from murmur.round.task import RECORD, printable_line
from murmur.secure_sum.terms import Stage
from tests.fl_app.running import run_inline

NODES = [11, 12, 13]
SMALL = ["model=mlp", "model.hidden=[3]"]
STRATEGIES = {
    "privatekt": [
        "strategy=privatekt",
        *SMALL,
        "strategy.finetuning.passes=1",
        "strategy.self_training.passes=0",
    ],
    "nbafl": ["strategy=nbafl", *SMALL],
    "kd_dpfl": [
        *("strategy=kd_dpfl", *SMALL, "strategy.grouping.top_k=1"),
        "strategy.spending.joining=true",
    ],
    "dpfl_bnn": [
        "strategy=dpfl_bnn",
        "privacy.threat=local",
        "model.channels=[]",
        "model.hidden=5",
    ],
    "dpsgd_fedavg": ["strategy=dpsgd_fedavg", *SMALL],
    "dp_fedavg": ["strategy=dp_fedavg", *SMALL, "privacy=none"],
    "dp_fedavg, adaptive": [
        *("strategy=dp_fedavg", *SMALL, "privacy=none"),
        "protection.clipping.adaptive=true",
    ],
    "fedavg": ["strategy=fedavg", *SMALL],
    "clustering": ["strategy=clustering", "model.hidden=[4]"],
    "local_only": ["strategy=local_only", *SMALL],
    "fedper": ["strategy=fedper", *SMALL],
    "robust": ["strategy=robust", *SMALL, "privacy=none"],
    "votes": ["strategy=votes", "privacy.threat=local"],
    "gradient_rounds": ["strategy=gradient_rounds", "privacy.threat=local"],
    "scaffold": ["strategy=scaffold", *SMALL],
    "class_statistics": ["strategy=class_statistics", "privacy.threat=local"],
    "class_moments": ["strategy=class_moments", "privacy.threat=local"],
}


@functools.lru_cache
def asked(name: str, quorum: float) -> tuple[Any, list[Message]]:
    """A strategy that has asked 6 clients on 3 nodes, and its messages."""
    words = ["engine=inline", "federation.num_clients=6", "privacy.noise=seeded"]
    strategy = ValidatedRun(
        compose([*words, f"federation.quorum={quorum}", *STRATEGIES[name]])
    ).strategy
    model = ArrayRecord({"model": Array(strategy.setup.initial_parameters())})
    messages = list(strategy.configure_train(1, model, ConfigRecord(), Grid(*NODES)))
    for message in messages:
        message.metadata.__dict__["_message_id"] = f"m{message.metadata.dst_node_id}"
    return strategy, messages


def honest(strategy: Any, message: Message) -> tuple[dict[str, Any], np.ndarray]:
    """The report and the sum of a node whose clients all send zeros (for labels: class 0).

    Where nothing is summed, the rows.
    """
    codec, clients = strategy.codec(), message.content["task"]["clients"]
    total = SumAccumulator(codec)
    rows = []
    for client in clients:
        size = codec.count if isinstance(codec, LabelCodec) else codec.shape
        total.add(client, codec.pack(np.zeros(size)), strategy.weights().of(client))
        rows.append(codec.pack(np.zeros(size)))
    report = {
        "clients": list(clients),
        "refused": [],
        "reasons": [],
        "weight": total.weight,
        "packed": False,
    }
    if strategy.summed:
        return report, total.total
    report = {name: report[name] for name in ("clients", "refused", "reasons")}
    return report, np.stack(rows)


def sent(strategy: Any, contribution: Any) -> dict[str, Any]:
    """A node's contribution, under the name that it has in a reply."""
    return {"sum" if strategy.summed else "rows": contribution}


def reply(message: Message, report: dict[str, Any], arrays: dict[str, Any] | None) -> Message:
    content = RecordDict({"report": ConfigRecord(report)})
    if arrays is not None:
        content["contribution"] = ArrayRecord(
            {k: v if isinstance(v, Array) else Array(v) for k, v in arrays.items()}
        )
    return Message(content, reply_to=message)


def aggregate(name: str, first: list[Message], quorum: float = 0.5) -> tuple[Any, Any]:
    """A fresh strategy after a round in which the second and third node were honest."""
    prepared, messages = asked(name, quorum)
    strategy = copy.deepcopy(prepared)
    others = []
    for message in messages[1:]:
        report, total = honest(strategy, message)
        others.append(reply(message, report, sent(strategy, total)))
    arrays, _ = strategy.aggregate_train(1, [*first, *others])
    return strategy, None if arrays is None else arrays["model"].numpy()


@functools.lru_cache
def without_the_first(name: str) -> np.ndarray:
    return aggregate(name, [])[1]


def raw(data: bytes) -> Array:
    return Array("int64", (1,), "numpy.ndarray", data)


def archive() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, sum=np.zeros(3))
    return stream.getvalue()


def forged(name: str) -> dict[str, Message]:
    """What a hostile first node sends, by what is wrong with it."""
    strategy, messages = asked(name, 0.5)
    message, other = messages[0], messages[1]
    report, total = honest(strategy, message)
    mine, theirs = list(report["clients"]), list(other.content["task"]["clients"])
    enormous = np.lib.format.header_data_from_array_1_0(total) | {"shape": (10**9, 10**9)}
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, enormous)
    arrays = {
        "NaN": np.full(total.shape, np.nan),
        "infinity": np.full(total.shape, np.inf, np.float32),
        "huge": np.full(total.shape, 2**62),
        "hugely negative": np.full(total.shape, -(2**63)),
        "one value beyond": total + (np.arange(total.size).reshape(total.shape) == 0) * 2**61,
        "longer": np.append(total, total),
        "empty": total[:0],
        "one more axis": total[None],
        "reals": total.astype(np.float64),
        "short integers": total.astype(np.int32),
        "bytes swapped": total.astype(">i8"),
        "text": np.array(["0"] * total.size),
        "packed": np.zeros(total.shape, np.float32),
        "no bytes": raw(b""),
        "an archive": raw(archive()),
        "a pickle": raw(b"\x80\x04cos\nsystem\n."),
        "a size beyond memory": raw(header.getvalue() + bytes(64)),
        "noise": raw(bytes(range(256))),
    }
    reports: dict[str, dict[str, Any]] = {
        "another node's clients": {"clients": theirs},
        "its own and another's": {"clients": [*mine, *theirs]},
        "one of its own and another's": {"clients": [mine[0], theirs[0]]},
        "one client twice": {"clients": [mine[0], mine[0]]},
        "one client less": {"clients": mine[:1]},
        "answered and refused": {"refused": mine, "reasons": ["a", "b"]},
        "clients as reals": {"clients": [float(c) for c in mine]},
        "clients as words": {"clients": [str(c) for c in mine]},
        "refused without a reason": {"clients": [], "refused": mine},
        "a reason for each letter": {"clients": [], "refused": mine, "reasons": "ab"},
    }
    if strategy.summed:  # a row has no weight
        reports |= {
            "weight too large": {"weight": report["weight"] + 1},
            "weight too small": {"weight": report["weight"] - 1},
            "weight a hundredfold": {"weight": 100 * report["weight"]},
            "weight enormous": {"weight": 2**62},
            "weight negative": {"weight": -report["weight"]},
            "weight zero": {"weight": 0},
            "weight real": {"weight": float(report["weight"])},
            "weight of truth": {"weight": True},
            "weight in words": {"weight": "2"},
            "packed for two": {"packed": True},
        }
    found = {
        **{kind: reply(message, report, sent(strategy, values)) for kind, values in arrays.items()},
        **{kind: reply(message, report | r, sent(strategy, total)) for kind, r in reports.items()},
        "no contribution": reply(message, report, None),
        "another name": reply(message, report, {"total": total}),
        "nothing": Message(RecordDict(), reply_to=message),
        "no report": Message(
            RecordDict({"contribution": ArrayRecord(sent(strategy, Array(total)))}),
            reply_to=message,
        ),
        "a report of arrays": Message(
            RecordDict({"report": ArrayRecord(sent(strategy, Array(total)))}), reply_to=message
        ),
    }
    for key in report:
        rest = {k: v for k, v in report.items() if k != key}
        found[f"without {key}"] = reply(message, rest, sent(strategy, total))
    if not strategy.summed:
        del found["packed"]  # rows are
    return found


@pytest.mark.parametrize("name", STRATEGIES)
def test_forged_answers_leave_no_trace_in_the_model(name):
    expected = without_the_first(name)
    assert expected is not None
    for kind, message in forged(name).items():
        strategy, model = aggregate(name, [message])
        clients = asked(name, 0.5)[1][0].content["task"]["clients"]
        assert set(strategy.rounds.outcome.failed) == set(clients), kind
        assert all(
            why.startswith("rejected: ") for why in strategy.rounds.outcome.failed.values()
        ), kind
        assert len(strategy.rounds.outcome.answered) == 4, kind
        # They may have released something all the same, so they count as exposed.
        assert all(strategy.rounds.participations[client] == 1 for client in clients), kind
        np.testing.assert_array_equal(model, expected, err_msg=kind)


@pytest.mark.parametrize("name", STRATEGIES)
def test_duplicates_and_strangers_change_nothing(name):
    prepared, messages = asked(name, 0.5)
    report, total = honest(prepared, messages[0])
    once = reply(messages[0], report, sent(prepared, total))
    stranger = reply(messages[0], report, sent(prepared, total))
    stranger.metadata.__dict__["_src_node_id"] = 99
    twice = copy.deepcopy(once)  # a reply that was read is empty
    alone = copy.deepcopy(once)
    strategy, expected = aggregate(name, [alone])
    again, model = aggregate(name, [once, twice, stranger])
    np.testing.assert_array_equal(model, expected)
    assert again.rounds.outcome.answered == strategy.rounds.outcome.answered
    assert len(again.rounds.outcome.answered) == 6 and again.rounds.outcome.failed == {}
    assert again.rounds.participations == strategy.rounds.participations


@pytest.mark.parametrize("label", [10, 255])
def test_labels_out_of_range_are_rejected(label):
    prepared, messages = asked("privatekt", 0.5)
    report, total = honest(prepared, messages[0])
    mine = report["clients"]
    one = {"clients": mine[:1], "refused": mine[1:], "reasons": ["no"], "weight": 1, "packed": True}
    labels = np.full(len(total), label, np.uint8)
    strategy, model = aggregate("privatekt", [reply(messages[0], one, {"sum": labels})])
    assert "outside 0..9" in strategy.rounds.outcome.failed[mine[0]]
    np.testing.assert_array_equal(model, without_the_first("privatekt"))


scalars = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-2, 8),
    st.floats(),
    st.text(max_size=4),
    st.booleans(),
    st.binary(max_size=4),
)
lists = st.one_of(
    st.lists(st.integers(-2, 8), max_size=6),
    st.lists(st.text(max_size=3), max_size=3),
    st.lists(st.floats(), max_size=3),
)
arrays = st.one_of(
    st.builds(
        lambda shape, dtype: Array(np.ones(shape, dtype)),
        st.lists(st.integers(0, 9), max_size=3),
        st.sampled_from(["i8", "f4", "f8", "u1", "i4", ">i8", "c16", "?", "S2"]),
    ),
    st.binary(max_size=200).map(raw),
)


@settings(
    max_examples=1000,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    name=st.sampled_from(sorted(STRATEGIES)),
    changed=st.dictionaries(
        st.sampled_from(["clients", "refused", "reasons", "weight", "packed", "x"]),
        st.one_of(scalars, lists, st.none()),
        max_size=3,
    ),
    array=st.one_of(st.none(), arrays),
)
def test_thousand_malformed_answers_never_crash_or_touch_the_model(name, changed, array):
    prepared, messages = asked(name, 1.0)
    report, total = honest(prepared, messages[0])
    mine = report["clients"]
    report = {k: v for k, v in {**report, **changed}.items() if v is not None}
    array_sent = Array(total) if array is None else array
    strategy, model = aggregate(
        name, [reply(messages[0], report, sent(prepared, array_sent))], quorum=1.0
    )
    if model is None:
        assert set(strategy.rounds.outcome.failed) == set(mine)
        assert set(strategy.rounds.outcome.answered) == set(range(6)) - set(mine)
    else:
        # Accepted: then it is honest in every respect that counts.
        assert strategy.rounds.outcome.failed == {} and array is None
        assert sorted(report["clients"]) == sorted(mine)
        if strategy.summed:
            assert report["weight"] == sum(strategy.weights().of(client) for client in mine)


def test_words_of_strangers_are_one_short_line_of_printable_text():
    assert printable_line("\x1b[2J\x1b]0;owned\x07 ha") == "?[2J?]0;owned? ha"
    assert printable_line("Traceback\n  line\nValueError: why") == "ValueError: why"
    assert len(printable_line("x" * 10**6)) < 400
    assert printable_line(None) == printable_line(" \n") == "no reason given"


# The label stage of KD-DPFL ---------------------------------------------------------------------


class Answering(Grid):
    """Three nodes that answer a label stage; ``forge`` changes the first one's reply."""

    def __init__(self, forge: Any) -> None:
        super().__init__(11, 12, 13)
        self.forge = forge

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for place, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = f"m{place}"
            (client,) = message.content["task"]["clients"]
            report = {
                "clients": [client],
                "refused": [],
                "reasons": [],
                "weight": 30,
                "packed": True,
            }
            sent = (report, {"sum": np.full(5, client, np.uint8)})
            replies.append(reply(message, *(self.forge(*sent) if place == 0 else sent)))
        # The second node answers in the name of the first as well.
        false = copy.deepcopy(replies[1])
        false.metadata.__dict__["_reply_to_message_id"] = "m0"
        return [false, *replies, replies[0]]


@pytest.mark.parametrize(
    "forge",
    [
        lambda report, arrays: ({**report, "weight": 31}, arrays),
        lambda report, arrays: ({**report, "weight": 30 * 10**6}, arrays),
        lambda report, arrays: ({**report, "clients": [2]}, arrays),
        lambda report, arrays: (report, {"sum": np.full(5, 4, np.uint8)}),
        lambda report, arrays: (report, {"sum": np.zeros(6, np.uint8)}),
        lambda report, arrays: (report, {"sum": np.full(5, np.nan, np.float32)}),
        lambda report, arrays: (report, {"sum": raw(archive())}),
        lambda report, arrays: ({}, arrays),
    ],
)
def test_forged_labels_do_not_vote(forge):
    setup = asked("kd_dpfl", 0.5)[0].setup
    question = Question(
        "label",
        1,
        [1, 2, 3],
        np.zeros(3, np.float32),
        LabelCodec(5, 4),
        NonPrivateEvent,
        {"indices": np.arange(5)},
        weights=Weights(lambda client: 30),
        alone=True,
    )
    outcome = RoundPhase(question, Aggregator(setup, 3, "labels"), setup).run(
        Answering(forge), timeout=1.0
    )
    assert outcome.answered == [2, 3] and outcome.weight == 60
    assert outcome.total[:, 1].sum() == 0
    assert outcome.failed[1].startswith("rejected: ")


# Secure sums ------------------------------------------------------------------------------------

LOOSE = ["privacy.secure_aggregation=on", "privacy.secure_sum.threshold=0.5"]
VICTIM = 5  # the client of the node that forges; with 6 nodes each hosts one


def forge_in(monkeypatch, phase: Stage, forge: Any) -> None:
    """Let ``forge`` change what the last node answers in ``phase``."""
    plainly = InlineGrid.send_and_receive

    def sending(self, messages, *, timeout=None):
        messages = list(messages)
        replies = list(plainly(self, messages, timeout=timeout))
        for place, answer in enumerate(replies):
            record = messages[0].content.config_records.get(RECORD)
            asked_in = None if record is None else record["phase"]
            if answer.metadata.src_node_id == FIRST_NODE + VICTIM and asked_in == phase.value:
                forge(answer.content)
                replies[place] = answer
        return replies

    monkeypatch.setattr(InlineGrid, "send_and_receive", sending)


def random_bytes(content: RecordDict) -> None:
    rng = np.random.default_rng(0)
    if RECORD in content:
        content[RECORD]["messages"] = [rng.bytes(len(m)) for m in content[RECORD]["messages"]]
    else:
        shape = content["contribution"]["masked"].numpy().shape
        content["contribution"]["masked"] = Array(np.zeros((2, *shape[1:]), np.uint8))


def of_other_clients(content: RecordDict) -> None:
    content[RECORD if RECORD in content else "report"]["clients"] = [0]


def without_records(content: RecordDict) -> None:
    content.pop(RECORD, None)
    content.pop("contribution", None)


@pytest.mark.parametrize("forge", [random_bytes, of_other_clients, without_records])
@pytest.mark.parametrize("phase", list(Stage))
def test_a_forged_answer_in_a_secure_sum_is_a_dropout(tmp_path, monkeypatch, phase, forge):
    forge_in(monkeypatch, phase, forge)
    run = run_inline(tmp_path / "run", *LOOSE, "federation.num_rounds=1", nodes=6)
    _, row = run.rows()
    # What a client cannot have sent in good faith is held against it; what its node has not sent,
    # or sent for others, may be anybody's fault.
    proven = forge is random_bytes and phase is not Stage.MASK
    told, other = ("accused", "failed") if proven else ("failed", "accused")
    assert list(row[told]) == [str(VICTIM)] and not row[other], row
    # Before the masks are summed it is left out of the sum, afterwards it is in it.
    expected = 6 if phase in (Stage.CONFIRM, Stage.REVEAL) else 5
    assert row["answered"] == expected


def test_a_lie_about_the_weight_costs_a_secure_sum_and_never_the_model(tmp_path, monkeypatch):
    """The server sees the sum only, so it cannot say who lied; it can refuse the sum."""
    honestly = MaskedSum.add

    def lying(self, client, codec, packed, weight):
        return honestly(self, client, codec, packed, weight - 1)

    monkeypatch.setattr(MaskedSum, "add", lying)
    run = run_inline(
        tmp_path / "run", "strategy=fedavg", *LOOSE, "federation.num_rounds=1", nodes=2
    )
    first, row = run.rows()
    assert row["answered"] == 0 and row["accuracy"] == first["accuracy"]
    assert all("the sum is not possible: weight=" in why for why in row["failed"].values())
