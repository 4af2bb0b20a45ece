"""``murmur advise strategy=X --clients N --epsilon E``: what to choose, and how good it will be.

Every candidate that conf/strategy/X.yaml lists under ``advise`` is tried in a pilot: a run of
Murmur whose clients hold labelled *public* examples, drawn with replacement (``federation.pilot``),
as many clients with as much noise as the real run would have, scored on public examples that were
held out. Clients' data have no part in it. Where the best candidate loses too much of what the same
run reaches without noise, clients are doubled until one does not.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from omegaconf import OmegaConf

import fl_app.console
from fl_app.config.building import build
from fl_app.config.composition import compose
from fl_app.config.errors import ConfigError
from fl_app.run.experiment import Experiment
from fl_app.run.population import population
from fl_app.run.results import RunFolder

WORKS = 0.9  # of the accuracy without noise
_QUICK = ["engine=inline", "tracking=none", "keep_checkpoints=false"]


@dataclass(frozen=True)
class Request:
    """The user's ``words``, the ``clients``, ``examples`` of each, ε, and pilots per candidate."""

    words: tuple[str, ...]
    clients: int
    examples: int
    epsilon: float
    pilots: int = 2

    def overrides(self, candidate: Sequence[str], seed: int = 1) -> list[str]:
        """The words of a real run with ``candidate``, where the user's own do not say otherwise."""
        own = {word.split("=", 1)[0] for word in self.words}
        chosen = [word for word in candidate if word.split("=", 1)[0] not in own]
        words = [*self.words, *chosen, f"federation.num_clients={self.clients}", f"seed={seed}"]
        return [*words, f"privacy.epsilon={self.epsilon:g}", "privacy.per=run"]

    def pilot(self, candidate: Sequence[str], seed: int) -> list[str]:
        """The words of a pilot."""
        return [*self.overrides(candidate, seed), f"federation.pilot={self.examples}"]

    def accuracies(self, candidate: Sequence[str]) -> list[float]:
        """What pilots reach."""
        return [accuracy(self.pilot(candidate, seed)) for seed in range(1, self.pilots + 1)]


@dataclass(frozen=True)
class Plan:
    """A candidate, what its pilots reached, and ``facts`` about its rounds and its noise."""

    candidate: tuple[str, ...]
    accuracies: tuple[float, ...]
    facts: dict[str, str]

    @property
    def expected(self) -> float:
        """Accuracy."""
        return statistics.mean(self.accuracies)


def accuracy(words: list[str]) -> float:
    """The last accuracy of one run in this process, of which nothing is kept.

    Secure sums are simulated: the same sums and the same noise.
    """
    words = [*words, *_QUICK]
    if compose(words).privacy.threat == "secure_aggregation":
        words.append("privacy.secure_aggregation=simulated")
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder) / "run")
        words = [*words, f"run_dir={run.path}"]
        build(compose(words).engine, "engine").run(words, run)
        metrics = run.metrics()
        assert metrics is not None
        return float(metrics["accuracy"])


def candidates(words: Sequence[str]) -> list[list[str]]:
    """What the strategy's yaml lists; ConfigError where it lists nothing."""
    strategy = compose(list(words)).strategy
    if not strategy.get("advise"):
        raise ConfigError(
            f"strategy={strategy.name}: its yaml lists nothing to compare (strategy.advise)"
        )
    listed = OmegaConf.to_container(strategy.advise)
    assert isinstance(listed, list)
    return [[str(word) for word in one] for one in listed]


def plans(request: Request) -> Iterator[Plan]:
    """One for each candidate that fits."""
    for candidate in candidates(request.words):
        try:
            facts = _facts(request, candidate)
        except ConfigError as error:
            print(f"left out {' '.join(candidate)}: {error}", file=sys.stderr)
            continue
        yield Plan(tuple(candidate), tuple(request.accuracies(candidate)), facts)


def _facts(request: Request, candidate: Sequence[str]) -> dict[str, str]:
    experiment = Experiment(compose(request.pilot(candidate, 1)))
    federation = experiment.federation
    rounds = {"rounds": federation.num_rounds, "cohort": federation.cohort_size}
    return {k: f"{v:.3g}" for k, v in {**rounds, **experiment.strategy.noise_facts()}.items()}


