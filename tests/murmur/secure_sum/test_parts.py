"""The parts of a secure sum: shares, masks, packing, terms, settings, the state on disk."""

import dataclasses
import itertools
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.checks import BLOCK_ENTRIES
from murmur.secure_sum import masks, shares, store
from murmur.secure_sum.client import SecureClient
from murmur.secure_sum.identity import (
    Party,
    PinnedPeers,
    SeenPeers,
    identity_in,
    keys_digest,
    read_peers,
    self_mask_key,
)
from murmur.secure_sum.keys import agree, derive, private_key, public_key, scalar, to_bytes
from murmur.secure_sum.server import SecureServer
from murmur.secure_sum.settings import SecureSumSettings
from murmur.secure_sum.shares import restore
from murmur.secure_sum.store import SumStates, restored
from murmur.secure_sum.terms import SecureSumError, Stage, SumTerms, context, join, part
from tests.murmur.secure_sum.secure_summing import terms, written

SECRET = bytes(range(32))


# Shares -----------------------------------------------------------------------------------------


def dealt(threshold, holders, seed=SECRET, key=SECRET[::-1]):
    public = (public_key(seed), public_key(key))
    dealing, shares_of = shares.Dealing.of(seed, key, threshold, holders, b"about", public)
    read = shares.Dealing.read(dealing.to_bytes(), threshold, holders, b"about", public)
    assert read == dealing and not shares.false_dealings({0: read})
    return read, shares_of


@pytest.mark.parametrize(("threshold", "holders"), [(1, 1), (1, 3), (2, 3), (3, 5), (5, 5)])
def test_any_threshold_of_the_shares_restores_both_secrets(threshold, holders):
    dealing, found = dealt(threshold, holders)
    assert all(shares.passes(share, dealing.tests[i]) for i, share in enumerate(found))
    for chosen in itertools.combinations(range(holders), threshold):
        for place, secret in enumerate((SECRET, SECRET[::-1])):
            pieces = {i: shares.piece(found[i], place) for i in chosen}
            assert shares.combine(pieces, threshold) == secret
            assert all(dealing.is_share(i, place, share) for i, share in pieces.items())


def test_one_share_too_few_says_nothing_about_the_secret():
    _, found = dealt(3, 5)
    split = {i: shares.piece(share, shares.SEED) for i, share in enumerate(found)}
    with pytest.raises(ValueError, match="2 shares: 3 are needed"):
        shares.combine({i: split[i] for i in (0, 1)}, 3)
    guesses = {shares.combine({0: split[0], 1: split[1], 2: bytes([b]) * 32}, 3) for b in range(99)}
    assert len(guesses) == 99  # every third share gives another secret: all are still possible


def test_two_sharings_of_one_secret_have_nothing_in_common():
    assert set(dealt(2, 5)[1]).isdisjoint(dealt(2, 5)[1])


@pytest.mark.parametrize("place", range(2))
def test_a_share_that_was_altered_does_not_pass(place):
    dealing, found = dealt(3, 5)
    wrong = bytearray(found[1])
    wrong[32 * place + 31] ^= 1
    assert not shares.passes(bytes(wrong), dealing.tests[1])
    assert not shares.passes(found[2], dealing.tests[1])
    assert not shares.passes(b"", dealing.tests[1])


@pytest.mark.parametrize("secret", ["seed", "key"])
def test_a_number_in_other_bytes_is_no_share(monkeypatch, secret):
    # Its sum is right, so an honest holder would reveal it and be named for it.
    plainly = shares.values_of
    with monkeypatch.context() as patch:
        again = [7 + shares.keys.ORDER] * 3
        patch.setattr(shares, "values_of", lambda d, n: again if d == [7] else plainly(d, n))
        dealing, found = dealt(1, 3, **{secret: to_bytes(7)})
    passed = [shares.passes(share, dealing.tests[i]) for i, share in enumerate(found)]
    assert passed == [False, False, False]


