"""A node's reply as bytes, as the ledger stores it; nothing of it needs unpickling."""

from __future__ import annotations

import json

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from safetensors.numpy import load, save


def encode_reply(reply: RecordDict) -> bytes:
    """A reply as bytes that need no unpickling."""
    arrays = reply.array_records.get("contribution")
    values = {name: np.ascontiguousarray(a.numpy()) for name, a in (arrays or {}).items()}
    return save(values, metadata={"report": json.dumps(dict(reply.config_records["report"]))})


def decode_reply(stored: bytes) -> RecordDict:
    """The inverse of ``encode_reply``."""
    header = json.loads(stored[8 : 8 + int.from_bytes(stored[:8], "little")])
    report = json.loads(header["__metadata__"]["report"])
    content = RecordDict({"report": ConfigRecord(report)})
    if arrays := load(stored):
        content["contribution"] = ArrayRecord({name: Array(a) for name, a in arrays.items()})
    return content
