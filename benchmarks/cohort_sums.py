"""Secure sums of large cohorts: ``python -m benchmarks.cohort_sums``.

One sum of 100 bits a client over each number of clients, against a server that follows the
protocol: the least ring for 5% colluders and 10% dropouts, who all fall silent before they mask.
Real code on both sides, messages handed over in memory. Prints processor milliseconds of a client
and, of the server, for each client; the same for each neighbour; bytes that a client is sent; files
that a node puts on disk, with the key that it makes once.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.supercore.task_identity import TaskIdentity

from benchmarks.machine import describe_machine
from benchmarks.secure_aggregation import ours
from murmur.secure_sum.settings import SecureSumSettings

LENGTH = 100
COLLUDERS, DROPOUTS = 0.05, 0.1


class Writes:
    """How often a regular file was put on disk; folders, which follow, are not counted."""

    count = 0


@contextmanager
def counted_writes() -> Iterator[Writes]:
    """Count what this process writes durably."""
    writes = Writes()
    plainly = os.fsync

    def fsync(descriptor: int) -> None:
        plainly(descriptor)
        writes.count += not os.path.isdir(f"/proc/self/fd/{descriptor}")

    os.fsync = fsync  # type: ignore[assignment]
    try:
        yield writes
    finally:
        os.fsync = plainly


def row(clients: int, nodes: int) -> str:
    """One row of the table."""
    settings = SecureSumSettings(
        "on",
        minimum=0.67,
        colluders=int(COLLUDERS * clients),
        dropouts=DROPOUTS,
        server="honest",
    )
    rng = np.random.default_rng(1)
    vectors = rng.random((clients, LENGTH)) < 0.5
    dropped = set(rng.choice(clients, int(DROPOUTS * clients), replace=False).tolist())
    terms = settings.terms("benchmark", 1, range(clients), LENGTH + 1, 64)
    neighbours = terms.holders - 1
    with tempfile.TemporaryDirectory() as folder, counted_writes() as writes:
        cost = ours(vectors, dropped, settings, Path(folder), nodes, time.process_time)
    each = [1e3 * seconds / clients for seconds in (cost.client_seconds, cost.server_seconds)]
    near = [1e3 * milliseconds / neighbours for milliseconds in each]
    exact = "yes" if cost.exact else "no"
    return (
        f"| {clients:,} | {neighbours}, {terms.threshold} | {each[0]:.1f} + {each[1]:.1f} "
        f"| {near[0]:.0f} + {near[1]:.0f} | {cost.down / clients / 1e3:.1f} "
        f"| {writes.count / nodes:.0f} | {exact} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[300, 3_000])
    parser.add_argument("--nodes", type=int, default=1, help="that share the clients")
    options = parser.parse_args()
    TaskIdentity.task_id = TaskIdentity.run_id = 1
    TaskIdentity.node_id = SUPERLINK_NODE_ID
    machine = describe_machine("cryptography", "numpy")
    print(f"{options.nodes} nodes; {machine}; load {os.getloadavg()[0]:.0f}\n")
    print("| clients | neighbours, threshold | client + server, ms | for each neighbour, µs "
          "| kB down | writes a node | exact |")  # fmt: skip
    print("|---|---|---|---|---|---|---|")
    for clients in options.clients:
        print(row(clients, options.nodes), flush=True)


if __name__ == "__main__":
    main()