def test_a_sharing_of_other_secrets_than_those_published_is_refused():
    dealing, _ = dealt(3, 5)
    public = public_key(SECRET), public_key(SECRET[::-1])
    for wrong in (
        public[::-1],
        (public[0], public_key(scalar())),
        (public_key(scalar()), public[1]),
    ):
        read = shares.Dealing.read(dealing.to_bytes(), 3, 5, b"about", wrong)
        assert shares.false_dealings({7: read}) == [7]
    with pytest.raises(SecureSumError, match="malformed"):
        shares.Dealing.read(dealing.to_bytes()[:-1], 3, 5, b"about", public)
    with pytest.raises(SecureSumError, match="not a point"):
        shares.Dealing.read(bytes(33) + dealing.to_bytes()[33:], 3, 5, b"about", public)


@pytest.mark.parametrize("false", [(), (0,), (8,), (3, 4), tuple(range(9))])
def test_all_sharings_are_checked_at_once_and_the_false_ones_are_found(false):
    dealings = {c: dealt(3, 5, scalar(), scalar())[0] for c in range(9)}
    for c in false:
        answer = (dealings[c].answer[0] + 1, *dealings[c].answer[1:])
        dealings[c] = dataclasses.replace(dealings[c], answer=answer)
    assert shares.false_dealings(dealings) == list(false)


def test_two_false_sharings_do_not_make_up_for_each_other():
    dealings = {c: dealt(3, 5, scalar(), scalar())[0] for c in range(2)}
    for c, more in enumerate((1, -1)):
        answer = (dealings[c].answer[0] + more, *dealings[c].answer[1:])
        dealings[c] = dataclasses.replace(dealings[c], answer=answer)
    assert shares.false_dealings(dealings) == [0, 1]


def test_a_sharing_of_too_high_a_degree_passes_the_tests_of_too_few():
    # Five shares on a polynomial of degree 4, said to be of degree 2: at 0, 1 and 2 there is one
    # that fits, at 3, 4 and 5 it cannot.
    dealing, found = dealt(5, 5)
    cut = dataclasses.replace(dealing, answer=dealing.answer[:3])
    passed = [shares.passes(share, cut.tests[i]) for i, share in enumerate(found)]
    assert passed == [True, True, False, False, False]


@pytest.mark.parametrize("degree", range(5))
def test_a_polynomial_by_its_differences_has_the_values_of_one_of_that_degree(degree):
    differences = [int.from_bytes(scalar(), "big") for _ in range(degree + 1)]
    found = shares.values_of(differences, 9)
    points = {i: to_bytes(value) for i, value in enumerate(found)}
    secret = to_bytes(differences[0])
    for chosen in itertools.combinations(range(9), degree + 1):
        assert shares.combine({i: points[i] for i in chosen}, degree + 1) == secret


@pytest.mark.parametrize("wrong", [(), (0,), (8,), (1, 4, 6)])
def test_shares_that_dealer_and_holder_agreed_on_are_found_and_do_not_matter(wrong):
    _, found = dealt(4, 10)
    pieces = {i: shares.piece(share, shares.KEY) for i, share in enumerate(found)}
    pieces |= {i: scalar() for i in wrong}
    secret, named = restore(pieces, 4, public_key(SECRET[::-1]))
    assert secret == SECRET[::-1]
    assert named == {i for i in wrong if any(w < 4 for w in wrong)}  # else they were not used
    with pytest.raises(SecureSumError, match="too many"):
        restore(pieces | {i: scalar() for i in range(4)}, 4, public_key(SECRET[::-1]))


@pytest.mark.parametrize(("threshold", "holders"), [(4, 3), (0, 3)])
def test_impossible_splits_are_refused(threshold, holders):
    with pytest.raises(ValueError, match="must"):
        shares.Dealing.of(SECRET, SECRET, threshold, holders, b"", (b"", b""))


