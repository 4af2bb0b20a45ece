"""Who gets which ε in KD-DPFL, and why: ``python -m research.kd_dpfl.budget SETTING ...``.

The words are settings as for a run (``privacy.epsilon=8 strategy.spending.ratio=2``), and
``--sizes 5x6000,40x500`` names the clients' sizes where no data is at hand. The plan itself is
``murmur.algorithms.kd_dpfl.budget.Scheme``, which both halves of the algorithm read: what is
printed here is what a run does with ``privacy=paper``, the abstract's arithmetic for records; with
``privacy.paper=false`` it is that of any other run. Needs that cannot be met are refused with the
term that binds.
"""

import argparse
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from omegaconf import DictConfig, OmegaConf

import fl_app.console
from fl_app.config import compose, errors, instantiate, settings
from fl_app.run.progress import format_epsilon
from murmur.algorithms.dpsgd import LocalDpSgd, Lots
from murmur.algorithms.kd_dpfl.budget import Grouping, Scheme, Sections, Spending, Uploads
from murmur.algorithms.kd_dpfl.labels import Labelling
from murmur.privacy.accounting import epsilon


@dataclass(frozen=True)
class PlanRow:
    """One line of the plan, alike for ``clients`` of them.

    Attributes:
        who: whose records: ``large`` or ``general`` clients'.
        clients: how many of them are alike in size and budget.
        through: what exposes the records: pseudo-labels or uploads.
        epsilon: what that costs each of them, as shown.
        mechanism: its noise in words.
        why: what makes it that ε.
    """

    who: str
    clients: int
    through: str
    epsilon: str
    mechanism: str
    why: str


def main(argv: Sequence[str] | None = None) -> None:
    """Print the plan as a table, or why there is none."""
    try:
        _print(scheme_of(sys.argv[1:] if argv is None else argv))
    except (errors.ConfigError, ValueError) as error:
        sys.exit(str(error))


def scheme_of(argv: Sequence[str]) -> Scheme:
    """The scheme that the words of the command mean.

    Data is read only for what is not given otherwise: sizes of clients that neither the words nor
    the strategy nor the partition name, the pool, and the classes.

    Raises:
        ConfigError: another strategy.
        ValueError: the needs cannot be met; the text names the term that binds.
    """
    from fl_app.run.hosts import budget_and_schedule

    parser = argparse.ArgumentParser(prog="python -m research.kd_dpfl.budget", description=__doc__)
    parser.add_argument("overrides", nargs="*", metavar="SETTING", help="settings, as for a run")
    parser.add_argument("--sizes", metavar="NxSIZE,...", help="such as 5x6000,40x500")
    parser.add_argument("--classes", type=int, help="number of classes, where no data is at hand")
    options = parser.parse_intermixed_args(argv)
    config = compose.compose(["strategy=kd_dpfl", "++privacy.paper=true", *options.overrides])
    federation: settings.FederationSettings = instantiate.build(config.federation, "federation")
    strategy = OmegaConf.to_container(config.strategy, resolve=True)
    if not isinstance(strategy, dict) or "spending" not in strategy:
        raise errors.ConfigError(
            f"strategy={config.strategy.name}: only kd_dpfl has a budget to plan"
        )
    sizes = _sizes(options.sizes) or strategy["sizes"] or _partition_sizes(config)
    classes = options.classes
    pool = None
    if isinstance(federation.public, int):
        pool = federation.public
    if sizes is None or pool is None or classes is None:
        from fl_app.run.population import population

        people = population(config)
        sizes = sizes or people.client_sizes()
        pool = len(people.public)
        classes = classes or people.dataset.num_classes
    special = {key: strategy["special"][key] for key in ("epochs", "lot_size")}
    return Scheme.of(
        budget_and_schedule(config)[0],
        sizes,
        Sections(
            Grouping(**strategy["grouping"]),
            Spending(**strategy["spending"]),
            Labelling(**strategy["labelling"]),
            LocalDpSgd(**strategy["local"]),
            Uploads(**strategy["uploads"]),
        ),
        Lots(**special),
        classes=classes,
        pool=pool,
    )


