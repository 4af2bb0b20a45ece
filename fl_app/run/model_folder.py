"""``model/``: what a run has learnt, in a form that can be used without the run.

| file | holds |
|---|---|
| ``model.safetensors`` | named weights; its metadata say what the model is (``describe``) |
| ``features.safetensors`` | what the features before it were fitted with, where they were fitted |
| ``README.md`` | the model card (``fl_app.run.model_card``) |

Nothing in the folder is unpickled, and it can name only classes that a file of conf/ names, or the
user's own, which are found again by their digest. Encoders, tokenizers and backbones are public
files of others: the folder names them and their digests, and whoever uses the model has a copy.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save

from fl_app.config import plugins
from fl_app.config.compose import require_known_classes
from fl_app.config.errors import ConfigError
from fl_app.run.hosts import build_model
from fl_app.run.offer import FEATURES, WEIGHTS
from fl_app.run.population import SERVERS_FEATURES, Population, build_features
from murmur.files import owner_only_folder, replace_file
from murmur.learning.data.cache import NEEDED
from murmur.learning.data.examples import Dataset, Examples
from murmur.learning.features.components import BLOCK_IMAGES, Components, Features, Fitted
from murmur.learning.objective import Objective
from murmur.learning.training.trainer import Trainer
from murmur.privacy.statement import Statement
from murmur.privacy.statement_text import render

if TYPE_CHECKING:
    from torch import nn

FOLDER = "model"
CARD = "README.md"
KEY = "murmur"  # of the metadata
FORMAT = 1
_FILES = {"features": ("encoder", "weights"), "input": ("tokenizer",)}  # settings that name files


def describe(
    config: DictConfig, people: Population, images: Dataset, statement: Statement, personal: bool
) -> dict[str, Any]:
    """Describes the model: its input, its features, its classes and its privacy.

    The description does not depend on the run's location: of files it keeps names and digests.

    Args:
        config: the run's, composed.
        people: the run's, with features.
        images: the data set before features.
        statement: the privacy of the run that made the weights.
        personal: whether clients keep layers of their own, without which the weights say nothing.
    """
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    data = people.dataset
    names = data.classes or ()
    digest = None if people.fitted is None else people.fitted.digest
    return {
        "format": FORMAT,
        "input_shape": list(data.input_shape),
        "num_classes": data.num_classes,
        "classes": list(names) if len(names) == data.num_classes else None,
        **task_of(data.objective),
        "input": _without_paths("input", _input(plain["dataset"], images)),
        "features_digest": digest,
        **settings_of(config),
        "own_classes": _own_files(plain["model"]),
        "personal": personal,
        "privacy": statement.to_dict(),
        "privacy_text": render(statement),
    }


def task_of(objective: Objective) -> dict[str, Any]:
    """A task other than classification, as ``describe`` keeps it, with the range of its labels."""
    return {} if objective.has_classes else {"task": asdict(objective)}


def objective_of(about: Mapping[str, Any]) -> Objective:
    """The task of a model by its metadata; ConfigError where it is none."""
    try:
        return Objective(**about.get("task", {}))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the model's task cannot be read ({error})") from error


def settings_of(config: DictConfig) -> dict[str, Any]:
    """The settings of model and features, as ``describe`` keeps them; a device's are the same."""
    model: Any = OmegaConf.to_container(config.model, resolve=True)
    features: Any = OmegaConf.to_container(config.features, resolve=True)
    kept = {key: value for key, value in features.items() if key not in SERVERS_FEATURES}
    kept.pop("server_may_set", None)
    return {"features": _without_paths("features", kept), "model": _without_start(model)}


def _input(dataset: Mapping[str, Any], images: Dataset) -> dict[str, Any]:
    """The form of one input: ``kind``, shape, range, and what a reader needs."""
    found: dict[str, Any] = {"kind": "numbers", "shape": list(images.input_shape), "range": None}
    channels, height, width = images.input_shape
    if images.texts:
        found["kind"] = "texts"
        found |= {key: dataset.get(key) for key in ("tokenizer", "vocabulary", "length")}
    elif images.columns and height == width == 1:
        found["kind"] = "table"
        found |= {"columns": list(images.columns), "schema": dataset.get("schema")}
    elif channels in (1, 3) and height > 1 and width > 1:
        found |= {"kind": "pictures", "range": [0.0, 1.0]}
    return found


