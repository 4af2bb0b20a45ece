"""A data set's features, computed once; kept on disk where the data set is large."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from murmur.learning.data.cache import cache_folder, publish_folder
from murmur.learning.data.examples import DataError, Dataset, Examples
from murmur.learning.features.components import Components, Features, fit

_FORMAT = 1  # raise it when the features' computation changes
_LARGE = 2**24  # bytes of images from which on reading is quicker than computing


def featured(
    dataset: Dataset,
    features: Features,
    public: NDArray[np.int64],
    cache: str | Path | None = None,
) -> tuple[Dataset, Components]:
    """``dataset`` with features (d, 1, 1) for images, fitted on its training images ``public``.

    Raises:
        ValueError: the images do not suit the features.
        DataError: the cache cannot be written or is damaged.
    """
    pool = dataset.train.images[public]
    if dataset.train.images.nbytes < _LARGE:
        fitted = fit(features, pool)
        return _with(dataset, fitted, *_both(dataset, features, fitted)), fitted
    folder = cache_folder(cache) / f"features-{_digest(dataset, features, pool)}"
    if not folder.is_dir():
        fitted = fit(features, pool)
        with publish_folder(folder) as temporary:
            np.savez(temporary / "fitted.npz", allow_pickle=False, **fitted.arrays())
            for part, values in zip(
                ("train", "test"), _both(dataset, features, fitted), strict=True
            ):
                np.save(temporary / f"{part}.npy", values)
    try:
        with np.load(folder / "fitted.npz", allow_pickle=False) as arrays:
            known = Components.of(arrays)
        parts = [
            np.asarray(np.load(folder / f"{part}.npy", mmap_mode="r")) for part in ("train", "test")
        ]
        if known is None:
            raise ValueError("what was fitted is missing")
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"the cache folder {folder} is damaged ({error}); delete it and run again"
        ) from error
    return _with(dataset, known, *parts), known


def with_components(dataset: Dataset, features: Features, fitted: Components) -> Dataset:
    """``dataset`` with the features of components that somebody has fitted."""
    return _with(dataset, fitted, *_both(dataset, features, fitted))


def _both(
    dataset: Dataset, features: Features, fitted: Components
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    return (
        features.apply(fitted, dataset.train.images),
        features.apply(fitted, dataset.test.images),
    )


def _with(
    dataset: Dataset, fitted: Components, train: NDArray[np.float32], test: NDArray[np.float32]
) -> Dataset:
    return replace(
        dataset,
        train=Examples(train, dataset.train.labels),
        test=Examples(test, dataset.test.labels),
        input_shape=(len(fitted.projection), 1, 1),
    )


def _digest(dataset: Dataset, features: Features, pool: NDArray[np.float32]) -> str:
    state = hashlib.sha256(f"{_FORMAT} {features.name} {features.components}".encode())
    for images in (pool, dataset.train.images, dataset.test.images):
        state.update(repr(images.shape).encode())
        state.update(np.ascontiguousarray(images).data)
    return state.hexdigest()[:16]
