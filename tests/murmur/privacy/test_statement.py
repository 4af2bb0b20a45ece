import json
import math

import pytest

from murmur.privacy.accounting import Adjacency, Threat, Unit, epsilon
from murmur.privacy.audit import CanaryAudit
from murmur.privacy.events import (
    Assumption,
    ComposedEvent,
    LaplaceEvent,
    NonPrivateEvent,
    RandomizedBitsEvent,
    RandomizedResponseEvent,
    Release,
    RepeatedEvent,
)
from murmur.privacy.guarantee import Exposure, by_participations
from murmur.privacy.statement import Statement
from murmur.privacy.statement_text import card, promise, render
from tests.sums import noised, reported

DELTA = 1e-5
ROUND = RepeatedEvent(RandomizedResponseEvent(2.5, 10), 2)


def client(event, *assumptions, unit=Unit.CLIENT, otherwise=None):
    return Release(event, unit, Adjacency.REPLACE_ONE, assumptions, otherwise)


SERVER = "a curious server that sees every upload"


def statement(*exposures, **settings):
    settings = {
        "algorithm": "PrivateKT",
        "unit": Unit.CLIENT,
        "adjacency": Adjacency.REPLACE_ONE,
        "delta": DELTA,
        "claim": "shuffling keeps the whole run at the ε of a round.",
        "difference": "Nobody runs the shuffler, and rounds compose.",
        **settings,
    }
    return Statement.of(exposures=exposures, **settings)


def exposure(participations, **settings):
    return Exposure(
        Threat.LOCAL, SERVER, ROUND, by_participations(ROUND, participations), **settings
    )


def test_claimed_and_proven_of_the_authors_run_of_privatekt():
    clients = {str(i): 250 - i for i in range(5)}
    said = statement(exposure(clients, claimed_per_round=5.0, claimed_total=5.0))
    (guarantee,) = said.guarantees
    assert guarantee.claimed_total == 5.0
    assert guarantee.proven_per_round == pytest.approx(5.0, rel=1e-4)
    assert f"{guarantee.proven_total:.0f}" == "795"
    assert guarantee.most_exposed == "0"
    assert guarantee.method == "exact privacy-loss distribution"
    assert guarantee.clients["4"] == guarantee.proven_least < guarantee.proven_median
    assert guarantee.proven_median == guarantee.clients["2"]
    assert said.is_private


def test_of_many_clients_those_with_equal_releases_stand_under_one_name():
    named = {str(i): 1 + i % 3 for i in range(1000)}
    many = named | {str(i): 1 for i in range(1000, 5001)}
    one_by_one, grouped = (statement(exposure(n)).guarantees[0] for n in (named, many))
    assert len(one_by_one.clients) == 1000
    assert grouped.clients == {name: one_by_one.clients[name] for name in ("0", "1", "2")}
    assert grouped.sizes == {"0": 334 + 4001, "1": 333, "2": 333}
    assert grouped.number_of_clients == 5001
    assert (grouped.proven_total, grouped.most_exposed) == (one_by_one.proven_total, "2")
    assert grouped.proven_median == grouped.clients["0"] < one_by_one.proven_median
    (again,) = Statement.from_dict(statement(exposure(many)).to_dict()).guarantees
    assert (again.clients, again.sizes) == (grouped.clients, grouped.sizes)


def test_people_read_claimed_beside_proven():
    said = statement(
        exposure({"a": 250}, claimed_per_round=5.0, claimed_total=5.0, assumptions=("it is as is",))
    )
    lines = render(said).splitlines()
    claimed = next(i for i, line in enumerate(lines) if "claimed ε:" in line)
    assert "5 per round, 5 in total" in lines[claimed]
    stated = " ".join(render(said).split())
    assert f"Against {SERVER}, if it is as is: ε = 795 in total, 5 a round" in stated
    assert "without that: ε = 795" in stated
    assert "Nobody runs the shuffler" in render(said)
    assert "shuffling keeps the whole run" in render(said)
    assert "everything that one client holds" in render(said)


def test_what_rests_on_an_assumption_is_not_proven():
    coin = Assumption("fair_coin", "the coin is fair")
    event = client(LaplaceEvent(1.0), coin)
    said = statement(Exposure(Threat.LOCAL, SERVER, event, {"a": event}))
    assert said.guarantees[0].proven_total == math.inf
    assert said.guarantees[0].assumed_total == pytest.approx(1.0, rel=1e-3)
    assert not said.is_private
    assert "NOT PROVEN: every finite ε here rests on an assumption." in render(said)
    assert "if the coin is fair: ε = 1 in total, 1 a round" in render(said)
    assert "without that: ε = infinite" in render(said)
    fallen_back = client(LaplaceEvent(1.0), coin, otherwise=client(LaplaceEvent(0.5)))
    said = statement(Exposure(Threat.LOCAL, SERVER, fallen_back, {"a": fallen_back}))
    assert said.guarantees[0].proven_total == pytest.approx(2.0, rel=1e-3)


