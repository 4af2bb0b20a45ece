"""What a hostile server or client tries, and who refuses."""

import dataclasses
import math
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

from murmur.secure_sum import shares
from murmur.secure_sum.client import SEALED_BYTES, SecureClient
from murmur.secure_sum.identity import Advertisement, PinnedPeers, public_identity
from murmur.secure_sum.keys import ORDER, encoded, point, public_key
from murmur.secure_sum.server import SecureServer
from murmur.secure_sum.shares import Dealing
from murmur.secure_sum.terms import SecureSumError, Stage, join, join_ids, part
from research.attacks.sums import ATTACKS, attacked
from tests.murmur.secure_sum.secure_summing import secure_sum, terms, vectors

BOX_BYTES = SEALED_BYTES + shares.TEST_BYTES


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


@pytest.mark.parametrize("place", [1, 1 + SEALED_BYTES, -1], ids=["box", "test", "last test"])
def test_altered_shares_have_no_holder_and_nothing_is_disclosed(place):
    agreed, values = terms(4), vectors(terms(4))
    alter = only_to(Stage.CHECK, 2, lambda message: flip(message, place))
    outcome = secure_sum(agreed, values, to_client=alter)
    assert not outcome.refused and not outcome.server.accused
    ((dealer, receiver),) = outcome.server.conflicts
    assert receiver == 2 and outcome.clients[2].shares.keys() == {0, 1, 2, 3} - {dealer}
    assert np.array_equal(outcome.total, sum(values.values()))
    said = [sent for phase, client, sent in outcome.seen if (phase, client) == (Stage.CHECK, 2)]
    assert said == [join_ids({0, 1, 3} - {dealer}, (0, 1, 3))]  # a bit for each, and no more


@pytest.mark.parametrize(("n", "share"), [(5, 0.5), (20, 0.67), (50, 0.67)])
def test_a_bit_flipped_in_each_box_of_one_dealer_opens_no_share_of_it(n, share):
    # Earlier versions had each receiver disclose what it agreed on with the dealer: the server
    # then opened the genuine boxes, had the dealer's shares, and read its vector.
    agreed, values = terms(n, threshold=share), vectors(terms(n, threshold=share))
    genuine = {}

    def alter(phase, client, message):
        if phase is not Stage.CHECK or client == 0:
            return message
        near = agreed.neighbours_of(client)
        boxes = part(message, BOX_BYTES, near)
        genuine[client] = boxes[0]
        return join({**boxes, 0: flip(boxes[0], 5)}, near)

    outcome = secure_sum(agreed, values, to_client=alter)
    assert outcome.server.conflicts == [(0, client) for client in range(1, n)]
    assert 0 in outcome.server.dropped and 0 not in outcome.server.accused
    assert np.array_equal(outcome.total, sum(values[c] for c in range(1, n)))
    for client in genuine:
        said = [m for p, c, m in outcome.seen if (p, c) == (Stage.CHECK, client)]
        assert len(said[0]) == (n + 6) // 8  # too short for any secret


def test_a_key_that_is_a_multiple_of_anothers_gets_no_secret_of_any_two_out():
    # r times an honest client's channel key: with proofs that disclose what two agree on, every
    # receiver would say DH(v, r·U), from which DH(v, U) follows.
    agreed, values = terms(7), vectors(terms(7))
    sent = {}

    def forge(phase, client, message):
        if phase is Stage.ADVERTISE and client == 0:
            sent["victim"] = message
        if phase is Stage.ADVERTISE and client == 6:
            multiple = encoded(point(Advertisement.of(sent["victim"]).channel) * 5)
            own = parties[6]
            keys = multiple, public_key(own.mask), public_key(own.seed)
            return Advertisement.sign(own.identity, agreed, 6, *keys)
        return message

    parties = {}
    joined = SecureClient.join

    def join_and_note(*arguments):
        party = joined(*arguments)
        parties[party.me] = party
        return party

    with mock.patch.object(SecureClient, "join", join_and_note):
        outcome = secure_sum(agreed, values, to_server=forge)
    assert np.array_equal(outcome.total, sum(values[c] for c in range(6)))
    for phase, client, message in outcome.seen:
        if phase is Stage.CHECK:
            assert len(message) == 1, client


