"""Noise that follows from the seed protects nobody: no figure of such a run is a proven ε."""

import io
import re

from rich.console import Console

from fl_app.api import results
from fl_app.run.progress import LiveProgress
from murmur.privacy.statement import Statement
from tests.fl_app.running import run_inline
from tests.fl_app.tracking.test_tracking import tensorboard_events


def test_a_seeded_run_says_nowhere_that_an_epsilon_is_proven(tmp_path):
    printed = io.StringIO()
    words = ["strategy=votes", "strategy.K=2", "privacy.threat=secure_aggregation"]
    words += ["privacy.secure_aggregation=simulated", "privacy.noise=seeded"]
    run = run_inline(tmp_path / "run", *words)
    with LiveProgress(run, 2, Console(file=printed, width=200), "a server"):
        pass
    assert Statement.from_dict(run.statement()).void
    for row in run.rows():
        assert row["epsilon_proven"] is None and "epsilon_assumed" not in row
    metrics = run.metrics()
    assert metrics["epsilon_proven"] is metrics["epsilon_assumed"] is None
    assert metrics["epsilon_claimed"] is None or metrics["epsilon_claimed"] > 0
    assert len(re.findall("no ε is proven$", printed.getvalue(), re.M)) == 3
    assert "ε = " not in printed.getvalue()
    assert not [name for name in tensorboard_events(run.path) if "proven" in name]
    assert "epsilon" not in (run.path / "metrics.prom").read_text()
    [record] = results(tmp_path).to_dict("records")
    assert record["epsilon_proven"] is None and record["void"]
