"""The Flower ServerApp: one run, from its configuration to its folder.

Flower imports ``app`` by name (pyproject.toml), in a simulation and on a SuperLink. Engines of our
own have validated the run already, and call ``serve``.
"""

import contextlib
import logging
import shlex
import traceback
from collections.abc import Iterable, Iterator
from typing import cast

from flwr.app import Context
from flwr.common import log
from flwr.serverapp import Grid, ServerApp
from omegaconf import DictConfig

from fl_app.config.compose import compose
from fl_app.config.errors import ConfigError
from fl_app.config.overrides import in_typed_keys, run_folder_path, to_overrides
from fl_app.device.agreement import require_same
from fl_app.run import prepare, progress, results
from fl_app.run.data_card import MAX_WIDTH
from fl_app.run.experiment import Experiment
from fl_app.run.validated import ValidatedRun
from murmur.compat.flower_grid import DeviceGrid, StrictGrid, look_often
from murmur.compat.flower_messages import limit_replies, pull_parts_soon
from murmur.round.task import RunError, in_words, printable_line

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run what the run-config describes.

    What ends it early is noted in the run's folder, a bug with its traceback, and raised. On
    devices, where nodes are strangers, replies need their message's secret token, and who is silent
    is asked once more. In both cases a reply's size is limited before it is decoded.

    Args:
        grid: by which nodes are reached.
        context: holds the run-config and the run's id.

    Raises:
        ConfigError: the settings cannot be, or devices would not agree to them.
        RunError: the run cannot go on.
    """
    config = _composed(context)
    if config.federation.devices is not None:
        require_same(config, to_overrides(context.run_config))
    folder = results.RunFolder(run_folder_path(config.run_dir, config.results_dir, context.run_id))
    try:
        with _claimed(folder):
            run = ValidatedRun(config, folder.path)
            # An engine of ours says the same itself where `murmur` runs on this machine.
            _tell(run.card.shown(MAX_WIDTH))
            _tell(prepare.opening_lines(run))
            _drive(grid, run)
            _tell(progress.end_lines(folder, run.labels, shlex.quote(str(folder.path))))
    except (RunError, ConfigError) as error:
        if config.run_dir is None:
            log(logging.ERROR, "murmur: %s", in_typed_keys(str(error), context.run_config))
        raise


def serve(grid: Grid, run: ValidatedRun) -> None:
    """Do a run that this process has validated, in place of the ServerApp.

    Raises:
        ConfigError, RunError: as the ServerApp.
    """
    with _claimed(run.folder):
        _drive(grid, run)


def _drive(grid: Grid, run: ValidatedRun) -> None:
    """Do all rounds of ``run`` over ``grid``, with the guards that its nodes need."""
    limit_replies()
    pull_parts_soon()
    look_often(grid)
    if run.federation.devices is not None:
        grid = cast(Grid, DeviceGrid(grid))
    else:
        grid = cast(Grid, StrictGrid(grid, _lost_node))
    Experiment(run).run(grid)


@contextlib.contextmanager
def _claimed(folder: results.RunFolder) -> Iterator[None]:
    """Keep other processes out of ``folder``, and note in it what ends the run early."""
    with folder.claim():
        try:
            yield
        except Exception as error:
            trace = ""
            if not isinstance(error, RunError | ConfigError):  # a bug
                trace = traceback.format_exc().rstrip()
            with contextlib.suppress(OSError):  # a full disk is told by the error itself
                folder.save_error(in_words(error), trace)
            raise


def _tell(lines: Iterable[str]) -> None:
    """Write to the log of `flwr run`."""
    for line in lines:
        log(logging.INFO, line)


def _composed(context: Context) -> DictConfig:
    """The configuration; where there is none, a sentence stands in the log of `flwr run`.

    Flower logs the exception's traceback, too, and marks the run as failed. Its command ends with
    status 0 all the same, since it has only submitted the run and shown its log.
    """
    try:
        return compose(to_overrides(context.run_config))
    except ConfigError as error:
        log(logging.ERROR, "murmur: %s", in_typed_keys(str(error), context.run_config))
        raise


def _lost_node(reason: str) -> RunError:
    """The end of a simulation whose node Flower reports as gone."""
    return RunError(f"Flower's simulation lost a node: {printable_line(reason)}")
