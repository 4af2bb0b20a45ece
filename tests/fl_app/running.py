"""Small runs for tests."""

import contextlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fl_app.cli import main
from fl_app.config.instantiate import build
from fl_app.engines.inline import InlineEngine
from fl_app.run.experiment import Experiment
from fl_app.run.prepare import prepare
from fl_app.run.results import RunFolder
from fl_app.run.validated import ValidatedRun
from fl_app.sweep.sweep import Sweep
from strategies.base import CohortStrategy

SMALL = [
    "engine=inline",
    "strategy=privatekt",  # where a test chooses no other
    "federation.num_clients=6",
    "federation.num_rounds=2",
    "strategy.local.epochs=1",
    "privacy.noise=seeded",
]


def settled(words: Sequence[str]) -> list[str]:
    """``words`` with the budget that tests mean by SMALL's strategy; an experiment has its own."""
    if any(word.startswith("experiment=") for word in words):
        return [word for word in words if word != SMALL[1]]
    keys = {word.partition("=")[0] for word in words}
    strategies = [word for word in words if word.startswith("strategy=")]
    if strategies[-1:] == SMALL[1:2] and not {"privacy", "privacy.epsilon"} & keys:
        return ["privacy.epsilon=8", *words]
    return [*words]


def run_inline(
    folder: Path, *overrides: str, small: Sequence[str] = SMALL, **engine: Any
) -> RunFolder:
    """A run in this process; its folder."""
    words = settled([*small, *overrides, f"run_dir={folder}"])
    run = ValidatedRun.of(words)
    chosen = InlineEngine(**engine) if engine else build(run.config.engine, "engine")
    chosen.run(run)
    return run.folder


def interrupt(folder: Path, *overrides: str, before: int, trained: bool = False) -> Path:
    """A run that was interrupted in round ``before``, whose clients have answered.

    ``trained``: whether its model was there, and clients have evaluated it.
    """
    ready = prepare(settled([*SMALL, *overrides, f"run_dir={folder}"]))
    place, name = (Experiment, "_after_round") if trained else (CohortStrategy, "aggregate_train")
    method = getattr(place, name)

    def die(self: Any, number: int, *arguments: Any) -> Any:
        if number == before:
            if not trained:
                list(*arguments)  # a node of this engine answers when its reply is due
            raise KeyboardInterrupt
        return method(self, number, *arguments)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(place, name, die)
        ready.run()
    return folder


def command(*words: object) -> tuple[int | str | None, str]:
    """Exit status of `murmur WORDS` and its standard error, which must hold no traceback."""
    out, err = io.StringIO(), io.StringIO()
    status: int | str | None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main([str(word) for word in words])
        except SystemExit as end:  # argparse
            status = end.code
    assert "Traceback" not in out.getvalue() + err.getvalue(), words
    return status, err.getvalue()


def sweep_table(folder):
    """Rows of all tables of a sweep, in their order, with the promise that each stands under."""
    rows = []
    for part in (folder / "sweep.md").read_text().split("## ")[1:]:
        promise, _, lines = part.partition("\n\n")
        head, _, *cells = [
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in lines.strip().splitlines()
        ]
        rows += [{"promise": promise, **dict(zip(head, row, strict=True))} for row in cells]
    return rows


def damage_job(words, index):
    """Make one job of the sweep of ``words`` a run that cannot go on."""
    sweep = Sweep.plan(words)
    folder = sweep.folder.path / sweep.jobs[index].key
    folder.mkdir(parents=True)
    (folder / "checkpoint.safetensors").write_bytes(b"damaged")
