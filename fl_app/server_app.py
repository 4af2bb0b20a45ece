"""The Flower ServerApp: one run, from its configuration to its folder."""

from __future__ import annotations

import traceback

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fl_app.config.composition import from_run_config
from fl_app.config.errors import ConfigError
from fl_app.config.run_config import run_folder_path, to_overrides
from fl_app.device.agreement import require_same
from fl_app.engines.lost_nodes import without_lost_nodes
from fl_app.run.experiment import Experiment
from fl_app.run.results import RunFolder
from murmur.learning.training.memory import keep_heap
from murmur.round.grid import with_redelivery, with_tokens
from murmur.round.limits import limit_replies
from murmur.round.task import RunError

# Between two looks for replies, in simulations: Flower's own 0.1 s is a tenth of a small round.
PULL_SECONDS = 0.01

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run what the run-config describes."""
    keep_heap()
    limit_replies()
    if hasattr(grid, "pull_interval"):
        grid.pull_interval = PULL_SECONDS
    config = from_run_config(context.run_config)
    if config.federation.devices is not None:
        require_same(config, to_overrides(context.run_config))
        grid = with_tokens(with_redelivery(grid))
    else:
        grid = without_lost_nodes(grid)
    folder = RunFolder(run_folder_path(config.run_dir, config.results_dir, context.run_id))
    with folder.claim():
        try:
            Experiment(config).run(grid, folder)
        except Exception as error:
            bug = not isinstance(error, RunError | ConfigError)
            trace = traceback.format_exc().rstrip() if bug else ""
            folder.save_error(f"{type(error).__name__}: {error}", trace)
            raise