def test_altered_confirmations_are_not_counted():
    agreed, values = terms(5), vectors(terms(5))
    one = secure_sum(agreed, values, to_client=only_to(Stage.REVEAL, 2, flip))
    assert not one.refused and np.array_equal(one.total, sum(values.values()))
    rest = only_to(Stage.REVEAL, 2, lambda message: message[:1] + bytes(len(message) - 1))
    outcome = secure_sum(agreed, values, to_client=rest)
    assert outcome.refused[2][0] is Stage.REVEAL and "are needed" in outcome.refused[2][1]


@pytest.mark.parametrize("place", [1, 40, 70, 100, -1])
def test_altered_public_keys_are_refused_by_those_who_get_them(place):
    agreed = terms(4)
    alter = only_to(Stage.SHARE, 2, lambda message: flip(message, place))
    outcome = secure_sum(agreed, vectors(agreed), to_client=alter)
    assert outcome.refused[2][0] is Stage.SHARE and "not signed by" in outcome.refused[2][1]
    assert outcome.survivors == (0, 1, 3)


@pytest.mark.parametrize("phase", list(Stage))
def test_whoever_sends_a_malformed_answer_is_accused_and_the_sum_goes_on(phase):
    agreed, values = terms(5), vectors(terms(5))
    cut = only_to(phase, 3, lambda message: message[:-1])
    outcome = secure_sum(agreed, values, to_server=cut)
    assert list(outcome.server.accused) == [3] and not outcome.server.dropped
    assert np.array_equal(outcome.total, sum(values[c] for c in outcome.survivors))


@pytest.mark.parametrize("dropped", [{}, {3: Stage.MASK}], ids=["of a seed", "of a key"])
def test_a_wrong_share_is_noticed_and_does_not_matter(dropped):
    agreed, values = terms(5), vectors(terms(5))
    lie = only_to(Stage.REVEAL, 1, flip)
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


IN_CONFLICT = ["garbage shares", "holds nothing"]
SUSPECTED = {*IN_CONFLICT, "shuts out a victim"}
PROVEN = [
    name for name, a in ATTACKS.items() if a.phase is not Stage.MASK and name not in SUSPECTED
]


@pytest.mark.parametrize("name", PROVEN)
def test_a_liar_is_named_at_once_and_nobody_else(name):
    agreed, values = terms(7, threshold=0.6), vectors(terms(7))
    with attacked(ATTACKS[name], [4, 6]):
        outcome = secure_sum(agreed, values)
    assert set(outcome.server.accused) == {4, 6}, outcome.server.accused
    assert not outcome.server.dropped and outcome.refused.keys() <= {4, 6}
    in_it = (Stage.CONFIRM, Stage.REVEAL)
    expected = set(range(7)) if ATTACKS[name].phase in in_it else {0, 1, 2, 3, 5}
    assert set(outcome.survivors) == expected
    assert np.array_equal(outcome.total, sum(values[c] for c in expected))


@pytest.mark.parametrize("name", IN_CONFLICT)
def test_whoever_is_in_conflict_with_others_costs_none_of_them_their_place(name):
    agreed = terms(7, threshold=0.5)
    with attacked(ATTACKS[name], [6]):
        outcome = secure_sum(agreed, vectors(agreed))
    assert outcome.server.accused.keys() <= {6}
    assert {frozenset(pair) for pair in outcome.server.conflicts} == {
        frozenset((6, client)) for client in range(6)
    }
    assert set(outcome.survivors) >= set(range(6))


def keys_but(*others):
    """Accepts any client's key but those of ``others``."""
    return SimpleNamespace(accepts=lambda client, _: client not in others)


