"""What ``audit=canaries`` costs in time: the same run with and without, taking turns.

    python -m benchmarks.canary_time [--repeats 5] [key=value ...]

Seconds are those of the run from its first round to its last file, of one process; the default is
digits with DP-FedAvg.
"""

from __future__ import annotations

import argparse
import statistics

from benchmarks.machine import describe_machine
from benchmarks.runs import print_table, run_once

SIDES = {"without": "audit=none", "with canaries": "audit=canaries"}


def main() -> None:
    """Print both sides, least and median."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("overrides", nargs="*", default=["experiment=digits_dp_fedavg"])
    given = parser.parse_args()
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    run_once(given.overrides)  # what a process does once: data, partition, model
    for _ in range(given.repeats):
        for side, word in SIDES.items():
            seconds[side].append(run_once([*given.overrides, word])["metrics"]["seconds"])
    print(f"{describe_machine()}; {' '.join(given.overrides)}; {given.repeats} runs of each")
    head = ["", "least s", "median s"]
    rows = [
        [side, f"{min(found):.2f}", f"{statistics.median(found):.2f}"]
        for side, found in seconds.items()
    ]
    without, canaries = seconds.values()
    ratios = min(canaries) / min(without), statistics.median(canaries) / statistics.median(without)
    print_table(head, [*rows, ["more", *(f"{ratio - 1:.1%}" for ratio in ratios)]])


if __name__ == "__main__":
    main()