def test_what_protects_records_proves_nothing_for_clients():
    event = client(LaplaceEvent(1.0), unit=Unit.RECORD)
    exposed = Exposure(Threat.LOCAL, SERVER, event, {"a": event})
    assert statement(exposed).guarantees[0].proven_total == math.inf
    said = statement(exposed, unit=Unit.RECORD)
    assert said.guarantees[0].proven_total == pytest.approx(1.0, rel=1e-3)


def test_json_and_back():
    said = statement(
        exposure({"a": 3, "b": 0}, claimed_total=5.0, measured=1.5, assumptions=("One.", "Two.")),
        Exposure(
            Threat.CENTRAL, "readers of infinity", NonPrivateEvent(), {"a": NonPrivateEvent()}
        ),
        warnings=("careful",),
        void=("seeded noise",),
    )
    plain = json.loads(json.dumps(said.to_dict(), allow_nan=False))
    assert plain["guarantees"][1]["proven_total"] == "infinity"
    assert plain["guarantees"][0]["threat"] == "local"
    assert Statement.from_dict(plain) == said


@pytest.mark.parametrize("plain", [{}, {"unit": "client"}, {"unit": "planet"}])
def test_other_json_is_refused(plain):
    with pytest.raises(ValueError):
        Statement.from_dict(plain)


def test_unknown_fields_are_refused():
    plain = statement(exposure({"a": 1})).to_dict()
    with pytest.raises(ValueError, match="not a privacy statement"):
        Statement.from_dict({**plain, "surprise": 1})


def test_who_did_not_take_part_spent_nothing():
    (guarantee,) = statement(exposure({"a": 3, "b": 0})).guarantees
    assert guarantee.clients["b"] == guarantee.proven_least == 0.0


def test_phases_compose():
    evaluation = RepeatedEvent(client(LaplaceEvent(2.0)), 10)
    both = Exposure(Threat.LOCAL, SERVER, ROUND, by_participations(ROUND, {"a": 3}, evaluation))
    (guarantee,) = statement(both).guarantees
    by_hand = epsilon(ComposedEvent((RepeatedEvent(ROUND, 3), evaluation)), DELTA).epsilon
    assert guarantee.proven_total == by_hand
    assert guarantee.proven_total > epsilon(RepeatedEvent(ROUND, 3), DELTA).epsilon


def test_a_name_that_stands_for_several_clients_says_the_same_as_theirs():
    named = {f"c{i}": n for i, n in enumerate([1, 1, 1, 5, 5, 9, 0])}
    sizes = {"1": 3, "5": 2, "9": 1, "0": 1}
    grouped = by_participations(ROUND, {name: int(name) for name in sizes})
    (one,) = statement(exposure(named)).guarantees
    (other,) = statement(Exposure(Threat.LOCAL, SERVER, ROUND, grouped, sizes=sizes)).guarantees
    assert one.number_of_clients == other.number_of_clients == 7
    for name in ("proven_total", "proven_median", "proven_least", "proven_per_round"):
        assert getattr(one, name) == getattr(other, name)
    assert other.most_exposed == "9"
    assert "of 7 clients" in render(
        statement(Exposure(Threat.LOCAL, SERVER, ROUND, grouped, sizes=sizes))
    )


def test_two_adversaries_stand_side_by_side():
    vector = reported(RandomizedBitsEvent(0.1, 1000, 200), 100)
    clients = by_participations(vector, {"a": 50})
    said = statement(
        Exposure(Threat.LOCAL, "a server that sees each vector", vector, clients, 1.2, 28.31),
        Exposure(
            Threat.SECURE_AGGREGATION,
            "a server that sees sums",
            vector,
            clients,
            1.2,
            28.31,
            assumptions=("100 clients are honest",),
        ),
    )
    local, summed = said.guarantees
    assert local.proven_total == summed.proven_total > 30 * summed.assumed_total
    assert summed.assumed_total < 28.31
    assert (
        f"a server that sees sums, if 100 clients are honest: ε = {summed.assumed_total:.3g}"
        in " ".join(render(said).split())
    )


def test_a_run_without_protection_says_so():
    clients = by_participations(NonPrivateEvent(), {"a": 3})
    said = statement(Exposure(Threat.LOCAL, SERVER, NonPrivateEvent(), clients))
    assert not said.is_private
    assert "NOT PRIVATE" in render(said)
    assert "infinite in total" in render(said)
    # Nothing is said of a δ, of whom it protects, and of what nothing rests on.
    told = card(said)
    assert "δ" not in render(said) and "chance" not in told["Promise"][0]
    assert told["Protected"] == ["nothing"] and "Holds if" not in told