def _without_start(settings: Any) -> Any:
    """A model's settings without the files that its first weights came from."""
    if not isinstance(settings, dict):
        return settings
    kept = {
        key: _without_start(value) for key, value in settings.items() if not key.startswith("start")
    }
    return {**kept, "weights": None} if "weights" in kept else kept


def _without_paths(group: str, settings: dict[str, Any]) -> dict[str, Any]:
    """``settings`` with names and digests in place of the files that they name."""
    found = dict(settings)
    for key in _FILES[group]:
        if found.get(key) is not None:
            path = Path(str(found[key])).expanduser()
            found[key] = {"name": path.name, "sha256": _digest_of(path)}
    return found


def _digest_of(path: Path) -> str | None:
    """SHA-256 of a file or an encoder's folder; None of a package, whose digest features have."""
    if path.is_file():
        return _sha256(path)
    found = [_sha256(path / name) for name in NEEDED if (path / name).is_file()]
    return hashlib.sha256(" ".join(found).encode()).hexdigest() if found else None


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _own_files(model: Any) -> list[dict[str, Any]]:
    """The user's own classes among a model's settings: target, and digests of their files."""
    return [
        {"target": target, "sha256": _sha256(file), "imports": _imports(file)}
        for target in _targets(model)
        if (file := plugins.file_of(target)) is not None
    ]


def _imports(file: Path) -> list[str]:
    """The digests of the user's own files that ``file`` imports, sorted."""
    return sorted(_sha256(place) for place in plugins.imports_of(file))


def _targets(settings: Any) -> Iterator[str]:
    if isinstance(settings, dict):
        if isinstance(settings.get("_target_"), str):
            yield settings["_target_"]
        for value in settings.values():
            yield from _targets(value)


def write(
    run: Path,
    weights: Mapping[str, NDArray],
    about: Mapping[str, Any],
    fitted: Fitted | None,
    card: str,
) -> None:
    """Write weights, fitted features and card of ``run`` below its ``model/``.

    ``about``: the metadata (``describe``), and ``order``: the names of the weights that are the
    model's flat vector, in its order. By these ``deploy/verify_statement.py`` knows it again.
    """
    folder = run / FOLDER
    owner_only_folder(folder)
    if isinstance(fitted, Components):
        replace_file(folder / FEATURES, save(fitted.arrays()))
    metadata = {KEY: json.dumps(about)}  # safetensors' metadata are texts
    replace_file(folder / CARD, card.encode())
    replace_file(folder / WEIGHTS, save(dict(weights), metadata))


