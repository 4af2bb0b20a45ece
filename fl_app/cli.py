"""The `murmur` command.

``murmur key=value ...`` runs once, ``murmur -m key=a,b ...`` sweeps, ``murmur WORD ...`` opens one
of the tools below. Each tool is a module with ``main(argv) -> exit status``, imported when called.
"""

from __future__ import annotations

import importlib
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

TOOLS = {
    "ledger": "print or verify a device's ledger",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in TOOLS:
        return importlib.import_module(f"fl_app.tools.{arguments[0]}").main(arguments[1:])
    from fl_app.config import ConfigError

    try:
        return _hydra(arguments)
    except ConfigError as error:
        print(f"murmur: {error}", file=sys.stderr)
        return 2


def _hydra(arguments: list[str]) -> int:
    """Check every job of the command, then let Hydra start them."""
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import DictConfig

    from fl_app.config import CONF, compose, expand_sweep

    overrides = [word for word in arguments if not word.startswith("-")]
    if "-m" in arguments or "--multirun" in arguments:
        for job in expand_sweep(overrides):
            compose(job)
    else:
        compose(overrides)
    statuses: list[int] = []

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
    def job(config: DictConfig) -> None:
        statuses.append(run(list(HydraConfig.get().overrides.task)))

    sys.argv = [sys.argv[0], *arguments]
    job()
    return max(statuses, default=0)


def run(overrides: list[str]) -> int:
    """One run from its overrides to its summary; the exit status."""
    from rich.console import Console

    from fl_app.config import ConfigError, build, compose
    from fl_app.experiment import Experiment
    from fl_app.progress import LiveProgress, summary_table
    from fl_app.results import RunFolder

    console = Console()
    try:
        config = compose(overrides)
        path = new_run_dir(config.results_dir) if config.run_dir is None else Path(config.run_dir)
        overrides = [*overrides, f"run_dir={path.absolute()}"]
        experiment = Experiment(config)
        engine = build(config.engine, "engine")
        folder = RunFolder(path.absolute())
    except ConfigError as error:
        print(f"murmur: {error}", file=sys.stderr)
        return 2
    for warning in experiment.strategy.warnings():
        console.print(f"note: {warning}", style="yellow", markup=False, soft_wrap=True)
    try:
        with LiveProgress(folder, experiment.federation.num_rounds, console):
            engine.run(overrides, folder)
    except KeyboardInterrupt:
        print(f"murmur: interrupted; the run so far is in {folder.path}", file=sys.stderr)
        return 130
    except Exception as error:
        print(f"murmur: the run failed: {error}", file=sys.stderr)
        return 1
    metrics = folder.metrics() or {}
    console.print(summary_table(metrics, folder.guarantees()))
    console.print((folder.path / "privacy.txt").read_text(), markup=False, highlight=False, soft_wrap=True)
    console.print(f"results: {folder.path}", markup=False, soft_wrap=True)
    return 0


def new_run_dir(results_dir: str | None) -> Path:
    """A fresh folder name under ``results_dir``, or under `runs` in the working directory."""
    root = Path.cwd() / "runs" if results_dir is None else Path(results_dir).expanduser()
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return root / f"{stamp}-{uuid.uuid4().hex[:6]}"


if __name__ == "__main__":
    sys.exit(main())
