"""Where a run's rows go beside its own folder, whose JSON lines remain the truth.

A tracker works in the server's process and ``conf/tracking`` names its class. ``begin`` brings it
up to date with the rows that the run has kept, so a resumed run shows each round once, whatever was
lost in a crash. The packages are those of the extra ``tracking``; a tracker whose package is not
installed refuses when it is made, before a run starts. ``RunHealth`` is told the same in every run,
for monitoring.
"""

import hashlib
import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from fl_app.config.errors import ConfigError
from fl_app.config.overrides import flat_texts

Row = Mapping[str, Any]
RUN_ID = "mlflow-run"  # file in the run's folder: which MLflow run it is
LAST = "wandb-last-round"  # file in the run's folder: the round up to which W&B has the rows
MEANINGS = {
    "murmur_run_finished": "1 once the run has ended by itself",
    "murmur_run_round": "The last round that has ended",
    "murmur_run_rounds": "Rounds that the run was asked for",
    "murmur_run_answered": "Clients that answered in the last round",
    "murmur_run_failed": "Clients that failed or refused in the last round",
    "murmur_run_accused": "Clients proven wrong in the last round's secure sum",
    "murmur_run_failed_total": "Failures and refusals in all rounds",
    "murmur_run_accused_total": "Proofs of wrong messages in all rounds",
    "murmur_run_bytes_down_total": "Bytes to clients in all rounds",
    "murmur_run_bytes_up_total": "Bytes from clients in all rounds",
    "murmur_run_round_seconds": "Seconds that the last round took",
    "murmur_run_seconds_total": "Seconds that all rounds took",
    "murmur_run_epsilon_proven": "Epsilon of the most exposed client so far, proven (not seeded)",
    "murmur_run_epsilon_assumed": "The same, under the assumptions of the privacy statement",
    "murmur_run_last_round_timestamp_seconds": "When the last round ended, as Unix time",
}


class Tracker(Protocol):
    """Receiver of a run's figures; the constructor takes its yaml's keys, and refuses early."""

    def begin(self, folder: Path, config: Mapping[str, Any], rows: Sequence[Row]) -> None:
        """The run in ``folder`` starts, or goes on after ``rows``.

        Args:
            folder: the run's; a tracker may keep files of its own there.
            config: the run's configuration, nested.
            rows: those of earlier rounds, in order.
        """

    def row(self, row: Row) -> None:
        """A round has ended; ``row`` holds its number and its figures."""

    def end(self, metrics: Row) -> None:
        """The run has ended with these figures."""


class NoTracking:
    """Nothing beside the run's folder."""

    def begin(self, folder: Path, config: Mapping[str, Any], rows: Sequence[Row]) -> None:
        """Nothing."""

    def row(self, row: Row) -> None:
        """Nothing."""

    def end(self, metrics: Row) -> None:
        """Nothing."""


class TensorBoard:
    """TensorBoard's event files in the run's folder: `tensorboard --logdir runs`.

    One scalar for each number of a row, at the row's round; final figures under ``final/``.

    Raises:
        ConfigError: the package is not installed.
    """

    def __init__(self) -> None:
        module = _imported("torch.utils.tensorboard", "tensorboard", "it", "none")
        self._open = module.SummaryWriter

    def begin(self, folder: Path, config: Mapping[str, Any], rows: Sequence[Row]) -> None:
        """Write the events anew from ``rows``: event files cannot be cut back after a crash."""
        shutil.rmtree(folder / "tensorboard", ignore_errors=True)
        self._writer = self._open(str(folder / "tensorboard"))
        for row in rows:
            self.row(row)

    def row(self, row: Row) -> None:
        """The round's numbers, on disk when this returns."""
        for name, value in scalars(row).items():
            self._writer.add_scalar(name, value, row["round"])
        self._writer.flush()

    def end(self, metrics: Row) -> None:
        """The final figures at the last round; the files are closed."""
        for name, value in scalars(metrics).items():
            self._writer.add_scalar(f"final/{name}", value, metrics["rounds"])
        self._writer.close()


class MLflow:
    """MLflow, on this machine unless a server is named.

    Args:
        uri: MLflow's tracking URI; None: `mlflow.db` beside the run.
        experiment: MLflow's name for a group of runs, which is made where it is missing.

    Raises:
        ConfigError: the package is not installed.
    """

    def __init__(self, uri: str | None = None, experiment: str = "murmur") -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        module = _imported("mlflow.tracking", "mlflow", "`murmur-fl[mlflow]`", "tensorboard")
        self._connect = module.MlflowClient
        self.uri = uri
        self.experiment = experiment

    def begin(self, folder: Path, config: Mapping[str, Any], rows: Sequence[Row]) -> None:
        """A new MLflow run, or this folder's earlier one; rows that are missing in it are added."""
        self._client = client = self._connect(self.uri or f"sqlite:///{folder.parent}/mlflow.db")
        known = folder / RUN_ID
        done = -1
        if known.exists():
            self._run = known.read_text(encoding="utf-8")
            steps = [metric.step for metric in client.get_metric_history(self._run, "seconds")]
            done = max(steps, default=-1)
        else:
            self._run = client.create_run(self._group(), run_name=folder.name).info.run_id
            known.write_text(self._run, encoding="utf-8")
            for name, value in flat_texts(config).items():
                client.log_param(self._run, name, value)
        for row in rows:
            if row["round"] > done:
                self.row(row)

    def _group(self) -> str:
        """The id of the experiment that runs belong to."""
        found = self._client.get_experiment_by_name(self.experiment)
        if found:
            return str(found.experiment_id)
        return str(self._client.create_experiment(self.experiment))

    def row(self, row: Row) -> None:
        """The round's numbers; ``seconds`` last, which says that the row is whole."""
        for name, value in sorted(scalars(row).items(), key=lambda item: item[0] == "seconds"):
            self._client.log_metric(self._run, name, value, step=row["round"])

    def end(self, metrics: Row) -> None:
        """The final figures, under ``final.``; the run is closed."""
        for name, value in scalars(metrics).items():
            self._client.log_metric(self._run, f"final.{name}", value, step=metrics["rounds"])
        self._client.set_terminated(self._run)


