"""Votes of 1,000 clients under real masks: ``python -m research.frontier.masked_votes``.

The frontier's row of votes on MNIST (500 images, Dirichlet 0.5), but with secure aggregation on:
every client advertises keys, shares its secrets with its neighbours, masks its votes, confirms and
reveals. Clients live on nodes of ten; every tenth node is gone from the moment its clients have
shared their secrets, so that a tenth of the clients drops out and others' shares must remove their
masks. The noise is for 90% of the clients less ``--colluders``, who are also counted in the
threshold. Needs ``MURMUR_DATA``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from flwr.app import Context, Message

from fl_app.client_app import app
from fl_app.engines.inline import FIRST_NODE, serve
from fl_app.run.results import RunFolder
from fl_app.run.validated import ValidatedRun
from murmur.round.task import RECORD
from murmur.secure_sum.settings import SecureSumSettings
from murmur.secure_sum.terms import HONEST, Server
from research.frontier.rows import SEEDS, Cell

CLIENTS, PER_NODE = 1000, 10
BEFORE = ("advertise", "share", "check")  # the phases before a client that drops out is gone


def leaving(share: float) -> Callable[[Message, Context], Message]:
    """The ClientApp, of whose nodes ``share`` answer no message after phase CHECK."""
    every = round(1 / share) if share else 0

    def answer(message: Message, context: Context) -> Message:
        asked = message.content.config_records.get(RECORD)
        leaves = every and (message.metadata.dst_node_id - FIRST_NODE) % every == 0
        if leaves and (asked is None or asked["phase"] not in BEFORE):
            raise ConnectionError("this node dropped out")
        return app(message, context)

    return answer


def words(epsilon: float, colluders: int, dropouts: float, server: str, seed: int) -> list[str]:
    """The run's overrides: those of the frontier's row, with real masks."""
    changed = {
        "privacy.secure_aggregation": "on",
        "privacy.secure_sum.server": server,
        "privacy.secure_sum.colluders": colluders,
        "privacy.secure_sum.dropouts": dropouts,
    }
    rows = Cell("votes", "mnist 1000, dirichlet 0.5", epsilon).tests("50 components, K = 500")
    row = next(row for row in rows if row.seed == seed)
    kept = [word for word in row.overrides() if word.partition("=")[0] not in changed]
    return [*kept, *(f"{key}={value}" for key, value in changed.items())]


def main() -> None:
    """Run it, and print a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument(
        "--server", choices=get_args(Server), default=HONEST, help="whom it withstands"
    )
    parser.add_argument("--colluders", type=int, default=50)
    parser.add_argument("--dropouts", type=float, default=0.1, help="share of the nodes that leave")
    parser.add_argument("--seed", type=int, default=1, choices=SEEDS)
    chosen = parser.parse_args()
    assumed = chosen.colluders, chosen.dropouts, chosen.server
    settings = words(chosen.epsilon, *assumed, chosen.seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder, started = RunFolder(Path(temporary) / "run"), time.perf_counter()
        cpu = time.process_time()
        overrides = [*settings, f"run_dir={folder.path}"]
        serve(ValidatedRun.of(overrides), CLIENTS // PER_NODE, 1, leaving(chosen.dropouts))
        metrics, rounds = folder.metrics(), folder.rows()
        statement = json.loads((folder.path / "privacy.json").read_text())["guarantees"][0]
    assert metrics is not None
    sums = SecureSumSettings(
        "on", server=chosen.server, colluders=chosen.colluders, dropouts=chosen.dropouts
    )
    found = {
        "accuracy": metrics["accuracy"],
        "summed": rounds[-1]["answered"],
        "threat": statement["threat"],
        "epsilon": statement["assumed_total"],
        "assumptions": statement["assumptions"],
        "bytes_up_per_client": metrics["bytes_up"] // CLIENTS,
        "bytes_down_per_client": metrics["bytes_down"] // CLIENTS,
        "graph": sums.graph_assumption(CLIENTS),
        "fails_in_a_round": sums.failure_probability(CLIENTS),
        "seconds": round(time.perf_counter() - started, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "overrides": settings,
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