# Long-term keys ---------------------------------------------------------------------------------


def test_a_devices_key_is_made_once_and_for_its_owner_only(tmp_path):
    first = identity_in(tmp_path / "deep" / "3.key")
    assert identity_in(tmp_path / "deep" / "3.key") == first
    assert stat.S_IMODE((tmp_path / "deep" / "3.key").stat().st_mode) == 0o600
    assert identity_in(tmp_path / "4.key") != first
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["3.key"]


def test_a_key_that_many_make_at_once_is_one_key(tmp_path):
    (tmp_path / f"5.key.{os.getpid()}").write_text("what a killed process has left")
    start = threading.Barrier(8)

    def made(_):
        start.wait()
        return identity_in(tmp_path / "5.key")

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(made, range(8)))) == 1
    assert len(list(tmp_path.iterdir())) == 2


def test_peers_are_an_id_and_its_public_key_in_each_line(tmp_path):
    file = tmp_path / "peers"
    file.write_text("# whom we know\n3 " + "00" * 32 + " a hospital\n\n12 " + "ff" * 32 + "\n")
    assert read_peers(file) == {3: bytes(32), 12: b"\xff" * 32}
    one, other = "1 " + "00" * 32, "2 " + "00" * 32
    for wrong in (
        *("", "00" * 32, "1 00", "1 xyz", "x " + "00" * 32, "1 " + "00" * 31),
        *(f"{one}\n{one}", f"{one}\n{other}"),
    ):
        file.write_text(wrong)
        with pytest.raises(ValueError, match="peers: "):
            read_peers(file)


def test_a_key_that_was_seen_stays_its_clients_and_nobody_elses(tmp_path):
    one, two = bytes(32), b"\1" * 32

    def accepted(found):
        seen = SeenPeers(tmp_path / "peers")
        among = [client for client, key in found.items() if seen.accepts(client, key)]
        seen.keep()
        return among

    assert accepted({1: one}) == [1]
    assert accepted({1: one, 2: two}) == [1, 2]
    assert accepted({1: two, 0: two, 2: two}) == [2]
    assert accepted({3: b"\3" * 32, 4: b"\3" * 32, 1: b"\4" * 32, 5: b"\4" * 32}) == [3, 5]
    expected = {1: one, 2: two, 3: b"\3" * 32, 5: b"\4" * 32}
    assert read_peers(tmp_path / "peers") == expected


def test_of_two_messages_that_show_different_keys_at_once_one_is_answered(tmp_path):
    one, other = SeenPeers(tmp_path / "peers"), SeenPeers(tmp_path / "peers")
    assert one.accepts(1, bytes(32)) and other.accepts(1, b"\1" * 32)
    one.keep()
    with pytest.raises(SecureSumError, match="other keys of the same clients"):
        other.keep()
    assert read_peers(tmp_path / "peers") == {1: bytes(32)}


def test_pinned_peers_are_the_whole_cohort_each_with_its_own_key():
    agreed, keys = terms(3), {c: bytes([c]) * 32 for c in range(3)}
    pinned = PinnedPeers(keys)
    assert pinned.accepts(1, keys[1])
    assert not pinned.accepts(1, keys[2]) and not pinned.accepts(3, keys[2])
    with pytest.raises(SecureSumError, match="client 3 is not among the peers"):
        pinned.require_cohort(terms(4))
    pinned.require_cohort(dataclasses.replace(agreed, keys=keys_digest(agreed.clients, keys)))
    with pytest.raises(SecureSumError, match="for other keys"):
        pinned.require_cohort(dataclasses.replace(agreed, keys="00"))


# Keys and masks ---------------------------------------------------------------------------------


