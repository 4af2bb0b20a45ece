"""The feature maps that ``conf/features`` names: what is computed of each image by itself.

None of them has parameters that private data have moved: the pixels, a fixed network of wavelets
(``wavelets``), and a network that somebody else has trained on public data, frozen.
"""

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from murmur.learning.features.components import Features, Known
from murmur.random import seeded_torch

if TYPE_CHECKING:
    from torch import nn

    from murmur.learning.features.bins import Bins


def none() -> None:
    """The images as they are."""


def pca(*, components: int = 50, power: float = 1.0) -> Features:
    """Principal components of the pixels; ``components``: how many are kept."""
    return Features("pca", lambda images: images, components, power, module=_flat)


def scattering(
    *, components: int | None = 400, power: float = 1.0, windows: int | None = None
) -> Features:
    """Principal components of the scattering transform; ``components``: how many are kept.

    ``windows``: into how many overlapping windows a side the transform is averaged; None: as it is.
    """
    from murmur.learning.features.wavelets import scatter

    module = functools.partial(_scattering_network, windows)
    if windows is None:
        return Features("scattering", scatter, components, power, module=module)
    if windows < 1:
        raise ValueError(f"windows={windows}: must be at least 1, or null")

    def averaged(images: NDArray[np.float32]) -> NDArray[np.float32]:
        return _windows(scatter(images), windows)

    return Features(f"scattering {windows}", averaged, components, power, module=module)


def _flat(shape: tuple[int, int, int]) -> "nn.Module":
    from torch import nn

    return nn.Flatten()


def _scattering_network(windows: int | None, shape: tuple[int, int, int]) -> "nn.Module":
    from murmur.learning.features.modules import Scattering

    return Scattering(shape, windows)


def _bins_network(bins: "Bins", shape: tuple[int, int, int]) -> "nn.Module":
    from murmur.learning.features.modules import BinsOfColumns

    return BinsOfColumns(bins)


def _windows(maps: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """Means over count² windows (N, C·count²) of ``maps`` (N, C, H, W), which overlap by one."""
    from murmur.learning.features.wavelets import cuts

    side = min(maps.shape[2:])
    if count > side:
        raise ValueError(f"windows={count}: must be at most {side}, the transform's side")
    parts = []
    for rows in cuts(maps.shape[2], count):
        for columns in cuts(maps.shape[3], count):
            parts.append(maps[:, :, rows, columns].mean(axis=(2, 3)))
    return np.concatenate(parts, axis=1)


def bins(
    *,
    schema: Mapping[str | int, Any] | None,
    crossed: Sequence[Sequence[str | int]] = (),
) -> Features:
    """A table's columns as bins by a public schema (``murmur.learning.features.bins``).

    Columns may be named by numbers. Whoever reads the table reads it by the same schema,
    ``known.schema``.
    """
    from murmur.learning.features.bins import Bins

    found = Bins(schema or {}, crossed)
    known = Known(found.digest, found.width, schema=found.schema)
    module = functools.partial(_bins_network, found)
    return replace(Features.ready(f"bins {found.digest}", found, known), module=module)


def words(*, size: Annotated[int, Field(ge=2, le=2**20)] = 1024) -> Features:
    """Words of a text and its pairs of neighbouring words, hashed to ``size`` signed numbers.

    A text's vector is the sum over its words and pairs of ±1 at the place of each, of unit length
    (Weinberger et al., "Feature hashing for large scale multitask learning", ICML 2009). Nothing is
    fitted.

    Raises:
        ValueError: ``size`` is below 2.
    """
    if size < 2:
        raise ValueError(f"size={size}: must be at least 2")
    name = f"words {size}"
    digest = hashlib.sha256(name.encode()).hexdigest()
    return Features.ready(name, functools.partial(_hashed_words, size), Known(digest, size))


def _hashed_words(size: int, images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Vectors (N, size) of token numbers (N, 1, 1, L); 0 at the end is padding."""
    ids = images.reshape(len(images), -1).astype(np.uint64)
    told = ids != 0
    pairs = ids[:, :-1] * np.uint64(2**32) + ids[:, 1:]
    keys = np.concatenate([ids, pairs], axis=1)
    counts = np.concatenate([told, told[:, 1:]], axis=1)
    mixed = _mixed(keys)
    signs = np.where(mixed >> np.uint64(63), 1.0, -1.0) * counts
    places = (mixed % np.uint64(size)).astype(np.int64)
    out = np.zeros((len(ids), size), np.float32)
    np.add.at(out, (np.arange(len(ids))[:, None], places), signs)
    return out / np.maximum(np.linalg.norm(out, axis=1, keepdims=True), 1e-12)


def _mixed(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A hash of 64 bits of each key (Steele et al., "SplitMix", OOPSLA 2014)."""
    keys = keys + np.uint64(0x9E3779B97F4A7C15)
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return keys ^ (keys >> np.uint64(31))


def backbone(
    *,
    architecture: str,
    weights: str | None,
    size: Annotated[int, Field(ge=1, le=4_096)] = 64,
    components: int = 400,
) -> Features:
    """A torchvision classifier without its last layer.

    Args:
        architecture: torchvision's name of it.
        weights: path of a .safetensors file with its parameters.
        size: pixels of a side to which images are resized.
        components: how many principal components are kept.

    Raises:
        ValueError: no weights are named, or they are not those of the architecture
            (``murmur.learning.pretrained.Headless``).
    """
    if weights is None:
        raise ValueError("weights=null: must be the path of a .safetensors file")
    import torch

    from murmur.learning.pretrained import Headless

    with seeded_torch(0):
        network = Headless(architecture, weights, size).eval()
    digest = hashlib.sha256(Path(weights).expanduser().read_bytes()).hexdigest()

    @torch.inference_mode()
    def penultimate(images: NDArray[np.float32]) -> NDArray[np.float32]:
        return network(torch.from_numpy(images)).numpy()

    name = f"backbone {architecture} {size} {digest}"
    return Features(name, penultimate, components, module=lambda shape: network)
