"""KD-DPFL: who is large, who may spend which ε, and what each path of a record costs.

Tan, Xu, Wang, Luo: "Differential privacy federated learning method based on knowledge
distillation", Computer Science 51(6A), 2024 (abstract; the rest is this project's reading).

    ε_total = max(max_i ε_g,i, ε_label + ε_s + ε_join)          ε_s = r · max_i ε_g,i

A general client is exposed by its own uploads (ε_g). A large client is exposed by the pseudo-labels
of its teachers (ε_label), in the reading of the abstract also by the uploads of the special client
that trains on them (ε_s), and by its own uploads where it joins the federated stage (ε_join).
Clients are disjoint, so that the maximum over them counts. ``mode="tight"`` is what is provable:
training on private labels is post-processing, and ε_s = 0.

Every part is calibrated at the run's δ; what a path costs as a whole is composed from its events
and converted once, at the same δ. Units: one record, or with ``Budget.unit`` all of a client's,
nulled or not. Symbols: r = ``ratio``, q = ``queries``. Both halves of the algorithm and
``python -m research.kd_dpfl.budget`` read one ``Scheme``.

First come the user's settings (``Grouping``, ``Spending``, ``Uploads``), then ``Plan``, which turns
them into an ε for everybody, then ``Scheme``, which adds the mechanisms and prices each path.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from murmur.algorithms.dpsgd import LocalDpSgd, Lots
from murmur.algorithms.kd_dpfl.labels import Labelling, NoisyModel
from murmur.format import format_number
from murmur.privacy.budget import Budget
from murmur.privacy.events import ComposedEvent, Event, NonPrivateEvent, RepeatedEvent
from murmur.privacy.mechanisms.sampled_gaussian import LotSchedule
from murmur.settings import Norm, settings

_RELATIVE_TOLERANCE = 1e-9
Amount = float | Sequence[float] | None  # an ε, or one for each client


@settings
class Grouping:
    """Which clients are large, by public sizes.

    Attributes:
        factor: those with at least so many times the median size; above 0.
        top_k: instead, the so many largest; the lower id first where sizes are equal. None: by
            ``factor``.
    """

    factor: Annotated[float, Field(gt=0)] = 5.0
    top_k: int | None = None

    def large(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Ids of the large clients, ascending; possibly none.

        Args:
            sizes: examples of every client, by id.

        Raises:
            ValueError: ``top_k`` is larger than the number of clients, or below 0.
        """
        if self.top_k is None:
            least = self.factor * float(np.median(sizes))
            return tuple(client for client, size in enumerate(sizes) if size >= least)
        if not 0 <= self.top_k <= len(sizes):
            raise ValueError(
                f"top_k={self.top_k}: must lie in 0..{len(sizes)}, the number of clients"
            )
        order = sorted(range(len(sizes)), key=lambda client: (-sizes[client], client))
        return tuple(sorted(order[: self.top_k]))


@settings
class Spending:
    """ε and δ that the parties ask for; ``Plan.of`` says which are possible.

    Attributes:
        mode: ``conservative``, the reading of the abstract in which the special client's uploads
            cost ε_s; or ``tight``, in which they are post-processing. None: the abstract's for the
            paper's budget, else the one that is provable.
        general_epsilon: ε_g; a number, or one for each client of the federated stage in the order
            of ids; None for 3/8 of the total (conservative; 1/4 if large clients join) or all of it
            (tight; 1/2).
        rule: ``equal``, or ``by_size``: in proportion to sizes, the number being the largest.
        ratio: r, at least 1; read in conservative mode only.
        joining: whether large clients join the federated stage.
        label_epsilon: at most what is left for labels; a number, or one for each large client; None
            for all that is left.
        special: whether there is a special client; without one, a control that labels nothing.
        general: whether general clients train; without them, a control that only learns from
            labels.

    Raises:
        ValueError: nobody would train, or the ratio is below 1.
    """

    mode: Literal["conservative", "tight"] | None = "conservative"
    general_epsilon: Annotated[float, Field(ge=1e-9)] | Sequence[float] | None = None
    rule: Literal["equal", "by_size"] = "equal"
    ratio: float = 1.5
    joining: bool = False
    label_epsilon: Amount = None
    special: bool = True
    general: bool = True

    def __post_init__(self) -> None:
        if not (self.special or self.general):
            raise ValueError("special=False: then general clients must train (general=true)")
        if not self.ratio >= 1:
            raise ValueError(f"ratio={self.ratio}: must be at least 1 (above 1 to favour labels)")

    @property
    def default_share(self) -> float:
        """ε_g/ε_total where nobody asks: all of it where no path adds to it."""
        if not self.special:
            return 1.0
        if self.mode == "conservative":
            if self.joining:
                return 1 / 4
            return 3 / 8
        if self.joining:
            return 1 / 2
        return 1.0


