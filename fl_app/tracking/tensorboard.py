"""TensorBoard: event files in the run's folder, for `tensorboard --logdir runs`."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fl_app.config.errors import ConfigError
from fl_app.tracking import Row, scalars


class TensorBoard:
    """One scalar for each number of a row, at the row's round; final figures under ``final/``."""

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                "tracking=tensorboard: the package `tensorboard` is not installed; install it, "
                "or choose tracking=none"
            ) from error
        self._open = SummaryWriter

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
        """The final figures at the last round."""
        for name, value in scalars(metrics).items():
            self._writer.add_scalar(f"final/{name}", value, metrics["rounds"])
        self._writer.close()
