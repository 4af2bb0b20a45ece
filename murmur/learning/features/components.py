"""Principal components of a feature map, fitted on public images alone, and data sets of them.

Each coordinate of the map is standardised by the pool's mean and deviation; then come the pool's
first principal components, whitened, and every image's vector is scaled to unit length. What was
fitted (``Components``) is part of the model: it is public, and a digest names it. Linear algebra
runs on one thread, so that results do not depend on the number of cores.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from murmur.learning.data.blanks import Blanks
from murmur.learning.data.cache import cache_folder, publish_folder
from murmur.learning.data.examples import DataError, Dataset, Examples
from murmur.learning.process import one_thread
from murmur.settings import Count, settings

if TYPE_CHECKING:
    from torch import nn

FeatureMap = Callable[[NDArray[np.float32]], NDArray[np.float32]]
Blocks = Iterable[tuple[int, NDArray[np.float32]]]  # first row, what the map gives

BLOCK_IMAGES = 512  # images at a time; always the same, so that a row's bits are, too
_FORMAT = 1  # of kept features: raise it when their computation changes
_MIN_CACHED_BYTES = 2**24  # bytes of images from which on reading is quicker than computing
_MAX_DEFAULT_COMPONENTS = 400  # components that are kept where nobody says how many
_IMAGES_PER_AXIS = 12
_MAX_IMAGE_NUMBERS = 20_000  # of an image: their covariance takes 3 GiB
_FLAT = 1e-6  # a share of the first eigenvalue below which there is nothing but rounding


@dataclass(frozen=True, eq=False)
class Components:
    """Map from images to features, fitted on the pool.

    Attributes:
        mean: (D,), of the map over the pool.
        projection: (d, D): scale, axes and whitening.

    Raises:
        ValueError: they are not finite float32 arrays of one map.
    """

    mean: NDArray[np.float32]
    projection: NDArray[np.float32]

    def __post_init__(self) -> None:
        for name, values, axes in (("mean", self.mean, 1), ("projection", self.projection, 2)):
            if values.ndim != axes or values.dtype != np.float32 or not np.all(np.isfinite(values)):
                raise ValueError(f"{name}: must be finite float32 with {axes} axes")
        if self.projection.shape[1:] != self.mean.shape:
            raise ValueError("mean and projection: must be of one feature map")

    @property
    def size(self) -> int:
        """D, how many there are."""
        return len(self.projection)

    @property
    def digest(self) -> str:
        """SHA-256 of both arrays, by which a device knows what the run's features are."""
        state = hashlib.sha256(repr(self.projection.shape).encode())
        for values in (self.mean, self.projection):
            state.update(np.ascontiguousarray(values).tobytes())
        return state.hexdigest()

    def project(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Features (n, d), each of length 1, of what the map gives, (n, D)."""
        # In double precision: where a row stands among others moves bits that float32 leaves out.
        wide = (rows - self.mean).astype(np.float64) @ self.projection.T.astype(np.float64)
        projected = wide.astype(np.float32)
        lengths = np.linalg.norm(projected, axis=1, keepdims=True)
        return projected / np.maximum(lengths, 1e-12)

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """Both arrays by name, as ``of`` takes them."""
        return {"features_mean": self.mean, "features_projection": self.projection}

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray]) -> "Components | None":
        """The inverse of ``arrays``; None where they are not there.

        Raises:
            ValueError: they are not what was fitted.
        """
        if "features_mean" not in arrays or "features_projection" not in arrays:
            return None
        return cls(arrays["features_mean"], arrays["features_projection"])


@dataclass(frozen=True)
class Known:
    """Public facts of a map that needs no fit.

    Attributes:
        digest: names the map, and all that it is made of.
        size: d, how many numbers it gives.
        texts: features (n, d) of lines of text; None: it reads no texts.
        licence: of what it is made of, if somebody else has made it.
        schema: by which a reader makes numbers of a table's columns; None: it reads no tables.
    """

    digest: str
    size: int
    texts: Callable[[list[str]], NDArray[np.float32]] | None = field(default=None, compare=False)
    licence: str = ""
    schema: Mapping[str, Mapping[str, Any]] | None = field(default=None, compare=False)

    def project(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """``rows`` as the map gives them."""
        return rows

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """Nothing: what a device has installed is enough."""
        return {}


Fitted = Components | Known


@settings
class Features:
    """A feature map and how many of its principal components are kept.

    Attributes:
        name: what the map is, all of its settings included: equal names are equal maps.
        map: images (N, C, H, W) to features (N, ...).
        components: d, at least 1; None: a twelfth of the images that they are fitted on, at most
            400.
        power: how far axes are whitened, in [0, 1]: each is divided by its deviation to this power.
        known: of a map that needs no fit; None: components are fitted on a pool.
        slow: whether features of small data sets are worth keeping, too.
        module: the map as a PyTorch module, of the images' shape (C, H, W); None: it has none.

    Raises:
        ValueError: ``components`` is below 1, or ``power`` out of its range.
    """

    name: str
    map: FeatureMap = field(compare=False)
    components: Count | None = 400
    power: Annotated[float, Field(ge=0, le=1)] = 1.0
    known: Known | None = None
    slow: bool = False
    module: Callable[[tuple[int, int, int]], Any] | None = field(default=None, compare=False)

    @classmethod
    def ready(cls, name: str, map: FeatureMap, known: Known, slow: bool = False) -> "Features":
        """A map that needs no fit, to features (N, ``known.size``)."""
        return cls(name, map, known.size, known=known, slow=slow)

    def network(self, fitted: Fitted, shape: tuple[int, int, int]) -> "nn.Module":
        """Map and components as one PyTorch module, (N, C, H, W) to (N, d, 1, 1).

        Raises:
            ValueError: the map has no module.
        """
        if self.module is None:
            kind = self.name.partition(" ")[0]
            raise ValueError(f"features={kind}: cannot be written as a network")
        from murmur.learning.features import modules

        parts = [self.module(shape)]
        if isinstance(fitted, Components):
            parts.append(modules.Projection(fitted.mean, fitted.projection))
        return modules.Sequence4D(parts)

    def fit(self, pool: NDArray[np.float32]) -> Fitted:
        """The standardised, whitened components of the map over a pool, or what is known of it.

        At most P − 1 of them, and as many as the map's coordinates are independent.

        Args:
            pool: (P, C, H, W), public images.

        Raises:
            ValueError: the pool holds fewer than two images, or the map gives too many numbers.
        """
        if self.known is not None:
            return self.known
        if len(pool) < 2:
            raise ValueError(
                f"public={len(pool)}: features are fitted on a public pool of two or more"
            )
        from scipy.linalg import eigh

        with one_thread():
            total = np.zeros(0)
            moments = np.zeros((0, 0))
            for _, block in _blocks(self.map, pool):
                rows = block.astype(np.float64)
                if rows.shape[1] > _MAX_IMAGE_NUMBERS:
                    raise ValueError(
                        f"features: {rows.shape[1]} numbers an image, which may be "
                        f"{_MAX_IMAGE_NUMBERS}; set fewer windows, or smaller images"
                    )
                if not total.size:
                    total = np.zeros(rows.shape[1])
                    moments = np.zeros((rows.shape[1],) * 2)
                total += rows.sum(axis=0)
                moments += rows.T @ rows
            mean = total / len(pool)
            covariance = moments / len(pool) - np.outer(mean, mean)
            deviation = np.sqrt(np.maximum(np.diag(covariance), 0))
            scale = np.where(deviation > 1e-6, 1 / np.maximum(deviation, 1e-6), 0.0)
            size = len(mean)
            wanted = self.components
            if wanted is None:  # more axes than a pool can tell apart are noise
                wanted = min(_MAX_DEFAULT_COMPONENTS, math.ceil(len(pool) / _IMAGES_PER_AXIS))
            count = min(wanted, len(pool) - 1, size)
            values, axes = eigh(
                covariance * np.outer(scale, scale), subset_by_index=(size - count, size - 1)
            )
        kept = values > _FLAT * values[-1]
        values = values[kept][::-1]
        axes = axes[:, kept][:, ::-1]
        # An axis has no sign of its own: let its largest entry be positive.
        signs = np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])])
        projection = (axes * (signs / values ** (self.power / 2))).T * scale
        return Components(mean.astype(np.float32), projection.astype(np.float32))

    def apply(self, fitted: Fitted, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Features (N, d, 1, 1) of ``images`` (N, C, H, W); ``fitted`` with this map."""
        return _projected(fitted, _blocks(self.map, images), len(images))

    def first_block(self, fitted: Fitted, part: Examples, name: str) -> NDArray[np.float32]:
        """``apply`` of the first block of images, whose map is computed once for each ``name``.

        Args:
            fitted: with this map.
            part: images, which must not change.
            name: of all that the map was made from; it may say more than ``Features.name``.
        """
        blocks = _first_block(_NamedMap(name, self.map), part)
        return _projected(fitted, blocks, min(len(part), BLOCK_IMAGES))

    def rows(
        self, fitted: Fitted, images: NDArray[np.float32], blanks: Blanks
    ) -> NDArray[np.float32]:
        """``apply``, row by row: where an image has no finite features they are those of zeros.

        No row's features depend on another's, in no bit: blocks keep their sizes.

        Args:
            fitted: with this map.
            images: (N, C, H, W).
            blanks: notes these rows.

        Raises:
            Exception: whatever the map raises for zeros, or for no single row.
        """
        with np.errstate(all="ignore"):
            try:
                found = self.apply(fitted, images)
            except Exception:  # a map of any kind: which rows are to blame?
                for row, image in enumerate(images):
                    with blanks.of(row):
                        self.apply(fitted, image[None])
                found = self.apply(fitted, _cleared(images, blanks))
            infinite = ~np.all(np.isfinite(found), axis=(1, 2, 3))
            if infinite.any():
                blanks.add_all(infinite, lambda row: ValueError("its features overflow"))
                found = self.apply(fitted, _cleared(images, blanks))
        return found


def _cleared(images: NDArray[np.float32], blanks: Blanks) -> NDArray[np.float32]:
    """``images`` (N, C, H, W) with zeros in the place of blank ones."""
    known = np.array(images)
    blanks.clear(known)
    return known


def featured(
    dataset: Dataset,
    features: Features,
    public: NDArray[np.int64],
    cache: str | Path | None = None,
    pool: NDArray[np.float32] | None = None,
) -> tuple[Dataset, Fitted]:
    """``dataset`` with features (d, 1, 1) for images.

    Large ones are kept on disk, under what they were computed from.

    Args:
        dataset: of images.
        features: the map and the number of components.
        public: indices of the training images that they are fitted on.
        cache: see ``murmur.learning.data.cache.cache_folder``.
        pool: other public images that they are fitted on instead, (P, C, H, W).

    Returns:
        The data set, and what was fitted.

    Raises:
        ValueError: the images do not suit the features.
        DataError: the cache cannot be written or is damaged.
    """
    fitted: Fitted | None
    if pool is None:
        pool = dataset.train.images[public]
    if dataset.train.images.nbytes < _MIN_CACHED_BYTES and not features.slow:
        fitted = features.fit(pool)
        named = _NamedMap(features.name, features.map)
        parts = [
            _projected(fitted, _kept_blocks(named, part), len(part))
            for part in (dataset.train, dataset.test)
        ]
        return _with(dataset, features, fitted, *parts), fitted
    folder = cache_folder(cache) / f"features-{_digest(dataset, features, pool)}"
    if not folder.is_dir():
        fitted = features.fit(pool)
        with publish_folder(folder) as temporary:
            np.savez(temporary / "fitted.npz", allow_pickle=False, **fitted.arrays())
            found = with_components(dataset, features, fitted)
            np.save(temporary / "train.npy", found.train.images)
            np.save(temporary / "test.npy", found.test.images)
    try:
        with np.load(folder / "fitted.npz", allow_pickle=False) as arrays:
            fitted = features.known or Components.of(arrays)
        parts = [
            np.asarray(np.load(folder / f"{part}.npy", mmap_mode="r")) for part in ("train", "test")
        ]
        if fitted is None:
            raise ValueError("what was fitted is missing")
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"the cache folder {folder} is damaged ({error}); delete it and run again"
        ) from error
    return _with(dataset, features, fitted, *parts), fitted


