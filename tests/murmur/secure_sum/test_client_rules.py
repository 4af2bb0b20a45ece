"""What clients refuse by rules of their own, whatever the server says."""

import dataclasses

import numpy as np
import pytest

from murmur.secure_sum import masks
from murmur.secure_sum.client import SEALED_BYTES, SecureClient
from murmur.secure_sum.identity import Party, PinnedPeers, public_identity, self_mask_key
from murmur.secure_sum.settings import OwnerRules
from murmur.secure_sum.shares import SEED, Dealing, piece
from murmur.secure_sum.terms import SecureSumError, Stage, join, join_ids, part
from tests.murmur.secure_sum.secure_summing import ASKED, secure_sum, terms, vectors


def before_confirm(agreed, me=0):
    """Client ``me`` of an honest sum in which everybody sent a masked vector."""
    outcome = secure_sum(agreed, vectors(agreed), {me: Stage.CONFIRM})
    return outcome.clients[me]


@pytest.mark.parametrize("survivors", [[0, 1, 2, 3], [0, 1], [0], []])
def test_clients_do_not_confirm_fewer_survivors_than_the_minimum(survivors):
    party = before_confirm(terms(6, minimum=0.8))
    assert party.terms.minimum == 5
    with pytest.raises(SecureSumError, match=r"stays masked|not one of this sum"):
        party.confirm(join_ids(survivors, range(6)))


@pytest.mark.parametrize(
    "message",
    [join_ids([1, 2, 3, 4, 5], range(6)), b"\xff", b"", b"\0\0"],
    ids=["without itself", "with a stranger", "nothing", "longer"],
)
def test_clients_do_not_confirm_a_list_that_cannot_be(message):
    with pytest.raises(SecureSumError, match=r"not one of this sum's|is damaged"):
        before_confirm(terms(6, minimum=0.8)).confirm(message)


def test_clients_do_not_confirm_survivors_that_never_sent_them_shares():
    agreed = terms(6)
    outcome = secure_sum(agreed, vectors(agreed), {5: Stage.SHARE, 0: Stage.CONFIRM})
    with pytest.raises(SecureSumError, match="not one of this sum's"):
        outcome.clients[0].confirm(join_ids(range(6), range(6)))


@pytest.mark.parametrize(
    ("included", "match"),
    [([1, 2, 3, 4], "that it is not in"), ([0, 1, 2], "stays masked")],
    ids=["without itself", "too few"],
)
def test_clients_mask_for_lists_only_that_can_be(included, match):
    agreed = terms(6, minimum=0.6)
    outcome = secure_sum(agreed, vectors(agreed), {5: Stage.SHARE, 0: Stage.MASK})
    with pytest.raises(SecureSumError, match=match):
        outcome.clients[0].included_in(join_ids(included, range(6)))


def test_clients_do_not_mask_where_too_few_of_those_included_have_shown_a_key():
    agreed = terms(6, minimum=0.6)
    hidden = {5: Stage.ADVERTISE, 4: Stage.ADVERTISE, 0: Stage.MASK}
    outcome = secure_sum(agreed, vectors(agreed), hidden)
    with pytest.raises(SecureSumError, match="3 clients hold shares"):
        outcome.clients[0].included_in(join_ids([0, 1, 2, 4, 5], range(6)))


@pytest.mark.parametrize("phase", [Stage.MASK, Stage.CONFIRM])
def test_clients_whose_keys_never_came_do_not_count_in_a_complete_graph(phase):
    # A lying server listed them, and so had a sum of 6 revealed, of which one sides with it, where
    # each was charged for 6 honest clients among at least 7.
    agreed = terms(10, threshold=0.5, minimum=0.7, colluders=1)
    assert agreed.minimum == 7
    party = secure_sum(agreed, vectors(agreed), {0: phase}).clients[0]
    party.public = {client: party.public[client] for client in range(1, 6)}
    everybody = join_ids(range(10), range(10))
    with pytest.raises(SecureSumError, match="6 clients are left; the sum of fewer than 7"):
        if phase is Stage.MASK:
            party.included_in(everybody)
        else:
            party.confirm(everybody)


def test_masks_of_clients_that_were_told_different_things_do_not_cancel():
    # Another model, or another list of those included, for one client: earlier versions masked
    # alike, so that the server could take what one client says of a model of its own choice.
    agreed = terms(4, length=50, bits=20)
    plain = {c: np.zeros(50, np.int64) for c in range(4)}
    everybody, fewer = (join_ids(ids, range(4)) for ids in (range(4), (0, 1, 2)))
    for message, asked in ((everybody, b"another model"), (fewer, ASKED)):
        outcome = secure_sum(agreed, plain, dict.fromkeys(range(4), Stage.MASK))
        sent = {
            c: party.add_masks(plain[c], *((message, asked) if c == 0 else (everybody, ASKED)))
            for c, party in outcome.clients.items()
        }
        left = sum(masks.unpack(sent[c], 50, 20) for c in range(4))
        for c, party in outcome.clients.items():
            key = self_mask_key(party.seed, agreed, Party(c, party.advertised))
            masks.add_mask(left, key, -1)
        assert np.count_nonzero(left % 2**20) > 45  # without what they were told: zeros


