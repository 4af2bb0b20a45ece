"""What server and devices both know of data on devices: their form, and what of them is public.

The server sends digests only. What a device's data look like its owner says
(``fl_app.device.node_settings``), and a server's word about it counts for nothing there.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class DeviceTerms:
    """``federation.devices``; `murmur engine=deploy` fills in what is null from the server's data.

    Attributes:
        shape: (C, H, W) of an image.
        classes: how many, at least 2, or their names in the order of their labels.
        public: digest of the public pool (``pool_digest``), of which every device has a copy.
        sizes: every client's number of examples, where the federation has made them public.
        features: digest of what the run's features were fitted with (``conf/features``), if there
            are any.

    Raises:
        ValueError: a value is out of its range.
    """

    shape: list[int] | None = None
    classes: int | list[str] | None = None
    public: str | None = None
    sizes: list[int] | None = None
    features: str | None = None

    def __post_init__(self) -> None:
        if self.shape is not None and (len(self.shape) != 3 or min(self.shape) < 1):
            raise ValueError(f"devices.shape={self.shape}: must be [channels, height, width]")
        if self.classes is not None and self.num_classes < 2:
            raise ValueError(f"devices.classes={self.classes}: must be at least 2, or their names")
        if self.sizes is not None and min(self.sizes, default=0) < 1:
            raise ValueError(f"devices.sizes={self.sizes}: every client has at least one example")

    @property
    def num_classes(self) -> int:
        """How many classes; 0 where that is not said."""
        if isinstance(self.classes, list):
            return len(self.classes)
        return self.classes or 0

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes in the order of their labels; None where the run gives none."""
        return self.classes if isinstance(self.classes, list) else None


def pool_digest(images: NDArray[np.float32]) -> str:
    """SHA-256 of a public pool (P, C, H, W), in hexadecimal: shape and pixels as float32.

    Server and devices compute it from their copies; a device refuses a run for another pool.
    """
    state = hashlib.sha256(repr(images.shape).encode())
    state.update(np.ascontiguousarray(images, np.float32).tobytes())
    return state.hexdigest()
