"""``murmur plan``: who gets which ε in KD-DPFL, and why, before anything is spent.

The words after it are settings as for a run (``privacy.epsilon=8 strategy.spending.ratio=2``), and
``--sizes 5x6000,40x500`` names the clients' sizes where no data is at hand. Exit status: 0, or 2
where the needs cannot be met, with the term that binds on standard error.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

import fl_app.console
from fl_app.config.building import build
from fl_app.config.composition import compose
from fl_app.config.errors import ConfigError
from fl_app.config.settings import FederationSettings
from murmur.papers.dpsgd import LocalDpSgd, Lots
from murmur.papers.kd_dpfl.budget import Grouping, Scheme, Spending, Uploads
from murmur.papers.kd_dpfl.labels import Labelling
from murmur.privacy.accounting import epsilon
from murmur.privacy.events import Event


@dataclass(frozen=True)
class Line:
    """One line of the plan: who, how many of them, through what, at which ε, by what, and why."""

    who: str
    clients: int
    through: str
    epsilon: str
    mechanism: str
    why: str


def main(argv: Sequence[str]) -> int:
    """Run the tool with the words after ``murmur plan``; the exit status."""
    options = _parser().parse_intermixed_args(argv)
    try:
        config = compose(["strategy=kd_dpfl", *options.overrides])
        scheme = scheme_of(config, _sizes(options.sizes), options.classes)
    except (ConfigError, ValueError) as error:
        print(f"murmur plan: {error}", file=sys.stderr)
        return 2
    lines, proven = plan_lines(scheme), proven_total(scheme)
    if options.json:
        plan = scheme.plan
        print(
            json.dumps(
                {
                    "epsilon": _jsonable(plan.total),
                    "delta": plan.delta,
                    "proven": _jsonable(proven),
                    "large": list(plan.large),
                    "lines": [asdict(line) for line in lines],
                }
            )
        )
        return 0
    _print(scheme, lines, proven)
    return 0


def scheme_of(config: DictConfig, sizes: Sequence[int] | None, classes: int | None) -> Scheme:
    """The scheme of a configuration; data is read only for what is not given otherwise.

    Raises ValueError or ConfigError where the needs cannot be met.
    """
    from fl_app.run.clients import promises

    federation: FederationSettings = build(config.federation, "federation")
    strategy = OmegaConf.to_container(config.strategy, resolve=True)
    if not isinstance(strategy, dict) or "spending" not in strategy:
        raise ConfigError(f"strategy={config.strategy.name}: only kd_dpfl has a budget to plan")
    sizes = sizes or strategy["sizes"] or _partition_sizes(config)
    pool = federation.public if isinstance(federation.public, int) else None
    if sizes is None or pool is None or classes is None:
        from fl_app.run.population import population

        people = population(config)
        sizes, pool = sizes or people.client_sizes(), len(people.public)
        classes = classes or people.dataset.num_classes
    special = {key: strategy["special"][key] for key in ("epochs", "lot_size")}
    return Scheme.of(
        promises(config)[0],
        sizes,
        classes=classes,
        pool=pool,
        grouping=Grouping(**strategy["grouping"]),
        spending=Spending(**strategy["spending"]),
        labelling=Labelling(**strategy["labelling"]),
        local=LocalDpSgd(**strategy["local"]),
        uploads=Uploads(**strategy["uploads"]),
        special=Lots(**special),
    )


def plan_lines(scheme: Scheme) -> list[Line]:
    """What each group spends, part by part; groups of equal size and budget share a line."""
    plan, lines = scheme.plan, []
    rounds = scheme.uploads.rounds
    for (size, label), clients in _alike((c, scheme.sizes[c], plan.label[c]) for c in plan.label):
        words = scheme.labelling.describe(label, plan.delta, size)
        joins = clients[0] in plan.general
        why = "what the total leaves" if plan.special or joins else "all of the total"
        lines.append(Line("large", len(clients), "pseudo-labels", _show(label), words, why))
    if plan.label and not math.isinf(plan.total):
        why = "post-processing of private labels"
        words = "no noise"
        if plan.special:
            size = scheme.labelling.count
            words = scheme.special.describe(plan.special, plan.delta, size)
            why = "r times the general clients' ε"
        count = len(plan.label)
        lines.append(
            Line("large", count, "the special client's uploads", _show(plan.special), words, why)
        )
    for (size, each), clients in _alike(
        (c, scheme.sizes[c], plan.general[c]) for c in plan.general
    ):
        words = "no noise"
        if not math.isinf(each):
            words = scheme.uploads.describe(each, plan.delta, size)
        who = "large" if clients[0] in plan.large else "general"
        why = f"sequential over {rounds} rounds"
        lines.append(Line(who, len(clients), "own uploads", _show(each), words, why))
    return lines


def proven_total(scheme: Scheme) -> float:
    """ε of the most exposed client's whole path, composed and converted once."""
    clients = {*scheme.plan.label, *scheme.plan.general}
    events: set[Event] = {scheme.whole_path(client) for client in clients}
    return max(epsilon(event, scheme.plan.delta).epsilon for event in events)


