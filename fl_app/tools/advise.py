"""``murmur advise QUESTION ...``: what to choose for a run, before anything is spent.

| question | answers |
|---|---|
| ``settings`` | which of a strategy's settings to take, and the accuracy to expect: by pilots |
| ``rounds`` | how many rounds and clients per round NbAFL's convergence bound asks for |

``rounds`` has a file of its own, ``advise_rounds``. Words behind a question are settings as for a
run. The exit status is 0, or 2 where they cannot be.

**Pilots.** Every candidate that conf/strategy/X.yaml lists under ``advise`` is tried in a run of
Murmur whose clients hold labelled *public* examples, drawn with replacement (``federation.pilot``),
as many clients with as much noise as the real run would have, scored on public examples that were
held out. Clients' data have no part in it. Where the best candidate loses too much of what the same
run reaches without noise, clients are doubled until one does not.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import fl_app.console
from fl_app.config.compose import compose
from fl_app.config.errors import ConfigError, nearest
from fl_app.tools.options import parser_of

WORKS = 0.9  # of the accuracy without noise
_QUICK = ["engine=inline", "tracking=none", "keep_checkpoints=false"]


def main(argv: Sequence[str]) -> int:
    """Answer the question that ``argv`` begins with; the exit status.

    Args:
        argv: the words after ``murmur advise``.

    Raises:
        ConfigError: no such question, settings that cannot be, or needs that cannot be met.
    """
    parser = argparse.ArgumentParser(
        prog="murmur advise",
        usage="%(prog)s QUESTION ... (--help behind each)",
        description="What to choose for a run, before anything is spent.",
        epilog="\n".join(f"{word:<10} {about}" for word, about in QUESTIONS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("question", metavar="QUESTION", help="one of those below")
    question = parser.parse_args(argv[:1]).question
    if question not in QUESTIONS:
        raise ConfigError(
            f"{question}: is no question; {nearest(question, QUESTIONS)}; such as "
            "`murmur advise settings strategy=votes --clients 100 --epsilon 5`"
        )
    answer = settings
    if question == "rounds":
        from fl_app.tools.advise_rounds import main as answer
    try:
        return answer(list(argv[1:]))
    except ValueError as error:
        raise ConfigError(str(error)) from error


@dataclass(frozen=True)
class Request:
    """Request for advice about a strategy.

    Attributes:
        words: her own settings, ``key=value``; no candidate changes them.
        clients: how many take part in the real run.
        examples: how many each of them holds.
        epsilon: the budget of one client for the whole run.
        pilots: how many of them each candidate gets, with seeds 1, 2, ...
    """

    words: tuple[str, ...]
    clients: int
    examples: int
    epsilon: float
    pilots: int = 2

    def overrides(self, candidate: Sequence[str], seed: int = 1) -> list[str]:
        """The words of a real run with ``candidate``.

        Args:
            candidate: words that give way to the user's own for the same key.
            seed: of the run.
        """
        own = {word.split("=", 1)[0] for word in self.words}
        chosen = [word for word in candidate if word.split("=", 1)[0] not in own]
        words = [*self.words, *chosen, f"federation.num_clients={self.clients}", f"seed={seed}"]
        return [*words, f"privacy.epsilon={str(self.epsilon).removesuffix('.0')}"]

    def pilot(self, candidate: Sequence[str], seed: int) -> list[str]:
        """The words of a pilot: the real run's, with public examples at the clients."""
        return [*self.overrides(candidate, seed), f"federation.pilot={self.examples}"]

    def accuracies(self, candidate: Sequence[str]) -> list[float]:
        """Runs the pilots of ``candidate``; returns an accuracy in [0, 1] for each seed."""
        return [accuracy(self.pilot(candidate, seed)) for seed in range(1, self.pilots + 1)]


@dataclass(frozen=True)
class PilotResult:
    """A candidate after its pilots.

    Attributes:
        candidate: the words that set it apart from the strategy's defaults.
        accuracies: what its pilots reached, in [0, 1].
        facts: about its rounds, its cohort and its noise, for people.
    """

    candidate: tuple[str, ...]
    accuracies: tuple[float, ...]
    facts: dict[str, str]

    @property
    def expected(self) -> float:
        """The accuracy that a run may expect: the mean of the pilots."""
        return statistics.mean(self.accuracies)


def accuracy(words: Sequence[str]) -> float:
    """The last accuracy of one run in this process, of which nothing is kept.

    Secure sums are simulated: the same sums and the same noise.
    """
    from fl_app.run.validated import ValidatedRun

    words = [*words, *_QUICK]
    if compose(words).privacy.threat == "secure_aggregation":
        words.append("privacy.secure_aggregation=simulated")
    with tempfile.TemporaryDirectory() as folder:
        run = ValidatedRun.of([*words, f"run_dir={folder}/run"])
        run.run()
        metrics = run.folder.metrics()
        assert metrics is not None
        return float(metrics["accuracy"])


def candidates(words: Sequence[str]) -> list[list[str]]:
    """Returns the candidates listed under ``advise`` in the YAML of the strategy in ``words``.

    Raises:
        ConfigError: it lists nothing, as references and simulations do.
    """
    from omegaconf import OmegaConf

    strategy = compose(list(words)).strategy
    if not strategy.get("advise"):
        raise ConfigError(
            f"strategy={strategy.name}: its yaml lists nothing to compare (strategy.advise)"
        )
    listed = OmegaConf.to_container(strategy.advise)
    assert isinstance(listed, list)
    return [[str(word) for word in one] for one in listed]


