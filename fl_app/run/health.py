"""A run's health on the server: ``metrics.prom`` in its folder, replaced after each round.

The file is for monitoring (``fl_app.prometheus_file``); what it says is in ``rounds.jsonl`` too.
Figures of the last round are gauges, and names that end in ``_total`` count over all rounds of the
run, also those before it was interrupted. All carry the label ``run``, the name of the folder. A
run that hangs shows by the age of ``murmur_run_last_round_timestamp_seconds``.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fl_app.tracking import Row

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
    "murmur_run_epsilon_proven": "Epsilon of the most exposed client so far, proven",
    "murmur_run_epsilon_assumed": "The same, under the assumptions of the privacy statement",
    "murmur_run_last_round_timestamp_seconds": "When the last round ended, as Unix time",
}


class RunHealth:
    """Told what a tracker is told (``fl_app.tracking``); there is one in every run.

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
        """A round has ended; the file is replaced. OSError where that is not possible."""
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
                if name in last:
                    values[f"murmur_run_{name}"] = float(last[name])  # also of "infinity"
        figures = Figures(MEANINGS, values, ("run", self.folder.name))
        write(self.folder / NAME, figures)
