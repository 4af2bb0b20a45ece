"""However several clients lie together, no more others are left out of sums than they are."""

import numpy as np
import pytest

from murmur.secure_sum import contradictions
from murmur.secure_sum.blame import Blame
from murmur.secure_sum.client import SEALED_BYTES
from murmur.secure_sum.contradictions import Contradictions
from murmur.secure_sum.identity import SeenPeers, new_identity, public_identity
from murmur.secure_sum.shares import Dealing
from murmur.secure_sum.terms import Stage, join, join_ids, part, part_ids
from research.attacks.sums import ATTACKS, attacked
from tests.murmur.secure_sum.secure_summing import secure_sum, terms, vectors

CLIENTS = 13
SUMS = 5


def sums(liars, lie, **settings):
    """Whom each of several sums of a run left out, of those that do not lie; the servers.

    ``lie``: what is made of a liar's answer, by (terms, phase, liar, answer).
    """
    blame = Blame(settings.pop("most", 0))
    dropouts = settings.pop("dropouts", 0)
    out, servers = [], []
    for number in range(1, settings.pop("count", SUMS) + 1):
        agreed = terms(CLIENTS, round=number, **settings)
        values = vectors(agreed)

        def tamper(phase, client, sent, agreed=agreed):
            return lie(agreed, phase, client, sent) if client in liars else sent

        past = {"blame": blame, "liars": blame.most, "dropouts": dropouts}
        outcome = secure_sum(agreed, values, to_server=tamper, **past)
        server = outcome.server
        assert outcome.total is not None, outcome.abort
        assert np.array_equal(outcome.total, sum(values[c] for c in outcome.survivors))
        named = server.dropped.keys() | server.accused.keys() | blame.accused.keys()
        assert set(agreed.clients) - set(outcome.survivors) <= named
        out.append(set(agreed.clients) - set(outcome.survivors) - set(liars))
        servers.append(server)
    return out, servers


def victims(agreed, liars):
    """As many as there are liars, less one, at other places in each sum."""
    honest = [c for c in agreed.clients if c not in liars]
    count = max(1, len(liars) - 1)
    return {honest[(agreed.round * count + i) % len(honest)] for i in range(count)}


def without_boxes(agreed, client, sent, whom):
    """A sharing that has nothing for ``whom``, as of one that does not accept their keys."""
    start = Dealing.size(agreed.threshold, agreed.holders)
    boxes = part(sent[start:], SEALED_BYTES, agreed.neighbours_of(client))
    left = {v: box for v, box in boxes.items() if v not in whom}
    return sent[:start] + join(left, agreed.neighbours_of(client))


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_who_denies_keys_costs_no_more_others_their_place_than_there_are_liars(count):
    liars = set(range(CLIENTS - count, CLIENTS))

    def lie(agreed, phase, client, sent):
        if phase is not Stage.SHARE:
            return sent
        return without_boxes(agreed, client, sent, victims(agreed, liars))

    out, servers = sums(liars, lie)
    assert len(set().union(*out)) <= count  # earlier: as many as liars less one in each sum anew
    assert out[-1] == set()  # who denies ever others is found to be who goes
    for server, gone in zip(servers, out, strict=True):
        for one in gone:  # and the row names those that deny
            assert all(str(liar) in server.dropped[one] for liar in liars & server._sealed.keys())


@pytest.mark.parametrize("count", [3, 4, 5, 6])
def test_a_client_that_is_in_few_contradictions_each_does_not_cost_more_either(count):
    # Whoever is in most pairs went first: k liars could cost k·ln(k) others their place.
    liars = list(range(6))
    shared = {6: 6, 7: 5, 8: 4, 9: 3, 10: 3, 11: 2, 12: 2}

    def lie(agreed, phase, client, sent):
        if phase is not Stage.SHARE:
            return sent
        whom = {v for v, many in shared.items() if (client + v) % 6 < many}
        return without_boxes(agreed, client, sent, whom)

    out, _ = sums(liars[:count], lie, threshold=0.5, minimum=0.5)
    assert len(set().union(*out)) <= count


@pytest.mark.parametrize("most", [0, 1, 4])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_who_denies_shares_costs_no_more_others_their_place_than_there_are_liars(count, most):
    # Three of 13 that denied the shares of all others had all of these left out, and no sum.
    liars = set(range(CLIENTS - count, CLIENTS))

    def lie(agreed, phase, client, sent):
        if phase is not Stage.CHECK:
            return sent
        near = agreed.neighbours_of(client)
        whom = near if most == 0 else victims(agreed, liars)
        return join_ids(set(part_ids(sent, near)) - set(whom), near)

    out, servers = sums(liars, lie, most=most, dropouts=2, threshold=0.67)
    spare = servers[0].terms.holders - servers[0].terms.threshold - 2
    wrong = most if count > most else 0  # named where more lie than may, which the settings exclude
    assert len(set().union(*out)) <= count + wrong
    if count <= spare:
        assert len(set().union(*out)) <= wrong


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_who_shows_a_new_key_in_each_sum_goes_itself(count, tmp_path):
    liars = set(range(CLIENTS - count, CLIENTS))
    fixed = {c: new_identity() for c in range(CLIENTS)}

    def identity(client):
        return new_identity() if client in liars else fixed[client]

    seen = {c: Remembered(tmp_path / f"{c}") for c in range(CLIENTS) if c not in liars}
    blame = Blame(0)
    for number in range(1, SUMS + 1):
        agreed = terms(CLIENTS, round=number)
        outcome = secure_sum(agreed, vectors(agreed), peers=seen, blame=blame, identity=identity)
        gone = set(agreed.clients) - set(outcome.survivors)
        assert gone == (set() if number == 1 else liars)
        assert gone <= outcome.server.dropped.keys()


