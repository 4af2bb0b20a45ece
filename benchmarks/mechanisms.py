"""Noise beside NumPy's generator and OpenDP's samplers, on one core: speed, and a few checks.

    python -m benchmarks.mechanisms --output benchmarks/mechanisms.md
    python -m benchmarks.mechanisms --draws 100000000

NumPy does the idealised version of each mechanism, with floating-point probabilities and a
generator that is no cryptographic one. The three take turns, so that a busy machine slows all,
and processor time is counted, not wall time.
OpenDP draws sample by sample and is given fewer of them.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.machine import describe_machine
from murmur.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from murmur.privacy.mechanisms.discrete_laplace import DiscreteLaplace
from murmur.privacy.mechanisms.randomized_bits import BinaryRandomizedResponse
from murmur.privacy.mechanisms.randomized_response import RandomizedResponse
from murmur.privacy.noise import NoiseGenerator

REPEATS = 5
CHUNK = 10_000_000
LABELS = RandomizedResponse(epsilon=2.5, categories=10)
BITS = BinaryRandomizedResponse(gamma=0.1)
SCALES = (10.0, 1e5)


@dataclass(frozen=True)
class Contest:
    """One mechanism in three implementations; ``opendp`` draws ``opendp_entries`` at a time."""

    name: str
    ours: Callable[[], Any]
    numpy: Callable[[], Any]
    opendp: Callable[[], Any]
    opendp_entries: int


def contests(entries: int) -> list[Contest]:
    """The mechanisms that have a speed target, on ``entries`` entries each."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    noise, generator = NoiseGenerator.from_os(), np.random.default_rng(0)
    bits = generator.integers(0, 2, entries, dtype=np.uint8)
    labels = generator.integers(0, LABELS.categories, entries, dtype=np.uint8)
    zeros = np.zeros(entries, dtype=np.int64)
    few = min(20_000, entries)  # for OpenDP, which draws sample by sample

    def numpy_bits() -> Any:
        return bits ^ (generator.random(entries) >= 0.5 + BITS.gamma)

    def numpy_labels() -> Any:
        others = generator.integers(0, LABELS.categories, entries, dtype=np.uint8)
        return np.where(generator.random(entries) < LABELS.keep, labels, others)

    bit_vector = dp.m.make_randomized_response_bitvec(
        dp.bitvector_domain(max_weight=few), dp.discrete_distance(), f=1 - 2 * BITS.gamma
    )
    one_label = dp.m.make_randomized_response(
        list(range(LABELS.categories)), LABELS.truth_probability
    )
    empty, no_bits = [0] * few, bytes(few // 8)

    def opendp_noise(make: Any, metric: Any, scale: float) -> Callable[[], Any]:
        domain = dp.vector_domain(dp.atom_domain(T=int), size=len(empty))
        measurement = make(domain, metric, scale)
        return lambda: measurement(empty)

    def numpy_noise(draw: Any, scale: float) -> Callable[[], Any]:
        return lambda: zeros + np.rint(draw(0, scale, entries)).astype(np.int64)

    found = [
        Contest(
            "randomised response, bits",
            lambda: BITS.privatize(bits, noise),
            numpy_bits,
            lambda: bit_vector(no_bits),
            few // 8 * 8,
        ),
        Contest(
            "randomised response, 10 labels",
            lambda: LABELS.privatize(labels, noise),
            numpy_labels,
            lambda: [one_label(3) for _ in range(few // 10)],
            few // 10,
        ),
    ]
    for scale in SCALES:
        gaussian, laplace = DiscreteGaussian(scale, 1.0), DiscreteLaplace(scale, 1.0)
        found += [
            Contest(
                f"discrete Gaussian, σ = {scale:g}",
                partial(gaussian.privatize_integers, zeros, noise),
                numpy_noise(generator.normal, scale),
                opendp_noise(dp.m.make_gaussian, dp.l2_distance(T=int), scale),
                few,
            ),
            Contest(
                f"discrete Laplace, scale = {scale:g}",
                partial(laplace.privatize_integers, zeros, noise),
                numpy_noise(generator.laplace, scale),
                opendp_noise(dp.m.make_laplace, dp.l1_distance(T=int), scale),
                few,
            ),
        ]
    return found


def seconds(work: Callable[[], Any]) -> float:
    """Processor time of one call, all of it in one thread: other processes do not count."""
    start = time.process_time()
    work()
    return time.process_time() - start


def measure(contest: Contest, entries: int) -> str:
    """One row of the table: medians per entry over the repeats, after one round to warm up."""
    times: dict[str, list[float]] = {"ours": [], "numpy": [], "opendp": []}
    for repeat in range(REPEATS + 1):
        for name, taken in times.items():
            spent = seconds(getattr(contest, name))
            if repeat:
                taken.append(spent)
    ours, numpy = median(times["ours"]) / entries, median(times["numpy"]) / entries
    opendp = median(times["opendp"]) / contest.opendp_entries
    return (
        f"| {contest.name} | {ours * 1e9:.1f} | {numpy * 1e9:.1f} | {ours / numpy:.2f} "
        f"| {opendp * 1e9:,.0f} | {opendp / ours:,.0f} |"
    )


def keep_rate(n: int = 1_000_000) -> str:
    """The measured rate at which randomised response keeps a label, against the formula's."""
    truth = np.random.default_rng(1).integers(0, LABELS.categories, n, dtype=np.uint8)
    kept = float((LABELS.privatize(truth, NoiseGenerator.from_os()) == truth).mean())
    p = LABELS.truth_probability
    errors = (kept - p) / math.sqrt(p * (1 - p) / n)
    return (
        f"Randomised response with ε = {LABELS.epsilon:g} and C = {LABELS.categories} kept "
        f"{kept:.5f} of {n:,} labels; p = {p:.5f}, a difference of {errors:+.1f} standard errors."
    )


def finiteness(draws: int) -> list[str]:
    """Draw ``draws`` times from each real-valued mechanism; raises if a draw is not finite."""
    noise, zeros = NoiseGenerator.from_os(), np.zeros(CHUNK)
    mechanisms: dict[str, Any] = {
        "discrete Gaussian": DiscreteGaussian(1.0, 1.0, grid=2.0**-20),
        "discrete Laplace": DiscreteLaplace(1.0, 1.0, grid=2.0**-20),
    }
    lines = []
    for name, mechanism in mechanisms.items():
        largest, left = 0.0, draws
        while left:
            chunk = mechanism.privatize(zeros[: min(CHUNK, left)], noise)
            if not np.isfinite(chunk).all():
                raise ArithmeticError(f"{name}: a draw is not finite")
            largest, left = max(largest, float(np.abs(chunk).max())), left - chunk.size
        lines.append(f"{name}: {draws:,} draws at scale 1, all finite, largest {largest:.1f}.")
    return lines


def report(entries: int, draws: int) -> str:
    """The page that is published."""
    rows = [measure(contest, entries) for contest in contests(entries)]
    checks = [keep_rate(), *(finiteness(draws) if draws else [])]
    return "\n".join(
        [
            "# Mechanisms: nanoseconds per entry",
            "",
            f"{describe_machine('numpy', 'cryptography', 'opendp')}; one core used.",
            f"{entries:,} entries, processor time, medians of {REPEATS}, implementations in turn. "
            "Targets: at most 4× NumPy's time, at least 100× OpenDP's speed (per call for labels).",
            "",
            "| mechanism | Murmur | NumPy, idealised | ÷ NumPy | OpenDP | OpenDP ÷ Murmur |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
            *(f"* {check}" for check in checks),
            "",
        ]
    )


def main(arguments: list[str] | None = None) -> None:
    """Print the page, and write it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--entries", type=int, default=10_000_000)
    parser.add_argument("--draws", type=int, default=0, help="also check so many for finiteness")
    parser.add_argument("--output", type=Path, help="where to write the page as well")
    options = parser.parse_args(arguments)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    page = report(options.entries, options.draws)
    sys.stdout.write(page)
    if options.output:
        options.output.write_text(page)


if __name__ == "__main__":
    main()
