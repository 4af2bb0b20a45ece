"""A run's folder: everything that a run leaves behind, written so that a kill loses nothing.

It is its user's only: models and who took part are for nobody else on the machine.

| file | holds |
|---|---|
| ``config.yaml`` | the composed configuration |
| ``data.json``, ``data.txt`` | the data card: facts of the data, covered by no ε |
| ``overrides.json`` | what was typed |
| ``rounds.jsonl`` | one JSON object for each round, appended and synced |
| ``checkpoint.safetensors`` | where the run goes on; its user's only (``Checkpoint``) |
| ``secure-sum.safetensors`` | while the run lasts, where secure sums are on: the round's, its |
| | user's only (``murmur.round.secure_summation``) |
| ``evaluation-sum.safetensors`` | the same for the sums of a protected evaluation |
| ``metrics.prom`` | the last round for monitoring (``fl_app.tracking.RunHealth``) |
| ``metrics.json`` | the final figures; its presence says that the run is finished |
| ``privacy.json``, ``privacy.txt`` | the privacy statement, unsigned |
| ``asked.jsonl`` | what clients were asked so far (``murmur.round.asked_log``) |
| ``statement.json`` | of a run that is over, signed (``murmur.round.statement_file``) |
| ``model/`` | the final model, ready to be used (``fl_app.run.model_folder``) |
| ``provenance.json`` | versions, commit, dates (``fl_app.run.provenance``) |
| ``data-digests.json`` | of what was read, by part (``murmur.learning.data.digests``); its |
| | user's only, and in no report |
| ``partition.json`` | examples for each class, of at most a thousand clients; for the report |
| ``participations.npz`` | how often each client may have released something: ``clients``, |
| | ``counts``, ascending; who never did is not in it |
| ``ledger.sqlite`` | the simulated clients' ledgers |
| ``tensorboard/`` | the rows once more, as TensorBoard's events (``tracking=``) |
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from fl_app.config import renamed
from fl_app.config.errors import ConfigError
from fl_app.config.job_key import MACHINE, PRECISION
from fl_app.config.once import once
from fl_app.config.overrides import flat
from fl_app.run.provenance import read_mapping, versions
from fl_app.run.scores import row_scores
from murmur.files import owner_only, owner_only_folder, replace_file
from murmur.learning.array_file import DamagedError, from_bytes, to_bytes
from murmur.learning.data.digests import differing
from murmur.privacy.statement import Statement
from murmur.privacy.statement_text import render

if TYPE_CHECKING:
    from fl_app.run.data_card import DataCard
    from murmur.privacy.run_header import ServerKey
    from murmur.round.run_state import RunState
    from murmur.round.statement_file import SignedStatement

_DIGESTS = "data-digests.json"
FORMAT = 4  # of a checkpoint; another one is refused
_EXTENDABLE = "federation.num_rounds"


class RunInUseError(ConfigError):
    """Another process is doing a run."""


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
        self.path = Path(path).absolute()  # "." has no name
        try:
            owner_only_folder(self.path)
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
        self.asked_path = self.path / "asked.jsonl"
        self.statement_path = self.path / "statement.json"
        self.metrics_path = self.path / "metrics.json"
        self.error_path = self.path / "error.json"

    @classmethod
    def existing(cls, path: Path) -> "RunFolder":
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
            RunInUseError: another process does this run.
        """
        with open(self.path / ".doing", "w", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RunInUseError(
                    f"run_dir={self.path}: another process is doing this run; wait for its end, or "
                    "stop it (engine=deploy: `flwr list` and `flwr stop`)"
                ) from error
            yield

    def save_config(self, config: DictConfig) -> None:
        """``config.yaml``: the composed configuration, whose digest the checkpoint holds."""
        self._write("config.yaml", config_text(config).encode())

    def save_card(self, card: "DataCard") -> None:
        """``data.json``: what was understood of the data, and ``data.txt`` for people."""
        self._write("data.json", card.to_json())
        self._write("data.txt", f"{card}\n".encode())

    def save_overrides(self, overrides: Sequence[str]) -> None:
        """``overrides.json``: what was typed, so that `murmur resume` can type it again."""
        self._write("overrides.json", json.dumps(list(overrides)).encode())

    def overrides(self) -> list[str]:
        """Overrides as typed, with absolute paths (``ValidatedRun.overrides``).

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
        return [renamed.current(word) for word in words]

    def has_ledger(self) -> bool:
        """Returns whether a simulation's clients have begun a ledger, so that one was asked.

        The lock file precedes the ledger, and is alone if a kill came between the two.
        """
        name = self.ledger_path.name
        return any(path.name != f"{name}.lock" for path in self.path.glob(f"{name}*"))

    def require_ledger(self) -> None:
        """Refuse to go on where the ledger of a simulation's clients was damaged.

        Without it clients would answer, and be charged, a second time for the same round. Where
        there is no ledger, nothing was released.

        Raises:
            ConfigError: the ledger cannot be trusted.
        """
        path = self.ledger_path
        if not self.has_ledger():
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
        with open(self.rows_path, "a", encoding="utf-8", opener=owner_only) as file:
            file.write(row_line(row))
            file.flush()
            os.fsync(file.fileno())

    def rows(self, after: int = 0) -> list[dict[str, Any]]:
        """The rows from place ``after`` on, as in a slice; a half-written last line is left out."""
        return read_rows(self.rows_path, after)

    def keep_rows(self, lines: Sequence[str]) -> None:
        """Drop all rows but these: the rounds of the others will be done again.

        Called when a run is taken up, with the rows of its checkpoint (``Checkpoint.rows``).
        """
        self._write("rounds.jsonl", "".join(lines).encode())

    def save_checkpoint(self, checkpoint: "Checkpoint") -> None:
        """Replace the place where the run goes on if it is interrupted now."""
        checkpoint.save(self.checkpoint_path)

    def load_checkpoint(self) -> "Checkpoint | None":
        """The last checkpoint, or None; ConfigError where the run's files are damaged."""
        checkpoint = Checkpoint.load(self.checkpoint_path)
        if checkpoint is not None:
            checkpoint.require_config(self.path / "config.yaml")
        return checkpoint

    def forget_end(self) -> None:
        """Remove final figures and statement: they are of fewer rounds than clients will answer.

        The figures go first, since their presence says that the run is finished.
        """
        for name in ("metrics.json", "privacy.json", "privacy.txt", "statement.json"):
            (self.path / name).unlink(missing_ok=True)

    def sign_statement(self, statement: "SignedStatement", key: "ServerKey") -> None:
        """``statement.json``, once: what is signed already stays as it is."""
        if not self.statement_path.exists():
            replace_file(self.statement_path, statement.signed(key).to_bytes())

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
        return 0 if checkpoint is None else checkpoint.run.num_nodes

    def save_partition(self, held: Mapping[str, Any]) -> None:
        """``partition.json``: who holds what, as ``fl_app.run.load`` reads it."""
        self._write("partition.json", json.dumps(held).encode())

    def save_data_digests(self, digests: Mapping[str, str]) -> None:
        """``data-digests.json``: by which `murmur rerun` knows the data again."""
        self._write(_DIGESTS, json.dumps(digests, indent=2).encode())

    def data_digests(self) -> dict[str, str]:
        """Digests of the data that the run has read, by part; {} where it kept none."""
        return read_mapping(self.path / _DIGESTS)

    def save_participations(self, participations: Mapping[int, int]) -> None:
        """``participations.npz``: from it and the statement anybody finds a client's own ε."""
        from murmur.round.run_state import participation_arrays

        clients, counts = participation_arrays(participations)
        content = BytesIO()
        np.savez_compressed(content, clients=clients, counts=counts)
        self._write("participations.npz", content.getvalue())

    def save_statement(self, statement: Statement) -> None:
        """``privacy.json`` for programs and ``privacy.txt`` for people."""
        self._write("privacy.json", json.dumps(statement.to_dict(), indent=2).encode())
        self._write("privacy.txt", (render(statement) + "\n").encode())

    def save_released(self, released: list[dict[str, Any]]) -> None:
        """``released.json``: what clients released to each adversary, for a charged search."""
        self._write("released.json", json.dumps(released, indent=1).encode())

    def statement(self) -> dict[str, Any]:
        """The saved statement as ``Statement.to_dict`` gives it; the budget's adversary first."""
        plain: dict[str, Any] = json.loads((self.path / "privacy.json").read_text())
        return plain

    def lacks_epsilon(self) -> bool:
        """True if the accountant failed at the end of this run, so that ε is still to derive."""
        return bool(self.statement().get("underived"))

    def save_metrics(self, metrics: Mapping[str, Any]) -> None:
        """``metrics.json``; written last, so that its presence says «finished»."""
        self._write("metrics.json", json.dumps(metrics, indent=2, allow_nan=False).encode())

    def metrics(self) -> dict[str, Any] | None:
        """The final figures, or None while the run is not finished."""
        return json.loads(self.metrics_path.read_text()) if self.metrics_path.exists() else None

    def save_error(self, message: str, trace: str = "") -> None:
        """Why the run stopped, for the process that waits for it.

        Args:
            message: text of the error, with its kind where it is not one of ours.
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


@once
def config_text(config: DictConfig) -> str:
    """Returns the text of ``config.yaml``."""
    return OmegaConf.to_yaml(config)


def read_rows(path: Path, after: int = 0) -> list[dict[str, Any]]:
    """The rows of a ``rounds.jsonl`` that may be growing, as ``RunFolder.rows`` gives them."""
    return [json.loads(line) for line in _lines(path)[after:]]


class RowLines(list[str]):
    """Lines of ``rounds.jsonl``, with a ``rows_digest`` of all of them that grows as they do."""

    def __init__(self, lines: Iterable[str] = ()) -> None:
        super().__init__()
        self._sum = hashlib.sha256()
        for line in lines:
            self.append(line)

    def append(self, line: str) -> None:
        """One more, with its line break."""
        super().append(line)
        self._sum.update(line.encode())

    @property
    def rows_digest(self) -> str:
        """SHA-256 of all lines as UTF-8, in hexadecimal."""
        return self._sum.hexdigest()


@dataclass(frozen=True)
class Checkpoint:
    """Where a run goes on: its last finished round, and what must be as it was then.

    It is replaced twice in a round: once with the round's new model, before anything that follows
    from that model is sent, evaluated or reported (``trained``), and once when the round is
    finished. So noise that the server adds is drawn once for each model that leaves. Raw sums may
    be in it (the protection's state), so it can be read by its user only.

    The file holds model, strategy state and participations, and as its facts the run's own
    settings, the versions that made it, and a digest of ``config.yaml`` and of every row so far:
    whatever was damaged or edited since is noticed, and the run does not go on from it. The
    checksum is no signature, and nobody is kept from writing another file.

    Attributes:
        run: everything that the server must know again (``RunState``).
        name: under which clients' ledgers know this run.
        settings: the resolved configuration.
        configs: digests of the ``config.yaml`` that may stand beside it; two while it is replaced.
        rows: the lines of ``rounds.jsonl`` so far, each with its line break.
        data: digests of what the run has read, by part; {}: an earlier version kept none.
    """

    run: "RunState"
    name: str
    settings: Mapping[str, Any]
    configs: Sequence[str]
    rows: RowLines
    data: Mapping[str, str] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Replace ``path``, on disk when this returns; a kill leaves the old file or the new one.

        The rows themselves are not in it, but for the last: their number and digest are, and
        ``load`` takes them from ``rounds.jsonl``.

        Raises:
            OSError: it cannot be written; the old file is still there.
        """
        facts = {
            "format": FORMAT,
            "versions": versions(),
            "name": self.name,
            "settings": self.settings,
            "configs": list(self.configs),
            "rows": len(self.rows),
            "rows_digest": self.rows.rows_digest,
            "last_row": self.rows[-1] if self.rows else "",
            "data": dict(self.data),
            **self.run.facts(),
        }
        replace_file(path, to_bytes(self.run.to_arrays(), facts))

    @classmethod
    def load(cls, path: Path) -> "Checkpoint | None":
        """The checkpoint at ``path`` with the rows beside it; None where there is none.

        Rows beyond those that the checkpoint knows are left out: their rounds are done again.

        Args:
            path: the file; ``rounds.jsonl`` lies in the same folder.

        Raises:
            ConfigError: the file or the rows are not what the run wrote, or another version of
                Murmur wrote them (``FORMAT``).
        """
        lines = _lines(path.parent / "rounds.jsonl")
        if not path.exists():
            return None
        try:
            arrays, facts = from_bytes(path.read_bytes())
        except DamagedError as error:
            raise ConfigError(f"{path}: {error}; start the run anew") from error
        if facts.get("format") != FORMAT:
            raise ConfigError(f"{path}: was written by another version of Murmur; resume it there")
        from murmur.round.run_state import RunState

        return cls(
            RunState.from_arrays(arrays, facts),
            facts["name"],
            facts["settings"],
            facts["configs"],
            _rows_of(lines, facts, path.parent / "rounds.jsonl"),
            facts.get("data", {}),
        )

    def require_config(self, path: Path) -> None:
        """ConfigError unless ``path`` is the run's own ``config.yaml``, byte for byte."""
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        if text_digest(text) not in self.configs:
            raise ConfigError(
                f"{path}: was edited or damaged since the run wrote it; put it back, or start a "
                "new run with the settings that you want"
            )

    def require_name(self, name: str) -> None:
        """ConfigError unless ``name`` is that under which clients' ledgers know this run.

        Under another one they would answer the interrupted round again, which nothing would count.
        """
        if name != self.name:
            raise ConfigError(
                f"run_name={name}: clients know this run as {self.name}; add run_name={self.name}"
            )

    def require_data(self, now: Mapping[str, str]) -> None:
        """ConfigError unless the data are those with which the run began.

        Args:
            now: their digests by part, as they are read now.
        """
        other = differing(self.data, now)
        if other:
            raise ConfigError(
                f"dataset: has changed since this run began ({', '.join(other)}); one curve and "
                "one statement are of one data set: put the files back, or start a new run"
            )

    def require_settings(self, settings: Mapping[str, Any]) -> int:
        """Raises ConfigError unless a run with these settings may go on from here.

        Settings that no result depends on (``job_key.MACHINE``) and the number of rounds may
        differ. The description of the data for devices (federation.devices) may be missing:
        engine=deploy fills it in, and the ServerApp compares it then.

        Args:
            settings: the resolved configuration with which it is to go on.

        Returns:
            The number of rounds for which the run was planned before. Where the new number differs,
            the caller must still ask whether the budget allows it (``Experiment.checkpoint``).

        Raises:
            ConfigError: another setting differs (the first by name), or there are fewer rounds
                than were done.
        """
        kept = json.loads(json.dumps(self.settings))  # as a checkpoint has them
        old = flat(renamed.present_targets(kept))
        new = flat(json.loads(json.dumps(settings)))
        for found in (old, new):  # which score of a row is printed changes no result
            names = found.get("evaluation.metrics") or []
            found["evaluation.metrics"] = [name for name in names if name not in row_scores(found)]
            found.setdefault("task", "classification")  # of versions that had no other
        for key in sorted(old.keys() | new.keys()):
            machine = any(key == name or key.startswith(f"{name}.") for name in MACHINE)
            machine = machine and key != PRECISION
            told = key.startswith("federation.devices.") and new.get(key) is None
            if not machine and not told and key != _EXTENDABLE and old.get(key) != new.get(key):
                raise ConfigError(
                    f"{key}={new.get(key)}: this run was started with {old.get(key)}; only "
                    f"{_EXTENDABLE} can be changed on the way"
                )
        rounds = int(new[_EXTENDABLE])
        done = self.run.round + (self.run.trained is not None)
        if rounds < done:
            raise ConfigError(f"{_EXTENDABLE}={rounds}: this run has done {done} already")
        return int(old[_EXTENDABLE])


def text_digest(text: str) -> str:
    """SHA-256 of ``text`` as UTF-8, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def _lines(path: Path) -> list[str]:
    """Whole lines; what a kill cut off is left out."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8", errors="replace")
    return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _rows_of(lines: list[str], facts: Mapping[str, Any], path: Path) -> RowLines:
    """The rows that the checkpoint knows; the last one may not have reached its file.

    The checkpoint is written before the row, so a kill in between leaves ``lines`` one short; the
    checkpoint's own copy of the last row then fills in.

    Args:
        lines: whole lines of ``path``, perhaps more than the checkpoint knows.
        facts: the checkpoint's: ``rows`` (their number), ``rows_digest`` and ``last_row``.
        path: for the error's text.

    Raises:
        ConfigError: they are not the rows of which the checkpoint holds the digest.
    """
    count, last = facts["rows"], facts["last_row"]
    rows = RowLines(lines[:count] if len(lines) != count - 1 else [*lines, last])
    if rows.rows_digest != facts["rows_digest"]:
        raise ConfigError(f"{path}: is missing, shortened or edited; start the run anew")
    return rows
