"""What the clients of a sum are asked alike, to which their masks are bound."""

from enum import IntEnum, StrEnum

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto

from murmur.round import task
from murmur.round.task import RECORD, request_digest, started_with


def asked(rate=0.1, share=0.5, first=0, who=(1, 2), entry=1, sum_of=(1, 2), ours="task"):
    return RecordDict(
        {
            "model": ArrayRecord({"w": Array(np.array([entry]))}),
            "config": ConfigRecord({"rate": rate, "clients": first}),
            "known": MetricRecord({"share": share}),
            ours: ConfigRecord({"round": 1, "clients": list(who)}),
            RECORD: ConfigRecord({"clients": list(sum_of)}),
        }
    )


def question(content, kind="train", started=""):
    return task.question(content, kind, started)


def test_the_messages_type_and_what_clients_were_started_with_are_part_of_the_question():
    # A server could have some call another function of the app, or give it another run-config.
    others = [("train.other", "a"), ("evaluate", "a"), ("train", "b"), ("traina", "")]
    found = {question(asked(), *other) for other in [("train", "a"), *others]}
    assert len(found) == 5


def test_a_run_config_has_one_digest_whatever_its_order():
    one = {"rate": 0.1, "steps": 2, "name": "a", "on": True}
    assert started_with(one) == started_with(dict(reversed(one.items())))
    others = [{**one, "rate": 0.2}, {**one, "on": 1}, {**one, "name": "b"}, {"rate": 0.1}, {}]
    others += [{**one, "more": ""}, {**one, "on": "True"}, {"ra": "te0.1"}]
    assert len({started_with(each) for each in [one, *others]}) == 9


@pytest.mark.parametrize("other", [{"rate": 0.2}, {"share": 0.6}, {"first": 1}, {"entry": 2}])
def test_clients_that_are_asked_anything_else_are_bound_to_something_else(other):
    assert question(asked(**other)) != question(asked())
    assert request_digest("run", "fedavg", "os", asked(**other)) != request_digest(
        "run", "fedavg", "os", asked()
    )


@pytest.mark.parametrize("ours", ["task", "murmur"])
@pytest.mark.parametrize("other", [{"who": (3,)}, {"sum_of": (3,)}])
def test_who_is_asked_is_no_part_of_the_question_and_one_of_the_request(other, ours):
    before = asked(ours=ours)
    after = asked(ours=ours, **other)
    assert question(after) == question(before)
    assert request_digest("run", "fedavg", "os", after) != request_digest(
        "run", "fedavg", "os", before
    )


def test_a_strategys_own_record_that_is_named_as_ours_is_a_part_of_the_question():
    # Clients of one sum could be asked by one name of theirs for two things.
    def put(clients):
        return RecordDict({**asked(ours="murmur"), "task": ConfigRecord({"clients": clients})})

    assert question(put([3])) != question(put([1, 2]))


class Text(StrEnum):
    A = "a"


class Number(IntEnum):
    ONE = 1


RATES = [0.1, True, "a", b"a", [1, 2], [], np.float64(0.1), np.str_("a")]
SUBCLASSES = [Text.A, Number.ONE, [Text.A], [Number.ONE], [1, True], [2.0, np.float64(1)]]


@pytest.mark.parametrize("rate", [*RATES, *SUBCLASSES])
@pytest.mark.parametrize("share", [1, 0.5, [0.5], np.float64(0.5), [np.float64(0.5)]])
def test_both_ends_of_a_wire_read_one_question(rate, share):
    # A rate that a strategy had computed with NumPy made the server accuse all who had confirmed.
    sent = asked(rate=rate, share=share)
    assert question(recorddict_from_proto(recorddict_to_proto(sent))) == question(sent)
