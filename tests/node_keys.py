"""Public keys of nodes for tests: as OpenSSH writes them, and as a SuperLink tells them."""

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.supercore.primitives.asymmetric import public_key_to_bytes


def openssh(number):
    return _key(number).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def told(number):
    return public_key_to_bytes(_key(number))


def _key(number):
    return ec.derive_private_key(number + 1, ec.SECP256R1()).public_key()
