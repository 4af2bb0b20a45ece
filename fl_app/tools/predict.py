"""``murmur predict`` and ``onnx``: a run's model for people and for other programs."""

import csv
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import fl_app
from fl_app.config.errors import ConfigError
from fl_app.tools.options import parser_of
from murmur.learning.data.examples import DataError

if TYPE_CHECKING:
    from fl_app.run.model_folder import SavedModel

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
_OPSET = 17  # with layer normalisation, and read by every onnxruntime since 1.12


def predict(argv: list[str]) -> int:
    """``murmur predict MODEL FILE ...``: print each input's class and all probabilities.

    Of several labels their probabilities, and of a regression a number in the label's unit.
    With ``--device`` the model is the one that a device has received, MODEL its state's folder.
    Pictures, folders of pictures, .npz and .npy arrays, tables (CSV, Parquet) and texts (one a
    line), whichever the model takes.

    Returns:
        0.

    Raises:
        ConfigError: there is no model, or a file holds nothing that it reads.
    """
    given = parser_of("predict").parse_args(argv)
    from fl_app.run.model_folder import SavedModel

    if given.device:
        from fl_app.device.received import received_model

        model, origin = received_model(given.model, given.client, given.file or ())
        print(f"murmur: {origin}", file=sys.stderr)
    else:
        model = SavedModel.load(given.model, given.file or ())
        model.require_whole()
    records = []
    for place in given.files:
        names, data = inputs_of(place, model)
        for name, row in zip(names, model.predictions(data), strict=True):
            records.append({"input": name, **_predicted(row, model)})
    if given.json:
        print(json.dumps(records, indent=1, ensure_ascii=False))
    else:
        _print_csv(records, model)
    return 0


def _predicted(row: NDArray[np.float64], model: "SavedModel") -> dict[str, Any]:
    """One input's prediction: ``row`` is that of ``SavedModel.predictions``."""
    if model.objective.kind == "regression":
        return {"prediction": float(f"{row[0]:.9g}")}
    values = [round(float(value), 6) for value in row]
    found = {"probabilities": dict(zip(model.classes, values, strict=True))}
    if model.objective.has_classes:
        return {"class": model.classes[int(row.argmax())], **found}
    return found


def _print_csv(records: list[dict[str, Any]], model: "SavedModel") -> None:
    """A line for each input, and a column for each probability or for the number."""
    table = csv.writer(sys.stdout, lineterminator="\n")
    if model.objective.kind == "regression":
        table.writerow(["input", "prediction"])
    else:
        said = ["class"] if model.objective.has_classes else []
        table.writerow(["input", *said, *model.classes])
    for record in records:
        chances = record.pop("probabilities", {})
        table.writerow([*record.values(), *chances.values()])


def inputs_of(place: Path, model: "SavedModel") -> tuple[list[str], NDArray[np.float32]]:
    """Names and data (N, C, H, W) of what ``place`` holds, as the model's data set would give it.

    Raises:
        ConfigError: it cannot be read, or is of another kind or shape than the model's inputs.
    """
    told = model.input
    try:
        if place.suffix.lower() in (".npz", ".npy"):
            return _arrays(place, told)
        if told["kind"] == "pictures":
            return _pictures(place, told)
        if told["kind"] == "table":
            return _rows(place, told)
        if told["kind"] == "texts":
            return _texts(place, model)
    except (DataError, OSError, ValueError) as error:
        said = str(error)
        if str(place) not in said:
            said = f"{place}: {said}"
        raise ConfigError(said) from error
    raise ConfigError(f"{place}: the model reads numbers of shape {told['shape']}; give an .npz")


def _arrays(file: Path, told: dict[str, Any]) -> tuple[list[str], NDArray[np.float32]]:
    """The ``images`` of an archive, or an array; bytes are divided by 255."""
    if file.suffix.lower() == ".npy":
        raw = np.load(file, allow_pickle=False)
    else:
        from murmur.learning.data.npz_arrays import array_examples, read_npz

        arrays = read_npz(file)
        labels = np.zeros(len(next(iter(arrays.values()))), np.int64)
        raw = array_examples(file, {**arrays, "labels": labels}, "images", "labels").pixels
    if raw.ndim == 3:
        raw = raw[:, None]
    if list(raw.shape[1:]) != list(told["shape"]):
        raise ConfigError(f"{file}: is {list(raw.shape[1:])}, the model reads {told['shape']}")
    divisor = np.float32(255 if raw.dtype == np.uint8 else 1)
    names = [f"{file}[{row}]" if len(raw) > 1 else str(file) for row in range(len(raw))]
    return names, np.divide(raw, divisor, dtype=np.float32)


