"""The advice of ``murmur advise`` as a table and as a picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import fl_app.console

if TYPE_CHECKING:
    from fl_app.tools.advise import Advice

_ROWS = 12
MORE_CLIENTS = (
    "More clients help at a fixed m only: with the same data split over more of them (m = n/N) the "
    "mean has as much noise or more, and the bound gains nothing."
)


def show(advice: Advice) -> None:
    """Setting, constants, both tables and the optima."""
    console = fl_app.console.console(highlight=False)
    noise = advice.setting.noise
    console.print(
        f"NbAFL: ε={noise.epsilon:g}, δ={noise.delta:g}, N={noise.clients}, K={noise.scheduled}, "
        f"T={noise.rounds}, L={noise.exposures}, m={noise.smallest_dataset}, C={noise.clip:g}, "
        f"{noise.sensitivity} sensitivity, {noise.calibration} calibration",
        soft_wrap=True,
    )
    console.print(_constants(advice))
    if advice.failure is not None:
        instead = (
            "The measured curve stands in: what the estimating run saw, not a bound."
            if "measured" in advice.curves
            else "The curves below assume a μ that is large enough."
        )
        console.print(f"The paper's assumption fails: {advice.failure}. {instead}", soft_wrap=True)
    sigma = advice.setting.sigma
    console.print(
        _table(
            advice,
            "rounds T",
            _spread(advice.max_rounds, advice.best_rounds, noise.rounds),
            (advice.best_rounds, noise.rounds),
            advice.over_rounds,
            lambda rounds: sigma(rounds=rounds),
        ),
        _table(
            advice,
            "clients per round K",
            _spread(noise.clients, advice.best_scheduled, noise.scheduled),
            (advice.best_scheduled, noise.scheduled),
            advice.over_scheduled,
            lambda scheduled: sigma(scheduled=scheduled),
        ),
    )
    edge = " or more" if advice.best_rounds == advice.max_rounds else ""
    console.print(
        f"Best T: {advice.best_rounds}{edge} (federation.num_rounds). Best K at T={noise.rounds}: "
        f"{advice.best_scheduled} (federation.clients_per_round).",
        soft_wrap=True,
    )
    others = zip(advice.curves, advice.rounds_by_curve(), advice.scheduled_by_curve(), strict=True)
    for name, rounds, scheduled in list(others)[1:]:
        console.print(f"By the {name}: T={rounds}, K={scheduled}.", soft_wrap=True)
    console.print(MORE_CLIENTS, soft_wrap=True)


def draw(advice: Advice, path: Path) -> None:
    """Both curves, optima marked."""
    from matplotlib.figure import Figure

    noise = advice.setting.noise
    figure = Figure(figsize=(8, 3.2), dpi=120, layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes, choices, curves, best, label in (
        (left, range(1, advice.max_rounds + 1), advice.over_rounds, advice.best_rounds, "rounds T"),
        (
            right,
            range(1, noise.clients + 1),
            advice.over_scheduled,
            advice.best_scheduled,
            f"clients per round K, T={noise.rounds}",
        ),
    ):
        values = [curves(choice) for choice in choices]
        for place, name in enumerate(advice.curves):
            axes.plot(choices, [value[place] for value in values], label=name)
        axes.axvline(best, linestyle="--", color="tab:gray", label=f"best: {best}")
        axes.set(xlabel=label, ylabel="loss above the optimum", yscale="log")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    print(f"picture: {path}")


def _constants(advice: Advice):  # type: ignore[no-untyped-def]
    from rich.table import Table

    from fl_app.tools.advise import LETTERS

    table = Table("constant", "value", "source", title="Constants of the bound")
    for name, words in LETTERS.items():
        value = getattr(advice.constants, name)
        table.add_row(words, f"{value:.4g}", advice.source[name])
    if advice.constants.failure() is None:
        table.add_row("P, contraction of a round", f"{advice.constants.contraction:.4g}", "bound")
    measured = advice.curves.get("measured")
    if measured is not None:
        table.add_row("P, as measured", f"{measured.contraction:.4g}", advice.source["gap"])
        table.add_row(
            "curvature against noise, as measured",
            f"{2 * measured.quadratic:.4g}",
            advice.source["gap"],
        )
        table.add_row(
            "what a round leaves of noise's cost", f"{measured.retention:.4g}", advice.source["gap"]
        )
    return table


def _table(  # type: ignore[no-untyped-def]
    advice: Advice,
    label: str,
    choices: list[int],
    marked: tuple[int, int],
    curves: Callable[[int], list[float]],
    sigma: Callable[[int], float],
):
    from rich.table import Table

    best, own = marked
    table = Table(label, "noise s", *advice.curves, "", title=f"Over {label}")
    for choice in choices:
        notes = ["best"] * (choice == best) + ["yours"] * (choice == own)
        cells = [f"{value:.4g}" for value in curves(choice)]
        table.add_row(str(choice), f"{sigma(choice):.3g}", *cells, " · ".join(notes))
    return table


def _spread(largest: int, *wanted: int) -> list[int]:
    """About a dozen values from 1 to ``largest``, evenly on a logarithmic scale, and ``wanted``."""
    even = {round(largest ** (i / (_ROWS - 1))) for i in range(_ROWS)}
    return sorted({*even, *(w for w in wanted if w <= largest)})
