"""MLflow: into a store on this machine, unless a server is named."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fl_app.config.errors import ConfigError
from fl_app.tracking import Row, flat, scalars

RUN_ID = "mlflow-run"  # file in the run's folder: which MLflow run it is


class MLflow:
    """``uri``: where runs go (None: `mlflow.db` beside the run); ``experiment``: their group."""

    def __init__(self, uri: str | None = None, experiment: str = "murmur") -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        try:
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise ConfigError(
                "tracking=mlflow: the package `mlflow` is not installed; install "
                "`murmur-fl[mlflow]`, or choose tracking=tensorboard"
            ) from error
        self._connect, self.uri, self.experiment = MlflowClient, uri, experiment

    def begin(self, folder: Path, config: Mapping[str, Any], rows: Sequence[Row]) -> None:
        """A new MLflow run, or this folder's earlier one; rows that are missing in it are added."""
        self._client = client = self._connect(self.uri or f"sqlite:///{folder.parent}/mlflow.db")
        known, done = folder / RUN_ID, -1
        if known.exists():
            self._run = known.read_text(encoding="utf-8")
            done = max(
                (m.step for m in client.get_metric_history(self._run, "seconds")), default=-1
            )
        else:
            self._run = client.create_run(self._group(), run_name=folder.name).info.run_id
            known.write_text(self._run, encoding="utf-8")
            for name, value in flat(config).items():
                client.log_param(self._run, name, value)
        for row in rows:
            if row["round"] > done:
                self.row(row)

    def _group(self) -> str:
        found = self._client.get_experiment_by_name(self.experiment)
        return found.experiment_id if found else self._client.create_experiment(self.experiment)

    def row(self, row: Row) -> None:
        """The round's numbers; ``seconds`` last, which says that the row is whole."""
        for name, value in sorted(scalars(row).items(), key=lambda item: item[0] == "seconds"):
            self._client.log_metric(self._run, name, value, step=row["round"])

    def end(self, metrics: Row) -> None:
        """The final figures; the run is closed."""
        for name, value in scalars(metrics).items():
            self._client.log_metric(self._run, f"final.{name}", value, step=metrics["rounds"])
        self._client.set_terminated(self._run)
