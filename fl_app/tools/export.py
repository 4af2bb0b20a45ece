"""``murmur export``, ``onnx`` and ``predict``: what a run has for devices and other programs.

``murmur export FOLDER key=value ...`` writes ``public.npz``: the run's public pool, and what its
features were fitted with, of which every device must have a copy (``public=FILE`` in its
node-config). With ``--shards`` each simulated client's share is written as ``client-ID.npz`` too,
so that devices can be tried with the data that a simulation gives them.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import fl_app
from fl_app.config.errors import ConfigError
from fl_app.tools.options import parser_of


def main(argv: list[str]) -> int:
    """``murmur export``: write the files that devices need, and print their paths.

    Returns:
        0.

    Raises:
        ConfigError: as ``export`` does.
    """
    arguments = parser_of("export").parse_intermixed_args(argv)
    for path in export(arguments.folder, arguments.overrides, arguments.shards):
        print(path)
    return 0


def export(folder: Path, overrides: Sequence[str], shards: bool) -> list[Path]:
    """Write the public pool, and with ``shards`` every client's share, of the run ``overrides``.

    Shares hold clients' data: only the owner of a file can read it.

    Returns:
        The files, the public pool's first.

    Raises:
        ConfigError: ``folder`` looks like a setting, the settings cannot be, or the clients' data
            are not here.
    """
    from fl_app.config.composition import compose
    from fl_app.run.population import image_population, population
    from murmur.files import owner_only

    if "=" in str(folder):
        raise ConfigError(f"FOLDER={folder}: looks like a setting; name the folder first")
    config = compose(list(overrides))
    people = image_population(config)
    fitted = population(config).fitted
    if shards and not people.shards:
        raise ConfigError("--shards: with engine=deploy the clients' data are on their devices")
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "public.npz"]
    more = {}
    if fitted is not None:
        more = fitted.arrays()
    np.savez_compressed(written[0], allow_pickle=False, images=people.public, **more)
    if not shards:
        return written
    train = people.dataset.train
    for client, rows in enumerate(people.shards):
        written.append(folder / f"client-{client}.npz")
        with open(written[-1], "wb", opener=owner_only) as file:
            np.savez_compressed(file, images=train.images[rows], labels=train.labels[rows])
    return written


def onnx(argv: list[str]) -> int:
    """``murmur onnx MODEL FILE``: write a run's model in the Open Neural Network Exchange format.

    It takes ``images`` (any number, and the model's shape) and gives ``logits``.

    Returns:
        0.

    Raises:
        ConfigError: there is no model, it has an operation that ONNX lacks, or ``FILE`` cannot be
            written.
    """
    given = parser_of("onnx").parse_args(argv)
    fl_app.require("onnx", "onnx")
    import torch

    from fl_app.run.model_file import ModelFile

    model = ModelFile.load(given.model).trainer
    images = torch.zeros(1, *model.input_shape)
    many = {"images": {0: "count"}, "logits": {0: "count"}}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's other exporter needs a further package
            torch.onnx.export(
                model.flat.module.eval(),
                (images,),
                str(given.out),
                input_names=["images"],
                output_names=["logits"],
                dynamic_axes=many,
                dynamo=False,
            )
    except (OSError, RuntimeError, torch.onnx.errors.OnnxExporterError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{given.out}: cannot be written ({reason})") from error
    print(given.out)
    return 0


def predict(argv: list[str]) -> int:
    """``murmur predict MODEL FILE ...``: print name, class and probability for each picture.

    Returns:
        0.

    Raises:
        ConfigError: there is no model, or a file holds nothing that it reads.
    """
    given = parser_of("predict").parse_args(argv)
    from scipy.special import softmax

    from fl_app.run.model_file import ModelFile

    model = ModelFile.load(given.model)
    model.require_images()
    names = model.about["classes"] or range(model.about["num_classes"])
    for name in given.files:
        images = _images(name, model.trainer.input_shape)
        shares = softmax(model.trainer.logits(images).astype(np.float64), axis=1)
        for row, share in enumerate(shares):
            label = str(name)
            if len(shares) > 1:
                label += f"[{row}]"
            print(f"{label}\t{names[int(share.argmax())]}\t{share.max():.4f}")
    return 0


def _images(file: Path, shape: tuple[int, int, int]) -> NDArray[np.float32]:
    """What a picture, or the ``images`` of an .npz, holds: (N, C, H, W), pixels in [0, 1].

    ``shape``: (C, H, W) of the model's input.

    Raises:
        ConfigError: the file cannot be read, or its images have another shape.
    """
    from murmur.learning.data.examples import DataError
    from murmur.learning.data.npz_arrays import array_examples, read_npz
    from murmur.learning.data.pictures import read_image

    channels, height, width = shape
    raw: NDArray[np.generic]
    try:
        if file.suffix.lower() == ".npz":
            arrays = read_npz(file)
            labels = np.zeros(len(next(iter(arrays.values()))), np.int64)
            arrays = {**arrays, "labels": labels}
            raw = array_examples(file, arrays, "images", "labels").pixels
        elif channels in (1, 3):
            raw = read_image(file, height=height, width=width, channels=channels)[None]
        else:
            raise ConfigError(f"{file}: the model reads inputs of {list(shape)}, no pictures")
    except DataError as error:
        raise ConfigError(str(error)) from error
    if raw.shape[1:] != shape:
        raise ConfigError(f"{file}: is {list(raw.shape[1:])}, the model reads {list(shape)}")
    scale = np.float32(1)
    if raw.dtype == np.uint8:
        scale = np.float32(255)
    return np.divide(raw, scale, dtype=np.float32)