def test_both_ends_agree_on_a_key_and_every_use_has_its_own():
    one, other = bytes(range(32)), bytes(range(1, 33))
    secret = agree(private_key(one), public_key(other))
    assert secret == agree(private_key(other), public_key(one))
    uses = [("a", b"bc"), ("ab", b"c"), ("abc",), ("a", b"bc", 1), ("a", b"bc", 2)]
    sums = terms(3), terms(3, round=2)
    assert len({derive(secret, context(s, *use)) for use in uses for s in sums}) == 10


@pytest.mark.parametrize("wrong", [bytes(33), b"\2" + b"\xff" * 32, b"\0", bytes(32)])
def test_what_is_no_point_of_the_curve_is_refused(wrong):
    with pytest.raises(SecureSumError, match="not a point of P-256"):
        agree(private_key(SECRET), wrong)


def test_masks_are_the_keystream_of_aes_256_in_counter_mode():
    # NIST SP 800-38A's key for AES-256, counter 0.
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    assert mask(key, 4, 8).tobytes() == mask(key, 1, 32).astype("<u4").tobytes()
    assert mask(key, 16, 8).tobytes().hex() == "e568f68194cf76d6174d4cc04310a854"


def test_a_long_mask_is_one_keystream():
    stream = mask(SECRET, 8 * (BLOCK_ENTRIES + 3), 8).view("<u8")
    assert np.array_equal(mask(SECRET, BLOCK_ENTRIES + 3, 64), stream)


def test_a_mask_that_was_added_can_be_taken_off():
    total = np.arange(BLOCK_ENTRIES + 3, dtype=np.uint16)
    masks.add_mask(total, SECRET)
    assert np.array_equal(
        total, np.arange(BLOCK_ENTRIES + 3, dtype=np.uint16) + mask(SECRET, len(total), 16)
    )
    masks.add_mask(total, SECRET, -1)
    assert np.array_equal(total, np.arange(BLOCK_ENTRIES + 3, dtype=np.uint16))


def mask(key, length, bits):
    words = np.zeros(length, masks.word(bits))
    masks.add_mask(words, key)
    return words