def _pictures(place: Path, told: dict[str, Any]) -> tuple[list[str], NDArray[np.float32]]:
    """A picture, or all pictures of a folder in the order of their names."""
    from murmur.learning.data.pictures import read_image

    files = sorted(_picture_files(place)) if place.is_dir() else [place]
    if not files:
        raise ConfigError(f"{place}: holds no pictures ({', '.join(PICTURES)})")
    channels, height, width = told["shape"]
    raw = [read_image(file, height=height, width=width, channels=channels) for file in files]
    return [str(file) for file in files], np.divide(np.stack(raw), 255, dtype=np.float32)


def _rows(file: Path, told: dict[str, Any]) -> tuple[list[str], NDArray[np.float32]]:
    """The rows of a CSV or Parquet file, by the columns that the model was trained on."""
    from murmur.learning.data.column_spec import ColumnSpec
    from murmur.learning.data.frames import read_frame

    if told["schema"] is None:
        spec = ColumnSpec(label="", inputs=told["columns"])
    else:
        spec = ColumnSpec(label="", schema=told["schema"])
    data = spec.read_inputs(read_frame(str(file), str(file)), str(file))
    if list(data.shape[1:]) != list(told["shape"]):
        raise ConfigError(f"{file}: rows hold {data.shape[1]} numbers, not {told['shape'][0]}")
    return [f"{file}[{row}]" for row in range(len(data))], data


def _texts(file: Path, model: "SavedModel") -> tuple[list[str], NDArray[np.float32]]:
    """The lines of a text file, each a text."""
    from murmur.learning.data.tokens import encoded, hashed_words, padded

    told = model.input
    lines = file.read_text(encoding="utf-8").splitlines()
    if not lines:
        raise ConfigError(f"{file}: holds no text")
    names = [f"{file}[{row}]" for row in range(len(lines))]
    if told["tokenizer"] is not None:
        return names, encoded(lines, model.tokenizer, told["length"])
    return names, padded(map(hashed_words(told["vocabulary"]), lines), len(lines), told["length"])


def _picture_files(folder: Path) -> Iterator[Path]:
    for file in folder.rglob("*"):
        if file.suffix.lower() in PICTURES:
            yield file


def onnx(argv: list[str]) -> int:
    """``murmur onnx MODEL FILE``: write a run's model in the Open Neural Network Exchange format.

    Features are inside. The input is ``input``, float32 (n, C, H, W) as the data set gives it; the
    first output ``probabilities`` (n, classes) or (n, labels), or of a regression ``prediction``
    (n, 1) in the label's unit.

    Returns:
        0.

    Raises:
        ConfigError: there is no model, a part of it has an operation that ONNX lacks, or ``FILE``
            cannot be written.
    """
    given = parser_of("onnx").parse_args(argv)
    fl_app.require("onnx", "onnx")
    from fl_app.run.model_folder import SavedModel

    model = SavedModel.load(given.model, given.file or ())
    model.require_whole()
    try:
        write_onnx(model, given.out)
    except OSError as error:
        raise ConfigError(f"{given.out}: cannot be written ({error.strerror})") from error
    print(given.out)
    return 0


def write_onnx(model: "SavedModel", out: Path) -> None:
    """Write features and weights as one network, and in its metadata what it is.

    Raises:
        ConfigError: a part has an operation that ONNX lacks; it says which.
        OSError: the file cannot be written.
    """
    import hashlib

    import onnx
    import torch

    name = "probabilities"
    last: torch.nn.Module = torch.nn.Softmax(dim=1)
    if model.objective.kind == "multilabel":
        last = torch.nn.Sigmoid()
    elif model.objective.kind == "regression":
        name = "prediction"
        last = torch.nn.Identity()  # the network ends in the label's unit
    network = torch.nn.Sequential(*model.network(), last).eval()
    example = torch.zeros(1, *model.input["shape"])
    many = {"input": {0: "n"}, name: {0: "n"}}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's other exporter needs a further package
            torch.onnx.export(
                network,
                (example,),
                str(out),
                input_names=["input"],
                output_names=[name],
                dynamic_axes=many,
                opset_version=_OPSET,
                dynamo=False,
            )
    except (RuntimeError, torch.onnx.errors.OnnxExporterError) as error:
        reason = str(error).splitlines()[0]
        kind = str(model.about["model"].get("_target_", "")).rpartition(".")[2]
        raise ConfigError(f"model={kind}: cannot be written as ONNX ({reason})") from error
    statement = model.about["privacy"]
    digest = hashlib.sha256(json.dumps(statement, sort_keys=True).encode()).hexdigest()
    written = onnx.load(str(out))
    onnx.helper.set_model_props(
        written,
        {
            "task": model.objective.kind,
            "classes": json.dumps(model.classes, ensure_ascii=False),
            "epsilon": json.dumps([one["proven_total"] for one in statement["guarantees"]]),
            "delta": json.dumps(statement["delta"]),
            "adversaries": json.dumps([one["adversary"] for one in statement["guarantees"]]),
            "statement_sha256": digest,
            "input": json.dumps(model.input),
        },
    )
    onnx.save(written, str(out))