def _alike(
    clients: Iterable[tuple[int, int, float]],
) -> list[tuple[tuple[int, float], list[int]]]:
    groups: dict[tuple[int, float], list[int]] = {}
    for client, size, spent in clients:
        groups.setdefault((size, spent), []).append(client)
    return list(groups.items())


def _partition_sizes(config: DictConfig) -> list[int] | None:
    """Sizes that the partition itself names; None where they follow from the data."""
    partition = OmegaConf.to_container(config.partition, resolve=True)
    if not isinstance(partition, dict):
        return None
    if partition.get("sizes"):
        return [int(size) for size in partition["sizes"]]
    groups = partition.get("groups") or {}
    return [int(g["size"]) for g in groups.values() for _ in range(int(g["count"]))] or None


def _sizes(text: str | None) -> list[int] | None:
    """``5x6000,500`` as five times 6000 and once 500; None for none."""
    sizes: list[int] = []
    for word in text.split(",") if text else ():
        count, cross, size = word.rpartition("x")
        try:
            sizes += [int(size)] * (int(count) if cross else 1)
        except ValueError:
            raise ValueError(f"--sizes {word}: write COUNTxSIZE, such as 5x6000") from None
    if sizes and min(sizes) < 1:
        raise ValueError(f"--sizes: must be at least 1, got {min(sizes)}")
    return sizes or None


def _show(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.4g}"


def _jsonable(value: float) -> float | str:
    return "infinity" if math.isinf(value) else value


def _print(scheme: Scheme, lines: Sequence[Line], proven: float) -> None:
    from rich.table import Table

    plan, console = scheme.plan, fl_app.console.console(highlight=False)
    table = Table(
        title=f"ε = {_show(plan.total)} at δ = {plan.delta:g}, {len(scheme.sizes)} clients"
    )
    for name in ("whose records", "clients", "exposed through", "ε", "mechanism", "why"):
        table.add_column(name, justify="right" if name in ("clients", "ε") else "left")
    for line in lines:
        table.add_row(*(str(value) for value in asdict(line).values()))
    console.print(table)
    parts: Any = [
        _show(max((plan.sum_of(c) for c in group), default=0.0)) for group in _paths(scheme)
    ]
    console.print(
        f"by the plan: max(large {parts[0]}, general {parts[1]}): parallel across clients"
    )
    console.print(f"proven for the most exposed record: {_show(proven)} (composed, converted once)")


def _paths(scheme: Scheme) -> tuple[list[int], list[int]]:
    plan = scheme.plan
    return list(plan.label), [client for client in plan.general if client not in plan.label]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="murmur plan", description="Who gets which ε in KD-DPFL, and why."
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings, as for a run")
    parser.add_argument("--sizes", metavar="NxSIZE,...", help="such as 5x6000,40x500")
    parser.add_argument("--classes", type=int, help="number of classes, where no data is at hand")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser
