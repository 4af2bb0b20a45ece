"""``murmur predict MODEL FILES``: what a run's model says of pictures and .npz files."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl_app.config.errors import ConfigError
from fl_app.run.model_file import ModelFile
from murmur.learning.data.examples import DataError
from murmur.learning.data.files import array_examples, read_image, read_npz


def main(argv: list[str]) -> int:
    """Run the tool with the words after ``murmur predict``; the exit status."""
    parser = argparse.ArgumentParser(
        prog="murmur predict",
        description="Print name, class and probability for pictures, or for the images of an .npz.",
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="model.safetensors, or its run")
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="pictures, .npz files")
    given = parser.parse_args(argv)
    model = ModelFile.load(given.model)
    model.require_images()
    names = model.about["classes"] or range(model.about["num_classes"])
    for name, images in _images(given.files, model.trainer.input_shape):
        logits = model.trainer.logits(images).astype(np.float64)
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        for row, share in enumerate(shares):
            label = name if len(shares) == 1 else f"{name}[{row}]"
            print(f"{label}\t{names[int(share.argmax())]}\t{share.max():.4f}")
    return 0


def _images(
    files: list[Path], shape: tuple[int, int, int]
) -> Iterator[tuple[Path, NDArray[np.float32]]]:
    channels, height, width = shape
    for file in files:
        try:
            if file.suffix.lower() == ".npz":
                arrays = read_npz(file)
                labels = np.zeros(len(next(iter(arrays.values()))), np.int64)
                raw = array_examples(file, {**arrays, "labels": labels}, "images", "labels").pixels
            else:
                if channels not in (1, 3):
                    raise ConfigError(
                        f"{file}: the model reads inputs of {list(shape)}, no pictures"
                    )
                raw = read_image(file, height=height, width=width, channels=channels)[None]
        except DataError as error:
            raise ConfigError(str(error)) from error
        if raw.shape[1:] != shape:
            raise ConfigError(f"{file}: is {list(raw.shape[1:])}, the model reads {list(shape)}")
        scale = np.float32(255) if raw.dtype == np.uint8 else np.float32(1)
        yield file, np.divide(raw, scale, dtype=np.float32)
