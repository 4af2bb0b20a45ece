"""Runs, data and results from Python, for notebooks: ``from fl_app.api import results, run``.

Examples:
    >>> result = run(["strategy=fedavg", "federation.num_rounds=3"])  # doctest: +SKIP
    >>> result.metrics["accuracy"], result.folder                     # doctest: +SKIP
    >>> frame = results("runs/sweep-epsilons")                        # doctest: +SKIP
    >>> frame.groupby("privacy.epsilon")["accuracy"].mean()           # doctest: +SKIP

`murmur-report` stands on this module alone: ``__all__`` holds what it needs, too.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fl_app
from fl_app import version
from fl_app.config.errors import ConfigError, nearest
from fl_app.config.overrides import flat_texts
from fl_app.console import console
from fl_app.run.data_card import HEADING, DataCard
from fl_app.run.intervals import INTERVAL, interval, is_share, spread, with_interval
from fl_app.run.load import (
    PartitionCounts,
    Run,
    RunSet,
    load_run,
    load_runs,
    number,
    run_records,
    typed,
    value_of,
    varied_values,
)
from fl_app.run.progress import LAST_ROUNDS, format_epsilon, short_name
from fl_app.tools.options import parser_of
from fl_app.tools.verify_receipts import whose_word
from murmur.privacy.statement import Statement

if TYPE_CHECKING:
    import pandas
    from torch import nn

__all__ = [
    "HEADING",
    "INTERVAL",
    "LAST_ROUNDS",
    "ConfigError",
    "DataCard",
    "PartitionCounts",
    "Result",
    "Run",
    "RunSet",
    "console",
    "data_card",
    "flat_texts",
    "format_epsilon",
    "interval",
    "is_share",
    "load_model",
    "load_run",
    "load_runs",
    "nearest",
    "number",
    "parser_of",
    "results",
    "run",
    "run_records",
    "short_name",
    "spread",
    "typed",
    "value_of",
    "varied_values",
    "version",
    "whose_word",
    "with_interval",
]

_TURNS = threading.Lock()


@dataclass(frozen=True)
class Result:
    """The results of a finished run.

    Attributes:
        folder: the run's folder, absolute.
        rows: one for each round, that of the initial model first. ε in them is what the most
            exposed client has released so far; infinite ε is the text "infinity".
        metrics: the last figures, with ε of the whole run against the budget's adversary.
        statement: the privacy statement, against every adversary.
    """

    folder: Path
    rows: tuple[dict[str, Any], ...]
    metrics: Mapping[str, Any]
    statement: Statement

    def frame(self) -> "pandas.DataFrame":
        """The rows as a pandas frame.

        Raises:
            ConfigError: pandas is not installed (extra ``report``).
        """
        fl_app.require("report", "pandas")
        import pandas

        return pandas.DataFrame(list(self.rows))

    def weights(self) -> dict[str, Any]:
        """The final model's weights, NumPy arrays by their names in its state dictionary."""
        from safetensors.numpy import load_file

        from fl_app.run.model_folder import weights_file

        return load_file(weights_file(self.folder))


def run(overrides: Sequence[str] = (), *, engine: str = "inline", progress: bool = True) -> Result:
    """One run in this process, with a progress bar here or in a notebook.

    Any thread may call it. Runs of one process take turns, since PyTorch's generators and settings
    belong to the process; these, signals, environment and working directory are afterwards as they
    were.

    Args:
        overrides: as typed behind ``murmur``.
        engine: where the overrides name none; others than inline start processes.
        progress: whether rounds are shown while they pass.

    Returns:
        What it has left; its folder stays.

    Raises:
        ConfigError: the settings are wrong; nothing has been started.
        RunError: the run ended early. What it has so far is in its folder, and the same call with
            that ``run_dir`` goes on.
    """
    from rich.console import Console

    from fl_app.run.prepare import prepare
    from fl_app.run.progress import LiveProgress
    from murmur.learning.process import usual_settings

    words = list(overrides)
    if not any(word.startswith("engine=") for word in words):
        words.insert(0, f"engine={engine}")
    with _TURNS, usual_settings():
        ready = prepare(words)
        console = Console(quiet=not progress, markup=False, emoji=False)
        for line in ready.card.shown(console.width):
            console.print(line, soft_wrap=True, highlight=False)
        with LiveProgress(ready.folder, ready.rounds, console, ready.adversary, ready.score):
            ready.run()
    done = load_run(ready.folder.path)
    assert done.metrics is not None and done.statement is not None
    return Result(ready.folder.path, done.rows, done.metrics, done.statement)


def data_card(overrides: Sequence[str] = ()) -> DataCard:
    """Returns the data card of a run, without the run: counts and names, no row.

    ``print`` shows it as `murmur data` does, below its heading: no ε covers these facts.

    Args:
        overrides: as typed behind ``murmur``.

    Raises:
        ConfigError: the data cannot be read, or the settings are wrong.
    """
    from fl_app.run.prepare import card_of

    return card_of(overrides)


def load_model(run: str | Path, files: Sequence[str | Path] = ()) -> "nn.Module":
    """A run's model as a PyTorch module, features included.

    It takes what the data set gives, float32 (n, C, H, W): pictures in [0, 1], rows of a table in
    the order of its columns. It gives logits, (n, classes) or (n, labels), whose names are in its
    attribute ``classes``; of a regression numbers (n, 1) in the label's unit.

    Args:
        run: a run's folder, its ``model/``, or its file of weights.
        files: copies of what the model names (an encoder, a backbone), where the run's own are not
            in their places.

    Raises:
        ConfigError: there is no model, or it cannot be used by itself.
    """
    from fl_app.run.model_folder import SavedModel

    model = SavedModel.load(Path(run), [Path(file) for file in files])
    model.require_whole()
    network = model.network()
    setattr(network, "classes", tuple(model.classes))  # noqa: B010 - mypy takes it for a tensor
    return network


def results(folder: str | Path) -> "pandas.DataFrame":
    """A record for each run of a sweep, or of a folder of runs: what differed, and its figures.

    Args:
        folder: of a run, a sweep or several runs.

    Raises:
        ConfigError: it holds no run, or pandas is not installed (extra ``report``).
    """
    fl_app.require("report", "pandas")
    import pandas

    return pandas.DataFrame(run_records(load_runs(Path(folder))))
