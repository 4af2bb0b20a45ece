"""Envelopes are DSSE as others implement it, and refuse whatever is not exactly that."""

import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from securesystemslib.dsse import Envelope as Theirs
from securesystemslib.signer import CryptoSigner, SSlibKey

from murmur.privacy.envelope import Envelope
from murmur.privacy.run_header import ServerKey

KIND = "urn:murmur:receipt:1"
KEY = ServerKey.generate()


def envelope(predicate=None):
    return Envelope.of(KIND, {"header": "ab" * 32}, predicate or {"number": 1}, KEY)


def test_the_same_comes_back():
    read = Envelope.read(envelope().to_bytes())
    assert read == envelope()
    assert read.predicate(KIND, KEY.public_key) == ({"header": "ab" * 32}, {"number": 1})


def test_a_second_implementation_verifies_ours():
    theirs = Theirs.from_dict(json.loads(envelope().to_bytes()))
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(KEY.public_key))
    assert theirs.verify([SSlibKey.from_crypto(key, keyid=KEY.public_key)], 1)


def test_we_verify_one_of_a_second_implementation():
    theirs = Theirs(envelope().payload, "application/vnd.in-toto+json", {})
    signer = CryptoSigner.generate_ed25519()
    signature = theirs.sign(signer)
    key = signer.public_key.keyval["public"]
    ours = Envelope(theirs.payload, {key: bytes.fromhex(signature.signature)})
    assert ours.predicate(KIND, key)[1] == {"number": 1}


def test_another_key_a_changed_payload_and_no_signature_are_refused():
    whole = envelope()
    changed = Envelope(whole.payload.replace(b'"number":1', b'"number":2'), whole.signatures)
    draft = Envelope.of(KIND, {"header": "ab" * 32}, {"number": 1}, None)
    for wrong, key in (
        (whole, ServerKey.generate().public_key),
        (changed, KEY.public_key),
        (draft, KEY.public_key),
        (whole, "01" + "00" * 31),
    ):
        with pytest.raises(ValueError, match="no valid signature"):
            wrong.predicate(KIND, key)
    assert draft.predicate(KIND, None)[1] == {"number": 1}


def test_a_prefixed_signature_of_the_same_key_is_none_of_an_envelope():
    payload = envelope().payload
    assert not Envelope(payload, {KEY.public_key: KEY.sign("header", payload)}).is_signed_by(
        KEY.public_key
    )


def altered(change):
    plain = json.loads(envelope().to_bytes())
    change(plain)
    return json.dumps(plain).encode()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda plain: plain.update(more=1), "nothing else"),
        (lambda plain: plain.pop("payload"), "nothing else"),
        (lambda plain: plain.update(payloadType="text"), "payloadType"),
        (lambda plain: plain.update(payload="*"), "payload: must be base64"),
        (lambda plain: plain.update(payload=1), "payload: must be base64"),
        (lambda plain: plain.update(signatures={}), "must be a list"),
        (lambda plain: plain.update(signatures=[{}] * 17), "at most 16"),
        (lambda plain: plain["signatures"][0].update(more=1), "nothing else"),
        (lambda plain: plain["signatures"].append(plain["signatures"][0]), "each key once"),
        (lambda plain: plain["signatures"][0].update(keyid=1), "must be text"),
    ],
)
def test_what_is_no_envelope_is_refused(change, said):
    with pytest.raises(ValueError, match=said):
        Envelope.read(altered(change))


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("_type", "other", "predicateType"),
        ("predicateType", "urn:murmur:statement:1", "predicateType"),
        ("predicate", [], "must be an object"),
        ("subject", {}, "a list"),
        ("subject", [{"name": "header"}], "nothing else"),
        ("subject", [{"name": 1, "digest": {"sha256": ""}}], "each name once"),
        ("subject", [{"name": "a", "digest": {"sha1": ""}}], "sha256 and nothing else"),
        ("subject", [{"name": "a", "digest": {"sha256": 1}}], "must be text"),
    ],
)
def test_what_is_no_statement_is_refused_though_it_is_signed(field, value, said):
    payload = json.dumps(json.loads(envelope().payload) | {field: value}).encode()
    wrong = Envelope(payload, {})
    with pytest.raises(ValueError, match=said):
        wrong.predicate(KIND, None)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"1", b'{"a":1,"a":2}', b"NaN", b"[" * 99])
def test_bytes_of_a_stranger_give_one_error(content):
    with pytest.raises(ValueError, match=r"\S"):
        Envelope.read(content)


def test_a_file_longer_than_its_limit_is_refused():
    content = envelope({"text": "x" * 2_000}).to_bytes()
    assert Envelope.read(content, len(content)).payload
    with pytest.raises(ValueError, match="longer than 1000 bytes"):
        Envelope.read(content, 1_000)
