"""Cohorts, nodes and hostile answers: what the server half does for every algorithm."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app.error import Error
from flwr.common.constant import ErrorCode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fl_app.testing import Grid
from murmur.learning.data.datasets import Examples
from murmur.learning.models import mlp
from murmur.learning.training.trainer import Trainer
from murmur.privacy.budget import Budget
from murmur.privacy.events import NonPrivateEvent
from murmur.privacy.ledger import Charge, Ledger
from murmur.privacy.protection import Unprotected
from murmur.round.placement import Placement, SimulatedPlacement
from murmur.round.rounds import PATIENCE
from murmur.round.server_step import Sgd
from murmur.round.setup import ServerSetup
from murmur.round.task import RunError
from strategies.fedavg import FedAvg

NODES = [11, 12, 13]


def strategy(cohort=6, clients=10, quorum=0.5, seed=1):
    trainer = Trainer(
        lambda input_shape, num_classes: mlp(input_shape, num_classes, hidden=[2]), (1, 2, 2), 3
    )
    test = Examples(np.zeros((4, 1, 2, 2), np.float32), np.zeros(4, np.int64))
    budget = Budget(np.inf, 1e-5)
    setup = ServerSetup(
        trainer=trainer,
        public=test.images,
        test=test,
        budget=budget,
        seed=seed,
        num_clients=clients,
        cohort_size=cohort,
        quorum=quorum,
    )
    return FedAvg(setup, server_step=Sgd(learning_rate=1.0), protection=Unprotected)


def begin(it, number=1, model=None):
    model = it.setup.initial_parameters() if model is None else model
    record = ArrayRecord({"model": Array(model)})
    messages = list(it.configure_train(number, record, ConfigRecord(), Grid(*NODES)))
    for message in messages:
        message.metadata.__dict__["_message_id"] = f"m{message.metadata.dst_node_id}"
    return messages


def reply(message, values=None, **changed):
    clients = message.content["task"]["clients"]
    size = message.content["model"]["model"].shape[0]
    values = np.zeros(size, np.int64) if values is None else values
    report = {
        "clients": list(clients),
        "refused": [],
        "reasons": [],
        "weight": len(clients),
        "packed": False,
        **changed,
    }
    report = {key: value for key, value in report.items() if value is not None}
    content = RecordDict({"report": ConfigRecord(report)})
    content["contribution"] = ArrayRecord({"sum": Array(values)})
    return Message(content, reply_to=message)


def test_cohort_is_split_evenly_with_every_client_once():
    it = strategy()
    messages = begin(it)
    shares = [message.content["task"]["clients"] for message in messages]
    assert [len(share) for share in shares] == [2, 2, 2]
    asked = [client for share in shares for client in share]
    assert len(set(asked)) == 6
    assert set(asked) <= set(range(10))


def test_cohort_depends_on_seed_and_round_only():
    first = [m.content["task"]["clients"] for m in begin(strategy(), 3)]
    again = strategy()
    begin(again, 1)
    assert [m.content["task"]["clients"] for m in begin(again, 3)] == first
    assert [m.content["task"]["clients"] for m in begin(strategy(seed=2), 3)] != first


def test_mean_of_all_nodes_moves_the_model():
    it = strategy()
    one = 1 << 30
    replies = [
        reply(message, np.full(it.trainer.num_parameters, value * one, np.int64))
        for message, value in zip(begin(it), (2, 4, 6), strict=True)
    ]
    arrays, _ = it.aggregate_train(1, replies)
    np.testing.assert_allclose(arrays["model"].numpy() - it.rounds.model, 12 / 6, rtol=1e-6)
    assert len(it.rounds.outcome.answered) == 6
    assert it.rounds.outcome.failed == {}


HOSTILE: dict[str, dict] = {
    "nan": {"values": np.full(17, np.nan, np.float32)},
    "huge": {"values": np.full(17, 2**62, np.int64)},
    "wrong shape": {"values": np.zeros(3, np.int64)},
    "wrong type": {"values": np.zeros(17, np.float32)},
    "other clients": {"clients": [98, 99]},
    "too many clients": {"clients": list(range(10))},
    "no clients key": {"clients": None},
    "clients of another type": {"clients": "all"},
    "weight zero": {"weight": 0},
    "weight enormous": {"weight": 2**60},
    "weight real": {"weight": 1.5},
    "weight missing": {"weight": None},
    "packed for two": {"packed": True, "values": np.zeros(17, np.float32)},
    "reasons missing": {"refused": [1], "reasons": []},
    "messages of none": {"messages": [], "values": np.full(17, 2**30, np.int64)},
    "messages no list": {"messages": 5, "values": np.full(17, 2**30, np.int64)},
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_answer_is_counted_and_the_round_completes_without_it(kind):
    it = strategy()
    messages = begin(it)
    good = [reply(message) for message in messages[1:]]
    changed = dict(HOSTILE[kind])
    if "values" in changed and changed["values"].shape == (17,):
        changed["values"] = np.resize(changed["values"], it.trainer.num_parameters)
    bad = reply(messages[0], **changed)
    arrays, _ = it.aggregate_train(1, [bad, *good])
    assert arrays is not None
    np.testing.assert_array_equal(arrays["model"].numpy(), it.rounds.model)
    assert set(it.rounds.outcome.failed) == set(messages[0].content["task"]["clients"])
    assert len(it.rounds.outcome.answered) == 4


def test_duplicate_and_uninvited_answers_count_once_or_not_at_all():
    it = strategy()
    messages = begin(it)
    replies = [reply(message) for message in messages]
    arrays, _ = it.aggregate_train(1, [*replies, replies[0]])
    assert arrays is not None
    assert len(it.rounds.outcome.answered) == 6
    assert max(it.rounds.participations.values()) == 1


class OneIsAway(SimulatedPlacement):
    """Nodes as devices have them: one of the cohort is on none, and no ledger can be looked at."""

    def place(self, grid, clients):
        first, *others = clients
        return Placement({NODES[0]: others}, {first: "no node that hosts it is online"})

    def released(self, clients, number, purpose):
        return list(clients)


@pytest.mark.parametrize("answer", ["refuses", "does not begin"])
@pytest.mark.parametrize("resumed", [True, False])
def test_who_takes_no_part_in_a_round_that_is_asked_again_may_have_answered_it(resumed, answer):
    # A device had answered before the server was killed, and its statement said that it had spent
    # nothing: it was offline when the round was asked again, or its policy had expired.
    it = strategy()
    object.__setattr__(it.setup, "placement", OneIsAway())
    if resumed:
        it.rounds.sums.restore(it.rounds.sums.state())
    for number in (1, 2):
        (message,) = begin(it, number)
        others = message.content["task"]["clients"]
        if answer == "refuses":
            back = reply(message, clients=[], refused=others, reasons=["no"] * 5, weight=0)
        else:
            error = Error(ErrorCode.LOAD_CLIENT_APP_EXCEPTION, "no")
            back = Message(error, reply_to=message)
        it.aggregate_train(number, [back])
        assert len(it.rounds.outcome.failed) == 6
        assert len(it.rounds.outcome.possibly_released) == (6 if resumed and number == 1 else 0)


def test_failed_node_and_silent_node_are_named_and_count_as_exposed():
    it = strategy()
    messages = begin(it)
    error = Message(Error(code=2, reason="trace\nValueError: broken"), reply_to=messages[0])
    it.aggregate_train(1, [error, reply(messages[1])])
    failed = it.rounds.outcome.failed
    assert {failed[c] for c in messages[0].content["task"]["clients"]} == {
        "node failed: ValueError: broken"
    }
    assert {failed[c] for c in messages[2].content["task"]["clients"]} == {
        "no answer before the deadline"
    }
    assert sum(it.rounds.participations.values()) == 6


def test_below_the_quorum_the_model_stays():
    it = strategy(quorum=0.9)
    messages = begin(it)
    assert it.aggregate_train(1, [reply(message) for message in messages[:2]]) == (None, None)


def test_refusing_client_is_reported_and_not_charged():
    it = strategy()
    messages = begin(it)
    kept, refusing = messages[0].content["task"]["clients"]
    answer = reply(
        messages[0],
        clients=[kept],
        refused=[refusing],
        reasons=["policy"],
        weight=1,
        packed=True,
        values=np.zeros(it.trainer.num_parameters, np.float32),
    )
    it.aggregate_train(1, [answer, *(reply(message) for message in messages[1:])])
    assert it.rounds.outcome.failed == {refusing: "policy"}
    assert it.rounds.participations[refusing] == 0
    assert len(it.rounds.outcome.answered) == 5


NOTHING_LEFT = {ErrorCode.LOAD_CLIENT_APP_EXCEPTION, ErrorCode.INVALID_FAB}
CODES = [code for name, code in vars(ErrorCode).items() if name.isupper()]


@pytest.mark.parametrize("code", CODES)
def test_exposure_is_counted_unless_the_node_says_that_no_client_has_begun(code):
    it = strategy()
    failing, *others = begin(it)
    error = Message(Error(code=code, reason="x"), reply_to=failing)
    it.aggregate_train(1, [error, *(reply(message) for message in others)])
    counted = [it.rounds.participations[client] for client in failing.content["task"]["clients"]]
    assert counted == ([0, 0] if code in NOTHING_LEFT else [1, 1])


def test_in_a_simulation_a_failed_node_exposes_those_that_were_charged(tmp_path):
    it = strategy()
    it.setup.placement.ledger = tmp_path / "ledger.sqlite"
    failing, silent, other = begin(it)
    charged, untouched = failing.content["task"]["clients"]
    with Ledger(it.setup.placement.ledger) as ledger:
        ledger.charge([Charge(charged, "run", 1, "train", "0" * 16, NonPrivateEvent())])
        ledger.charge([Charge(untouched, "run", 2, "train", "1" * 16, NonPrivateEvent())])
    error = Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason="x")
    it.aggregate_train(1, [Message(error, reply_to=failing), reply(other)])
    assert (it.rounds.participations[charged], it.rounds.participations[untouched]) == (1, 0)
    # Who has said nothing may still be at work.
    assert [it.rounds.participations[client] for client in silent.content["task"]["clients"]] == [
        1,
        1,
    ]


def test_run_ends_when_nobody_answers():
    it = strategy()
    for number in range(1, PATIENCE):
        begin(it, number)
        assert it.aggregate_train(number, []) == (None, None)
    begin(it, PATIENCE)
    with pytest.raises(RunError, match="no answer could be used in 3 rounds: "):
        it.aggregate_train(PATIENCE, [])


scalars = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(max_size=5), st.booleans()
)
lists = st.one_of(
    st.lists(st.integers(-5, 15), max_size=8), st.lists(st.text(max_size=3), max_size=3)
)


@settings(
    max_examples=1000,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    report=st.dictionaries(
        st.sampled_from(["clients", "refused", "reasons", "weight", "packed", "x"]),
        st.one_of(scalars, lists),
    ),
    size=st.integers(0, 40),
    dtype=st.sampled_from([np.int64, np.float32, np.uint8]),
)
def test_thousand_malformed_answers_never_crash_or_touch_the_model(report, size, dtype):
    it = strategy(quorum=1.0)
    messages = begin(it)
    content = RecordDict({"report": ConfigRecord(report)})
    content["contribution"] = ArrayRecord({"sum": Array(np.zeros(size, dtype))})
    replies = [Message(content, reply_to=messages[0]), *(reply(m) for m in messages[1:])]
    arrays, _ = it.aggregate_train(1, replies)
    assert arrays is None
    assert set(it.rounds.outcome.failed) >= set(messages[0].content["task"]["clients"])