@dataclass(frozen=True)
class SavedModel:
    """A model that was read back, ready to predict.

    Attributes:
        trainer: holds the weights, on the processor.
        about: the metadata (``describe``).
        features: the map before the weights; None: they take the data as they are.
        fitted: with ``features``.
        tokenizer: the file or folder that makes numbers of texts; "": words are hashed.
    """

    trainer: Trainer
    about: dict[str, Any]
    features: Features | None = None
    fitted: Fitted | None = None
    tokenizer: str = ""

    @classmethod
    def load(cls, path: Path, files: Sequence[Path] = ()) -> "SavedModel":
        """The model of ``path``: a run's folder, its ``model/``, or a file of weights.

        It may come from anybody. A file of weights alone is enough where nothing was fitted.

        Args:
            path: of the run, the folder or the file.
            files: copies of what the model names (encoder, backbone, tokenizer), where the run's
                own are not in their places.

        Raises:
            ConfigError: it cannot be read, says nothing of its model, names an unknown class or a
                file that is not here; or its weights are not that model's.
        """
        file = weights_file(path.expanduser())
        try:
            with safe_open(str(file), "np") as opened:
                about = json.loads((opened.metadata() or {}).get(KEY, "null"))
            tensors = load_file(str(file))
        except (OSError, SafetensorError, ValueError) as error:
            raise ConfigError(f"{file}: cannot be read ({error})") from error
        if not isinstance(about, dict):
            raise ConfigError(f"{file}: does not say what model it is; give a file of a run")
        run = file.parent if file.parent.name != FOLDER else file.parent.parent
        with _own_classes_of(run, about):
            whole = OmegaConf.create({"model": about["model"]})
            require_known_classes(whole)
            channels, height, width = about["input_shape"]
            shape = (channels, height, width)
            trainer = Trainer(
                build_model(whole.model), shape, about["num_classes"], objective=objective_of(about)
            )
        state = trainer.flat.module.state_dict()
        known = {name: tensor.shape for name, tensor in tensors.items()}
        if any(known.get(name) != tuple(tensor.shape) for name, tensor in state.items()):
            raise ConfigError(f"{file}: its weights are not those of the model that it names")
        for name, tensor in state.items():
            tensor.copy_(tensor.new_tensor(np.asarray(tensors[name])))
        features, fitted = _features(file.parent, run, about, files)
        told = _with_files("input", about.get("input", {}), run, files)
        return cls(trainer, about, features, fitted, str(told.get("tokenizer") or ""))

    @property
    def classes(self) -> list[str]:
        """The classes' names, in the order of their numbers."""
        return self.about["classes"] or [str(i) for i in range(self.about["num_classes"])]

    @property
    def input(self) -> dict[str, Any]:
        """The form of an input (``describe``); of files before version 1.0, from their shape."""
        if "input" in self.about:
            return self.about["input"]
        return {"kind": "pictures", "shape": self.about["input_shape"], "range": [0.0, 1.0]}

    def require_whole(self) -> None:
        """Refuse a model whose last layers are with the clients.

        Raises:
            ConfigError: clients keep layers of their own.
        """
        if self.about.get("personal"):
            raise ConfigError(
                "this model lacks the layers that each client keeps; use it on a device that has "
                "them (murmur predict --device FOLDER)"
            )

    def logits(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """The model's outputs (N, classes) for data as the data set gives them, (N, C, H, W)."""
        if self.features is not None and self.fitted is not None:
            images = self.features.apply(self.fitted, images)
        return self.trainer.logits(images)

    @property
    def objective(self) -> Objective:
        """Its task: classes, a number or several labels."""
        return self.trainer.objective

    def predictions(self, images: NDArray[np.float32]) -> NDArray[np.float64]:
        """Predictions for data as the data set gives them (``Objective.predictions``).

        Probabilities (N, classes) or (N, labels), or numbers (N, 1) in the label's unit.
        """
        return self.objective.predictions(self.logits(images))

    def network(self) -> "nn.Sequential":
        """Features and model as one PyTorch module: data as the data set gives them, to logits.

        Of a regression to numbers (n, 1) in the label's unit.

        Raises:
            ConfigError: the features cannot be written as a network.
        """
        from torch import nn

        parts = [self.trainer.flat.module]
        if self.features is not None and self.fitted is not None:
            channels, height, width = self.input["shape"]
            try:
                first = self.features.network(self.fitted, (channels, height, width))
            except ValueError as error:
                raise ConfigError(str(error)) from error
            parts.insert(0, first)
        if self.objective.kind == "regression":
            units = nn.Linear(1, 1).requires_grad_(False)
            units.weight.fill_(self.objective.half_width)
            units.bias.fill_(self.objective.centre)
            parts.append(units)
        return nn.Sequential(*parts).eval()


def weights_file(path: Path) -> Path:
    """The file of weights of a run's folder, of its ``model/``, or itself.

    Runs of versions before 1.0 have it in their folder.
    """
    for name in (f"{FOLDER}/{WEIGHTS}", WEIGHTS):
        if (path / name).is_file():
            return path / name
    return path / WEIGHTS if path.is_dir() else path


def check(run: Path, test: Examples, seen: NDArray[np.float32], trainer: Trainer) -> None:
    """Read ``run``'s model back, and compare its predictions with the run's own, to the bit.

    Logits of all images, as the run's trainer computes them. Features of the first block, but for
    rounding: a row's last bits may depend on the rows beside it. Of one map, as the files describe
    it, and one test set a process computes the map once, and what was fitted is applied each time.

    Args:
        run: the run's folder.
        test: the test set before features.
        seen: the same with features.
        trainer: holds the run's final model.

    Raises:
        RuntimeError: the two differ: a bug of ours, or a file system that loses bytes.
    """
    saved = SavedModel.load(run)
    first = test.images[:BLOCK_IMAGES]
    if saved.features is not None and saved.fitted is not None:
        first = saved.features.first_block(saved.fitted, test, json.dumps(saved.about["features"]))
    before = trainer.logits(seen)
    trainer.load(saved.trainer.parameters())
    same = np.array_equal(first, seen[:BLOCK_IMAGES]) and np.array_equal(
        before, trainer.logits(seen)
    )
    if not same:
        raise RuntimeError(f"{run / FOLDER}: the model that was written predicts something else")


def _features(
    folder: Path, run: Path, about: Mapping[str, Any], files: Sequence[Path]
) -> tuple[Features | None, Fitted | None]:
    """The map of a model's features, and what it was fitted with.

    Raises:
        ConfigError: it cannot be built here, or is another map than the model's.
    """
    settings = about["features"]
    if str(settings.get("_target_", "")).endswith(".none"):
        return None, None
    named = _with_files("features", settings, run, files)
    whole = OmegaConf.create({"features": named})
    require_known_classes(whole)
    features = build_features(whole.features)
    assert features is not None
    fitted: Fitted | None = features.known
    if fitted is None:
        try:
            fitted = Components.of(load_file(str(folder / FEATURES)))
        except (OSError, SafetensorError, ValueError) as error:
            raise ConfigError(
                f"{folder}: what its features were fitted with cannot be read ({error}); give the "
                f"run's folder, or {FOLDER}/ with all of its files"
            ) from error
    if fitted is None or fitted.digest != about["features_digest"]:
        raise ConfigError(f"{folder}: its features are not those that the model was trained with")
    return features, fitted


def _with_files(
    group: str, settings: Mapping[str, Any], run: Path, files: Sequence[Path]
) -> dict[str, Any]:
    """``settings`` with paths in place of names and digests.

    Raises:
        ConfigError: a file is neither among ``files`` nor where the run has read it.
    """
    found = dict(settings)
    for key in _FILES[group]:
        named = found.get(key)
        if not isinstance(named, dict):
            continue
        places = [*files, *_place_in_run(run, group, key), Path(named["name"])]
        fitting = [place for place in places if _is_that(place, named)]
        if not fitting:
            raise ConfigError(
                f"{group}.{key}: the model needs {named['name']}, which is not here; name a copy "
                "with --file PATH"
            )
        found[key] = str(fitting[0])
    return found


def _is_that(place: Path, named: Mapping[str, Any]) -> bool:
    if named["sha256"] is None:  # a package: the features' digest tells
        return place.name == named["name"]
    return _digest_of(place) == named["sha256"]


def _place_in_run(run: Path, group: str, key: str) -> list[Path]:
    """Where the run of ``config.yaml`` has read a file; none where it is not here."""
    try:
        config: Any = OmegaConf.load(run / "config.yaml")
    except OSError:
        return []
    node = config.get("dataset" if group == "input" else group, {})
    return [Path(str(node[key])).expanduser()] if node.get(key) else []


@contextmanager
def _own_classes_of(run: Path, about: Mapping[str, Any]) -> Iterator[None]:
    """While it lasts, the user's own classes are found, in this process's folders or the run's.

    Raises:
        ConfigError: a file has changed since, or is not there.
    """
    from fl_app.run.provenance import read_provenance

    before = os.environ.get(plugins.VARIABLE, "")
    recorded = read_provenance(run).get("config_dirs", "")
    try:
        missing = _missing(about)
        if missing and recorded:
            os.environ[plugins.VARIABLE] = recorded
            missing = _missing(about)
        if missing:
            raise ConfigError(
                f"{missing[0]}: is not here as the run used it; name its folder with "
                f"{plugins.OPTION}"
            )
        yield
    finally:
        os.environ[plugins.VARIABLE] = before


def _missing(about: Mapping[str, Any]) -> list[str]:
    """The model's own classes whose files this process does not find as the run used them."""
    missing = []
    for own in about.get("own_classes", ()):
        file = plugins.file_of(own["target"])
        if file is None or _sha256(file) != own["sha256"] or _imports(file) != own["imports"]:
            missing.append(own["target"])
    return missing
