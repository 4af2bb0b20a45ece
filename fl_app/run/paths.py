"""Where runs go, and paths as the values of overrides; imports nothing heavy."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

PATHS = (
    "dataset.root",
    "dataset.path",
    "dataset.cache",
    "dataset.test_path",
    "dataset.tokenizer",
    "features.encoder",
    "features.weights",
    "model.base.weights",
    "model.start",
    "model.weights",
    "federation.enrolled",
    "federation.peers",
    "privacy.policy",
)
# Of these, what may be a name instead: on the hub of Hugging Face, of a package, or a word.
NAMES = ("dataset.path", "dataset.tokenizer", "features.encoder", "model.start")


def absolute_paths(config: DictConfig, base: Path) -> list[str]:
    """Overrides that pin the paths which the user typed: the apps run in another folder."""
    typed = {key: OmegaConf.select(config, key) for key in PATHS}
    found = {key: base / path for key, path in typed.items() if path is not None}
    for key in NAMES:
        if key in found and not found[key].exists():
            del found[key]
    return [f"{key}={quoted(path)}" for key, path in found.items()]


def results_root(results_dir: str | None) -> Path:
    """``results_dir``, or `runs` in the working directory; absolute."""
    root = Path("runs") if results_dir is None else Path(results_dir).expanduser()
    return root.absolute()


def new_run_dir(results_dir: str | None) -> Path:
    """A fresh folder name."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return results_root(results_dir) / f"{stamp}-{uuid.uuid4().hex[:6]}"


def quoted(path: Path) -> str:
    """A path as the value of an override, whatever characters it has."""
    text = str(path)
    if text.replace("/", "").replace("-", "").replace("_", "").replace(".", "").isalnum():
        return text
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
