"""The sum is exact whoever drops out when, as long as enough are left; else nothing comes out."""

import copy
from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.secure_sum.client import SEALED_BYTES, SecureClient
from murmur.secure_sum.server import SecureServer
from murmur.secure_sum.store import restored
from murmur.secure_sum.terms import SecureSumError, Stage, join_ids, list_size
from tests.murmur.secure_sum.secure_summing import ASKED, secure_sum, terms, vectors, written


def subsets(members):
    members = sorted(members)
    return chain.from_iterable(combinations(members, k) for k in range(len(members) + 1))


def answers(states, phase, messages, values=None):
    """What the clients of ``messages`` answer, and their states after; those that refuse lack."""
    replies, after = {}, {}
    for client, message in messages.items():
        party = restored(*states[client])
        try:
            if phase is Stage.MASK:
                replies[client] = party.add_masks(values[client], message, ASKED)
            else:
                replies[client] = party.answer(phase, message)
        except SecureSumError:
            continue
        after[client] = written(party)
    return replies, after


def only(replies, group):
    return {client: replies[client] for client in group if client in replies}


def walk(agreed, values, phase, server, states, messages):
    """The sums of all dropout patterns from ``phase`` on, None where nothing comes out."""
    steps = {
        Stage.ADVERTISE: SecureServer.keys,
        Stage.SHARE: SecureServer.shares,
        Stage.CHECK: check,
        Stage.MASK: add_all,
        Stage.CONFIRM: SecureServer.confirmations,
        Stage.REVEAL: SecureServer.total,
    }
    order = list(Stage)
    replies, after = answers(states, phase, messages, values)
    least = agreed.threshold if phase in (Stage.CONFIRM, Stage.REVEAL) else agreed.minimum
    for left in subsets(replies):
        here = copy.deepcopy(server)
        if len(left) < least:
            with pytest.raises(SecureSumError, match="aborted"):
                steps[phase](here, only(replies, left))
            yield None
            continue
        found = steps[phase](here, only(replies, left))
        if phase is Stage.REVEAL:
            assert np.array_equal(found, sum(values[client] for client in here.survivors))
            yield found
        else:
            following = order[order.index(phase) + 1]
            yield from walk(agreed, values, following, here, after, found)


def check(server, replies):
    server.checked(replies)
    server.asked = ASKED
    return server.lists()


def add_all(server, masked):
    for client, packed in masked.items():
        server.add(client, packed)
    return server.survivors_list()


@pytest.mark.parametrize(("n", "threshold"), [(3, 0.5), (4, 0.5), (4, 0.7)])
def test_sum_is_exact_for_every_dropout_pattern_of_a_small_cohort(n, threshold):
    # Every client may fall silent in any of the six phases, or in none: 7^n patterns, walked as
    # a tree, since what happens in a phase depends on who was left after the one before.
    agreed = terms(n, length=3, bits=5, threshold=threshold)
    states = {c: written(SecureClient.join(agreed, c)) for c in agreed.clients}
    asked = dict.fromkeys(agreed.clients, b"")
    begun = (SecureServer(agreed), states, asked)
    sums = list(walk(agreed, vectors(agreed), Stage.ADVERTISE, *begun))
    revealed = [total for total in sums if total is not None]
    assert 0 < len(revealed) < len(sums)


def random_drops(agreed, rng, most):
    victims = rng.permutation(agreed.clients)[: rng.integers(0, most + 1)]
    return {int(c): list(Stage)[rng.integers(6)] for c in victims}


@pytest.mark.parametrize("n", [*range(3, 11), 16, 27, 50])
def test_sum_is_exact_for_random_dropouts_in_larger_cohorts(n):
    rng = np.random.default_rng(n)
    agreed = terms(n, length=40, bits=int(rng.integers(n.bit_length(), 65)), threshold=0.5)
    values = vectors(agreed, n)
    drops = random_drops(agreed, rng, n - agreed.threshold)
    outcome = secure_sum(agreed, values, drops)
    assert outcome.abort == ""
    late = (Stage.CONFIRM, Stage.REVEAL)
    early = {c for c, phase in drops.items() if phase not in late}
    assert set(outcome.survivors) == set(agreed.clients) - early
    assert np.array_equal(outcome.total, sum(values[c] for c in outcome.survivors))


def test_sum_is_exact_with_a_neighbour_graph_and_dropouts_in_every_phase():
    ring = {"neighbours": 14, "server": "honest"}
    agreed = terms(40, length=30, bits=9, threshold=0.5, minimum=0.5, **ring)
    values = vectors(agreed)
    drops = {
        3: Stage.ADVERTISE,
        9: Stage.SHARE,
        12: Stage.CHECK,
        17: Stage.MASK,
        18: Stage.CONFIRM,
        31: Stage.REVEAL,
    }
    outcome = secure_sum(agreed, values, drops)
    assert outcome.survivors == tuple(c for c in range(40) if c not in (3, 9, 12, 17))
    assert np.array_equal(outcome.total, sum(values[c] for c in outcome.survivors))
    sent = [len(message) for phase, _, message in outcome.seen if phase is Stage.SHARE]
    dealing = 33 + 32 * 8 + 48 * 15
    assert max(sent) <= dealing + 2 + 14 * SEALED_BYTES  # shares go to neighbours only