class WandB:
    """Weights & Biases: offline in the run's folder; `wandb sync FOLDER` sends it if you want.

    Args:
        mode: offline, or online to send while running.
        project: W&B's name for a group of runs.

    Raises:
        ValueError: another mode.
        ConfigError: the package is not installed.
    """

    def __init__(self, mode: str = "offline", project: str = "murmur") -> None:
        if mode not in ("offline", "online"):
            raise ValueError(f"mode={mode}: must be offline or online")
        self._wandb = _imported("wandb", "wandb", "`murmur-fl[wandb]`", "tensorboard")
        self.mode = mode
        self.project = project

    def begin(self, folder: Path, config: Mapping[str, Any], rows: Sequence[Row]) -> None:
        """A W&B run whose id follows from the folder, so that parts of a resumed run join."""
        self._last = folder / LAST
        done = -1
        if self._last.exists():
            done = int(self._last.read_text(encoding="utf-8"))
        resume = None
        if self.mode == "online":
            resume = "allow"
        self._run = self._wandb.init(
            project=self.project,
            name=folder.name,
            id=hashlib.sha256(str(folder).encode()).hexdigest()[:16],
            dir=str(folder),
            config=dict(config),
            mode=self.mode,
            resume=resume,
        )
        for row in rows:
            if row["round"] > done:
                self.row(row)

    def row(self, row: Row) -> None:
        """The round's numbers at the step of its number."""
        self._run.log(scalars(row), step=row["round"])
        self._last.write_text(str(row["round"]), encoding="utf-8")

    def end(self, metrics: Row) -> None:
        """The final figures, as the run's summary."""
        self._run.summary.update({f"final/{k}": v for k, v in scalars(metrics).items()})
        self._run.finish()


def _imported(module: str, name: str, what: str, other: str) -> Any:
    """The ``module`` of tracking=``name``; ConfigError: install ``what``, or choose ``other``."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"tracking={name}: the package `{name}` is not installed; install {what}, or choose "
            f"tracking={other}"
        ) from error


def scalars(row: Row) -> dict[str, float]:
    """The row's numbers by name; failures as a count, nothing that is not finite."""
    found = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            value = len(value)
        if name != "round" and isinstance(value, int | float) and math.isfinite(value):
            found[name] = float(value)
    return found


class RunHealth:
    """A run's health on the server: ``metrics.prom`` in its folder, replaced after each round.

    Once more at the end. There is one in every run. What it says
    (``fl_app.prometheus_file``) is in ``rounds.jsonl`` too. Figures of the last round are gauges,
    and names that end in ``_total`` count over all rounds of the run, also those before it was
    interrupted. All carry the label ``run``, the name of the folder. A run that hangs shows by the
    age of ``murmur_run_last_round_timestamp_seconds``.

    Attributes:
        folder: of the run; known from ``begin`` on, as all of these.
        rounds: how many the run was asked for.
        totals: sums over all rows so far; of ``failed`` and ``accused`` the numbers of clients.
        last: the last row; {} before the first.
    """

    def begin(self, folder: Path, config: Mapping[str, Any], rows: Sequence[Row]) -> None:
        """The run in ``folder`` starts, or goes on after ``rows``; nothing is written yet.

        Args:
            folder: of the run.
            config: the run's configuration, nested.
            rows: of earlier rounds, in order; the totals begin with them.
        """
        self.folder, self.rounds = folder, int(config["federation"]["num_rounds"])
        self.totals: Counter[str] = Counter()
        for row in rows:
            self._add(row)
        self.last: Row = rows[-1] if rows else {}

    def row(self, row: Row) -> None:
        """A round has ended. OSError where the file cannot be replaced."""
        self._add(row)
        self.last = row
        self._write(finished=False)

    def end(self, metrics: Row) -> None:
        """The run has ended by itself; the file says so. ``metrics`` are not in it."""
        self._write(finished=True)

    def _add(self, row: Row) -> None:
        for name in ("failed", "accused"):
            self.totals[name] += len(row[name])
        for name in ("bytes_down", "bytes_up", "seconds"):
            self.totals[name] += row[name]

    def _write(self, finished: bool) -> None:
        from fl_app.prometheus_file import NAME, Figures, write  # which no run should wait for

        last = self.last
        values = {
            "murmur_run_finished": float(finished),
            "murmur_run_rounds": self.rounds,
            **{f"murmur_run_{name}_total": total for name, total in self.totals.items()},
        }
        if last:
            values |= {
                "murmur_run_round": last["round"],
                "murmur_run_answered": last["answered"],
                "murmur_run_failed": len(last["failed"]),
                "murmur_run_accused": len(last["accused"]),
                "murmur_run_round_seconds": last["seconds"],
                "murmur_run_last_round_timestamp_seconds": time.time(),
            }
            for name in ("epsilon_proven", "epsilon_assumed"):
                if last.get(name) is not None:
                    values[f"murmur_run_{name}"] = float(last[name])  # also of "infinity"
        figures = Figures(MEANINGS, values, ("run", self.folder.name))
        write(self.folder / NAME, figures)
