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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from fl_app.results import RunFolder

TOOLS = {
    "advise": "find the best rounds and clients per round for NbAFL",
    "audit": "attack a release and measure its epsilon",
    "ledger": "print or verify a device's ledger",
    "plan": "share a total budget in KD-DPFL, and say why",
    "report": "show a run or a sweep as one HTML page",
    "resume": "go on with a run that was interrupted",
}


@dataclass
class Job:
    """One run of this command: what was asked, where it went, how it ended."""

    overrides: list[str]
    folder: RunFolder | None = None
    status: int = 1


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

    from fl_app.config import CONF, compose, expand_sweep

    overrides = [word for word in arguments if not word.startswith("-")]
    if "-m" in arguments or "--multirun" in arguments:
        for words in expand_sweep(overrides):
            compose(words)
    else:
        compose(overrides)
    jobs: list[Job] = []

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
    def job(_: DictConfig) -> None:
        jobs.append(run(list(HydraConfig.get().overrides.task)))

    sys.argv = [sys.argv[0], *arguments]
    job()
    if len(jobs) > 1:
        from fl_app.sweep import show_sweep

        show_sweep(jobs)
    return max((job.status for job in jobs), default=0)


def run(overrides: list[str]) -> Job:
    """One run from its overrides to its summary."""
    job = Job(overrides)
    job.status = _run(job)
    return job


def _run(job: Job) -> int:
    from rich.console import Console

    from fl_app.config import ConfigError, build, compose
    from fl_app.experiment import Experiment
    from fl_app.progress import LiveProgress, summary_table
    from fl_app.results import RunFolder

    console, overrides = Console(), job.overrides
    try:
        config = compose(overrides)
        path = new_run_dir(config.results_dir) if config.run_dir is None else Path(config.run_dir)
        overrides = [*overrides, *absolute_paths(config), f"run_dir={path.absolute()}"]
        experiment = Experiment(config)
        engine = build(config.engine, "engine")
        job.folder = folder = RunFolder(path.absolute())
        folder.save_overrides(overrides)
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
    console.print(
        (folder.path / "privacy.txt").read_text(), markup=False, highlight=False, soft_wrap=True
    )
    console.print(f"results: {folder.path}", markup=False, soft_wrap=True)
    return 0


def absolute_paths(config: DictConfig) -> list[str]:
    """Overrides that pin the paths which the user typed: the apps run in another folder."""
    from omegaconf import OmegaConf

    keys = ("dataset.root", "dataset.path", "dataset.cache", "privacy.policy")
    typed = {key: OmegaConf.select(config, key) for key in keys}
    return [f"{key}={Path(path).absolute()}" for key, path in typed.items() if path is not None]


def new_run_dir(results_dir: str | None) -> Path:
    """A fresh folder name under ``results_dir``, or under `runs` in the working directory."""
    root = Path.cwd() / "runs" if results_dir is None else Path(results_dir).expanduser()
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return root / f"{stamp}-{uuid.uuid4().hex[:6]}"


if __name__ == "__main__":
    sys.exit(main())
