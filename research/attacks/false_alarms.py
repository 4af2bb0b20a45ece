"""Correct mechanisms and runs, audited again and again: how often an audit accuses one of them.

``python -m research.attacks.false_alarms 1000`` makes so many audits or more, each with fresh noise
and at 99.9% confidence, of which an alarm is what ends ``murmur audit`` with status 1:

* **whole runs**: every strategy × protection × unit × adversary that can be configured
  (``configurations``), at its defaults but for its size. It runs with canary clients where it may,
  then every attack of ``murmur audit`` is made on what it releases.
* **mechanisms** without training (``MECHANISMS``), on their worst pair of inputs.

Whatever raises an alarm is audited again with fresh noise and ten times the runs. Of each mechanism
a broken twin, with half of the noise, must be found. Prints a table and a verdict; the exit status
is 1 where alarms are more than chance allows (with probability 99.9%, by the binomial law of the
printed confidence), where one stays, or where a twin is missed.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fl_app.config import groups
from fl_app.config.compose import compose
from fl_app.config.errors import ConfigError
from fl_app.engines.inline import InlineEngine
from fl_app.run.hosts import SimulatedHost
from fl_app.run.results import RunFolder
from fl_app.run.validated import ValidatedRun
from murmur.privacy import events
from murmur.privacy.accounting import Adjacency, Threat, Unit, epsilon
from murmur.privacy.audit import CONFIDENCE, CanaryAudit, empirical_profile, refuted_at
from murmur.privacy.budget import THREATS
from murmur.privacy.events import Event
from murmur.privacy.guarantee import Guarantee
from murmur.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from murmur.privacy.mechanisms.discrete_laplace import DiscreteLaplace
from murmur.privacy.mechanisms.distributed_gaussian import DistributedGaussian
from murmur.privacy.mechanisms.noisy_votes import NoisyVotes
from murmur.privacy.mechanisms.randomized_bits import BinaryRandomizedResponse
from murmur.privacy.mechanisms.randomized_response import RandomizedResponse
from murmur.privacy.mechanisms.sampled_gaussian import SampledGaussian
from murmur.privacy.mechanisms.selection import ExponentialMechanism, PermuteAndFlip
from murmur.privacy.noise import NoiseGenerator
from murmur.privacy.statement import Statement
from murmur.round.site import SimulatedSite
from murmur_report.audit import Effort, findings

RELEASES = 5_000  # of each input of a mechanism
RUNS = 100  # of each neighbour of a whole run's attack
SCOUTS = 20
AGAIN = 10  # times as many, where there was an alarm
TWINS = 3  # each must be found so often
DELTA = 1e-2  # of mechanisms with Gaussian noise

Draw = Callable[[int, int, float, NoiseGenerator], NDArray]


# Mechanisms ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mechanism:
    """One that is private as ``event`` says, no better, on its worst pair of inputs.

    ``draw(which, runs, share, noise)``: the scores (runs,) of input 0 or 1, with that share of the
    noise: 1 is right, ½ is the broken twin.
    """

    event: Event
    delta: float
    draw: Draw

    def proven(self, delta: float) -> float:
        """ε at ``delta``."""
        return epsilon(
            self.event, delta, Threat.SECURE_AGGREGATION, Adjacency.REPLACE_SPECIAL
        ).epsilon

    def is_accused(self, runs: int, share: float, key: Sequence[int | str]) -> bool:
        """Whether an audit of so many ``runs`` raises an alarm; ``key`` of its noise."""
        one, other = (
            self.draw(which, runs, share, NoiseGenerator.seeded("alarms", *key, which))
            for which in (0, 1)
        )
        profile = empirical_profile(one, other, self.delta, CONFIDENCE)
        return refuted_at(profile, self.proven) is not None


def _label(which: int, runs: int, share: float, noise: NoiseGenerator) -> NDArray:
    lies = 9 / (math.exp(2.0) + 9) * share
    mechanism = RandomizedResponse(math.log(9 * (1 - lies) / lies), 10)
    return mechanism.privatize(np.full(runs, 3 + which), noise)


def _bit(which: int, runs: int, share: float, noise: NoiseGenerator) -> NDArray:
    mechanism = BinaryRandomizedResponse(0.5 - 0.3 * share)
    return mechanism.privatize(np.full(runs, which, np.uint8), noise)


def _laplace(which: int, runs: int, share: float, noise: NoiseGenerator) -> NDArray:
    return DiscreteLaplace(10.0 * share, 20.0).privatize_integers(np.full(runs, 20 * which), noise)


def _gaussian(which: int, runs: int, share: float, noise: NoiseGenerator) -> NDArray:
    mechanism = DiscreteGaussian(_FINE * share, _FINE)
    return mechanism.privatize_integers(np.full(runs, int(_FINE) * which), noise)


def _sampled(which: int, runs: int, share: float, noise: NoiseGenerator) -> NDArray:
    mechanism = SampledGaussian(0.5, share, int(_FINE))
    lots = mechanism.sample(runs, noise)
    return mechanism.perturb(int(_FINE) * which * lots.astype(np.int64), noise)


def _sum(which: int, runs: int, share: float, noise: NoiseGenerator) -> NDArray:
    mechanism = DistributedGaussian(_FINE * share, _FINE, _HONEST)
    total = mechanism.privatize_integers(np.full(runs, int(_FINE) * which), noise)
    for _ in range(_HONEST - 1):
        total = total + mechanism.privatize_integers(np.zeros(runs, np.int64), noise)
    return total


def _votes(kind: str, which: int, runs: int, share: float, noise: NoiseGenerator) -> NDArray:
    votes = np.zeros((runs, 2), np.int64)
    votes[:, which] = 1
    noised = NoisyVotes(kind, 2.0 * share, runs).privatize(votes, noise)
    if kind == "gaussian":
        return noised[:, 0] - noised[:, 1]
    # The likelihood ratio, of which an unbounded score would be a worse one.
    return np.abs(noised - [1, 0]).sum(axis=1) - np.abs(noised - [0, 1]).sum(axis=1)


def _chosen(
    kind: type[ExponentialMechanism] | type[PermuteAndFlip],
    which: int,
    runs: int,
    share: float,
    noise: NoiseGenerator,
) -> NDArray:
    scores = np.zeros((runs, 64))
    scores[:, 1:] = which
    scores[:, 0] = 1 - which
    return kind(2.0 / share, sensitivity=1.0).privatize(scores, noise) == 0


_FINE = 2e6  # steps: fine enough for the Gaussian's ε
_HONEST = 4
_LAWS: dict[str, tuple[Event, float, Draw]] = {
    "randomised response": (events.RandomizedResponseEvent(2.0, 10), 0.0, _label),
    "randomised bits": (events.RandomizedBitsEvent(0.2, 1, 1), 0.0, _bit),
    "discrete Laplace": (events.LaplaceEvent(0.5, 20), 0.0, _laplace),
    "discrete Gaussian": (events.DiscreteGaussianEvent(_FINE, _FINE), DELTA, _gaussian),
    "sampled Gaussian": (SampledGaussian(0.5, 1.0, int(_FINE)).event(), DELTA, _sampled),
    "shared Gaussian": (DistributedGaussian(_FINE, _FINE, _HONEST).event(), DELTA, _sum),
    "votes, Gaussian": (NoisyVotes("gaussian", 2.0, 1).event(), DELTA, partial(_votes, "gaussian")),
    "votes, Laplace": (NoisyVotes("laplace", 2.0, 1).event(), 0.0, partial(_votes, "laplace")),
    "exponential mechanism": (events.PureEvent(2.0), 0.0, partial(_chosen, ExponentialMechanism)),
    "permute and flip": (events.PureEvent(2.0), 0.0, partial(_chosen, PermuteAndFlip)),
}
MECHANISMS = {name: Mechanism(*law) for name, law in _LAWS.items()}


# Whole runs ---------------------------------------------------------------------------------

SMALL = [
    "engine=inline",
    "dataset=digits",
    "privacy=local",
    "federation.num_clients=10",
    "keep_checkpoints=false",
    "tracking=none",
]
TWO_ROUNDS = ["federation.num_rounds=2"]
# What a strategy asks for beside its defaults, or takes too long without.
OWN = {
    "class_moments": ["federation.num_rounds=1", "features=pca", "features.components=4"],
    "class_statistics": ["federation.num_rounds=1", "model=linear"],
    "kd_dpfl": [*TWO_ROUNDS, "strategy.labelling.epochs=1", "strategy.labelling.queries=5"],
}
PROTECTED = [name for name in groups.groups()["protection"] if name != "none"]
EVALUATIONS = [
    ["strategy=votes", "evaluation=protected_counts", "evaluation.counts.noise=gaussian"],
    ["strategy=privatekt", "evaluation=protected_counts", "evaluation.counts.unit=client"],
    [
        *("strategy=clustering", "protection=distributed", "privacy.threat=local"),
        "evaluation=protected_clustering",
    ],
]


def strategies() -> list[str]:
    """Names of all."""
    return groups.groups()["strategy"]


def configurations(strategy: str) -> Iterator[tuple[list[str], Unit]]:
    """All protections × units × adversaries that ``strategy`` can be configured with.

    Yields:
        Words of a run with a finite ε, and whose data it protects.
    """
    own = [f"strategy={strategy}", *SMALL, *OWN.get(strategy, TWO_ROUNDS)]
    kinds: list[list[str]] = [[]]
    if "protection" in compose(own).strategy.server:
        kinds = [[f"protection={name}"] for name in PROTECTED]
    for kind, unit, threat in product(kinds, Unit, THREATS):
        words = [*own, *kind, f"privacy.unit={unit}", f"privacy.threat={threat}"]
        if threat == Threat.SECURE_AGGREGATION:
            words.append("privacy.secure_aggregation=on")
        if can_run(words):
            yield words, unit


def can_run(words: Sequence[str]) -> bool:
    """Whether a run of these settings is not refused before it starts."""
    try:
        ValidatedRun(compose(list(words)))
    except (ConfigError, ValueError):
        return False
    return True


def audited(words: Sequence[str], runs: int) -> Iterator[bool]:
    """Whether there is an alarm, for each attack on what a run of ``words`` releases.

    Where nothing is proven against an adversary, there is no attack.
    """
    config = compose(list(words))
    with tempfile.TemporaryDirectory() as scratch:
        node = SimulatedHost(config, SimulatedSite.of(Path(scratch)))
        effort = Effort(runs, scouts=SCOUTS)
        for _, bound, found in findings(ValidatedRun(config).strategy, node, effort):
            if found is not None:
                yield bound.beaten_at(found) is not None


def canaries(words: Sequence[str]) -> Iterator[bool]:
    """Whether there is an alarm, for each bound that canary clients of a whole run show.

    The run goes without them, and shows none, where it may not have any.
    """
    joined = [*words, "audit=canaries"]
    if not can_run(joined):
        joined = list(words)
    with tempfile.TemporaryDirectory() as parent:
        folder = RunFolder(Path(parent) / "run")
        InlineEngine(workers=1).run(ValidatedRun.of([*joined, f"run_dir={folder.path}"]))
        said = Statement.from_dict(folder.statement())
    for guarantee in said.guarantees:
        if guarantee.canaries is not None:
            yield from _beaten(guarantee, guarantee.canaries)


def _beaten(guarantee: Guarantee, found: CanaryAudit) -> Iterator[bool]:
    for bound in (found.at_least, found.if_gaussian):
        if bound is not None:
            yield bound > guarantee.stated


# The command --------------------------------------------------------------------------------


@dataclass
class Count:
    """Audits so far: how many, how many alarms, and of these how many stayed."""

    audits: int = 0
    alarms: int = 0
    stayed: int = 0

    def add(self, accused: Sequence[bool], again: Callable[[], bool]) -> None:
        """Count ``accused``; ``again``: whether one is, with fresh noise and more runs."""
        self.audits += len(accused)
        self.alarms += sum(accused)
        if any(accused):
            self.stayed += again()

    def row(self, name: str) -> str:
        """A line of the table."""
        return f"| {name} | {self.audits:,} | {self.alarms} | {self.stayed} |"


def main() -> int:
    """Print the table and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("audits", type=int, nargs="?", default=1000, help="of all, at least")
    parser.add_argument("--runs", type=int, default=RUNS, help="looks at each neighbour of a run")
    given = parser.parse_args()
    total = Count()
    runs = 0
    print("| what is correct | audits | alarms | that stay |\n|---|---|---|---|", flush=True)
    for name in strategies():
        own = Count()
        for words, _ in configurations(name):
            runs += 1
            _audit_run(words, given.runs, own)
        _report(name, own, total)
    own = Count()
    for words in EVALUATIONS:
        runs += 1
        _audit_run([*words, *SMALL, *TWO_ROUNDS], given.runs, own)
    _report("evaluations", own, total)
    each = math.ceil(max(0, given.audits - total.audits) / len(MECHANISMS))
    missed = []
    for name, mechanism in MECHANISMS.items():
        own = Count()
        for number in range(each):
            key = (name, number)
            again = partial(mechanism.is_accused, AGAIN * RELEASES, 1.0, (*key, "again"))
            own.add([mechanism.is_accused(RELEASES, 1.0, key)], again)
        _report(name, own, total)
        twins = [mechanism.is_accused(RELEASES, 0.5, (name, "twin", n)) for n in range(TWINS)]
        if not all(twins):
            missed.append(name)
    print(total.row("all"))
    most = int(stats.binom.ppf(0.999, total.audits, 1 - CONFIDENCE))
    found = len(MECHANISMS) - len(missed)
    print(
        f"\n{runs} whole runs, {total.audits:,} audits, {total.alarms} alarms; {most} are allowed. "
        f"{total.stayed} stayed. Of {len(MECHANISMS)} mechanisms with half of the noise, {found} "
        f"were found{': all but ' + ', '.join(missed) if missed else ''}."
    )
    failed = total.alarms > most or total.stayed > 0 or bool(missed)
    print("FAILED" if failed else "passed")
    return int(failed)


def _audit_run(words: Sequence[str], runs: int, own: Count) -> None:
    """Count what a whole run's canaries and attacks say."""
    own.add(list(canaries(words)), lambda: any(canaries([*words, "seed=2"])))
    own.add(list(audited(words, runs)), lambda: any(audited(words, AGAIN * runs)))


def _report(name: str, own: Count, total: Count) -> None:
    """Print a line, if there was anything to audit, and add it to the ``total``."""
    if own.audits:
        print(own.row(name), flush=True)
    total.audits += own.audits
    total.alarms += own.alarms
    total.stayed += own.stayed


if __name__ == "__main__":
    sys.exit(main())