def plan_lines(scheme: Scheme) -> list[PlanRow]:
    """Lists the spending of each group of clients and its purpose.

    Returns:
        Pseudo-labels, the special client's uploads, own uploads; clients of equal size and budget
        share a line. Without protection there is nothing to say of the special client.
    """
    plan = scheme.plan
    lines = []
    for size, label, clients in _alike(scheme, plan.label):
        words = scheme.labelling.describe(label, plan.delta, size)
        why = "all of the total"
        if plan.special or clients[0] in plan.general:  # who joins uploads as well
            why = "what the total leaves"
        lines.append(
            PlanRow("large", len(clients), "pseudo-labels", format_epsilon(label), words, why)
        )
    if plan.label and not math.isinf(plan.total):
        # What the model that the server trains on pseudo-labels costs the large clients; nothing
        # in ``tight`` mode, since it follows from labels that are private already.
        words = "no noise"
        why = "post-processing of private labels"
        if plan.special:
            words = scheme.special.describe(plan.special, plan.delta, scheme.labelling.count)
            why = "r times the general clients' ε"
        through = "the special client's uploads"
        cost = format_epsilon(plan.special)
        lines.append(PlanRow("large", len(plan.label), through, cost, words, why))
    for size, each, clients in _alike(scheme, plan.general):
        words = "no noise"
        if not math.isinf(each):
            words = scheme.uploads.describe(each, plan.delta, size)
        who = "general"
        if clients[0] in plan.large:
            who = "large"
        why = f"sequential over {scheme.uploads.rounds} rounds"
        lines.append(PlanRow(who, len(clients), "own uploads", format_epsilon(each), words, why))
    return lines


def proven_total(scheme: Scheme) -> float:
    """ε of the most exposed client's whole path, composed and converted once at the plan's δ."""
    clients = {*scheme.plan.label, *scheme.plan.general}
    events = {scheme.whole_path(client) for client in clients}
    return max(epsilon(event, scheme.plan.delta).epsilon for event in events)


def _alike(scheme: Scheme, spent: Mapping[int, float]) -> Iterable[tuple[int, float, list[int]]]:
    """Clients of equal size and ε together.

    ``spent``: client -> ε of one part of the plan.

    Yields:
        Examples of each, ε of each, and which clients they are.
    """
    groups: dict[tuple[int, float], list[int]] = {}
    for client, each in spent.items():
        groups.setdefault((scheme.sizes[client], each), []).append(client)
    for (size, each), clients in groups.items():
        yield size, each, clients


def _partition_sizes(config: DictConfig) -> list[int] | None:
    """Sizes that the partition itself names, by ``groups``.

    Returns:
        None where they follow from the data.
    """
    partition = OmegaConf.to_container(config.partition, resolve=True)
    if not isinstance(partition, dict):
        return None
    groups = partition.get("groups") or {}
    return [int(g["size"]) for g in groups.values() for _ in range(int(g["count"]))] or None


def _sizes(text: str | None) -> list[int] | None:
    """``5x6000,500`` as five times 6000 and once 500.

    Returns:
        None where no sizes are given.

    Raises:
        ValueError: a word that is not of that form, or a size below 1.
    """
    if not text:
        return None
    sizes: list[int] = []
    for word in text.split(","):
        count, cross, size = word.rpartition("x")
        try:
            times = 1
            if cross:
                times = int(count)
            sizes += [int(size)] * times
        except ValueError:
            raise ValueError(f"--sizes {word}: write COUNTxSIZE, such as 5x6000") from None
    if sizes and min(sizes) < 1:
        raise ValueError(f"--sizes: must be at least 1, got {min(sizes)}")
    return sizes or None


def _print(scheme: Scheme) -> None:
    """Print the plan for people: its lines, the plan's own sum, and what is proven.

    The plan's sum adds parts up (sequential composition) and takes the maximum over disjoint
    clients; ``proven`` is composed from events and converted once.
    """
    from rich.table import Table

    plan = scheme.plan
    whom = "for a record, against a server that reads every message"
    total = f"ε = {format_epsilon(plan.total)} at δ = {plan.delta:g}"
    table = Table(title=f"{total} {whom}; {len(scheme.sizes)} clients")
    for name in ("whose records", "clients", "exposed through", "ε", "mechanism", "why"):
        justify = "left"
        if name in ("clients", "ε"):
            justify = "right"
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for line in plan_lines(scheme):
        table.add_row(*(str(value) for value in asdict(line).values()))
    large = max((plan.sum_of(client) for client in plan.label), default=0.0)
    others = [client for client in plan.general if client not in plan.label]
    general = max((plan.sum_of(client) for client in others), default=0.0)
    console = fl_app.console.console(highlight=False)
    console.print(table)
    each = f"large {format_epsilon(large)}, general {format_epsilon(general)}"
    console.print(f"by the plan: max({each}): parallel across clients")
    proven = format_epsilon(proven_total(scheme))
    console.print(f"proven for the most exposed record: {proven} (composed, converted once)")


if __name__ == "__main__":
    main()
