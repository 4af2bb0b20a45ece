"""Replies as a ledger stores them: sealed into bytes, and unsealed into what is sent.

What returns is what the ledger has stored, so that the same message gets the same bytes again.
"""

from __future__ import annotations

import io
import json
from itertools import accumulate
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common.constant import SType

from murmur.privacy.ledger import Reply
from murmur.round.collectors import Collector

# Plain numbers by the names that safetensors has for them: a codec of one's own may pack any.
_CODES = {
    **{"BOOL": "?", "U8": "u1", "U16": "u2", "U32": "u4", "U64": "u8"},
    **{"I8": "i1", "I16": "i2", "I32": "i4", "I64": "i8", "F16": "f2", "F32": "f4", "F64": "f8"},
}
_KINDS = {name: np.dtype(code) for name, code in _CODES.items()}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def sealed(collector: Collector, refused: dict[int, str]) -> Reply:
    """A reply as the ledger stores it: bytes that need no unpickling, in pieces.

    Who answered, who refused and why is the record ``report``, as JSON in the metadata of
    safetensors; they hold the arrays of ``contribution``, which is that of those who answered. The
    pieces are their header, and then the collector's own memory.
    """
    report: dict[str, Any] = {
        "clients": collector.clients,
        "refused": list(refused),
        "reasons": list(refused.values()),
        **collector.report(),
    }
    header: dict[str, Any] = {"__metadata__": {"report": json.dumps(report)}}
    pieces: list[memoryview] = []
    end = 0
    for name, contribution in collector.arrays.items():
        if isinstance(contribution, list):
            rows, shape = contribution, (len(contribution), *contribution[0].shape)
        else:
            rows, shape = [contribution], contribution.shape
        begin = end
        end += sum(row.nbytes for row in rows)
        kind = _NAMES[rows[0].dtype]
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
        pieces += [np.ascontiguousarray(row).reshape(-1).view(np.uint8).data for row in rows]
    text = json.dumps(header).encode()
    return [memoryview(len(text).to_bytes(8, "little") + text), *pieces]


def unsealed(stored: Reply) -> RecordDict:
    """The reply to send, from what this device has stored itself."""
    pieces = [memoryview(stored)] if isinstance(stored, bytes) else stored
    start = 8 + int.from_bytes(pieces[0][:8], "little")
    header = json.loads(bytes(pieces[0][8:start]))
    report = json.loads(header.pop("__metadata__")["report"])
    content = RecordDict({"report": ConfigRecord(report)})
    places = list(accumulate(map(len, pieces), initial=-start))  # where each piece begins
    arrays = {}
    for name, about in header.items():
        begin, end = about["data_offsets"]
        values = (
            piece[max(begin - place, 0) : max(end - place, 0)]
            for place, piece in zip(places, pieces, strict=False)
        )
        # As Flower's ``Array(array)`` has it, but that the values are copied once.
        kind, shape = _KINDS[about["dtype"]], tuple(about["shape"])
        start_of = {"descr": kind.str, "fortran_order": False, "shape": shape}
        file = io.BytesIO()
        np.lib.format.write_array_header_1_0(file, start_of)
        data = b"".join([file.getvalue(), *values])
        arrays[name] = Array(str(kind), shape, SType.NUMPY, data)
    if arrays:
        content["contribution"] = ArrayRecord(arrays)
    return content
