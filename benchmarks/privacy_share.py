"""What privacy costs in time: mechanism, accounting and ledger as shares of a PrivateKT round.

    python -m benchmarks.privacy_share [--rounds 5] [--repeats 5] [key=value ...]

Runs PrivateKT in this process (by default the authors' MNIST setting with an MLP, else whatever
the overrides say) and adds up the wall time inside each part.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

from benchmarks.machine import describe_machine
from clients.privatekt import PrivateKTClient
from fl_app.engines.inline import InlineEngine
from fl_app.run import experiment
from fl_app.run.results import RunFolder
from fl_app.run.validated import ValidatedRun
from murmur.privacy.ledger import Ledger
from murmur.round.host import Host

PARTS: dict[str, list[tuple[type, str]]] = {
    "mechanism": [(PrivateKTClient, "privatize")],
    "policy": [(Host, "_admit")],
    "ledger": [(Ledger, "charge"), (Ledger, "reply"), (Ledger, "store_reply")],
    "accounting": [(experiment.Experiment, "_spent")],
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("overrides", nargs="*", default=["experiment=privatekt_mnist_mlp"])
    options = parser.parse_args()
    shares = defaultdict(list)
    for _ in range(options.repeats):
        spent, whole = measure([*options.overrides, f"federation.num_rounds={options.rounds}"])
        for part in PARTS:
            shares[part].append(spent[part] / whole)
        shares["all of them"].append(sum(spent.values()) / whole)
        shares["seconds per round"].append(whole / options.rounds)
    print(f"{describe_machine()}; {' '.join(options.overrides)}; medians of {options.repeats} runs")
    print("\n| part | share of a round |\n|---|---|")
    for part in [*PARTS, "all of them"]:
        print(f"| {part} | {statistics.median(shares[part]):.2%} |")
    print(f"\n{statistics.median(shares['seconds per round']):.3f} s per round")


def measure(overrides: list[str]) -> tuple[dict[str, float], float]:
    """Seconds inside each part, and in all rounds together."""
    spent: dict[str, float] = defaultdict(float)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        for part, methods in PARTS.items():
            for owner, name in methods:
                stack.enter_context(timed(owner, name, part, spent))
        folder = RunFolder(Path(scratch) / "run")
        InlineEngine().run(ValidatedRun.of([*overrides, f"run_dir={folder.path}"]))
        whole = sum(row["seconds"] for row in folder.rows() if row["round"] > 0)
    return spent, whole


@contextmanager
def timed(owner: type, name: str, part: str, spent: dict[str, float]) -> Iterator[None]:
    """Add the time inside ``owner.name`` to ``spent[part]`` while the context lasts."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(*args, **kwargs):
        start = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            spent[part] += time.perf_counter() - start

    with mock.patch.object(owner, name, wrapper):
        yield


if __name__ == "__main__":
    main()