def test_no_condition_is_named_where_nothing_rests_on_it():
    summed = noised(NonPrivateEvent(), 40)
    clients = by_participations(summed, {"a": 3})
    assumed = ("at least 40 of the 40 clients of every sum are honest",)
    said = statement(
        Exposure(Threat.SECURE_AGGREGATION, SERVER, summed, clients, assumptions=assumed)
    )
    assert "honest" not in render(said) and "Holds if" not in card(said)
    assert said.guarantees[0].proven_total == math.inf


def test_seeded_noise_makes_the_statement_void():
    said = statement(exposure({"a": 1}), void=("the noise was seeded, so that anyone can redo it",))
    assert not said.is_private
    assert render(said).splitlines()[1].startswith("VOID")


def test_what_a_split_leaves_unprotected_stands_at_the_top():
    said = statement(exposure({"a": 1}), split="rows of owners in the test set")
    assert render(said).splitlines()[2] == "Not protected: rows of owners in the test set."
    assert Statement.from_dict(json.loads(json.dumps(said.to_dict()))) == said
    assert "Not protected" not in render(statement(exposure({"a": 1})))


def test_measured_epsilon_is_reported():
    assert "measured ε: at least 2.5 per round, by attack" in render(
        statement(exposure({"a": 1}, measured=2.5))
    )


def test_an_attack_that_beats_the_proof_is_shouted():
    beaten = statement(exposure({"a": 250}, measured=5.1))
    assert "MORE THAN STATED" in render(beaten) and not beaten.is_private
    assert render(beaten).splitlines()[1].startswith("VOID, rely on none of these figures: an att")
    kept = statement(exposure({"a": 250}, measured=4.9))
    assert "MORE THAN" not in render(kept) and not kept.doubts


def test_an_attack_that_beats_what_is_assumed_is_shouted_too():
    hidden = client(LaplaceEvent(1.0), Assumption("fair_coin", "the coin is fair"))
    seen = Exposure(Threat.LOCAL, SERVER, hidden, {"a": hidden}, measured=1.2)
    said = statement(seen)  # it is below what is proven: ε is infinite
    assert "MORE THAN STATED" in render(said) and said.doubts


def test_words_for_epsilon():
    one = client(LaplaceEvent(1.0))
    said = statement(Exposure(Threat.LOCAL, SERVER, one, {"a": one}), delta=0.0)
    assert "from even odds on any fact about the unit" in render(said)
    assert "at most 73.2% sure" in render(said)
    assert "practically certain" in render(statement(exposure({"a": 250})))


def test_canaries_that_show_more_than_is_stated_are_shouted():
    """What their coins show; not what scores would show if they were normal."""
    for coins, is_beaten in ((4.9, False), (5.1, True)):
        found = CanaryAudit(64, 1.1, coins, 9.0, 8.0, 10.0)
        said = statement(exposure({"a": 1}, canaries=found))
        assert ("MORE THAN STATED" in render(said)) is bool(said.doubts) is is_beaten


def test_what_is_hidden_is_part_of_the_promise():
    said = {promise(Unit.CLIENT, near, Threat.CENTRAL, 1e-5) for near in Adjacency}
    assert len(said) == len(Adjacency)


@pytest.mark.parametrize("adjacency", [Adjacency.ADD_REMOVE, Adjacency.REPLACE_SPECIAL])
def test_odds_are_on_what_neighbours_differ_in(adjacency):
    """Two units, each compared with none, are two steps apart: any fact would cost 2ε."""
    one = Release(LaplaceEvent(1.0), Unit.CLIENT, adjacency)
    said = statement(Exposure(Threat.LOCAL, SERVER, one, {"a": one}), adjacency=adjacency)
    text = " ".join(render(said).split())
    assert "any fact" not in text and "from even odds on whether the unit" in text


def test_the_text_stays_short_and_keeps_what_matters():
    talkative = exposure({"a": 1}, notes=tuple(f"Note {i} of many." for i in range(40)))
    text = render(statement(talkative, warnings=("Mind the gap.",)))
    assert len(text.splitlines()) == 25
    assert "Mind the gap." in text
    assert "more lines" in text.splitlines()[-1]
    assert max(len(line) for line in text.splitlines()) <= 100


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: statement(), r"^exposures="),
        (lambda: statement(exposure({})), r"^clients="),
        (lambda: statement(exposure({"a": -1})), r"^count=-1"),
        (lambda: statement(exposure({"a": 1}), delta=1.0), r"^delta=1.0"),
    ],
)
def test_bad_statements_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
