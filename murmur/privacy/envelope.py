"""Signed envelopes: an in-toto Statement in DSSE, the form of published statements and receipts.

The payload's bytes are signed as they are (DSSE's pre-authentication encoding), so nothing has to
be canonical, and other programs read it (secure-systems-lab/dsse, in-toto Attestation v1). A
signature is verified before the payload is parsed.

Who sets what, and the worst of it: whoever hands a file over sets everything in it. Nothing but its
length and its JSON's form is looked at before a signature by a key that the caller names.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from murmur.privacy.signing import Signer, is_signed_plainly
from murmur.privacy.strict_json import MAX_BYTES, read_strictly

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
_ENVELOPE = {"payloadType", "payload", "signatures"}
_SIGNATURE = {"keyid", "sig"}
_STATEMENT = {"_type", "subject", "predicateType", "predicate"}
_MAX_SIGNATURES = 16
_JSON = json.JSONEncoder(separators=(",", ":"), sort_keys=True, allow_nan=False)


@dataclass(frozen=True)
class Envelope:
    """A payload and who has signed it.

    Attributes:
        payload: the bytes that are signed.
        signatures: 64 bytes by public key, in hex.
    """

    payload: bytes
    signatures: Mapping[str, bytes]

    @classmethod
    def of(
        cls,
        predicate_type: str,
        subjects: Mapping[str, str],
        predicate: Mapping[str, Any],
        signer: Signer | None,
    ) -> Self:
        """An in-toto Statement about ``subjects``, signed; None signs a draft, which nobody has.

        ``subjects``: SHA-256 of each in hex, by name.
        """
        statement = {
            "_type": STATEMENT_TYPE,
            "subject": [
                {"name": name, "digest": {"sha256": digest}} for name, digest in subjects.items()
            ],
            "predicateType": predicate_type,
            "predicate": predicate,
        }
        payload = _JSON.encode(statement).encode()
        if signer is None:
            return cls(payload, {})
        return cls(payload, {signer.public_key: signer.sign_plainly(_encoding(payload))})

    @classmethod
    def read(cls, content: bytes, limit: int = MAX_BYTES) -> Self:
        """The inverse of ``to_bytes``; ValueError for anything else. Nothing is verified yet.

        ``limit``: of its length, in bytes.
        """
        plain = read_strictly(content, limit)
        if not isinstance(plain, dict) or plain.keys() != _ENVELOPE:
            raise ValueError(f"an envelope has {', '.join(sorted(_ENVELOPE))} and nothing else")
        if plain["payloadType"] != PAYLOAD_TYPE:
            raise ValueError(f"payloadType: must be {PAYLOAD_TYPE}")
        listed = plain["signatures"]
        if not isinstance(listed, list) or len(listed) > _MAX_SIGNATURES:
            raise ValueError(f"signatures: must be a list of at most {_MAX_SIGNATURES}")
        signatures: dict[str, bytes] = {}
        for one in listed:
            if not isinstance(one, dict) or one.keys() != _SIGNATURE:
                raise ValueError("signatures: each has keyid and sig and nothing else")
            if not isinstance(one["keyid"], str) or one["keyid"] in signatures:
                raise ValueError("keyid: must be text, each key once")
            signatures[one["keyid"]] = _bytes("sig", one["sig"])
        return cls(_bytes("payload", plain["payload"]), signatures)

    def to_bytes(self) -> bytes:
        """The envelope as a file has it, in ASCII."""
        signatures = [
            {"keyid": key, "sig": base64.b64encode(signature).decode()}
            for key, signature in self.signatures.items()
        ]
        payload = base64.b64encode(self.payload).decode()
        plain = {"payloadType": PAYLOAD_TYPE, "payload": payload, "signatures": signatures}
        return _JSON.encode(plain).encode()

    @property
    def digest(self) -> str:
        """SHA-256 of the payload, in hex."""
        return hashlib.sha256(self.payload).hexdigest()

    def predicate(
        self, predicate_type: str, key: str | None, limit: int = MAX_BYTES
    ) -> tuple[dict[str, str], dict[str, Any]]:
        """Subjects (SHA-256 in hex by name) and predicate, after ``key``'s signature was verified.

        ``key``: public, in hex; None reads a draft. ValueError for a signature that is missing or
        wrong, and for a payload that is no Statement of that type.
        """
        if key is not None and not self.is_signed_by(key):
            raise ValueError(f"it has no valid signature by {key}")
        plain = read_strictly(self.payload, limit)
        if not isinstance(plain, dict) or plain.keys() != _STATEMENT:
            raise ValueError(f"a payload has {', '.join(sorted(_STATEMENT))} and nothing else")
        if (plain["_type"], plain["predicateType"]) != (STATEMENT_TYPE, predicate_type):
            raise ValueError(f"predicateType: must be {predicate_type}")
        predicate = plain["predicate"]
        if not isinstance(predicate, dict) or not isinstance(plain["subject"], list):
            raise ValueError("predicate, subject: must be an object and a list")
        return _subjects(plain["subject"]), predicate

    def is_signed_by(self, key: str) -> bool:
        """True if the public ``key`` has signed the payload."""
        signature = self.signatures.get(key)
        return signature is not None and is_signed_plainly(key, _encoding(self.payload), signature)


def _encoding(payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding of type and payload, which is signed."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def _bytes(name: str, text: object) -> bytes:
    """The bytes of ``text`` in base64; ValueError for anything else."""
    try:
        if not isinstance(text, str):
            raise ValueError("it is no text")
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{name}: must be base64") from error


def _subjects(listed: list[Any]) -> dict[str, str]:
    """Digests by name; ValueError for a subject that has anything else, or a name twice."""
    found: dict[str, str] = {}
    for one in listed:
        if not isinstance(one, dict) or one.keys() != {"name", "digest"}:
            raise ValueError("subject: each has name and digest and nothing else")
        name, digest = one["name"], one["digest"]
        if not isinstance(name, str) or name in found:
            raise ValueError("subject: each name once")
        if not isinstance(digest, dict) or digest.keys() != {"sha256"}:
            raise ValueError("digest: must be sha256 and nothing else")
        if not isinstance(digest["sha256"], str):
            raise ValueError("sha256: must be text")
        found[name] = digest["sha256"]
    return found
