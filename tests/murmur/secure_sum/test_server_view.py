"""What the server receives in a whole sum: recorded, and searched for anything but the sum."""

import numpy as np
import pytest
from scipy import stats

from murmur.secure_sum import masks
from murmur.secure_sum.identity import ADVERTISED_BYTES
from murmur.secure_sum.server import SecureServer
from murmur.secure_sum.shares import KEY, SEED
from murmur.secure_sum.terms import Stage, part
from tests.murmur.secure_sum.secure_summing import secure_sum, terms, vectors

# One false alarm in ten thousand; the keys are seeded, so the outcome is always the same.
SIGNIFICANCE = 1e-4


def uniformity(words, bits):
    """The p-value of the χ² test that ``words`` are uniform modulo 2^min(bits, 8)."""
    top = words.astype(np.uint64) >> np.uint64(max(0, bits - 8))
    return stats.chisquare(np.bincount(top.astype(np.int64), minlength=2 ** min(bits, 8))).pvalue


def received(outcome, phase):
    return {client: message for p, client, message in outcome.seen if p is phase}


@pytest.mark.parametrize("bits", [3, 7, 12, 40])
def test_masked_vectors_look_uniform_however_little_is_in_them(bits):
    agreed = terms(5, length=40_000, bits=bits)
    plain = {c: np.zeros(40_000, np.int64) for c in range(5)}
    plain[1] += 1
    outcome = secure_sum(agreed, plain, {4: Stage.CONFIRM}, entropy=f"uniform {bits}")
    sent = {
        c: masks.unpack(m, agreed.length, bits) for c, m in received(outcome, Stage.MASK).items()
    }
    assert len(sent) == 5
    for client, words in sent.items():
        assert uniformity(words, bits) > SIGNIFICANCE, client
        for other in sent:
            if other != client:  # two clients share a mask: with signs that cancel in the sum only
                assert uniformity(words + sent[other] & word_mask(bits), bits) > SIGNIFICANCE
                assert uniformity(words - sent[other] & word_mask(bits), bits) > SIGNIFICANCE
    assert np.array_equal(outcome.total, np.ones(40_000, np.int64))


def word_mask(bits):
    return masks.word(bits).type(2**bits - 1)


def test_the_test_of_uniformity_notices_a_vector_without_its_mask():
    plain = np.random.default_rng(1).integers(0, 100, 40_000).astype(np.uint8)
    assert uniformity(plain, 7) < SIGNIFICANCE
    half_masked = plain // 2 + np.random.default_rng(2).integers(0, 64, 40_000).astype(np.uint8)
    assert uniformity(half_masked, 7) < SIGNIFICANCE


def test_nothing_that_the_server_receives_holds_a_vector_or_a_secret():
    agreed = terms(7, length=600, bits=8)
    values = vectors(agreed)
    drops = {1: Stage.MASK, 2: Stage.CONFIRM, 3: Stage.REVEAL}
    outcome = secure_sum(agreed, values, drops)
    everything = b"\0".join(message for _, _, message in outcome.seen)
    words = {c: values[c].astype(np.uint8) for c in values}
    for client, party in outcome.clients.items():
        assert words[client].tobytes()[:16] not in everything
        for secret in (party.seed, party.mask, party.channel):
            assert secret not in everything
    assert np.array_equal(outcome.total, sum(values[c] for c in outcome.survivors))


def test_shares_are_revealed_of_one_secret_of_each_client_and_never_of_both():
    agreed = terms(7, length=20)
    drops = {0: Stage.MASK, 4: Stage.MASK, 5: Stage.REVEAL}
    outcome = secure_sum(agreed, vectors(agreed), drops)
    assert outcome.survivors == (1, 2, 3, 5, 6)
    kinds = {}
    for holder, message in received(outcome, Stage.REVEAL).items():
        for owner, share in part(message, 32, agreed.clients).items():
            dealing = outcome.server._dealings[owner]
            found = {kind for kind in (SEED, KEY) if dealing.is_share(holder, kind, share)}
            kinds.setdefault(owner, set()).update(found)
    assert kinds == {0: {KEY}, 4: {KEY}, **{c: {SEED} for c in (1, 2, 3, 5, 6)}}


def test_no_client_that_dropped_before_its_shares_were_out_is_asked_about():
    agreed = terms(5, length=20)
    outcome = secure_sum(agreed, vectors(agreed), {0: Stage.ADVERTISE, 1: Stage.SHARE})
    revealed = received(outcome, Stage.REVEAL).values()
    assert [part(m, 32, agreed.clients).keys() for m in revealed] == [{2, 3, 4}] * 3


def test_the_running_total_stays_masked_until_the_last_mask_is_gone(monkeypatch):
    agreed = terms(4, length=20_000, bits=6)
    plain = {c: np.zeros(20_000, np.int64) for c in range(4)}
    totals, in_total = [], []
    plainly, total = masks.add_mask, SecureServer.total

    def watched(*arguments):
        totals.extend(server._total.copy() for server in in_total)
        return plainly(*arguments)

    def watched_total(server, replies, signed=False):
        in_total.append(server)
        return total(server, replies, signed)

    monkeypatch.setattr(masks, "add_mask", watched)
    monkeypatch.setattr(SecureServer, "total", watched_total)
    outcome = secure_sum(agreed, plain, {3: Stage.MASK}, entropy="running total")
    assert not outcome.total.any()
    assert len(totals) == 3 + 3  # three seeds, and client 3's masks with three survivors
    for running in totals:
        assert uniformity(running & np.uint8(63), 6) > SIGNIFICANCE


def keys_used(monkeypatch, agreed, entropy=None, drops=None):
    used = []
    plainly = masks.keystream
    monkeypatch.setattr(masks, "keystream", lambda key: used.append(key) or plainly(key))
    secure_sum(agreed, vectors(agreed), drops, entropy=entropy)
    monkeypatch.setattr(masks, "keystream", plainly)
    return used


def test_two_rounds_never_share_a_mask_even_if_all_secrets_were_the_same(monkeypatch):
    first = keys_used(monkeypatch, terms(5, round=1), "same")
    again = keys_used(monkeypatch, terms(5, round=1), "same")
    assert first == again  # so the keys do follow from the secrets
    others = [terms(5, round=2), terms(5, run="another"), terms(5, length=9), terms(5, bits=9)]
    for other in others:
        assert set(first).isdisjoint(keys_used(monkeypatch, other, "same"))


def test_secrets_are_fresh_in_every_sum(monkeypatch):
    first, second = (keys_used(monkeypatch, terms(5)) for _ in range(2))
    assert set(first).isdisjoint(second)


def test_within_a_sum_every_pair_has_its_own_mask_and_every_client_its_own(monkeypatch):
    used = keys_used(monkeypatch, terms(5, length=4))
    pairs, alone = 5 * 4 // 2, 5
    assert len(set(used)) == pairs + alone
    assert len(used) == 2 * pairs + 2 * alone  # both ends of a pair; a client, and the server


def test_advertised_keys_hide_what_they_commit_to():
    agreed = terms(3)
    outcome = secure_sum(agreed, vectors(agreed))
    for message in received(outcome, Stage.ADVERTISE).values():
        assert len(message) == ADVERTISED_BYTES
    assert len(set(received(outcome, Stage.ADVERTISE).values())) == 3
