"""A device's long-term key (Ed25519): it signs what the device says in secure sums.

Made once on the device and kept beside its state, readable by its owner only. Which key is whose
is for ``peers`` to say.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from murmur.secure_sum.keys import Entropy

IDENTITY_BYTES, SIGNATURE_BYTES = 32, 64


def identity_in(path: Path) -> bytes:
    """The private key in the file ``path``, which is made, mode 600, if it is not there."""
    try:
        return bytes.fromhex(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(new_identity().hex())
        file.flush()
        os.fsync(file.fileno())
    with suppress(FileExistsError):  # the first of two processes decides
        os.link(draft, path)
    draft.unlink()
    return bytes.fromhex(path.read_text(encoding="ascii"))


def new_identity(entropy: Entropy = os.urandom) -> bytes:
    """A private key."""
    return entropy(IDENTITY_BYTES)


def public_identity(identity: bytes) -> bytes:
    """The public half, by which peers know the device."""
    return Ed25519PrivateKey.from_private_bytes(identity).public_key().public_bytes_raw()


def sign(identity: bytes, about: bytes) -> bytes:
    """A signature of ``about``."""
    return Ed25519PrivateKey.from_private_bytes(identity).sign(about)


def is_signed(public: bytes, signature: bytes, about: bytes) -> bool:
    """Whether the owner of ``public`` has signed ``about``."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, about)
    except (InvalidSignature, ValueError):
        return False
    return True
