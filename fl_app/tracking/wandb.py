"""Weights & Biases: offline in the run's folder; `wandb sync FOLDER` sends it if you want."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fl_app.config.errors import ConfigError
from fl_app.tracking import Row, scalars

LAST = "wandb-last-round"  # file in the run's folder: the round up to which W&B has the rows


class WandB:
    """``mode``: offline, or online to send while running; ``project``: the runs' group."""

    def __init__(self, mode: str = "offline", project: str = "murmur") -> None:
        if mode not in ("offline", "online"):
            raise ValueError(f"mode={mode}: must be offline or online")
        try:
            import wandb
        except ImportError as error:
            raise ConfigError(
                "tracking=wandb: the package `wandb` is not installed; install "
                "`murmur-fl[wandb]`, or choose tracking=tensorboard"
            ) from error
        self._wandb, self.mode, self.project = wandb, mode, project

    def begin(self, folder: Path, config: Mapping[str, Any], rows: Sequence[Row]) -> None:
        """A W&B run whose id follows from the folder, so that parts of a resumed run join."""
        self._last = folder / LAST
        done = int(self._last.read_text(encoding="utf-8")) if self._last.exists() else -1
        self._run = self._wandb.init(
            project=self.project,
            name=folder.name,
            id=hashlib.sha256(str(folder).encode()).hexdigest()[:16],
            dir=str(folder),
            config=dict(config),
            mode=self.mode,
            resume="allow" if self.mode == "online" else None,
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