@settings(max_examples=100)
@given(st.integers(1, 64), st.integers(1, 40), st.integers(0, 2**32))
def test_packing_takes_b_bits_and_loses_nothing(bits, length, seed):
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 2**bits - 1, length, np.uint64, endpoint=True)
    words = words.astype(masks.word(bits))
    packed = masks.pack(words, bits)
    assert len(packed) == -(-length * bits // 8) == masks.packed_size(length, bits)
    assert np.array_equal(masks.unpack(packed, length, bits), words)


@pytest.mark.parametrize("bits", [7, 20, 24, 32, 33, 40])
def test_long_vectors_are_packed_as_one_string_of_bits(bits):
    words = (
        np.random.default_rng(bits).integers(0, 2**bits, BLOCK_ENTRIES + 5).astype(masks.word(bits))
    )
    packed = masks.pack(words, bits)
    digits = "".join(f"{int(word):0{bits}b}" for word in words)
    digits += "0" * (-len(digits) % 8)
    assert packed.tobytes() == int(digits, 2).to_bytes(len(digits) // 8, "big")
    assert np.array_equal(masks.unpack(packed, len(words), bits), words)


@pytest.mark.parametrize("bits", [13, 32, 50])
def test_masks_that_are_added_while_packing_are_those_that_are_taken_off(bits):
    values = np.random.default_rng(bits).integers(-(2**12), 2**12, BLOCK_ENTRIES + 5)
    keys = [(SECRET, 1), (SECRET[::-1], -1)]
    words = masks.unpack(masks.pack(values, bits, keys), len(values), bits)
    for key, sign in keys:
        masks.add_mask(words, key, -sign)
    assert np.array_equal(masks.from_words(words, bits, signed=True), values)


def test_packing_drops_what_is_above_the_modulus():
    words = np.array([255, 128, 3], np.uint8)
    assert list(masks.unpack(masks.pack(words, 7), 3, 7)) == [127, 0, 3]


def test_sign_is_read_from_the_highest_bit_of_the_modulus():
    words = masks.to_words(np.array([-1, 3, -4, 0]), 3)
    assert list(masks.from_words(words, 3, signed=True)) == [-1, 3, -4, 0]
    assert list(masks.from_words(words, 3, signed=False)) == [7, 3, 4, 0]


# Messages ---------------------------------------------------------------------------------------


@given(st.dictionaries(st.integers(0, 2**63 - 1), st.binary(min_size=5, max_size=5), max_size=20))
def test_joined_messages_come_apart_again(items):
    among = sorted({*items, 7, 2**40})
    assert part(join(items, among), 5, among) == items
    assert len(join(items, among)) == -(-len(among) // 8) + 5 * len(items)


@pytest.mark.parametrize(
    "damage",
    [
        lambda m: m[:-1],
        lambda m: m + b"x",
        lambda m: b"",
        lambda m: b"\xe0" + m[1:],
        lambda m: b"\x61" + m[1:],
    ],
    ids=["cut", "longer", "empty", "one more", "a stranger"],
)
def test_damaged_lists_are_refused(damage):
    with pytest.raises(SecureSumError):
        part(damage(join({1: b"aaaaa", 2: b"bbbbb"}, range(3))), 5, range(3))


# Terms and settings -----------------------------------------------------------------------------


@pytest.mark.parametrize("neighbours", [2, 6, 10])
def test_neighbour_graph_is_regular_symmetric_and_connected(neighbours):
    agreed = terms(21, neighbours=neighbours, server="honest")
    for client in agreed.clients:
        near = agreed.neighbours_of(client)
        assert len(near) == neighbours and client not in near
        assert all(client in agreed.neighbours_of(other) for other in near)
    reached = {0}
    for _ in range(21):
        reached |= {v for c in reached for v in agreed.neighbours_of(c)}
    assert reached == set(range(21))


def test_neighbour_graph_changes_from_round_to_round_and_not_with_the_process():
    one, same, other = (terms(30, neighbours=6, round=r, server="honest") for r in (1, 1, 2))
    assert [one.neighbours_of(c) for c in range(30)] == [same.neighbours_of(c) for c in range(30)]
    assert [one.neighbours_of(c) for c in range(30)] != [other.neighbours_of(c) for c in range(30)]


def test_terms_survive_json_and_every_field_counts_in_the_digest():
    agreed = terms(8, neighbours=4, threshold=0.8)
    assert SumTerms.from_dict(agreed.to_dict()) == agreed
    changes = {
        "run": "x", "round": 9, "clients": (0, 1, 2, 3, 4, 5, 6, 9), "length": 9, "bits": 9,
        "threshold": 4, "minimum": 8, "neighbours": 6, "colluders": 1, "server": "honest",
        "purpose": "evaluate", "group": 1, "release": "another", "least_weight": 2,
        "greatest_weight": 3, "keys": "known",
    }  # fmt: skip
    assert changes.keys() == {field.name for field in dataclasses.fields(SumTerms)}
    fits = {"neighbours": {"threshold": 7}, "least_weight": {"greatest_weight": 2}}
    digests = {agreed.terms_digest}
    for name, value in changes.items():
        changed = {name: value, **fits.get(name, {})}
        digests.add(dataclasses.replace(agreed, **changed).terms_digest)
    assert len(digests) == 1 + len(changes)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"clients": (1,)}, "clients"),
        ({"clients": (2, 1, 3)}, "clients"),
        ({"clients": (-1, 1, 3)}, "clients"),
        ({"bits": 65}, "bits=65"),
        ({"length": 0}, "length=0"),
        ({"length": 2.0}, "length=2.0"),
        ({"run": ""}, "run"),
        ({"threshold": 2}, "threshold=2"),
        ({"threshold": 6}, "threshold=6"),
        ({"minimum": 1}, "minimum=1"),
        ({"minimum": 2}, "minimum=2: must lie in 3..5"),
        ({"server": "nice"}, "server='nice'"),
        ({"group": -1}, "group=-1"),
        ({"least_weight": 2}, "least_weight=2, greatest_weight=1"),
        ({"release": None}, "release=None"),
        ({"minimum": 6}, "minimum=6"),
        ({"neighbours": 3}, "neighbours=3"),
        ({"neighbours": 6}, "neighbours=6"),
        ({"colluders": 5}, "colluders=5"),
    ],
)
def test_terms_that_protect_nobody_are_refused(change, match):
    with pytest.raises(ValueError, match=match):
        dataclasses.replace(terms(5), **change)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"mode": "yes"}, "^mode='yes': must be one of off, simulated, on"),
        ({"threshold": 0.4}, "^threshold=0.4: "),
        ({"threshold": 1.0}, "^threshold=1.0: "),
        ({"threshold": "a"}, "^threshold='a': must be a number in"),
        ({"minimum": 0}, "^minimum=0: "),
        ({"neighbours": 5}, "^neighbours=5: "),
        ({"colluders": -1}, "^colluders=-1: "),
        ({"dropouts": 0.5}, "^dropouts=0.5: "),
        ({"server": "nice"}, "^server='nice': must be one of honest, lying"),
    ],
)
def test_bad_settings_are_refused_in_words(change, match):
    with pytest.raises(ValueError, match=match):
        SecureSumSettings(**change)