@pytest.mark.parametrize(
    ("refusals", "out"),
    [
        pytest.param({c: [6] for c in range(6)}, {6}, id="a new key that all others know not"),
        pytest.param({c: [6] for c in (0, 2)}, {6}, id="that two know not"),
        pytest.param({2: [6]}, {2}, id="one alone may lie"),
        pytest.param({6: range(3)}, {6}, id="who accepts few"),
        pytest.param({**{c: [6] for c in range(5)}, 5: [0]}, {6, 5}, id="and one that lies"),
    ],
)
def test_whose_key_others_do_not_accept_costs_nobody_else_the_sum(refusals, out):
    agreed, values = terms(7), vectors(terms(7))
    outcome = secure_sum(agreed, values, peers={c: keys_but(*r) for c, r in refusals.items()})
    assert outcome.server.dropped.keys() == out and not outcome.server.accused, outcome
    assert all("long-term key" in why for why in outcome.server.dropped.values())
    left = set(agreed.clients) - out
    assert set(outcome.survivors) == left and not outcome.refused
    assert np.array_equal(outcome.total, sum(values[c] for c in left))


def test_two_clients_with_one_key_are_both_named():
    agreed, values = terms(6), vectors(terms(6))
    twin = {}

    def copied(phase, client, message):
        if phase is Stage.ADVERTISE and client in (4, 5):
            return twin.setdefault("sent", message)
        return message

    outcome = secure_sum(agreed, values, to_server=copied)
    assert 5 in outcome.server.accused and outcome.survivors == (0, 1, 2, 3, 4)


@contextmanager
def dealing_wrongly(dealer, accomplices, wrong):
    """``dealer`` commits to ``wrong`` shares for ``accomplices``, who say nothing and reveal them.

    ``wrong``: what is added to the share at each place, from 1 on.
    """
    honest, on_it, plainly = Dealing.of, shares.values_of, SecureClient.check
    advertise, shown = SecureClient.advertise, {}

    def note(self):
        shown[self.me] = advertise(self)
        return shown[self.me]

    def off_it(differences, count):
        values = on_it(differences, count)
        return [
            (value + wrong(place + 1)) % ORDER if place in accomplices else value
            for place, value in enumerate(values)
        ]

    def of(seed, key, threshold, holders, about, public):
        with ExitStack() as patched:
            if public[0] == Advertisement.of(shown[dealer]).seed:
                patched.enter_context(mock.patch.object(shares, "values_of", off_it))
            return honest(seed, key, threshold, holders, about, public)

    def accept(self, message):
        with ExitStack() as patched:
            if self.me in accomplices:
                passes = mock.patch("murmur.secure_sum.client.passes", lambda *_: True)
                patched.enter_context(passes)
            return plainly(self, message)

    with (
        mock.patch.object(SecureClient, "advertise", note),
        mock.patch.object(SecureClient, "check", accept),
        mock.patch.object(Dealing, "of", of),
    ):
        yield


@pytest.mark.parametrize(("liars", "named"), [(1, {7}), (2, {1, 7}), (4, {7})])
def test_a_dealer_and_its_accomplice_are_both_named_where_that_is_proven(liars, named):
    agreed, values = terms(9, threshold=0.5), vectors(terms(9))
    with dealing_wrongly(7, {1}, lambda x: 5):
        outcome = secure_sum(agreed, values, liars=liars)
    assert set(outcome.server.accused) == named
    assert np.array_equal(outcome.total, sum(values.values()))


def test_a_dealer_with_many_accomplices_gets_nobody_else_named():
    # They hold shares of a second polynomial, which has the same secret and meets the first at 12
    # honest holders: it has 17 of the 20 shares, and the three other honest ones look wrong.
    agreed, values = terms(20, threshold=0.67), vectors(terms(20))

    def between(x):
        return math.prod([x, *(x - place - 1 for place in range(8, 20))])

    with dealing_wrongly(0, range(5), between):
        outcome = secure_sum(agreed, values, liars=5)
    assert agreed.threshold == 14 and set(outcome.server.accused) == {0}
    assert np.array_equal(outcome.total, sum(values.values()))


