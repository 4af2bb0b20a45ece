"""A run's folder: everything that a run leaves behind, written so that a kill loses nothing.

It is its user's only: models and who took part are for nobody else on the machine.

| file | holds |
|---|---|
| ``config.yaml`` | the composed configuration |
| ``overrides.json`` | what was typed |
| ``rounds.jsonl`` | one JSON object for each round, appended and synced |
| ``checkpoint.safetensors`` | where the run goes on; its user's only (``fl_app.run.checkpoint``) |
| ``secure-sum.safetensors`` | while the run lasts, where secure sums are on: the round's, its |
| | user's only (``murmur.round.secure_summation``) |
| ``evaluation-sum.safetensors`` | the same for the sums of a protected evaluation |
| ``metrics.prom`` | the last round for monitoring, replaced after each (``fl_app.tracking``) |
| ``metrics.json`` | the final figures; its presence says that the run is finished |
| ``privacy.json``, ``privacy.txt`` | the privacy statement |
| ``model.safetensors`` | the final model's named weights, and what they are |
| ``provenance.json`` | versions, commit, dates (``note_start``) |
| ``partition.json`` | examples for each class, of at most a thousand clients; for the report |
| ``participations.npz`` | how often each client may have released something: ``clients``, |
| | ``counts``, ascending; who never did is not in it |
| ``ledger.sqlite`` | the simulated clients' ledgers |
| ``tensorboard/`` | the rows once more, as TensorBoard's events (``tracking=``) |
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf
from safetensors.numpy import save

from fl_app import DISTRIBUTION
from fl_app.config.errors import ConfigError
from fl_app.config.own_classes import VARIABLE
from fl_app.run.checkpoint import Checkpoint, counted
from murmur.learning.array_file import private, private_folder, replace_file
from murmur.privacy.statement import Statement, render

PROVENANCE = "provenance.json"
_LIBRARIES = ("flwr", "torch", "torchvision", "numpy", "scipy", "dp-accounting", "opacus")


class RunFolder:
    """One run's folder; created when missing, for its user only.

    The server writes it; engines, progress bars and tools read it, in other processes and while it
    grows. Files are replaced as a whole, and rows are appended with their line break last, so a
    reader never meets half of either.

    Args:
        path: of the folder.

    Attributes:
        path, rows_path, checkpoint_path, ledger_path, sum_path, evaluation_sum_path, metrics_path,
        error_path: where things are; what each holds is in the head of this file.

    Raises:
        ConfigError: it cannot be made or written to.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        try:
            private_folder(self.path)
            probe = self.path / ".writable"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise ConfigError(
                f"run_dir={self.path}: cannot be written ({error.strerror}); choose another "
                "folder with results_dir=PATH"
            ) from error
        self.rows_path = self.path / "rounds.jsonl"
        self.checkpoint_path = self.path / "checkpoint.safetensors"
        self.ledger_path = self.path / "ledger.sqlite"
        self.sum_path = self.path / "secure-sum.safetensors"
        self.evaluation_sum_path = self.path / "evaluation-sum.safetensors"
        self.metrics_path = self.path / "metrics.json"
        self.error_path = self.path / "error.json"

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        """The folder at ``path``, for tools that make none.

        Raises:
            ConfigError: there is no such folder, or it cannot be written to.
        """
        if not path.is_dir():
            raise ConfigError(f"{path}: no such folder")
        return cls(path)

    @contextmanager
    def claim(self) -> Iterator[None]:
        """Be the one process that does this run, until the context ends.

        A run whose `murmur` was killed may go on in the process that Flower has started. The claim
        is a lock of the operating system, which ends with the process however that ends.

        Raises:
            ConfigError: another process does this run.
        """
        with open(self.path / ".doing", "w", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConfigError(
                    f"run_dir={self.path}: another process is doing this run; wait for its end, or "
                    "stop it (engine=deploy: `flwr list` and `flwr stop`)"
                ) from error
            yield

    def save_config(self, config: DictConfig) -> None:
        """``config.yaml``: the composed configuration, whose digest the checkpoint holds."""
        self._write("config.yaml", config_text(config).encode())

    def save_overrides(self, overrides: Sequence[str]) -> None:
        """``overrides.json``: what was typed, so that `murmur resume` can type it again."""
        self._write("overrides.json", json.dumps(list(overrides)).encode())

    def overrides(self) -> list[str]:
        """What was typed, with absolute paths (``Ready.overrides``).

        Raises:
            ConfigError: `murmur` did not start the run in this folder, or the file is damaged.
        """
        path = self.path / "overrides.json"
        if not path.exists():
            raise ConfigError(f"{self.path}: holds no run that `murmur` started")
        try:
            words = json.loads(path.read_bytes())
        except (ValueError, RecursionError):
            words = None
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ConfigError(f"{path}: is damaged; start the run anew")
        return words

    def require_ledger(self) -> None:
        """Refuse to go on where the ledger of a simulation's clients was damaged.

        Without it clients would answer, and be charged, a second time for the same round. Where
        there is no ledger, nothing was released.

        Raises:
            ConfigError: the ledger cannot be trusted.
        """
        path = self.ledger_path
        if not any(self.path.glob(f"{path.name}*")):
            return  # of strategies that release nothing
        from murmur.privacy.ledger import Ledger, LedgerError

        try:
            # One that was killed while it was begun holds nothing yet, and is begun again.
            Ledger(path, create=path.exists()).close()
        except LedgerError as error:
            raise ConfigError(f"{error}; start the run anew") from error

    def append_row(self, row: Mapping[str, Any]) -> None:
        """One round's row, on disk when this returns.

        Raises:
            ValueError: a number is not finite; JSON has no sign for it.
        """
        with open(self.rows_path, "a", encoding="utf-8", opener=private) as file:
            file.write(row_line(row))
            file.flush()
            os.fsync(file.fileno())

    def rows(self) -> list[dict[str, Any]]:
        """All rows so far; a half-written last line is left out."""
        return read_rows(self.rows_path)

    def keep_rows(self, lines: Sequence[str]) -> None:
        """Drop all rows but these: the rounds of the others will be done again.

        Called when a run is taken up, with the rows of its checkpoint (``Checkpoint.rows``).
        """
        self._write("rounds.jsonl", "".join(lines).encode())

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Replace the place where the run goes on if it is interrupted now."""
        checkpoint.save(self.checkpoint_path)

    def load_checkpoint(self) -> Checkpoint | None:
        """The last checkpoint, or None; ConfigError where the run's files are damaged."""
        checkpoint = Checkpoint.load(self.checkpoint_path)
        if checkpoint is not None:
            checkpoint.require_config(self.path / "config.yaml")
        return checkpoint

    def forget_sums(self) -> None:
        """Remove the journals of secure sums, which hold what clients sent and what it added to.

        A server that is killed in a sum goes on with it by its journal. When no round is left,
        nobody should be able to read one.
        """
        for path in (self.sum_path, self.evaluation_sum_path):
            path.unlink(missing_ok=True)

    def shares(self) -> int:
        """How many nodes shared the cohort when the run last stopped; 0: it has no checkpoint.

        A simulated engine starts at least as many, so that the interrupted round's messages are the
        same and clients answer them from their ledger.
        """
        checkpoint = self.load_checkpoint()
        return 0 if checkpoint is None else checkpoint.shares

    def save_model(self, tensors: Mapping[str, NDArray], about: dict[str, str]) -> None:
        """``model.safetensors``: named weights, and metadata (``fl_app.run.model_file``)."""
        self._write("model.safetensors", save(dict(tensors), about))

    def save_partition(
        self, shown: Sequence[int], counts: NDArray, clients: int, examples: int
    ) -> None:
        """``partition.json``: who holds what.

        Args:
            shown: clients.
            counts: their examples of each class, (shown, classes).
            clients: how many there are in all.
            examples: how many they hold in all.
        """
        held = {
            "shown": list(shown),
            "counts": counts.tolist(),
            "clients": clients,
            "examples": examples,
        }
        self._write("partition.json", json.dumps(held).encode())

    def save_participations(self, participations: Mapping[int, int]) -> None:
        """``participations.npz``: from it and the statement anybody finds a client's own ε."""
        clients, counts = counted(participations)
        content = BytesIO()
        np.savez_compressed(content, clients=clients, counts=counts)
        self._write("participations.npz", content.getvalue())

    def save_statement(self, statement: Statement) -> None:
        """``privacy.json`` for programs and ``privacy.txt`` for people."""
        self._write("privacy.json", json.dumps(statement.to_dict(), indent=2).encode())
        self._write("privacy.txt", (render(statement) + "\n").encode())

    def statement(self) -> dict[str, Any]:
        """The saved statement as ``Statement.to_dict`` gives it; the budget's adversary first."""
        plain: dict[str, Any] = json.loads((self.path / "privacy.json").read_text())
        return plain

    def guarantees(self) -> list[dict[str, Any]]:
        """The guarantees of the saved statement, one for each adversary, the budget's first."""
        found: list[dict[str, Any]] = self.statement()["guarantees"]
        return found

    def save_metrics(self, metrics: Mapping[str, Any]) -> None:
        """``metrics.json``; written last, so that its presence says «finished»."""
        self._write("metrics.json", json.dumps(metrics, indent=2, allow_nan=False).encode())

    def metrics(self) -> dict[str, Any] | None:
        """The final figures, or None while the run is not finished."""
        return json.loads(self.metrics_path.read_text()) if self.metrics_path.exists() else None

    def save_error(self, message: str, trace: str = "") -> None:
        """Why the run stopped, for the process that waits for it.

        Args:
            message: kind and text of the error.
            trace: the traceback of a bug; "" for what the user can mend.
        """
        self._write("error.json", json.dumps({"error": message, "traceback": trace}).encode())

    def error(self) -> str | None:
        """Why the run stopped, a bug with its traceback; or None."""
        if not self.error_path.exists():
            return None
        said = json.loads(self.error_path.read_text())
        return said.get("traceback") or said["error"]

    def forget_error(self) -> None:
        """Start again: what stopped an earlier attempt is past."""
        self.error_path.unlink(missing_ok=True)

    def _write(self, name: str, content: bytes) -> None:
        replace_file(self.path / name, content)


def row_line(row: Mapping[str, Any]) -> str:
    """A row as its line in ``rounds.jsonl``."""
    return json.dumps(row, allow_nan=False) + "\n"


def config_text(config: DictConfig) -> str:
    """What ``config.yaml`` holds."""
    return OmegaConf.to_yaml(config)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a ``rounds.jsonl`` that may be growing; a half-written last line is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def note_start(folder: Path) -> None:
    """Write what is known when a run starts; a run that is resumed keeps its first start.

    Reports and `murmur rerun` read it. Nothing of it decides how a run goes.

    All else is what it is now: versions and commit are those that did the last part of the run.
    ``config_dirs`` are the folders of the user's own classes (``MURMUR_PLUGINS``).
    """
    known = read_provenance(folder)
    known.setdefault("started", _now())
    known |= {
        "versions": {name: _version(name) for name in (DISTRIBUTION, *_LIBRARIES)},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "commit": commit(),
        "config_dirs": os.environ.get(VARIABLE, ""),
    }
    known.pop("finished", None)
    _write(folder, known)


def note_end(folder: Path) -> None:
    """Add when the run was finished; called before ``metrics.json`` is written."""
    _write(folder, {**read_provenance(folder), "finished": _now()})


def read_provenance(folder: Path) -> dict[str, Any]:
    """What is known of the run in ``folder``; {} where nothing is, or the file is damaged."""
    try:
        found = json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


@functools.lru_cache(maxsize=1)
def commit() -> str | None:
    """The commit of the checkout that runs, with "+" where files differ; None without one."""
    home = Path(__file__).resolve().parents[2]
    if not (home / ".git").exists():
        return None
    try:
        said = [
            subprocess.run(
                ["git", "-C", str(home), *words], capture_output=True, text=True, timeout=10
            )
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        ]
    except (OSError, subprocess.TimeoutExpired):
        return None
    if any(process.returncode for process in said):
        return None
    return said[0].stdout.strip() + ("+" if said[1].stdout.strip() else "")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _write(folder: Path, content: dict[str, Any]) -> None:
    replace_file(folder / PROVENANCE, json.dumps(content, indent=2).encode())