def test_minimum_and_threshold_follow_from_shares_of_the_cohort():
    agreed = SecureSumSettings("on").terms("r", 1, range(50), 3, 6)
    assert (agreed.threshold, agreed.minimum, agreed.neighbours) == (34, 34, None)
    agreed = SecureSumSettings("on", minimum=0.9).terms("r", 1, range(50), 3, 6)
    assert (agreed.threshold, agreed.minimum) == (34, 45)
    agreed = SecureSumSettings("on", neighbours=20).terms("r", 1, range(50), 3, 6)
    assert (agreed.threshold, agreed.minimum) == (15, 34)
    # More neighbours than there are others means all of them.
    assert SecureSumSettings("on", neighbours=20).terms("r", 1, range(9), 3, 6).neighbours is None


# The state on disk ------------------------------------------------------------------------------


def states(folder, clients=(0,), run="test", round=1):
    return SumStates(folder / "states", folder / "joined", run, round, clients)


def joined(folder, *clients, **sum):
    """Clients that have joined a sum by one message, as they are kept."""
    found = states(folder, clients, **sum)
    for client in clients:
        found.join(client, SecureClient.join(terms(3, **sum), client))
    found.keep()


def contents(folder):
    return b"".join(path.read_bytes() for path in (folder / "states").iterdir())


def test_state_is_kept_between_processes_and_only_for_its_owner(tmp_path):
    party = SecureClient.join(terms(3), 0)
    party.advertise()
    found = states(tmp_path / "deep")
    found.join(0, party)
    found.keep()
    again = states(tmp_path / "deep").load(0)
    assert again == party
    again.require_due(Stage.SHARE)
    files = [path for path in (tmp_path / "deep").rglob("*") if path.is_file()]
    assert len(files) == 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_two_clients_of_one_place_agree_on_a_key_once(tmp_path, monkeypatch):
    joined(tmp_path, *range(3))
    found = states(tmp_path, range(3))
    together = [found.load(client) for client in range(3)]
    sent = [party.advertise() for party in together]
    alone = [restored(*written(party)) for party in together]
    computed = []

    def counted(private, other):
        computed.append(other)
        return agree(private, other)

    monkeypatch.setattr("murmur.secure_sum.keys.agree", counted)
    for parties, times in ((together, 3), (alone, 6)):
        computed.clear()
        for me, party in enumerate(parties):
            others = {v: ad for v, ad in enumerate(sent) if v != me}
            party.share(join(others, party.terms.neighbours_of(me)))
        assert len(computed) == times
    assert [party.boxes for party in together] == [party.boxes for party in alone]