def test_whoever_shows_another_key_than_is_pinned_is_named_and_costs_nobody_the_sum():
    agreed = terms(6)
    own = {client: bytes([client]) * 32 for client in range(6)}
    pinned = {client: public_identity(key) for client, key in own.items()}
    parties = {c: SecureClient.join(agreed, c, bytes(32) if c == 5 else own[c]) for c in range(6)}
    server = SecureServer(agreed, pinned=pinned)
    keys = server.keys({client: party.advertise() for client, party in parties.items()})
    assert server.accused.keys() == {5} and "pinned" in server.accused[5]
    for client, message in keys.items():
        parties[client].share(message, PinnedPeers(pinned))


# Replayed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [Stage.SHARE, Stage.CHECK, Stage.REVEAL])
@pytest.mark.parametrize("change", [{"round": 2}, {"run": "other"}, {"release": "another"}])
def test_messages_of_another_sum_are_worthless_even_under_the_same_keys(phase, change):
    # Replay of the same kind of message to the same client, with all secrets the same: the worst
    # case, since in truth they are fresh in every sum.
    agreed = terms(4)
    old, _ = recorded(agreed, entropy="same")
    later = dataclasses.replace(agreed, **change)
    replay = only_to(phase, 1, lambda _: old[phase, 1])
    outcome = secure_sum(later, vectors(later), to_client=replay, entropy="same")
    if phase is Stage.CHECK:
        assert outcome.clients[1].shares.keys() == {1}
    else:
        assert outcome.refused[1][0] is phase


def test_shares_are_worthless_for_anybody_but_their_receiver():
    agreed = terms(4)
    honest, _ = recorded(agreed, entropy="misdirected")

    def misdirect(message):
        stolen = part(honest[Stage.CHECK, 2], BOX_BYTES, (0, 1, 3))  # for 2 by 0, 1, 3
        near = (0, 2, 3)
        return join({c: stolen[c] if c in (0, 3) else bytes(BOX_BYTES) for c in near}, near)

    wrong = only_to(Stage.CHECK, 1, misdirect)
    outcome = secure_sum(agreed, vectors(agreed), to_client=wrong, entropy="misdirected")
    assert outcome.clients[1].shares.keys() == {1}


def test_a_box_is_worthless_for_whoever_has_sealed_it():
    agreed = terms(4)
    honest, _ = recorded(agreed, entropy="sent back")
    near = agreed.neighbours_of(1)
    own = {c: part(honest[Stage.CHECK, c], BOX_BYTES, agreed.neighbours_of(c))[1] for c in near}
    sent_back = only_to(Stage.CHECK, 1, lambda _: join(own, near))
    outcome = secure_sum(agreed, vectors(agreed), to_client=sent_back, entropy="sent back")
    assert outcome.clients[1].shares.keys() == {1}


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
    if phase is Stage.MASK:
        return party.add_masks(np.zeros(party.terms.length, np.int64), message, b"asked")
    return party.answer(phase, message)


@pytest.mark.parametrize("phase", list(Stage)[1:])
def test_no_phase_is_answered_before_its_turn(phase):
    party = SecureClient.join(terms(4), 0)
    with pytest.raises(SecureSumError, match="phase advertise is due"):
        answer(party, phase, b"")
    party.advertise()  # to have been asked too early does no harm


@pytest.mark.parametrize("phase", list(Stage))
def test_no_phase_is_answered_twice(phase):
    agreed = terms(4)
    party, message = SecureClient.join(agreed, 0), b""
    if phase is not Stage.ADVERTISE:
        party, message = states_until(agreed, phase)
    assert len(answer(party, phase, message))
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