def with_components(dataset: Dataset, features: Features, fitted: Fitted) -> Dataset:
    """``dataset`` with the features of components that somebody has fitted."""
    train = features.apply(fitted, dataset.train.images)
    test = features.apply(fitted, dataset.test.images)
    return _with(dataset, features, fitted, train, test)


def _with(
    dataset: Dataset,
    features: Features,
    fitted: Fitted,
    train: NDArray[np.float32],
    test: NDArray[np.float32],
) -> Dataset:
    """``dataset`` with these features for images; those that need no fit are no words any more."""
    return replace(
        dataset,
        train=Examples(train, dataset.train.labels),
        test=Examples(test, dataset.test.labels),
        input_shape=(fitted.size, 1, 1),
        texts=dataset.texts and features.known is None,
    )


def _digest(dataset: Dataset, features: Features, pool: NDArray[np.float32]) -> str:
    """Name of the kept features: a hash of the map and of every image."""
    told = f"{_FORMAT} {features.name} {features.components}"
    if features.power != 1:
        told += f" {features.power}"
    state = hashlib.sha256(told.encode())
    for images in (pool, dataset.train.images, dataset.test.images):
        state.update(repr(images.shape).encode())
        state.update(np.ascontiguousarray(images).data)
    return state.hexdigest()[:16]


