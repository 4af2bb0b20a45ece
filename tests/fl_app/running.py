"""Small runs for tests."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fl_app.config.building import build
from fl_app.config.composition import compose
from fl_app.engines.inline import InlineEngine
from fl_app.run.results import RunFolder

SMALL = [
    "engine=inline",
    "federation.num_clients=6",
    "federation.num_rounds=2",
    "strategy.local.epochs=1",
    "privacy.noise=seeded",
]


def run_inline(
    folder: Path, *overrides: str, small: Sequence[str] = SMALL, **engine: Any
) -> RunFolder:
    """A run in this process; its folder."""
    words = [*small, *overrides, f"run_dir={folder}"]
    run = RunFolder(folder)
    chosen = InlineEngine(**engine) if engine else build(compose(words).engine, "engine")
    chosen.run(words, run)
    return run
