"""What clients refuse by rules of their own, whatever the server says."""

import dataclasses

import numpy as np
import pytest

from privacy.secure_aggregation import (
    Phase,
    SecureClient,
    SecureSumError,
    SecureSumSettings,
)
from privacy.secure_aggregation.messages import join, join_ids, part
from tests.privacy.secure_aggregation.secure_summing import secure_sum, terms, vectors


def before_confirm(agreed, me=0):
    """Client ``me`` of an honest sum in which everybody sent a masked vector."""
    outcome = secure_sum(agreed, vectors(agreed), {me: Phase.CONFIRM})
    return outcome.clients[me]


@pytest.mark.parametrize("survivors", [[0, 1, 2, 3], [0, 1], [0], []])
def test_clients_do_not_confirm_fewer_survivors_than_the_minimum(survivors):
    party = before_confirm(terms(6, minimum=0.8))
    assert party.terms.minimum == 5
    with pytest.raises(SecureSumError, match=r"stays masked|not one of this cohort"):
        party.confirm(join_ids(survivors))


@pytest.mark.parametrize(
    ("survivors", "match"),
    [
        ([1, 2, 3, 4, 5], "not one of this cohort"),
        ([0, 1, 2, 3, 99], "not one of this cohort"),
    ],
    ids=["without itself", "with a stranger"],
)
def test_clients_do_not_confirm_a_list_that_cannot_be(survivors, match):
    with pytest.raises(SecureSumError, match=match):
        before_confirm(terms(6, minimum=0.8)).confirm(join_ids(survivors))


def test_clients_do_not_confirm_survivors_that_never_sent_them_shares():
    agreed = terms(6)
    outcome = secure_sum(agreed, vectors(agreed), {5: Phase.SHARE, 0: Phase.CONFIRM})
    with pytest.raises(SecureSumError, match="sent no shares"):
        outcome.clients[0].confirm(join_ids(range(6)))


def test_clients_reveal_nothing_before_enough_neighbours_said_the_same():
    agreed = terms(6, threshold=0.6)
    assert agreed.threshold == 4
    held = {}

    def fewer(phase, client, message):
        if (phase, client) == (Phase.REVEAL, 0):
            held["words"] = part(message, 28)
            return join({c: held["words"][c] for c in (1, 2)})
        return message

    outcome = secure_sum(agreed, vectors(agreed), to_client=fewer)
    phase, reason = outcome.refused[0]
    assert phase is Phase.REVEAL and "3 clients hold shares" in reason


def reveal_after(told, agreed):
    """What clients reveal whom a hostile server tells lists of survivors of its own choice.

    All had sent their masked vectors. The server passes on every word that fits.
    """
    outcome = secure_sum(agreed, vectors(agreed), dict.fromkeys(agreed.clients, Phase.CONFIRM))
    parties = {c: outcome.clients[c] for c in told}
    words = {c: part(parties[c].confirm(join_ids(told[c])), 28) for c in told}
    shown, refused = {}, {}
    for c, party in parties.items():
        passed_on = {v: words[v][c] for v in words if c in words[v] and told[v] == told[c]}
        for attempt in (passed_on, {v: words[v][c] for v in words if c in words[v]}):
            again = SecureClient.from_bytes(party.to_bytes())
            try:
                shown[c] = part(again.reveal(join(attempt)), 33)
            except SecureSumError as error:
                refused[c] = str(error)
    return shown, refused


def test_a_server_that_tells_two_stories_gets_nothing_where_neither_has_a_majority():
    # Half of the clients are told that client 5 survived, the other half that it dropped out:
    # with both answers the server would hold its seed and its key.
    agreed = terms(6, threshold=0.5)
    both = {c: [0, 1, 2, 3, 4] if c < 3 else [0, 1, 2, 3, 4, 5] for c in range(5)}
    shown, refused = reveal_after(both, agreed)
    assert not shown and len(refused) == 5


