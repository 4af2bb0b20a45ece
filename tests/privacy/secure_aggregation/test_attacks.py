"""What a hostile server or client tries, and who refuses."""

import dataclasses
import re

import numpy as np
import pytest

from privacy.secure_aggregation import (
    Phase,
    SecureClient,
    SecureServer,
    SecureSumError,
)
from privacy.secure_aggregation.messages import join, join_ids, part
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


@pytest.mark.parametrize("place", [8 + 8 * 3, -1], ids=["first byte", "last byte"])
@pytest.mark.parametrize(
    ("phase", "match"),
    [
        (Phase.MASK, "share message .* was altered"),
        (Phase.REVEAL, "confirm message .* was altered"),
    ],
)
def test_altered_messages_between_clients_are_refused_by_their_receiver(phase, match, place):
    agreed = terms(4)

    def alter(p, client, message):
        return flip(message, place) if (p, client) == (phase, 2) else message

    outcome = secure_sum(agreed, vectors(agreed), to_client=alter)
    (refused_in, reason) = outcome.refused.pop(2)
    assert refused_in is phase and not outcome.refused
    assert re.search(match, reason)


def test_altered_public_keys_are_noticed_by_those_who_get_them():
    # The pair then derives different keys: no share that passes between them opens.
    agreed = terms(4)

    def alter(phase, client, message):
        return flip(message, 8 + 8 * 3) if (phase, client) == (Phase.SHARE, 2) else message

    outcome = secure_sum(agreed, vectors(agreed), to_client=alter)
    assert outcome.refused[2][0] is Phase.MASK and "was altered" in outcome.refused[2][1]
    assert outcome.total is None


def test_an_altered_mask_key_spoils_the_sum_and_reveals_nothing():
    agreed, values = terms(4, length=50), vectors(terms(4, length=50))

    def alter(phase, client, message):
        return flip(message, 8 + 8 * 3 + 40) if (phase, client) == (Phase.SHARE, 2) else message

    outcome = secure_sum(agreed, values, to_client=alter)
    assert outcome.total is not None  # nobody can tell before the masks are removed
    assert not np.array_equal(outcome.total, sum(values.values()))
    for subset in ([2], [0, 1, 3]):
        assert not np.array_equal(outcome.total, sum(values[c] for c in subset))


@pytest.mark.parametrize("phase", [Phase.ADVERTISE, Phase.SHARE, Phase.CONFIRM, Phase.REVEAL])
def test_a_malformed_answer_counts_as_a_dropout(phase):
    agreed, values = terms(5), vectors(terms(5))

    def cut(p, client, message):
        return message[:-1] if (p, client) == (phase, 3) else message

    outcome = secure_sum(agreed, values, to_server=cut)
    assert 3 in outcome.server.dropped
    assert np.array_equal(outcome.total, sum(values[c] for c in outcome.survivors))


def test_a_wrong_share_is_noticed_and_ends_the_sum():
    agreed = terms(4, threshold=0.9)

    def lie(phase, client, message):
        return flip(message) if (phase, client) == (Phase.REVEAL, 1) else message

    outcome = secure_sum(agreed, vectors(agreed), to_server=lie)
    assert outcome.total is None and "wrong share of client 3" in outcome.abort


def test_a_wrong_share_of_a_dropped_clients_key_is_noticed_too():
    agreed = terms(4, threshold=0.5)

    def lie(phase, client, message):
        return flip(message) if (phase, client) == (Phase.REVEAL, 1) else message

    outcome = secure_sum(agreed, vectors(agreed), {3: Phase.MASK}, to_server=lie)
    assert outcome.total is None and "wrong share of client 3" in outcome.abort


def test_a_masked_vector_of_the_wrong_length_is_not_added():
    server = SecureServer(terms(5))
    server.sharers = {3}
    with pytest.raises(SecureSumError, match="masked vector has 1 bytes"):
        server.add(3, b"\0")


def test_a_second_vector_of_one_client_is_not_added():
    agreed = terms(3, length=2)
    server = SecureServer(agreed)
    server.sharers = {0, 1, 2}
    server.add(0, b"\1\2")
    with pytest.raises(SecureSumError, match="sent two"):
        server.add(0, b"\1\2")
    with pytest.raises(SecureSumError, match="not asked"):
        server.add(7, b"\1\2")


# Replayed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [Phase.SHARE, Phase.MASK, Phase.REVEAL])
@pytest.mark.parametrize("change", [{"round": 2}, {"run": "other"}])
def test_messages_of_another_sum_are_refused_even_under_the_same_keys(phase, change):
    # Replay of the same kind of message to the same client, with all secrets the same: the worst
    # case, since in truth they are fresh in every sum.
    agreed = terms(4)
    old, _ = recorded(agreed, entropy="same")
    later = dataclasses.replace(agreed, **change)

    def replay(p, client, message):
        return old[p, client] if (p, client) == (phase, 1) else message

    outcome = secure_sum(later, vectors(later), to_client=replay, entropy="same")
    if phase is Phase.SHARE:  # public keys do not depend on the round: the same message
        assert outcome.total is not None
    else:
        assert outcome.refused[1][0] is phase and "replayed" in outcome.refused[1][1]


def test_keys_of_an_older_round_make_nothing_open():
    agreed = terms(4)
    old, _ = recorded(agreed)
    later = dataclasses.replace(agreed, round=2)

    def replay(p, client, message):
        return old[p, client] if (p, client) == (Phase.SHARE, 1) else message

    outcome = secure_sum(later, vectors(later), to_client=replay)
    assert {c for c, (p, _) in outcome.refused.items() if p is Phase.MASK} == {0, 1, 2, 3}
    assert outcome.total is None


@pytest.mark.parametrize("phase", [Phase.MASK, Phase.REVEAL])
def test_a_message_is_refused_by_anybody_but_its_receiver(phase):
    agreed = terms(4)
    honest, _ = recorded(agreed, entropy="misdirected")

    def misdirect(p, client, message):
        if (p, client) != (phase, 1):
            return message
        size = 92 if phase is Phase.MASK else 28
        stolen = part(honest[phase, 2], size)  # sealed for 2 by 0, 1, 3
        return join({c: stolen.get(c, box) for c, box in part(message, size).items()})

    outcome = secure_sum(agreed, vectors(agreed), to_client=misdirect, entropy="misdirected")
    assert outcome.refused[1][0] is phase


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
        answer(party, phase, join({}))
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
        party.confirm(join_ids(range(4)))
