"""Runs that are killed: what is left behind, and whether resuming them gives the same result.

``python -m tests.federation.kills inline 20`` kills each algorithm's run in one process so many
times (``tests.federation.killed_calls``). ``python -m tests.federation.kills ray 20``, or ``flower
20``, kills a process of each algorithm's run so many times, each drawn at random, at a random
instant (SIGKILL); without a number, each kind of process once. Whatever is left is waited for 10
seconds at most. A run that has ended is resumed, on the same engine, and killed again; its result
is compared, bit for bit, with an uninterrupted one in one process. Prints the rows of two tables of
``benchmarks/fire-drill.md``: by algorithm, and by kind of process.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.federation import killed_calls, killed_processes
from tests.federation.killed_processes import MAIN, PARTS
from tests.federation.killed_runs import RUNS, Kill


def equal(kills: Sequence[Kill]) -> str:
    """How many of them gave the same result."""
    return f"{sum(each.same for each in kills)} of {len(kills)}"


def by_strategy(engine: str, kills: Sequence[Kill]) -> Iterator[str]:
    """A row for each algorithm."""
    yield f"| algorithm | `engine={engine}`: the same result |"
    yield "|---|---|"
    for strategy in dict.fromkeys(each.strategy for each in kills):
        yield f"| `{strategy}` | {equal([each for each in kills if each.strategy == strategy])} |"


def by_process(engine: str, kills: Sequence[Kill]) -> Iterator[str]:
    """A row for each kind of process."""
    yield "| killed | times | all ended after | left after 10 s | status | the same result |"
    yield "|---|---|---|---|---|---|"
    for victim in dict.fromkeys(each.victim for each in kills):
        chosen = [each for each in kills if each.victim == victim]
        took = [each.seconds for each in chosen if each.seconds is not None]
        cells = (
            f"`engine={engine}`: {victim}",
            str(len(chosen)),
            f"at most {max(took):.1f} s" if took else "the run went on",
            str(sum(each.left for each in chosen)),
            ", ".join(
                sorted({"–" if each.status is None else str(each.status) for each in chosen})
            ),
            equal(chosen),
        )
        yield f"| {' | '.join(cells)} |"


def measured(engine: str, count: int, only: str) -> Iterator[Kill]:
    """Each algorithm's kills in a folder of their own; see the arguments of ``main``."""
    for strategy in [only] if only else RUNS:
        with tempfile.TemporaryDirectory(prefix="murmur-kill-") as name:
            folder = Path(name)
            if engine == "inline":
                yield from killed_calls.kills(strategy, count or 20, folder)
            else:
                kinds = () if count else (MAIN, *dict.fromkeys(PARTS.values()))
                yield from killed_processes.kills(folder, strategy, count or len(kinds), kinds)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=["inline", "ray"])
    parser.add_argument("kills", nargs="?", type=int, default=0, help="at random; 0: one of each")
    parser.add_argument("--only", default="", choices=RUNS, help="one algorithm")
    chosen = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    done: list[Kill] = []
    for each in measured(chosen.engine, chosen.kills, chosen.only):
        done.append(each)
        print(each, file=sys.stderr, flush=True)
    print("\n".join(by_strategy(chosen.engine, done)))
    if chosen.engine == "ray":
        print("\n".join(by_process(chosen.engine, done)))


if __name__ == "__main__":
    main()