def tried(request: Request) -> Iterator[PilotResult]:
    """Every candidate that fits, after its pilots; why one does not is said on standard error."""
    for candidate in candidates(request.words):
        try:
            facts = _facts(request, candidate)
        except ConfigError as error:
            print(f"left out {' '.join(candidate)}: {error}", file=sys.stderr)
            continue
        yield PilotResult(tuple(candidate), tuple(request.accuracies(candidate)), facts)


def _watched(request: Request) -> Iterable[PilotResult]:
    """``tried``, with a bar on a terminal: pilots take seconds to minutes."""
    from rich.progress import track

    shown = fl_app.console.console()
    return track(
        tried(request),
        "pilots of each candidate",
        total=len(candidates(request.words)),
        console=shown,
        transient=True,
        disable=not shown.is_terminal,
    )


def needed(request: Request, best: PilotResult, least: float, most: int) -> int | None:
    """How many clients the candidate ``best`` needs to reach the accuracy ``least``.

    Clients are doubled up to ``most``, each with as many examples as before.

    Returns:
        The first doubling with which its pilots do; None where none does, or where the public pool
        is too small to ask for more.
    """
    larger = request
    while 2 * larger.clients <= most:
        larger = replace(larger, clients=2 * larger.clients)
        try:
            if statistics.mean(larger.accuracies(best.candidate)) >= least:
                return larger.clients
        except ConfigError as error:
            print(f"{larger.clients} clients: {error}", file=sys.stderr)
            return None
    return None


def settings(argv: list[str]) -> int:
    """``murmur advise settings``: compare the candidates of a strategy, and name the best.

    Returns:
        0, or 2 where no candidate fits.
    """
    from fl_app.run.population import population

    options = parser_of("advise settings").parse_intermixed_args(argv)
    config = compose(options.overrides)
    if config.task != "classification":
        raise ConfigError(
            f"task={config.task}: `murmur advise settings` compares settings by their accuracy on "
            "classes; compare runs of your own (murmur -m)"
        )
    clients = options.clients or config.federation.num_clients
    sizes = population(config).client_sizes()
    examples = options.examples or max(1, sum(sizes) // clients)
    epsilon = options.epsilon
    if epsilon is None:
        epsilon = config.privacy.epsilon
    request = Request(tuple(options.overrides), clients, examples, epsilon, options.pilots)
    found = sorted(_watched(request), key=lambda one: -one.expected)
    if not found:
        print("murmur advise: no candidate fits; see above", file=sys.stderr)
        return 2
    _show(request, found)
    _conclude(request, found[0], options.at_least, options.most)
    return 0


# Word -> what it is about. `rounds` has a file of its own.
QUESTIONS = {
    "settings": "which settings of a strategy, by pilots on public data",
    "rounds": "how many rounds and clients per round, by NbAFL's bound",
}


def _facts(request: Request, candidate: Sequence[str]) -> dict[str, str]:
    """Rounds, cohort and noise of a pilot, without running it; ConfigError if it cannot be."""
    from fl_app.run.validated import ValidatedRun

    experiment = ValidatedRun(compose(request.pilot(candidate, 1)))
    federation = experiment.federation
    rounds = {"rounds": federation.num_rounds, "cohort": federation.cohort_size}
    facts: dict[str, float] = {**rounds}
    forecast = experiment.strategy.forecast()
    if forecast is not None:
        facts |= forecast.noise
        if forecast.ratio is not None:
            facts["signal to noise"] = forecast.ratio
    return {name: f"{fact:.3g}" for name, fact in facts.items()}


def _show(request: Request, found: Sequence[PilotResult]) -> None:
    """Print the candidates as a table, the best one first, and what they were tried on."""
    from rich.table import Table

    names = list(dict.fromkeys(name for one in found for name in one.facts))
    table = Table("", *names, "accuracy", title=f"In pilots of {request.clients} clients")
    for number, one in enumerate(found, 1):
        reached = f"{one.expected:.3f}"
        if len(one.accuracies) > 1:
            reached += f" ± {statistics.stdev(one.accuracies):.3f}"
        facts = [one.facts.get(name, "–") for name in names]
        table.add_row(str(number), *facts, reached)
    console = fl_app.console.console(highlight=False)
    console.print(table)
    for number, one in enumerate(found, 1):
        console.print(f"{number}: {' '.join(one.candidate)}", soft_wrap=True, markup=False)
    console.print(
        f"{request.examples} examples each, labelled public ones drawn with replacement; scored "
        "on public examples held out. No client's data were used.",
        soft_wrap=True,
    )


def _conclude(request: Request, best: PilotResult, least: float | None, most: int) -> None:
    """Print the command to type, what it will reach, and how many clients it needs to work.

    ``best``: the candidate that reaches most. ``least``: the accuracy that counts as working; None:
    ``WORKS`` of that without noise. ``most``: clients to try.
    """
    quiet = replace(request, epsilon=float("inf"), pilots=1)
    free = quiet.accuracies(best.candidate)[0]
    if least is None:
        least = WORKS * free
    print(f"murmur {' '.join(request.overrides(best.candidate))}")
    print(f"expected accuracy {best.expected:.3f}; without noise {free:.3f}")
    if best.expected >= least:
        return
    short = f"does not reach {least:.3f} at a total epsilon of {request.epsilon:g}"
    clients = needed(request, best, least, most)
    if clients is None:
        print(f"{short}: no number of clients was found to do")
    else:
        print(f"{short}: needs about {clients} clients")