def needed(request: Request, plan: Plan, least: float, most: int) -> int | None:
    """The first doubling of clients with which ``plan`` is expected to reach ``least``.

    None where none up to ``most`` does, or the public pool is too small to ask more.
    """
    larger = request
    while 2 * larger.clients <= most:
        larger = replace(larger, clients=2 * larger.clients)
        try:
            if statistics.mean(larger.accuracies(plan.candidate)) >= least:
                return larger.clients
        except ConfigError as error:
            print(f"{larger.clients} clients: {error}", file=sys.stderr)
            return None
    return None


def main(argv: Sequence[str]) -> int:
    """Run the tool with the words after ``murmur advise``; the exit status."""
    options = _parser().parse_intermixed_args(list(argv))
    try:
        config = compose(options.overrides)
        clients = options.clients or config.federation.num_clients
        sizes = population(config).client_sizes()
        examples = options.examples or max(1, sum(sizes) // clients)
        epsilon = config.privacy.epsilon if options.epsilon is None else options.epsilon
        request = Request(tuple(options.overrides), clients, examples, epsilon, options.pilots)
        found = sorted(plans(request), key=lambda plan: -plan.expected)
    except (ConfigError, ValueError) as error:
        print(f"murmur advise: {error}", file=sys.stderr)
        return 2
    if not found:
        print("murmur advise: no candidate fits; see above", file=sys.stderr)
        return 2
    _show(request, found)
    _conclude(request, found[0], options.at_least, options.most)
    return 0


def _show(request: Request, found: list[Plan]) -> None:
    from rich.table import Table

    names = list(dict.fromkeys(name for plan in found for name in plan.facts))
    table = Table("", *names, "accuracy", title=f"In pilots of {request.clients} clients")
    for number, plan in enumerate(found, 1):
        spread = f" ± {statistics.stdev(plan.accuracies):.3f}" if len(plan.accuracies) > 1 else ""
        facts = [plan.facts.get(name, "–") for name in names]
        table.add_row(str(number), *facts, f"{plan.expected:.3f}{spread}")
    console = fl_app.console.console(highlight=False)
    console.print(table)
    for number, plan in enumerate(found, 1):
        console.print(f"{number}: {' '.join(plan.candidate)}", soft_wrap=True, markup=False)
    console.print(
        f"{request.examples} examples each, labelled public ones drawn with replacement; scored "
        "on public examples held out. No client's data were used.",
        soft_wrap=True,
    )


def _conclude(request: Request, best: Plan, least: float | None, most: int) -> None:
    quiet = replace(request, epsilon=float("inf"), pilots=1)
    free = quiet.accuracies(best.candidate)[0]
    least = WORKS * free if least is None else least
    print(f"murmur {' '.join(request.overrides(best.candidate))}")
    print(f"expected accuracy {best.expected:.3f}; without noise {free:.3f}")
    if best.expected >= least:
        return
    clients = needed(request, best, least, most)
    short = f"does not reach {least:.3f} at a total epsilon of {request.epsilon:g}"
    how = "no number of clients was found to do" if clients is None else f"needs about {clients}"
    print(f"{short}: {how} clients" if clients else f"{short}: {how}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="murmur advise", description="What to choose, by pilots on public data."
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings as for a run")
    parser.add_argument("--clients", type=_count, metavar="N", help="how many take part")
    parser.add_argument("--examples", type=_count, metavar="N", help="of each client")
    parser.add_argument("--epsilon", type=float, metavar="E", help="of one client for the run")
    parser.add_argument("--pilots", type=_count, default=2, help="for each candidate (default 2)")
    parser.add_argument(
        "--at-least",
        type=float,
        metavar="ACCURACY",
        help=f"what counts as working (default: {WORKS} of the accuracy without noise)",
    )
    parser.add_argument(
        "--most", type=_count, default=16384, help="clients to try at most (default 16384)"
    )
    return parser


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be at least 1")
    return number