@settings
class Uploads:
    """Protection of general clients' models.

    Attributes:
        noise: ``dpsgd``, their own DP-SGD; or ``nbafl``, ``NoisyModel`` after open training.
        clip: C of ``NoisyModel``; not read with ``dpsgd``.
    """

    noise: Literal["dpsgd", "nbafl"]
    clip: Norm


@settings
class Sections:
    """Sections of ``conf/strategy/kd_dpfl.yaml`` that both halves read alike.

    Attributes:
        grouping: who is large.
        spending: who asks for what.
        labelling: how labels are made and protected.
        local: the general clients' DP-SGD.
        uploads: what protects their models.
    """

    grouping: Grouping
    spending: Spending
    labelling: Labelling
    local: LocalDpSgd
    uploads: Uploads


@dataclass(frozen=True)
class Plan:
    """Who may spend what; ids to ε. Infinite where nothing is private.

    Attributes:
        total: ε_total, of every client's paths together.
        delta: δ, at which every part is calibrated and every path is converted.
        large: ids of the large clients, ascending.
        general: clients of the federated stage, large ones that join it included; ε_g of each, for
            all its uploads together.
        label: the large clients whose teachers label; ε_label of each, for all labels together.
        special: ε_s, for all rounds of the special client together; 0 if its uploads are
            post-processing and carry no noise.
    """

    total: float
    delta: float
    large: tuple[int, ...]
    general: Mapping[int, float] = field(default_factory=dict)
    label: Mapping[int, float] = field(default_factory=dict)
    special: float = 0.0

    @classmethod
    def of(
        cls, budget: Budget, sizes: Sequence[int], grouping: Grouping, asked: Spending
    ) -> "Plan":
        """Share the total of ``budget`` by what is ``asked``.

        Args:
            budget: its ε is the total.
            sizes: examples of every client, by id; public.
            grouping: who is large.
            asked: what the parties want.

        Raises:
            ValueError: that cannot be met; the message names the term that binds.
        """
        total = budget.epsilon
        large = grouping.large(sizes)
        if asked.special and not large:
            raise ValueError(
                "large=[]: no client is large, so nobody teaches; lower grouping.factor, or set "
                "grouping.top_k"
            )
        training: list[int] = []
        if asked.general:
            training = [c for c in range(len(sizes)) if asked.joining or c not in set(large)]
            if not training:
                raise ValueError("general=true: every client is large; raise grouping.factor")
        plan = cls(total, budget.delta, large)
        if math.isinf(total):
            everything = dict.fromkeys(large if asked.special else (), math.inf)
            return replace(plan, general=dict.fromkeys(training, math.inf), label=everything)
        general = _general(total, sizes, training, asked)
        shares = list(general.values())
        if not all(0 < each <= total for each in shares):
            raise ValueError(f"general={shares}: must lie above 0 and at most the total {total:g}")
        plan = replace(plan, general=general)
        if not asked.special:
            return plan
        special = 0.0
        if asked.mode == "conservative" and asked.general:
            special = asked.ratio * max(general.values())
        joining = max((general[client] for client in large if client in general), default=0.0)
        left = left_for_labels(total, special, joining)
        return replace(plan, label=_label(left, large, asked.label_epsilon), special=special)

    def sum_of(self, client: int) -> float:
        """Basic composition of a client's cost over all its paths, by the plan.

        The paper's arithmetic, for its claim; what is proven comes from ``Scheme.path``.
        """
        spent = self.general.get(client, 0.0)
        if client in self.label:
            spent += self.label[client] + self.special
        return spent


