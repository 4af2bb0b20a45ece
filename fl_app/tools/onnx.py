"""``murmur onnx MODEL FILE``: a run's model in the Open Neural Network Exchange format."""

from __future__ import annotations

import argparse
import importlib.util
import warnings
from pathlib import Path

import torch

from fl_app.config.errors import ConfigError
from fl_app.run.model_file import ModelFile


def main(argv: list[str]) -> int:
    """Run the tool with the words after ``murmur onnx``; the exit status."""
    parser = argparse.ArgumentParser(
        prog="murmur onnx", description="Write a run's model as ONNX: images in, logits out."
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="model.safetensors, or its run")
    parser.add_argument("out", type=Path, metavar="FILE", help="the .onnx file")
    given = parser.parse_args(argv)
    if importlib.util.find_spec("onnx") is None:
        raise ConfigError("murmur onnx needs the package onnx; install it (extra `onnx`)")
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
