"""``model.safetensors``: a run's named weights, and in the file's metadata what they are.

The metadata has one key, ``murmur``, with a JSON object: ``input_shape`` (channels, height, width),
``num_classes``, ``classes`` (names in order, or null), ``normalisation`` of inputs, ``features``,
``model`` (the settings of ``conf/model``) and ``privacy`` (the statement of the run).
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file

from fl_app.config.composition import require_known_classes
from fl_app.config.errors import ConfigError
from fl_app.run.hosts import build_model
from murmur.learning.data.examples import Dataset
from murmur.learning.training.trainer import Trainer
from murmur.privacy.statement import Statement
from murmur.privacy.statement_text import render

KEY = "murmur"
NORMALISATION = "pixels divided by 255; other features as they are"


def describe(config: DictConfig, dataset: Dataset, statement: Statement) -> dict[str, str]:
    """The metadata of a run's model file; the same for the same run, wherever it lies.

    Paths of files that the first weights came from are left out, so that the file tells nothing of
    the machine.

    Args:
        config: the run's, composed.
        dataset: gives shape and classes; where features are computed, those of the features.
        statement: the privacy of the run that made the weights. It travels with them, as data and
            as text for people.

    Returns:
        One entry, ``KEY``, with JSON: safetensors' metadata are texts.
    """
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    names = dataset.classes or ()
    content = {
        "input_shape": list(dataset.input_shape),
        "num_classes": dataset.num_classes,
        "classes": list(names) if len(names) == dataset.num_classes else None,
        "normalisation": NORMALISATION,
        "features": plain["features"],
        "model": _without_files(plain["model"]),
        "privacy": statement.to_dict(),
        "privacy_text": render(statement),
    }
    return {KEY: json.dumps(content, sort_keys=True)}


@dataclass(frozen=True)
class ModelFile:
    """A model that was read back: ready to predict, and what its file says of it.

    `murmur predict` and `murmur onnx` read one.

    Attributes:
        trainer: holds the weights, on the processor.
        about: the metadata; its keys are in the head of this file.
    """

    trainer: Trainer
    about: dict[str, Any]

    @classmethod
    def load(cls, path: Path) -> "ModelFile":
        """The model in ``path``, a file or a run's folder.

        The file may come from anybody. Nothing in it is unpickled, and it can name only classes
        that a file of conf/ names.

        Raises:
            ConfigError: it cannot be read, says nothing of its model or names an unknown class; or
                its weights are not that model's.
        """
        path = path.expanduser()
        file = path / "model.safetensors" if path.is_dir() else path
        try:
            with safe_open(str(file), "np") as opened:
                about = json.loads((opened.metadata() or {}).get(KEY, "null"))
            tensors = load_file(str(file))
        except (OSError, SafetensorError, ValueError) as error:
            raise ConfigError(f"{file}: cannot be read ({error})") from error
        if not isinstance(about, dict):
            raise ConfigError(f"{file}: does not say what model it is; give a file of a run")
        whole = OmegaConf.create({"model": about["model"]})
        require_known_classes(whole)
        channels, height, width = about["input_shape"]
        with_shape = (channels, height, width)
        trainer = Trainer(build_model(whole.model), with_shape, about["num_classes"])
        state = trainer.flat.module.state_dict()
        known = {name: tensor.shape for name, tensor in tensors.items()}
        if any(known.get(name) != tuple(tensor.shape) for name, tensor in state.items()):
            raise ConfigError(f"{file}: its weights are not those of the model that it names")
        for name, tensor in state.items():
            tensor.copy_(tensor.new_tensor(np.asarray(tensors[name])))
        return cls(trainer, about)

    def require_images(self) -> None:
        """Refuse a model that reads features of a run's own, which no file holds.

        Raises:
            ConfigError: the run had ``features`` other than none.
        """
        features = str(self.about["features"].get("_target_", "")).rsplit(".", 1)[-1]
        if features != "none":
            raise ConfigError(
                f"features={features}: this model reads features that were fitted in its run; "
                "only models of images can be used by themselves"
            )


def _without_files(settings: Any) -> Any:
    """A model's settings without the files that its first weights came from."""
    if not isinstance(settings, dict):
        return settings
    kept = {
        key: _without_files(value) for key, value in settings.items() if not key.startswith("start")
    }
    return {**kept, "weights": None} if "weights" in kept else kept
