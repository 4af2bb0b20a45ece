"""Arrays as bytes for a file, with a checksum that notices damage.

The format is safetensors; what belongs to the arrays and a checksum over both are its metadata.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

_KEY = "facts"  # the one key of the metadata: with several, their order would be arbitrary


class DamagedError(ValueError):
    """The file is not what was written."""


def to_bytes(arrays: Mapping[str, NDArray], facts: Mapping[str, Any]) -> bytes:
    """Arrays and facts with their checksum; the same content, the same bytes.

    Args:
        arrays: by name.
        facts: whatever JSON can hold.
    """
    plain = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
    # Keys are sorted as text: JSON makes text of numbers, and who reads the facts has no others.
    text = json.dumps(json.loads(json.dumps(facts)), sort_keys=True)
    checksum = hashlib.sha256(save(plain) + text.encode()).hexdigest()
    return save(plain, metadata={_KEY: json.dumps([checksum, text])})


def from_bytes(content: bytes) -> tuple[dict[str, NDArray], dict[str, Any]]:
    """The inverse of ``to_bytes``.

    Raises:
        DamagedError: a single bit is different.
    """
    try:
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        facts = json.loads(json.loads(header["__metadata__"][_KEY])[1])
        arrays = load(content)
        if to_bytes(arrays, facts) == content:
            return arrays, facts
    except (SafetensorError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
        pass
    raise DamagedError("the checksum does not fit: the file was damaged or edited")