def left_for_labels(total: float, special: float, joining: float) -> float:
    """ε_label = ε_total − ε_s − ε_join.

    Args:
        total: ε_total.
        special: ε_s; 0 in tight mode.
        joining: ε_g of a large client that also takes part in the federated stage (0: none does).

    Raises:
        ValueError: nothing is left.
    """
    left = total - special - joining
    if left > 0:
        return left
    raise ValueError(
        f"total={total}: leaves {left:g} for the labels after the special client's {special:g} and "
        f"{joining:g} for joining; must exceed {special + joining:g}: raise the total, or lower "
        "the general clients' budget or the ratio"
    )


def _general(
    total: float, sizes: Sequence[int], training: Sequence[int], asked: Spending
) -> dict[int, float]:
    if not training:
        return {}
    each = asked.general_epsilon
    if each is None:
        each = total * asked.default_share
    found = _for_each("general_epsilon", each, training, "clients of the federated stage")
    if isinstance(each, Sequence) or asked.rule == "equal":
        return found
    largest = max(sizes[client] for client in training)
    return {client: found[client] * sizes[client] / largest for client in training}


def _label(left: float, large: Sequence[int], asked: Amount) -> dict[int, float]:
    if asked is None:
        asked = left
    found = _for_each("label_epsilon", asked, large, "large clients")
    if not all(0 < epsilon <= left for epsilon in found.values()):
        raise ValueError(
            f"label_epsilon={list(found.values())}: must lie above 0 and at most {left:g}, which "
            "is what the total leaves for the labels"
        )
    return found


def _for_each(
    name: str, asked: float | Sequence[float], clients: Sequence[int], who: str
) -> dict[int, float]:
    """The ε that is ``asked`` for each of ``clients``; ValueError where it is for more or fewer."""
    if not isinstance(asked, Sequence):
        return dict.fromkeys(clients, float(asked))
    if len(asked) != len(clients):
        raise ValueError(
            f"{name}={list(asked)}: names {len(asked)} budgets for {len(clients)} {who}; give a "
            "number, or one for each"
        )
    return dict(zip(clients, map(float, asked), strict=True))