class Remembered:
    """Keys at first sight, kept at once: the protocol's tests have no host that keeps them."""

    def __init__(self, path):
        self.path = path

    def accepts(self, client, key):
        seen = SeenPeers(self.path)
        accepted = seen.accepts(client, key)
        seen.keep()
        return accepted


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, attack in ATTACKS.items()
        if attack.phase is not Stage.MASK and name != "shuts out a victim"
    ],
)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_other_lie_costs_nobody_else_the_place(name, count):
    liars = set(range(CLIENTS - count, CLIENTS))
    with attacked(ATTACKS[name], liars):
        settings = {"most": count, "threshold": 0.5, "count": 1}
        out, _ = sums(liars, lambda agreed, phase, client, sent: sent, **settings)
    assert not any(out)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_with_pinned_keys_who_denies_one_goes_and_nobody_else(count):
    liars = set(range(CLIENTS - count, CLIENTS))
    fixed = {c: new_identity() for c in range(CLIENTS)}
    keys = {c: public_identity(key) for c, key in fixed.items()}

    def lie(phase, client, sent):
        if phase is not Stage.SHARE or client not in liars:
            return sent
        return without_boxes(agreed, client, sent, {0})

    agreed = terms(CLIENTS)
    outcome = secure_sum(
        agreed, vectors(agreed), to_server=lie, identity=fixed.__getitem__, pinned=keys
    )
    assert set(outcome.survivors) == set(range(CLIENTS)) - liars
    assert outcome.server.dropped.keys() == liars


# The cover ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_at_most_as_many_others_are_ever_left_out_as_are_at_fault(seed):
    rng = np.random.default_rng(seed)
    clients = int(rng.integers(4, 30))
    faulty = set(rng.choice(clients, int(rng.integers(1, clients // 2 + 1)), False).tolist())
    known = Contradictions()
    ever, accused = set(), set()
    for _ in range(12):
        pairs = []
        for _ in range(int(rng.integers(0, 4 * len(faulty)))):
            one, other = int(rng.choice(sorted(faulty))), int(rng.integers(clients))
            pair = (one, other) if rng.random() < 0.7 else (other, one)
            if one != other and not accused.intersection(pair):
                pairs.append(pair)
        gone = known.left_out(pairs, accused)
        assert all(gone & set(pair) for pair in pairs)  # nobody is beside whom it contradicts
        assert gone <= {client for pair in pairs for client in pair}
        ever |= gone - faulty
        assert len(ever) <= len(faulty)
        if rng.random() < 0.2:
            accused.add(int(rng.choice(sorted(faulty))))


def test_of_one_pair_who_denies_goes_and_of_a_star_its_centre():
    assert Contradictions().left_out([(3, 1)]) == {3}
    assert Contradictions().left_out([(1, 3)]) == {1}
    assert Contradictions().left_out([(c, 9) for c in range(5)]) == {9}
    assert Contradictions().left_out([(9, c) for c in range(5)]) == {9}
    assert Contradictions().left_out([(a, b) for a in (0, 1) for b in (2, 3)]) == {0, 1}
    assert Contradictions().left_out([]) == set()


def test_who_is_in_no_contradiction_now_stays_for_all_that_was_before():
    known = Contradictions()
    assert known.left_out([(c, 9) for c in range(5)]) == {9}
    assert known.left_out([(7, 8)]) == {7}  # its owners have listed the key of 9 since
    assert known.left_out([(0, 9)]) == {9}


def test_what_a_proven_liar_was_in_says_nothing_of_others():
    known = Contradictions()
    assert known.left_out([(0, 9), (1, 9)]) == {9}
    assert known.left_out([(2, 9)], accused={0, 1}) == {2}


def test_a_hard_graph_of_many_liars_is_covered_at_once():
    # Each denies three others at random: a least cover in whole numbers would take for ever.
    rng = np.random.default_rng(1)
    pairs = {(int(a), int(b)) for a in range(600) for b in rng.choice(600, 3) if a != b}
    gone = contradictions._cover(sorted(pairs))
    assert all(gone & set(pair) for pair in pairs)


def test_contradictions_survive_a_checkpoint_and_an_older_one_has_none():
    blame, again = Blame(2), Blame(2)
    blame.contradictions.left_out([(1, 2), (3, 2)])
    again.restore(blame.state())
    assert again.contradictions.pairs == {(1, 2), (3, 2)}
    state = b'{"accused": {}, "spoiled": [[1, 2]]}'
    again.restore({"blame": np.frombuffer(state, np.uint8)})
    assert again.contradictions.pairs == set() and again.spoiled == [(1, 2)]


def test_however_many_lie_no_more_are_named_without_a_proof_than_may_lie():
    rng = np.random.default_rng(5)
    for most in (1, 2, 3):
        blame = Blame(most)
        for _ in range(12):
            one, other = rng.choice(12, 2, False).tolist()
            blame.add({}, [(one, other)])
        assert len(blame.accused) <= most