def test_of_two_stories_one_at_most_is_believed_and_its_sum_keeps_the_minimum():
    agreed = terms(5, threshold=0.5)
    stories = {0: [0, 1, 2, 3], 1: [0, 1, 2, 3], 2: [0, 1, 2, 3], 3: [0, 1, 2, 3, 4]}
    shown, refused = reveal_after(stories, agreed)
    assert set(shown) == {0, 1, 2} and 3 in refused
    # Client 4's key may be restored (its vector stays behind its own mask), its seed may not.
    kinds = {owner: {shown[c][owner][:1] for c in shown} for owner in range(5)}
    assert kinds == {0: {b"s"}, 1: {b"s"}, 2: {b"s"}, 3: {b"s"}, 4: {b"k"}}


def test_everybody_believes_a_story_that_all_were_told():
    agreed = terms(5, threshold=0.5)
    shown, _ = reveal_after({c: [0, 1, 2, 3] for c in range(4)}, agreed)
    assert set(shown) == {0, 1, 2, 3}


def test_groups_that_could_each_restore_a_secret_overlap_in_an_honest_client():
    with pytest.raises(ValueError, match="threshold=3: must be above half of 6 share holders"):
        dataclasses.replace(terms(6), threshold=3)
    with pytest.raises(
        ValueError, match="threshold=4: must be above half of 6 share holders and 2"
    ):
        dataclasses.replace(terms(6), threshold=4, minimum=5, colluders=2)


@pytest.mark.parametrize(
    ("name", "value"), [("threshold", 7), ("minimum", 7), ("neighbours", 8), ("colluders", 0)]
)
def test_clients_do_not_join_under_terms_laxer_than_their_own(name, value):
    own = SecureSumSettings("on", threshold=0.7, minimum=0.6, colluders=1)
    agreed = own.terms("r", 1, range(10), 5, 8)
    assert (agreed.threshold, agreed.minimum) == (8, 8)
    own.accept(agreed)
    own.accept(dataclasses.replace(agreed, threshold=9, minimum=10))
    with pytest.raises(ValueError, match=f"^{name}="):
        own.accept(dataclasses.replace(agreed, **{name: value}))


@pytest.mark.parametrize("which", ["a client's own", "another's"])
def test_a_public_key_that_appears_twice_is_refused(which):
    agreed = terms(3)
    parties = {c: SecureClient.join(agreed, c) for c in range(3)}
    public = {c: party.advertise()[:64] for c, party in parties.items()}
    twin = public[0] if which == "a client's own" else public[2]
    with pytest.raises(SecureSumError, match="advertised twice"):
        parties[0].share(join({1: twin, 2: public[2]}))


@pytest.mark.parametrize("half", [0, 32], ids=["channel key", "mask key"])
def test_a_public_key_of_low_order_is_refused(half):
    # With the all-zero point every exchange gives zero, whatever the private key.
    agreed = terms(3)
    parties = {c: SecureClient.join(agreed, c) for c in range(3)}
    public = {c: bytearray(party.advertise()[:64]) for c, party in parties.items()}
    public[1][half : half + 32] = bytes(32)

    def go():
        parties[0].share(join({1: bytes(public[1]), 2: bytes(public[2])}))
        boxes = {v: bytes(92) for v in (1, 2)}
        parties[0].add_masks(np.zeros(agreed.length, np.int64), join(boxes))

    with pytest.raises(SecureSumError):
        go()


@pytest.mark.parametrize("message", [b"", b"\0" * 7, join({9: bytes(64)}), join({1: bytes(63)})])
def test_garbage_is_refused_in_words(message):
    party = SecureClient.join(terms(3), 0)
    party.advertise()
    with pytest.raises(SecureSumError):
        party.share(message)


def test_a_client_outside_the_cohort_does_not_join():
    with pytest.raises(SecureSumError, match="not in the cohort"):
        SecureClient.join(terms(3), 3)