def test_clients_reveal_nothing_before_enough_neighbours_said_the_same():
    agreed = terms(6, threshold=0.6)
    assert agreed.threshold == 4

    def fewer(phase, client, message):
        if (phase, client) == (Stage.REVEAL, 0):
            words = part(message, 64, range(1, 6))
            return join({c: words[c] for c in (1, 2)}, range(1, 6))
        return message

    outcome = secure_sum(agreed, vectors(agreed), to_client=fewer)
    phase, reason = outcome.refused[0]
    assert phase is Stage.REVEAL and "3 clients hold shares" in reason


def reveal_after(told, agreed):
    """What clients reveal whom a hostile server tells lists of survivors of its own choice.

    All had sent their masked vectors. The server passes on every word that fits.
    """
    outcome = secure_sum(agreed, vectors(agreed), dict.fromkeys(agreed.clients, Stage.CONFIRM))
    parties = {c: outcome.clients[c] for c in told}
    words = {c: parties[c].confirm(join_ids(told[c], agreed.clients)) for c in told}
    shown, refused = {}, {}
    for c, party in parties.items():
        passed_on = {v: word for v, word in words.items() if v != c}
        try:
            revealed = party.reveal(join(passed_on, agreed.neighbours_of(c)))
            shown[c] = {
                owner: "seed" if share == piece(party.shares[owner], SEED) else "key"
                for owner, share in part(revealed, 32, agreed.clients).items()
            }
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
    kinds = {**dict.fromkeys(range(4), "seed"), 4: "key"}
    assert all(found == kinds for found in shown.values())


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
    ("rules", "match"),
    [
        ({"colluders": 2}, "^colluders=1: "),
        ({"honest_clients": 8}, "^a sum over 7 honest clients: "),
        ({"neighbours": None}, "^neighbours=8: this device's owner asks for all"),
        ({"neighbours": 9}, "^neighbours=8: this device's owner asks for 9"),
        ({"threshold": 0.9}, "^threshold=7 of 9: "),
        ({"server": "lying"}, "^server=honest: "),
    ],
)
def test_clients_do_not_join_under_terms_laxer_than_their_owners(rules, match):
    agreed = terms(12, threshold=0.7, minimum=0.6, neighbours=8, colluders=1, server="honest")
    enough = {"colluders": 1, "honest_clients": 7, "neighbours": 8, "server": "honest"}
    OwnerRules(**enough).accept(agreed)
    with pytest.raises(ValueError, match=match):
        OwnerRules(**{**enough, **rules}).accept(agreed)


def share_with(agreed, public, peers=None, identity=None):
    party = SecureClient.join(agreed, 0, identity)
    party.advertise()
    return party.share(join(public, agreed.neighbours_of(0)), peers)


def test_keys_that_somebody_else_signed_are_refused():
    agreed = terms(3)
    public = {c: SecureClient.join(agreed, c).advertise() for c in (1, 2)}
    with pytest.raises(SecureSumError, match="not signed by its own device's key"):
        share_with(agreed, {1: public[2], 2: public[1]})


@pytest.mark.parametrize("clients", [5, 6])
def test_a_key_that_peers_do_not_accept_is_to_a_client_one_that_has_not_come(clients):
    agreed = terms(clients)
    keys = {c: bytes([c + 1]) * 32 for c in range(clients)}
    public = {c: SecureClient.join(agreed, c, keys[c]).advertise() for c in range(1, clients)}
    pinned = {c: public_identity(key) for c, key in keys.items()}
    pinned[1], pinned[2] = pinned[2], pinned[1]
    size = Dealing.size(agreed.threshold, agreed.holders)
    sent = share_with(agreed, public, PinnedPeers(pinned), keys[0])[size:]
    assert part(sent, SEALED_BYTES, agreed.neighbours_of(0)).keys() == set(range(3, clients))
    del pinned[3]
    del pinned[4]
    with pytest.raises(SecureSumError, match="those whose keys it accepts"):
        share_with(agreed, public, PinnedPeers(pinned), keys[0])


@pytest.mark.parametrize("twin", [0, 1])
def test_no_device_is_two_clients_whether_peers_are_pinned_or_not(twin):
    # Earlier versions let one pinned device play 10 of a ring's 210 clients.
    agreed, own = terms(3), b"\7" * 32
    identities = {0: own, 1: own if twin == 0 else b"\1" * 32, 2: b"\1" * 32}
    public = {c: SecureClient.join(agreed, c, identities[c]).advertise() for c in (1, 2)}
    with pytest.raises(SecureSumError, match="no device may be two clients"):
        share_with(agreed, public, None, own)


@pytest.mark.parametrize("start", [32, 65], ids=["channel key", "mask key"])
def test_a_public_key_that_is_no_point_is_refused(start):
    agreed = terms(3)
    public = [bytearray(SecureClient.join(agreed, c).advertise()) for c in (1, 2)]
    public[0][start : start + 33] = bytes(33)
    with pytest.raises(SecureSumError):
        share_with(agreed, {1: bytes(public[0]), 2: bytes(public[1])})


@pytest.mark.parametrize("message", [b"", b"\0" * 7, b"\xff" + bytes(390), b"\x80" + bytes(63)])
def test_garbage_is_refused_in_words(message):
    party = SecureClient.join(terms(3), 0)
    party.advertise()
    with pytest.raises(SecureSumError):
        party.share(message)


def test_a_client_outside_the_cohort_does_not_join():
    with pytest.raises(SecureSumError, match="not in the cohort"):
        SecureClient.join(terms(3), 3)
