"""A device: what its owner says, its data, and how it answers a server.

``node_settings`` are the owner's words and ``agreement`` what a server may set beside them;
``data`` opens what the owner has named. ``serving`` answers the messages that ``flower_runtime``
takes from the SuperNode, and ``health`` says how it goes. Here is how server and device tell that
they have the same public pool; what a run asks of data that lie on devices is
``fl_app.config.settings.DeviceTerms``.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray


def pool_digest(images: NDArray[np.float32]) -> str:
    """SHA-256 of a public pool (P, C, H, W), in hexadecimal: shape and pixels as float32.

    Server and devices compute it from their copies; a device refuses a run for another pool.
    """
    state = hashlib.sha256(repr(images.shape).encode())
    state.update(np.ascontiguousarray(images, np.float32).tobytes())
    return state.hexdigest()