@pytest.mark.parametrize(("asked", "times"), [((b"a", b"a", b"a"), 3), ((b"a", b"a", b"b"), 5)])
def test_clients_of_one_place_share_masks_only_where_they_were_told_the_same(
    tmp_path, monkeypatch, asked, times
):
    joined(tmp_path, *range(3))
    found = states(tmp_path, range(3))
    parties = {client: found.load(client) for client in range(3)}
    server = SecureServer(parties[0].terms)
    keys = server.keys({c: party.advertise() for c, party in parties.items()})
    boxes = server.shares({c: party.share(keys[c]) for c, party in parties.items()})
    server.checked({c: party.check(boxes[c]) for c, party in parties.items()})
    lists = server.lists()
    computed = []
    monkeypatch.setattr(
        "murmur.secure_sum.keys.agree", lambda *pair: computed.append(pair) or agree(*pair)
    )
    agreed = server.terms
    sent = [
        party.add_masks(np.zeros(agreed.length, np.int64), lists[c], asked[c])
        for c, party in parties.items()
    ]
    assert len(computed) == times
    total = sum(masks.unpack(each, agreed.length, agreed.bits) for each in sent)
    for party in parties.values():
        own = self_mask_key(party.seed, agreed, Party(party.me, party.advertised))
        masks.add_mask(total, own, -1)
    total &= (1 << agreed.bits) - 1
    assert total.any() == (times > 3)  # the pairs' masks cancel, or not


def test_the_names_of_all_sums_are_not_read_for_each_client(tmp_path, monkeypatch):
    joined(tmp_path, *range(3))
    plainly = store._last
    read = []

    def counted(*which):
        read.append(which)
        return plainly(*which)

    monkeypatch.setattr(store, "_last", counted)
    joined(tmp_path, *range(3), round=2)
    assert len(read) == 2  # when the message comes, and under the lock


def test_secrets_are_gone_when_the_sum_is_over_and_it_is_never_joined_again(tmp_path):
    joined(tmp_path, 0, round=4)
    found = states(tmp_path, round=4)
    party = found.load(0)
    party.advertise()
    with pytest.raises(SecureSumError):
        party.share(b"nonsense")
    found.put(0, party)
    found.keep()
    for secret in (party.seed, party.mask, party.channel, party.identity):
        assert secret not in contents(tmp_path)
    with pytest.raises(SecureSumError, match="dropped out of"):
        states(tmp_path, round=4).load(0)
    joined(tmp_path, 0, run="a later run")
    for again in ({"round": 4}, {"round": 1, "run": "a later run"}):
        with pytest.raises(SecureSumError, match="was joined before"):
            joined(tmp_path, 0, **again)
    joined(tmp_path, 1, round=4)  # another client's
    with pytest.raises(SecureSumError, match="older than one that was joined"):
        joined(tmp_path, 0, round=3)
    joined(tmp_path, 0, round=5)


def test_the_last_question_has_the_same_answer_again_and_no_other_question_has(tmp_path):
    assert states(tmp_path).answered(0, "q") is None
    found = states(tmp_path)
    party = SecureClient.join(terms(3), 0)
    found.join(0, party)
    found.put(0, party, "q", b"an answer")
    found.keep()
    assert states(tmp_path).answered(0, "q") == b"an answer"
    assert states(tmp_path).answered(0, "r") is None
    assert states(tmp_path, round=2).answered(0, "q") is None
    assert states(tmp_path, run="later").answered(0, "q") is None
    found = states(tmp_path)
    found.put(0, party)
    found.keep()
    assert states(tmp_path).answered(0, "q") is None


