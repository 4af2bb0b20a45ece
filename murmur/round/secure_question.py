"""What the clients of a secure sum are asked, the same for all: their masks are bound to it."""

from __future__ import annotations

import hashlib

from flwr.app import RecordDict

from murmur.common import framed

RECORD = "secure_sum"


def question(content: RecordDict) -> bytes:
    """A digest of what all clients of a sum are asked in phase MASK, whichever node they are on.

    Model, arrays and settings, without who is asked; pairwise masks are bound to it.
    """
    state = hashlib.sha256(framed(b"question to a sum"))
    for name, record in sorted(content.array_records.items()):
        for key, array in sorted(record.items()):
            form = array.dtype.encode(), repr(tuple(array.shape)).encode()
            values = hashlib.sha256(array.data).digest()
            state.update(framed(b"array", name.encode(), key.encode(), *form, values))
    for name, config in sorted(content.config_records.items()):
        for key, value in sorted(config.items()):
            if name != RECORD and key != "clients":
                told = name.encode(), key.encode(), repr(value).encode()
                state.update(framed(b"setting", *told))
    return state.digest()
