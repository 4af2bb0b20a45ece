"""What a hostile server or client tries, and who refuses."""

import dataclasses

import numpy as np
import pytest

from benchmarks.sum_attacks import ATTACKS, attacked
from privacy.secure_aggregation import (
    Phase,
    SecureClient,
    SecureServer,
    SecureSumError,
    shares,
)
from privacy.secure_aggregation.bindings import about_dealing
from privacy.secure_aggregation.keys import scalar
from privacy.secure_aggregation.messages import join, join_ids, part
from privacy.secure_aggregation.shares import Dealing
from tests.privacy.secure_aggregation.secure_summing import secure_sum, terms, vectors


def flip(message, place=-1):
    changed = bytearray(message)
    changed[place] ^= 1
    return bytes(changed)


def recorded(agreed, drops=None, entropy=None):
    """All messages of an honest sum by (phase, client): to clients, and from them."""
    down, up = {}, {}

    def note(into):
        return lambda phase, client, message: into.setdefault((phase, client), message)

    secure_sum(
        agreed, vectors(agreed), drops, to_client=note(down), to_server=note(up), entropy=entropy
    )
    return down, up


# Altered ----------------------------------------------------------------------------------------


def only_to(phase, client, change):
    """A server that changes what one client gets in one phase."""
    return lambda p, c, message: change(message) if (p, c) == (phase, client) else message


@pytest.mark.parametrize("place", [1, 1 + 124, -1], ids=["box", "test", "last test"])
def test_whoever_gets_altered_shares_does_not_mask_with_their_sender(place):
    # To a server that alters shares itself it looks as if the client complained without reason.
    agreed, values = terms(4), vectors(terms(4))
    alter = only_to(Phase.CHECK, 2, lambda message: flip(message, place))
    outcome = secure_sum(agreed, values, to_client=alter)
    assert outcome.survivors == (0, 1, 3) and list(outcome.server.accused) == [2]
    assert np.array_equal(outcome.total, sum(values[c] for c in (0, 1, 3)))
    assert len(outcome.clients[2].shares) == 3  # its own, and of two that it heard right


def test_a_client_refuses_to_mask_with_somebody_whose_shares_it_did_not_accept():
    agreed = terms(4)
    alter = only_to(Phase.CHECK, 2, flip)
    everybody = only_to(Phase.MASK, 2, lambda _: join_ids(range(4), range(4)))
    outcome = secure_sum(agreed, vectors(agreed), {2: Phase.MASK}, to_client=alter)
    with pytest.raises(SecureSumError, match="shares were not accepted"):
        outcome.clients[2].included_in(everybody(Phase.MASK, 2, b""))


def test_altered_confirmations_are_not_counted():
    agreed, values = terms(5), vectors(terms(5))
    one = secure_sum(agreed, values, to_client=only_to(Phase.REVEAL, 2, flip))
    assert not one.refused and np.array_equal(one.total, sum(values.values()))
    rest = only_to(Phase.REVEAL, 2, lambda message: message[:1] + bytes(len(message) - 1))
    outcome = secure_sum(agreed, values, to_client=rest)
    assert outcome.refused[2][0] is Phase.REVEAL and "are needed" in outcome.refused[2][1]


@pytest.mark.parametrize("place", [1, 40, 70, 100, -1])
def test_altered_public_keys_are_refused_by_those_who_get_them(place):
    agreed = terms(4)
    alter = only_to(Phase.SHARE, 2, lambda message: flip(message, place))
    outcome = secure_sum(agreed, vectors(agreed), to_client=alter)
    assert outcome.refused[2][0] is Phase.SHARE and "not signed by" in outcome.refused[2][1]
    assert outcome.survivors == (0, 1, 3)


@pytest.mark.parametrize("phase", list(Phase))
def test_whoever_sends_a_malformed_answer_is_accused_and_the_sum_goes_on(phase):
    agreed, values = terms(5), vectors(terms(5))
    cut = only_to(phase, 3, lambda message: message[:-1])
    outcome = secure_sum(agreed, values, to_server=cut)
    assert list(outcome.server.accused) == [3] and not outcome.server.dropped
    assert np.array_equal(outcome.total, sum(values[c] for c in outcome.survivors))


@pytest.mark.parametrize("dropped", [{}, {3: Phase.MASK}], ids=["of a seed", "of a key"])
def test_a_wrong_share_is_noticed_and_does_not_matter(dropped):
    agreed, values = terms(5), vectors(terms(5))
    lie = only_to(Phase.REVEAL, 1, flip)
    outcome = secure_sum(agreed, values, dropped, to_server=lie)
    assert outcome.server.accused == {1: "it did not reveal the shares that it had accepted"}
    assert np.array_equal(outcome.total, sum(values[c] for c in outcome.survivors))


def test_a_masked_vector_of_the_wrong_length_is_not_added():
    server = SecureServer(terms(5))
    server.included = (3,)
    server.add(3, b"\0")
    assert "masked vector has 1 bytes" in server.accused[3] and server.masked[0] == []


def test_a_second_vector_of_one_client_is_not_added():
    agreed = terms(3, length=2)
    server = SecureServer(agreed)
    server.included = (0, 1, 2)
    server.add(0, b"\1\2")
    with pytest.raises(SecureSumError, match="sent two"):
        server.add(0, b"\1\2")
    with pytest.raises(SecureSumError, match="not asked"):
        server.add(7, b"\1\2")