@dataclass(frozen=True)
class Scheme:
    """Who is large, who spends what, and on which mechanisms.

    Whoever adds noise and whoever states its price ask the same object. It holds for neighbours
    that differ in one record, nulled or not, and an adversary that reads labels and all uploads.

    Attributes:
        sizes: examples of every client, by id; they set the sampling rates.
        plan: ε of every part.
        labelling: how labels are made and protected, for this pool and these classes.
        uploads: the lots of the general clients over all rounds, or the noise on their models.
        special: the lots of the special client over all rounds.
    """

    sizes: tuple[int, ...]
    plan: Plan
    labelling: Labelling
    uploads: LotSchedule | NoisyModel
    special: LotSchedule

    @classmethod
    def of(
        cls,
        budget: Budget,
        sizes: Sequence[int] | None,
        asked: Sections,
        special: Lots,
        *,
        classes: int,
        pool: int,
    ) -> "Scheme":
        """From the sections of ``conf/strategy/kd_dpfl.yaml``.

        Args:
            budget: for the whole run.
            sizes: examples of every client, by id; public.
            asked: what both halves agree on.
            special: lots of the special client's DP-SGD.
            classes: C.
            pool: size of the public set.

        Raises:
            ValueError: sizes are not public, settings cannot work, or a large client's parts
                compose to more than the total.
        """
        if sizes is None:
            raise ValueError(
                "sizes=null: the grouping needs every client's size; publish them in strategy.sizes"
            )
        unit = budget.record_unit
        spending = asked.spending
        if spending.mode is None and budget.paper_semantics:
            spending = replace(spending, mode="conservative")
        if asked.labelling.mechanism == "none" and spending.special and budget.is_private:
            raise ValueError(
                "labelling.mechanism='none': pseudo-labels without noise tell of the large "
                "clients' records; take dpsgd_teacher, pate or rr, or mark the whole run as not "
                "private with privacy=none"
            )
        plan = Plan.of(budget, sizes, asked.grouping, spending)
        paid: LotSchedule | NoisyModel = asked.local.schedule(budget.rounds, unit)
        if asked.uploads.noise == "nbafl":
            paid = NoisyModel(asked.uploads.clip, budget.rounds)
        scheme = cls(
            tuple(sizes),
            plan,
            asked.labelling.over(pool, classes, clients=max(1, len(plan.label)), unit=unit),
            paid,
            special.schedule(budget.rounds, unit),
        )
        scheme._require_total()
        return scheme

    def label_event(self, client: int) -> Event:
        """Event of a large client's labels for its records; KeyError unless it labels.

        ValueError where no noise keeps its ε.
        """
        epsilon = self.plan.label[client]
        try:
            return self.labelling.event(epsilon, self.plan.delta, self.sizes[client])
        except ValueError as error:
            reason = str(error).partition(": ")[2]
            raise ValueError(f"label_epsilon={epsilon:g}: {reason}") from error

    def kept(self, client: int) -> float:
        """The share of a large client's labels that randomised response keeps, before lies."""
        return self.labelling.randomiser(self.plan.label[client], self.plan.delta).keep

    def upload_event(self, client: int) -> Event:
        """Event of one upload for a client's records; KeyError unless it trains."""
        epsilon = self.plan.general[client]
        if math.isinf(epsilon):
            return NonPrivateEvent()
        return self.uploads.event(epsilon, self.plan.delta, self.sizes[client])

    def special_event(self) -> Event | None:
        """Event of one upload of the special client; None where it is post-processing.

        DP-SGD hides one labelled image. The abstract adds what that costs to the labels, although
        training on private labels is post-processing.
        """
        if not self.plan.special:
            return None
        return self.special.event(self.plan.special, self.plan.delta, self.labelling.count)

    def path(self, client: int, *, labelled: bool, uploads: int, special: int) -> Event:
        """All that is released of ``client``, composed; nothing where nothing was.

        Args:
            client: its id.
            labelled: whether its labels may have left.
            uploads: how often it has uploaded a model.
            special: in how many rounds the special client has trained; counted where it labelled.
        """
        parts: list[Event] = []
        if labelled:
            parts.append(self.label_event(client))
            event = self.special_event()
            if event is not None and special:
                parts.append(RepeatedEvent(event, special))
        if uploads:
            parts.append(RepeatedEvent(self.upload_event(client), uploads))
        return ComposedEvent(tuple(parts))

    def whole_path(self, client: int) -> Event:
        """``path`` over all rounds of the run, as if the client were asked in each."""
        rounds = self.uploads.rounds
        return self.path(
            client,
            labelled=client in self.plan.label,
            uploads=rounds if client in self.plan.general else 0,
            special=rounds,
        )

    def _require_total(self) -> None:
        """Large clients' parts are calibrated one by one; their composition must fit as well."""
        from murmur.privacy.accounting import epsilon

        plan = self.plan
        if math.isinf(plan.total):
            return
        for event, client in {self.whole_path(c): c for c in plan.label}.items():
            spent = epsilon(event, plan.delta).epsilon
            if spent > plan.total * (1 + _RELATIVE_TOLERANCE):
                raise ValueError(
                    f"spending.mode: large client {client} would spend {format_number(spent)} of "
                    f"epsilon={plan.total:g} once its labels and its uploads are composed at "
                    f"δ={plan.delta:g}; lower spending.label_epsilon"
                )