def test_a_sum_that_was_not_joined_or_is_damaged_has_no_state(tmp_path):
    with pytest.raises(SecureSumError, match="has not joined"):
        states(tmp_path).load(0)
    joined(tmp_path, 0)
    with pytest.raises(SecureSumError, match="has not joined"):
        states(tmp_path, round=2).load(0)
    [path] = (tmp_path / "states").iterdir()
    whole = path.read_bytes()
    for damage in (b"{", whole[:40], whole.replace(b"release", b"realise"), whole[:-40], bytes(90)):
        path.write_bytes(damage)
        with pytest.raises(SecureSumError, match="damaged"):
            states(tmp_path).load(0)


def test_a_file_that_was_read_is_told_from_another_of_its_size_and_its_moment(tmp_path):
    joined(tmp_path / "one", 0)
    joined(tmp_path / "other", 0)
    [path] = (tmp_path / "one" / "states").iterdir()
    [other] = (tmp_path / "other" / "states").iterdir()
    assert states(tmp_path / "one").load(0).mask != states(tmp_path / "other").load(0).mask
    moment = path.stat()
    path.write_bytes(other.read_bytes())  # keeps the inode
    os.utime(path, ns=(moment.st_atime_ns, moment.st_mtime_ns))
    assert path.stat().st_size == moment.st_size
    assert states(tmp_path / "one").load(0).mask == states(tmp_path / "other").load(0).mask


def test_all_clients_of_a_message_are_one_file_and_what_they_were_sent_alike_is_there_once(
    tmp_path,
):
    joined(tmp_path, 0, 1, 2)
    assert len(list((tmp_path / "states").iterdir())) == 1
    assert contents(tmp_path).count(terms(3).sent) == 1
    assert [states(tmp_path, (c,)).load(c).me for c in (2, 1, 0)] == [2, 1, 0]


def test_a_new_sum_leaves_nothing_of_an_older_one(tmp_path):
    joined(tmp_path, 0, 1)
    secrets = [states(tmp_path, (c,)).load(c).mask for c in (0, 1)]
    joined(tmp_path, 0, round=2)
    assert not any(secret in contents(tmp_path) for secret in secrets)


def test_clients_of_several_files_may_be_asked_by_one_message(tmp_path):
    joined(tmp_path, 0)
    joined(tmp_path, 1, 2)
    found = states(tmp_path, (0, 1))  # other nodes than before the interruption
    for client in (0, 1):
        party = found.load(client)
        party.advertise()
        found.put(client, party, "q", b"%d" % client)
    found.keep()
    again = states(tmp_path, (2, 1, 0))
    assert [again.answered(c, "q") for c in (0, 1, 2)] == [b"0", b"1", None]
    assert [again.load(c).done for c in (0, 1, 2)] == [1, 1, 0]


def test_of_two_messages_to_one_client_at_once_one_is_answered(tmp_path):
    joined(tmp_path, 0, 1)
    one, other, apart = (states(tmp_path, clients) for clients in ((0,), (0,), (1,)))
    for found, client in ((one, 0), (other, 0), (apart, 1)):
        party = found.load(client)
        party.advertise()
        found.put(client, party)
    one.keep()
    with pytest.raises(SecureSumError, match="answered meanwhile"):
        other.keep()
    apart.keep()
    assert [states(tmp_path, (c,)).load(c).done for c in (0, 1)] == [1, 1]
    for found in (one := states(tmp_path, round=2), other := states(tmp_path, round=2)):
        found.join(0, SecureClient.join(terms(3, round=2), 0))
    one.keep()
    with pytest.raises(SecureSumError, match="joined before"):
        other.keep()


def test_terms_are_as_long_whatever_is_random_in_them():
    """Bytes are a result of a run, which its seed decides; names of runs are drawn."""
    names = [os.urandom(16).hex() for _ in range(50)]
    assert len({len(dataclasses.replace(terms(30), run=name).sent) for name in names}) == 1