FOLLOWED = (Stage.ADVERTISE, Stage.SHARE, Stage.MASK, Stage.REVEAL)


def test_a_server_that_follows_the_protocol_needs_four_messages_for_the_same_sum():
    agreed = terms(9, length=30, bits=9, threshold=0.5, server="honest")
    values = vectors(agreed)
    drops = {2: Stage.SHARE, 3: Stage.MASK, 4: Stage.REVEAL}
    outcome = secure_sum(agreed, values, drops)
    assert agreed.stages == FOLLOWED == tuple(dict.fromkeys(s for s, _, _ in outcome.seen))
    assert outcome.survivors == (0, 1, 4, 5, 6, 7, 8)
    assert np.array_equal(outcome.total, sum(values[c] for c in outcome.survivors))
    assert not outcome.server.accused and not outcome.server.conflicts
    assert terms(9).stages == tuple(Stage)


def test_without_check_shares_that_do_not_open_are_missed_in_reveal_and_name_nobody():
    agreed = terms(5, server="honest")
    values = vectors(agreed)

    def spoilt(phase, client, message):
        if phase is Stage.MASK and client == 2:
            place = list_size(agreed.clients) + list_size(agreed.neighbours_of(2))
            return message[:place] + bytes([message[place] ^ 1]) + message[place + 1 :]
        return message

    outcome = secure_sum(agreed, values, to_client=spoilt)
    assert np.array_equal(outcome.total, sum(values.values()))
    assert outcome.server.conflicts == [(0, 2)] and not outcome.server.accused


def test_without_confirm_a_client_reveals_for_enough_survivors_and_itself_only():
    agreed = terms(5, minimum=0.8, server="honest")

    def fewer(survivors):
        def told(phase, client, message):
            if phase is Stage.REVEAL and client == 2:
                return join_ids(survivors, agreed.clients)
            return message

        return secure_sum(agreed, vectors(agreed), to_client=told).refused

    assert fewer(range(1, 5)) == {}
    assert "clients are left; the sum of fewer than 4 stays masked" in fewer([1, 2, 3])[2][1]
    assert "not one of this sum's" in fewer([0, 1, 3, 4])[2][1]


@settings(max_examples=30)
@given(st.integers(1, 64), st.integers(1, 9), st.booleans(), st.integers(0, 2**32))
def test_sum_is_exact_for_every_modulus_and_length(bits, length, signed, seed):
    agreed = terms(3, length=length, bits=bits)
    rng = np.random.default_rng(seed)
    third = 2 ** (bits - 1 if signed else min(bits, 63)) // 3
    low = -third if signed else 0
    values = {c: rng.integers(low, third, length, endpoint=True) for c in range(3)}
    outcome = secure_sum(agreed, values, signed=signed)
    assert np.array_equal(outcome.total, sum(values.values()))


def test_sum_wraps_at_the_modulus_and_nowhere_else():
    agreed = terms(3, length=2, bits=3)
    full = {c: np.array([5, 2]) for c in range(3)}
    assert list(secure_sum(agreed, full).total) == [15 % 8, 6]
    agreed = terms(3, length=1, bits=64)
    huge = {c: np.array([-(2**62)]) for c in range(3)}
    assert list(secure_sum(agreed, huge, signed=True).total) == [-3 * 2**62 + 2**64]


def test_ids_need_not_be_consecutive():
    agreed = terms(clients=[7, 2**40, 1000, 12], length=4)
    values = vectors(agreed)
    outcome = secure_sum(agreed, values, {1000: Stage.MASK})
    assert outcome.survivors == (7, 12, 2**40)
    assert np.array_equal(outcome.total, values[7] + values[12] + values[2**40])


@pytest.mark.parametrize("phase", list(Stage))
def test_too_many_dropouts_end_the_sum_in_words_that_say_where(phase):
    agreed = terms(5, threshold=0.67)
    outcome = secure_sum(agreed, vectors(agreed), {0: phase, 1: phase})
    assert outcome.total is None
    assert outcome.abort.startswith("aborted") and phase.value in outcome.abort


def test_masked_vectors_travel_at_b_bits_for_each_coordinate():
    # 100 clients, one bit each, 81,958 coordinates: the specification's 71,714 bytes.
    agreed = terms(4, length=81_958, bits=(100).bit_length())
    outcome = secure_sum(agreed, vectors(agreed))
    sizes = {len(message) for phase, _, message in outcome.seen if phase is Stage.MASK}
    assert sizes == {71_714}
