"""``murmur audit`` of secure sums that were once charged for less than they tell.

    python -m research.attacks.audited_sums [--only NAME ...]

Digits. Every sum goes through nodes, ledgers, masks and the server's unmasking. For each client
that is attacked, with all others asked alike and with all others asked for no noise, a line: what
its ledger charges, and what the attack shows with 99.9% confidence, if what is seen is normal where
its noise is. The exit status is 1 where more was counted than is charged.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.machine import describe_machine
from fl_app.config.compose import compose
from fl_app.run.hosts import SimulatedHost
from fl_app.run.validated import ValidatedRun
from murmur.privacy.accounting import Threat
from murmur.round.site import SimulatedSite
from murmur_report.audit import Effort, findings

COMMON = (
    "engine=inline",
    "dataset=digits",
    "model=linear",
    "strategy.local.epochs=1",
    "privacy.secure_aggregation=on",
)
# By name: settings, and how often each neighbour is seen.
CASES: dict[str, tuple[tuple[str, ...], int]] = {
    "rows of its own": (
        (
            *("strategy=privatekt", "strategy.answers=disjoint", "strategy.target=posterior"),
            *("strategy.K=3", "privacy.epsilon=3"),
            *("federation.num_clients=100", "federation.num_rounds=4"),
        ),
        8_000,
    ),
    "weights": (
        (
            *("strategy=nbafl", "privacy.sensitivity=worst", "privacy.epsilon=4"),
            *("partition=quantity_skew", "federation.num_clients=12", "federation.num_rounds=1"),
        ),
        200,
    ),
    "other terms": (
        (
            *("strategy=votes", "features=none", "strategy.K=5"),
            *("privacy.threat=secure_aggregation", "privacy.epsilon=1"),
            *("federation.num_clients=12", "federation.num_rounds=1"),
        ),
        200,
    ),
    "noise in a training": (
        (
            *(
                "strategy=dpsgd_fedavg",
                "privacy.unit=record",
                "strategy.local.lot_size=200",
                "privacy.epsilon=4",
            ),
            *("federation.num_clients=12", "federation.num_rounds=1"),
        ),
        100,
    ),
}


def rows(words: Sequence[str], runs: int) -> Iterator[tuple[str, float, float | None, bool]]:
    """Who saw what, its charge, what was shown (None: no sum came about), whether that beats it."""
    config = compose([*COMMON, *words])
    with tempfile.TemporaryDirectory() as scratch:
        node = SimulatedHost(config, SimulatedSite.of(Path(scratch)))
        strategy = ValidatedRun(config).strategy
        for exposure, bound, found in findings(
            strategy, node, Effort(runs), Threat.SECURE_AGGREGATION
        ):
            _, _, about = exposure.adversary.partition(": ")
            more = f", {bound.releases} releases" if bound.releases > 1 else ""
            if found is None:
                yield about + more, bound.epsilon, None, False
                continue
            yield about + more, bound.epsilon, found.likely, bound.beaten_at(found) is not None


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    beaten = False
    print(describe_machine())
    print("| case | attacked | charged | shown, at least |\n|---|---|---|---|")
    for name in parser.parse_args().only:
        for about, charged, shown, is_beaten in rows(*CASES[name]):
            said = "no sum" if shown is None else f"{shown:.3g}"
            print(f"| {name} | {about} | {charged:.3g} | {said} |", flush=True)
            beaten = beaten or is_beaten
    return int(beaten)


if __name__ == "__main__":
    sys.exit(main())
