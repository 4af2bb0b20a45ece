"""What to say of a run before it starts, and of its accuracy when it is over.

Nothing here is a promise about accuracy: how far what clients agree on stands above the noise
follows from public settings alone (``CohortStrategy.signal_to_noise``), and what a model makes of
that does not. A score before a run needs labelled public data, which is `murmur advise settings`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from murmur.learning.metrics import chance, is_at_chance
from murmur.privacy.accounting import Threat
from murmur.privacy.budget import Budget
from murmur.privacy.statement_text import THREATS, UNITS

if TYPE_CHECKING:
    from fl_app.run.experiment import Experiment

ENOUGH = 3.0  # signal over noise from which on noise costs little
_LITTLE = 1.5
_NOTHING = 0.5


def before(experiment: Experiment) -> list[str]:
    """The lines that a run begins with: its budget, what it will reach, and its warnings."""
    lines = [budget_line(experiment.strategy.setup.budget)]
    expected = expectation(experiment)
    if expected is not None:
        lines.append(expected)
    people = experiment.population
    warnings = (*people.dataset.notes, *people.warnings, *experiment.strategy.warnings())
    return lines + [
        f"note: {text}" for text in warnings if expected is None or text not in expected
    ]


def budget_line(budget: Budget) -> str:
    """What ``privacy.epsilon`` promises in this run, in one sentence."""
    if not budget.is_private:
        return "budget: none (privacy.epsilon=inf); the statement says what is proven"
    if budget.paper:
        return (
            f"budget: ε = {budget.epsilon:g} as the paper counts it (privacy=paper), in itself no "
            "promise against anybody"
        )
    return (
        f"budget: ε = {budget.epsilon:g} at δ = {budget.delta:g} for the whole run and "
        f"{UNITS[budget.protected]}, against {THREATS[Threat(budget.threat)]} ({budget.threat})"
    )


def expectation(experiment: Experiment) -> str | None:
    """How far the signal stands above the noise, and what would help; None where it is unknown."""
    strategy, federation = experiment.strategy, experiment.federation
    budget = strategy.setup.budget
    planned = strategy.foretold()
    if planned is not None:
        return f"expected: {planned.text()}"
    if not budget.is_private:
        return None
    if strategy.scores_own_models:
        return (
            "expected: about what each client's model learns from its own data, which is not "
            "noised; what comes of the others' is seen beside strategy=local_only"
        )
    ratio = strategy.signal_to_noise()
    if ratio is None:
        return None
    accuracy = chance(strategy.setup.test.labels)
    if ratio < _NOTHING:
        reach = f"accuracy close to chance ({accuracy:.2f})"
    elif ratio < _LITTLE:
        reach = f"accuracy well below that without noise (chance {accuracy:.2f})"
    else:
        reach = f"accuracy near that without noise (chance {accuracy:.2f})"
    rounds = "1 round" if federation.num_rounds == 1 else f"{federation.num_rounds} rounds"
    line = (
        f"expected: {reach}: {federation.num_clients} clients share ε = {budget.epsilon:g} over "
        f"{rounds}, and what they agree on is {ratio:.2g} times as long as the noise"
    )
    if ratio >= _LITTLE:
        return line
    return f"{line}; {_help(experiment, ratio)}"


def _help(experiment: Experiment, ratio: float) -> str:
    """What would bring signal over noise to ``ENOUGH``."""
    strategy, federation = experiment.strategy, experiment.federation
    name = strategy.setup.strategy
    factor = ENOUGH / ratio
    if strategy.setup.budget.threat == "local":
        factor = factor**2  # noise of n clients grows as √n, where nobody's hides another's
    parts = [f"about {_rounded_up(federation.num_clients * factor):,} clients"]
    if federation.num_rounds > 1:
        parts.append("fewer rounds")
    if "labels" not in strategy.noise_facts():
        parts.append("fewer numbers to release (a smaller model, fewer features)")
    parts += strategy.would_help()
    if name != "class_statistics":
        parts.append("strategy=class_statistics")
    return (
        f"what would help: {', '.join(parts)}; `murmur advise settings strategy={name}` scores "
        "settings on public data"
    )


def after(experiment: Experiment, accuracy: float | None) -> str | None:
    """What to say of a finished run whose accuracy is no better than chance; else None."""
    labels = experiment.strategy.setup.test.labels
    if accuracy is None or not is_at_chance(accuracy, labels):
        return None
    return (
        f"this run learned nothing that can be seen: accuracy {accuracy:.3f} on {len(labels):,} "
        f"test examples, where always naming the most frequent class has {chance(labels):.3f}"
    )


def _rounded_up(number: float) -> int:
    """``number`` to two digits, upwards."""
    digit = 10 ** max(0, math.floor(math.log10(number)) - 1)
    return math.ceil(number / digit) * digit