@dataclass(frozen=True)
class _NamedMap:
    """A map by a name of its own, as ``Features.name`` is one: equal names are equal maps."""

    name: str
    map: FeatureMap = field(compare=False)


@lru_cache(maxsize=2)  # training and test images
def _kept_blocks(named: _NamedMap, part: Examples) -> Blocks:
    """``_blocks`` of images that must not change; runs of other seeds only fit other components."""
    with one_thread():
        return list(_blocks(named.map, part.images))


@lru_cache(maxsize=1)
def _first_block(named: _NamedMap, part: Examples) -> Blocks:
    """The first of ``_blocks``; none where there are no images."""
    with one_thread():
        return list(islice(_blocks(named.map, part.images), 1))


def _projected(fitted: Fitted, blocks: Blocks, count: int) -> NDArray[np.float32]:
    """Features (count, d, 1, 1) of what the map gives."""
    out = np.empty((count, fitted.size, 1, 1), np.float32)
    with one_thread():
        for start, rows in blocks:
            out[start : start + len(rows), :, 0, 0] = fitted.project(rows)
    return out


def _blocks(
    mapping: FeatureMap, images: NDArray[np.float32]
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """(first row, features (B, D)) of every block of images; blocks are always of the same size."""
    for start in range(0, len(images), BLOCK_IMAGES):
        block = np.ascontiguousarray(images[start : start + BLOCK_IMAGES])
        yield start, mapping(block).reshape(len(block), -1)
