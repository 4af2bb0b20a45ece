"""What DPFL-BNN's noise proves: ``python -m research.dpfl_bnn.privacy WHAT``. Prints Markdown.

* ``golden``: the privacy table of the specification, recomputed, and how long that takes.
* ``gamma``: the γ that meets ε = 8 over 100 rounds, by threat model.
* ``rho``: the Rényi divergence ρ(2) of one randomised bit, over γ; ``--picture FILE`` draws it.

No training, no data.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from benchmarks.pictures import canvas, save
from benchmarks.runs import print_table
from murmur.algorithms.dpfl_bnn.bits import claimed_epsilon, claimed_gamma
from murmur.privacy.accounting import Threat, View, epsilon
from murmur.privacy.accounting.bits import epsilon_of_bit, log_moment
from murmur.privacy.accounting.calibrate import bits_gamma
from murmur.privacy.accounting.flatten import flatten
from murmur.privacy.accounting.rdp import epsilon as renyi_epsilon
from murmur.privacy.accounting.rdp import to_epsilon_mironov
from murmur.privacy.events import (
    Adjacency,
    Event,
    Hiding,
    RandomizedBitsEvent,
    Release,
    RepeatedEvent,
    SummedEvent,
    Unit,
)
from research.dpfl_bnn.figures import BITS, CLIENTS, GAMMAS

ROUNDS, DELTA = 100, 1e-5
GOLDEN = {
    "ε0": (0.4055, 0.8473, 1.3863, 2.1972),
    "claimed (theorem 1)": (28.31, 83.34, 180.92, 361.83),
    "one bit, exact T-fold": (23.65, 63.93, 124.21, 219.25),
    "local, RDP, one round": (7_191, 28_841, 69_688, 145_862),
    "local, RDP, T=100": (670_079, 2_788_379, 6_832_304, 14_424_508),
    "secure aggregation, one round": (124.6, 434.9, 1_149.7, 3_500.9),
    "secure aggregation, T=100": (7_401, 32_627, 96_079, 315_001),
}


def golden() -> None:
    """The table, each figure beside its golden value's relative error."""
    started = time.perf_counter()
    rows = []
    for name, expected in GOLDEN.items():
        found = [_privacy(name, gamma) for gamma in GAMMAS]
        errors = [f / e - 1 for f, e in zip(found, expected, strict=True)]
        rows.append(
            [name, *(f"{f:,.4g}" if f < 10 else f"{f:,.2f}" for f in found), _worst(errors)]
        )
    seconds = time.perf_counter() - started
    print_table(["", *(f"γ={gamma}" for gamma in GAMMAS), "largest error"], rows)
    print(f"\nd={BITS:,}, T={ROUNDS}, n={CLIENTS}, δ={DELTA:g}; computed in {seconds:.1f} s")


def _privacy(name: str, gamma: float) -> float:
    vector = RandomizedBitsEvent(gamma, BITS, BITS)
    release = Release(vector, Unit.CLIENT, Adjacency.REPLACE_ONE, hiding=Hiding.REPORTS)
    summed = SummedEvent(release, CLIENTS)
    match name:
        case "ε0":
            return epsilon_of_bit(gamma)
        case "claimed (theorem 1)":
            return claimed_epsilon(gamma, ROUNDS, DELTA)
        case "one bit, exact T-fold":
            bit = RepeatedEvent(RandomizedBitsEvent(gamma, 1, 1), ROUNDS)
            return epsilon(bit, DELTA).bounds["exact"]
        case "local, RDP, one round":
            return _renyi(vector, Threat.LOCAL)
        case "local, RDP, T=100":
            return _renyi(RepeatedEvent(vector, ROUNDS), Threat.LOCAL)
        case "secure aggregation, one round":
            return _renyi(summed, Threat.SECURE_AGGREGATION)
        case _:
            return _renyi(RepeatedEvent(summed, ROUNDS), Threat.SECURE_AGGREGATION)


def _renyi(event: Event, threat: Threat) -> float:
    leaves = flatten(event, View(threat))
    return renyi_epsilon(leaves, DELTA, to_epsilon_mironov)


def gamma() -> None:
    """Calibration by the paper's conversion, as in the specification, and by the best bound."""
    target, rows = 8.0, []
    claimed = claimed_gamma(target, ROUNDS, DELTA)
    rows.append(["claimed (theorem 1)", f"{claimed:.4g}", "0.0366", ""])
    for threat, clients, expected in (
        (Threat.LOCAL, 1, "1.265e-4"),
        (Threat.SECURE_AGGREGATION, CLIENTS, "1.265e-3"),
    ):
        paper = bits_gamma(
            target, DELTA, BITS, ROUNDS, threat, clients, conversion=to_epsilon_mironov
        )
        best = bits_gamma(target, DELTA, BITS, ROUNDS, threat, clients)
        rows.append([str(threat), f"{paper:.4g}", expected, f"{best:.4g}"])
    print_table(
        [f"γ for ε={target:g}, T={ROUNDS}", "found", "specified", "best proven bound"], rows
    )


def rho(picture: Path | None) -> None:
    """ρ(2) of one bit and its limits: 2γε0 (Kullback-Leibler) below, ε0 (pure) above."""
    rows = [
        [f"{gamma:g}", f"{_kl(gamma):.4g}", f"{_rho(gamma):.3f}", f"{epsilon_of_bit(gamma):.4g}"]
        for gamma in GAMMAS
    ]
    print_table(["γ", "ρ(1) = 2γε0", "ρ(2)", "ρ(∞) = ε0"], rows)
    if picture is None:
        return
    drawing, [axes] = canvas()
    gammas = np.linspace(0.005, 0.45, 90)
    for label, value in (("ρ(∞) = ε0", epsilon_of_bit), ("ρ(2)", _rho), ("ρ(1) = 2γε0", _kl)):
        axes.plot(gammas, [value(float(gamma)) for gamma in gammas], label=label)
    axes.plot(GAMMAS, [_rho(gamma) for gamma in GAMMAS], "ko", ms=4)
    axes.set(xlabel="γ", ylabel="Rényi divergence of one bit", title="One randomised bit")
    save(drawing, picture)


def _rho(gamma: float) -> float:
    """ρ(2) = ln(p²/q + q²/p)."""
    return log_moment(gamma, 1.0)


def _kl(gamma: float) -> float:
    return 2 * gamma * epsilon_of_bit(gamma)


def _worst(errors: Iterable[float]) -> str:
    return f"{max(map(abs, errors)):.3%}"


def main() -> None:
    """One table by name."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="what", required=True)
    commands.add_parser("golden")
    commands.add_parser("gamma")
    drawn = commands.add_parser("rho")
    drawn.add_argument("--picture", type=Path, help="also draw the curves, as this file")
    chosen = parser.parse_args()
    match chosen.what:
        case "golden":
            golden()
        case "gamma":
            gamma()
        case _:
            rho(chosen.picture)


if __name__ == "__main__":
    main()