# Blamed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, a in ATTACKS.items() if a.phase is not Phase.MASK])
def test_a_liar_is_named_at_once_and_nobody_else(name):
    agreed, values = terms(7, threshold=0.6), vectors(terms(7))
    with attacked(ATTACKS[name], [4, 6]):
        outcome = secure_sum(agreed, values)
    assert set(outcome.server.accused) == {4, 6}, outcome.server.accused
    assert not outcome.server.dropped and outcome.refused.keys() <= {4, 6}
    in_it = (Phase.CONFIRM, Phase.REVEAL)
    expected = set(range(7)) if ATTACKS[name].phase in in_it else {0, 1, 2, 3, 5}
    assert set(outcome.survivors) == expected
    assert np.array_equal(outcome.total, sum(values[c] for c in expected))


def test_two_clients_with_one_key_are_both_named():
    agreed, values = terms(6), vectors(terms(6))
    twin = {}

    def copied(phase, client, message):
        if phase is Phase.ADVERTISE and client in (4, 5):
            return twin.setdefault("sent", message)
        return message

    outcome = secure_sum(agreed, values, to_server=copied)
    assert 5 in outcome.server.accused and outcome.survivors == (0, 1, 2, 3, 4)


def test_a_dealer_and_its_accomplice_are_both_named_and_the_sum_is_right(monkeypatch):
    # The dealer commits to a wrong share for one holder, which says nothing and reveals it.
    agreed, values = terms(9, threshold=0.5), vectors(terms(9))
    honest, on_it, bad = Dealing.of, shares.value_at, int.from_bytes(scalar(), "big")

    def of(seed, key, threshold, holders, about):
        if about != about_dealing(agreed, 7):
            return honest(seed, key, threshold, holders, about)
        with monkeypatch.context() as patched:  # holder 1, the accomplice, is at 2
            patched.setattr(shares, "value_at", lambda p, at: bad if at == 2 else on_it(p, at))
            return honest(seed, key, threshold, holders, about)

    monkeypatch.setattr(Dealing, "of", of)
    plainly = SecureClient.check

    def accept(self, message):
        if self.me != 1:
            return plainly(self, message)
        with monkeypatch.context() as patched:
            patched.setattr("privacy.secure_aggregation.client.passes", lambda *_: True)
            return plainly(self, message)

    monkeypatch.setattr(SecureClient, "check", accept)
    outcome = secure_sum(agreed, values)
    assert set(outcome.server.accused) == {1, 7}
    assert np.array_equal(outcome.total, sum(values.values()))


# Replayed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [Phase.SHARE, Phase.CHECK, Phase.REVEAL])
@pytest.mark.parametrize("change", [{"round": 2}, {"run": "other"}])
def test_messages_of_another_sum_are_refused_even_under_the_same_keys(phase, change):
    # Replay of the same kind of message to the same client, with all secrets the same: the worst
    # case, since in truth they are fresh in every sum.
    agreed = terms(4)
    old, _ = recorded(agreed, entropy="same")
    later = dataclasses.replace(agreed, **change)
    replay = only_to(phase, 1, lambda _: old[phase, 1])
    outcome = secure_sum(later, vectors(later), to_client=replay, entropy="same")
    assert outcome.refused[1][0] is phase


def test_shares_are_refused_by_anybody_but_their_receiver():
    agreed = terms(4)
    honest, _ = recorded(agreed, entropy="misdirected")

    def misdirect(message):
        size = 124 + 64
        stolen = part(honest[Phase.CHECK, 2], size, (0, 1, 3))  # for 2 by 0, 1, 3
        found = part(message, size, (0, 2, 3))
        return join({c: stolen[c] if c in (0, 3) else bytes(size) for c in found}, (0, 2, 3))

    wrong = only_to(Phase.CHECK, 1, misdirect)
    outcome = secure_sum(agreed, vectors(agreed), to_client=wrong, entropy="misdirected")
    assert outcome.refused[1][0] is Phase.CHECK


def states_until(agreed, phase, me=0):
    """Client ``me`` just before ``phase``, and its message of that phase, in an honest sum."""
    kept = {}

    def keep(p, client, message):
        kept[p, client] = message
        return message

    outcome = secure_sum(agreed, vectors(agreed), {me: phase}, to_client=keep, entropy="until")
    full, _ = recorded(agreed, entropy="until")
    return outcome.clients[me], full[phase, me]


def answer(party, phase, message):
    if phase is Phase.MASK:
        return party.add_masks(np.zeros(party.terms.length, np.int64), message)
    return party.answer(phase, message)


@pytest.mark.parametrize("phase", list(Phase)[1:])
def test_no_phase_is_answered_before_its_turn(phase):
    party = SecureClient.join(terms(4), 0)
    with pytest.raises(SecureSumError, match="phase advertise is due"):
        answer(party, phase, b"")
    party.advertise()  # to have been asked too early does no harm


@pytest.mark.parametrize("phase", list(Phase))
def test_no_phase_is_answered_twice(phase):
    agreed = terms(4)
    party, message = SecureClient.join(agreed, 0), b""
    if phase is not Phase.ADVERTISE:
        party, message = states_until(agreed, phase)
    assert answer(party, phase, message)
    with pytest.raises(SecureSumError, match="each is answered once"):
        answer(party, phase, message)


def test_a_client_that_refused_once_takes_no_further_part():
    agreed = terms(4)
    party = SecureClient.join(agreed, 0)
    party.advertise()
    with pytest.raises(SecureSumError):
        party.share(b"garbage")
    assert party.is_finished
    with pytest.raises(SecureSumError, match="nothing more is due"):
        party.confirm(join_ids(range(4), range(4)))
