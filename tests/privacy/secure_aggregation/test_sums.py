"""The sum is exact whoever drops out when, as long as enough are left; else nothing comes out."""

import copy
from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.secure_aggregation import Phase, SecureClient, SecureServer, SecureSumError
from tests.privacy.secure_aggregation.secure_summing import secure_sum, terms, vectors


def subsets(members):
    members = sorted(members)
    return chain.from_iterable(combinations(members, k) for k in range(len(members) + 1))


def answers(states, phase, messages, values=None):
    """What the clients of ``messages`` answer, and their states after; those that refuse lack."""
    replies, after = {}, {}
    for client, message in messages.items():
        party = SecureClient.from_bytes(states[client])
        try:
            if phase is Phase.MASK:
                replies[client] = party.add_masks(values[client], message)
            else:
                replies[client] = party.answer(phase, message)
        except SecureSumError:
            continue
        after[client] = party.to_bytes()
    return replies, after


def only(replies, group):
    return {client: replies[client] for client in group if client in replies}


@pytest.mark.parametrize(("n", "threshold"), [(3, 0.5), (4, 0.5), (5, 0.5), (5, 0.67)])
def test_sum_is_exact_for_every_dropout_pattern_of_a_small_cohort(n, threshold):
    # Every client may fall silent in any of the five phases, or in none: 6^n patterns, walked as
    # a tree, since what happens in a phase depends on who was left after the one before.
    agreed = terms(n, length=3, bits=5, threshold=threshold)
    least, values, patterns, revealed = agreed.minimum, vectors(agreed), 0, 0
    states = {c: SecureClient.join(agreed, c).to_bytes() for c in agreed.clients}
    advertised, states1 = answers(states, Phase.ADVERTISE, dict.fromkeys(agreed.clients, b""))
    for u1 in subsets(agreed.clients):
        server1 = SecureServer(agreed)
        if len(u1) < least:
            with pytest.raises(SecureSumError, match="aborted"):
                server1.keys(only(advertised, u1))
            continue
        shared, states2 = answers(states1, Phase.SHARE, server1.keys(only(advertised, u1)))
        for u2 in subsets(u1):
            server2 = copy.deepcopy(server1)
            if len(u2) < least:
                with pytest.raises(SecureSumError, match="aborted"):
                    server2.shares(only(shared, u2))
                continue
            sealed = server2.shares(only(shared, u2))
            masked, states3 = answers(states2, Phase.MASK, sealed, values)
            for u3 in subsets(u2):
                server3 = copy.deepcopy(server2)
                for client in u3:
                    server3.add(client, masked[client])
                if len(u3) < least:
                    with pytest.raises(SecureSumError, match="aborted"):
                        server3.survivors_list()
                    continue
                listed = dict.fromkeys(u3, server3.survivors_list())
                said, states4 = answers(states3, Phase.CONFIRM, listed)
                for u4 in subsets(u3):
                    server4 = copy.deepcopy(server3)
                    if len(u4) < agreed.threshold:
                        with pytest.raises(SecureSumError, match="aborted"):
                            server4.confirmations(only(said, u4))
                        continue
                    words = server4.confirmations(only(said, u4))
                    shown, _ = answers(states4, Phase.REVEAL, words)
                    for u5 in subsets(u4):
                        server5 = copy.deepcopy(server4)
                        patterns += 1
                        if len(u5) < agreed.threshold:
                            with pytest.raises(SecureSumError, match="aborted"):
                                server5.total(only(shown, u5))
                            continue
                        expected = sum(values[client] for client in u3)
                        assert np.array_equal(server5.total(only(shown, u5)), expected)
                        revealed += 1
    assert 0 < revealed < patterns


def random_drops(agreed, rng, most):
    victims = rng.permutation(agreed.clients)[: rng.integers(0, most + 1)]
    return {int(c): list(Phase)[rng.integers(5)] for c in victims}


@pytest.mark.parametrize("n", [*range(3, 11), 16, 27, 50])
def test_sum_is_exact_for_random_dropouts_in_larger_cohorts(n):
    rng = np.random.default_rng(n)
    agreed = terms(n, length=40, bits=int(rng.integers(n.bit_length(), 65)), threshold=0.5)
    values = vectors(agreed, n)
    drops = random_drops(agreed, rng, n - agreed.threshold)
    outcome = secure_sum(agreed, values, drops)
    assert outcome.abort == ""
    early = {c for c, phase in drops.items() if phase in (Phase.ADVERTISE, Phase.SHARE, Phase.MASK)}
    assert set(outcome.survivors) == set(agreed.clients) - early
    assert np.array_equal(outcome.total, sum(values[c] for c in outcome.survivors))


def test_sum_is_exact_with_a_neighbour_graph_and_dropouts_in_every_phase():
    agreed = terms(40, length=30, bits=9, threshold=0.5, minimum=0.5, neighbours=14)
    values = vectors(agreed)
    drops = {
        3: Phase.ADVERTISE,
        9: Phase.SHARE,
        17: Phase.MASK,
        18: Phase.CONFIRM,
        31: Phase.REVEAL,
    }
    outcome = secure_sum(agreed, values, drops)
    assert outcome.survivors == tuple(c for c in range(40) if c not in (3, 9, 17))
    assert np.array_equal(outcome.total, sum(values[c] for c in outcome.survivors))
    sent = [len(message) for phase, _, message in outcome.seen if phase is Phase.SHARE]
    assert max(sent) <= 8 + 14 * (8 + 92)  # shares go to neighbours only


@settings(max_examples=30, deadline=None)
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
    outcome = secure_sum(agreed, values, {1000: Phase.MASK})
    assert outcome.survivors == (7, 12, 2**40)
    assert np.array_equal(outcome.total, values[7] + values[12] + values[2**40])


@pytest.mark.parametrize("phase", list(Phase))
def test_too_many_dropouts_end_the_sum_in_words_that_say_where(phase):
    agreed = terms(5, threshold=0.67)
    outcome = secure_sum(agreed, vectors(agreed), {0: phase, 1: phase})
    assert outcome.total is None
    assert outcome.abort.startswith("aborted") and phase.value in outcome.abort


def test_masked_vectors_travel_at_b_bits_for_each_coordinate():
    # 100 clients, one bit each, 81,958 coordinates: the specification's 71,714 bytes.
    agreed = terms(4, length=81_958, bits=(100).bit_length())
    outcome = secure_sum(agreed, vectors(agreed))
    sizes = {len(message) for phase, _, message in outcome.seen if phase is Phase.MASK}
    assert sizes == {71_714}
