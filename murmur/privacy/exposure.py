"""What each adversary has seen of a run's clients: functions of (event, participations, sums).

Figures are about what may have been released, whether or not it arrived. ε is derived from events
whenever a statement is made; nothing here is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from murmur.privacy import accounting
from murmur.privacy.accounting import Adjacency, Threat, Unit
from murmur.privacy.events import (
    ComposedEvent,
    Event,
    RepeatedEvent,
    SummedEvent,
    UnknownEvent,
    repeated,
)
from murmur.privacy.guarantee import Exposure, by_participations

CURIOUS_SERVER = "a server that reads every message"
SUMMING_SERVER = "a server that sees only sums"
_EVALUATED = "what is proven includes the protected evaluation, what is claimed does not"

Claimed = tuple[float | None, float | None]
"""ε of one round and of the whole run by a paper's theorem; None, each by itself: it states none.

Printed beside what is proven, never charged.
"""


@dataclass(frozen=True)
class Claims:
    """The privacy claims of an algorithm, each computed when it is asked for.

    Attributes:
        exposures: What each adversary has seen of every client so far.
        spent: What the most exposed client has released so far, as the budget's adversary sees it.
        planned: All that the run will release of the client that it asks most often, as the
            budget's adversary sees it. It must cost no more than the budget allows.
        claimed: ε of one round and of the whole run by the paper's theorem.
        before: An answer before the rounds, where it is another release than the rounds'.
        alike: Whether every client's answer in a round is the same event.
    """

    exposures: Callable[[], list[Exposure]]
    spent: Callable[[], Event]
    planned: Callable[[], Event]
    claimed: Claimed = (None, None)
    before: Event | None = None
    alike: bool = True


@dataclass(frozen=True)
class SumFacts:
    """Sizes and weights of a sum, from which the noise of the other clients follows.

    They describe the smallest sum that the settings allow, as the client's own ledger is charged,
    less those who may side with the server. A larger sum is known afterwards only, and not counted.

    Attributes:
        survivors: Clients of every sum.
        colluders: Clients of a sum who may side with the server.
        failure: Probability that share holders were drawn badly, which is added to δ.
        weight_of: A client's weight in the sum.
        least_weight, greatest_weight: The bounds on all clients' weights.
        adversary: Who sees the sums and no message, in words.
    """

    survivors: int
    colluders: int
    failure: float
    weight_of: Callable[[int], int]
    least_weight: int = 1
    greatest_weight: int = 1
    adversary: str = SUMMING_SERVER

    @property
    def honest(self) -> int:
        """Clients whose noise counts."""
        return max(1, self.survivors - self.colluders)

    def hide(self, release: Event, weight: int) -> SummedEvent:
        """Returns ``release`` of a client of ``weight``, seen in a sum only."""
        return SummedEvent(
            release,
            self.honest,
            weight,
            self.least_weight,
            self.greatest_weight,
            failure=self.failure,
        )


def seen_by(threat: str, release: Event, sums: SumFacts | None) -> Event:
    """Returns ``release`` as ``threat`` sees it, of the client of most weight.

    That one is hidden least. ``sums``: None where no sum is seen alone.
    """
    if threat != Threat.SECURE_AGGREGATION or sums is None:
        return release
    return sums.hide(release, sums.greatest_weight)


def by_messages(
    release: Event, participations: Mapping[int, int], claimed: Claimed = (None, None)
) -> Exposure:
    """Returns what a server that reads messages has seen.

    ``participations``: how often each client released ``release``.
    """
    counts = {str(client): count for client, count in sorted(participations.items())}
    per_round, total = claimed
    return Exposure(
        threat=Threat.LOCAL,
        adversary=CURIOUS_SERVER,
        per_round=release,
        clients=by_participations(release, counts or {"nobody": 0}),
        claimed_per_round=per_round,
        claimed_total=total,
    )


def by_sums(
    release: Event, participations: Mapping[int, int], sums: SumFacts, conditions: Iterable[str]
) -> Exposure:
    """Returns what a server that sees sums only has learned of every client.

    That so many are honest is an assumption, which the statement names. ``conditions``: what keeps
    the server from more than sums.
    """
    by_weight: dict[int, dict[str, int]] = {}
    for client, count in sorted(participations.items()):
        by_weight.setdefault(sums.weight_of(client), {})[str(client)] = count
    clients: dict[str, Event] = {}
    for weight, counts in by_weight.items():
        clients |= by_participations(sums.hide(release, weight), counts)
    return Exposure(
        threat=Threat.SECURE_AGGREGATION,
        adversary=sums.adversary,
        per_round=sums.hide(release, sums.greatest_weight),
        clients=clients or by_participations(release, {"nobody": 0}),
        assumptions=(
            f"at least {sums.honest} of the {sums.survivors} clients of every sum are honest",
            *conditions,
        ),
    )


def by_paths(
    release: Event, paths: Mapping[int, Event], adversary: str, claimed: Claimed
) -> Exposure:
    """Returns what ``adversary``, who reads clients' messages, has seen of clients that differ.

    ``paths``: all that each client has released so far, as one event. Clients are disjoint, so that
    of all that leaves a client only its own path counts.
    """
    per_round, total = claimed
    events = {str(client): path for client, path in sorted(paths.items())}
    return Exposure(
        threat=Threat.LOCAL,
        adversary=adversary,
        per_round=release,
        clients=events or {"nobody": ComposedEvent(())},
        claimed_per_round=per_round,
        claimed_total=total,
        notes=("clients' sizes are public",),
    )


def by_ledgers(participations: Mapping[int, int]) -> Exposure:
    """Returns who has released how often; what it was is for the clients' ledgers to say."""
    return by_messages(UnknownEvent('{"kind": "the clients\' ledgers say it"}'), participations)


def costliest(events: Iterable[Event], delta: float, unit: Unit, adjacency: Adjacency) -> Event:
    """Returns the event with the largest ε at ``delta``, of at least one.

    Equal events are converted once.
    """
    distinct = list(dict.fromkeys(events))
    if len(distinct) == 1:
        return distinct[0]

    def cost(event: Event) -> float:
        return accounting.epsilon(event, delta, adjacency=adjacency, unit=unit).epsilon

    return max(distinct, key=cost)


def most_released(release: Event, participations: Mapping[int, int]) -> Event:
    """Returns the releases of the client that has released most often; none for nobody."""
    return repeated(release, max(participations.values(), default=0))


def planned(release: Event, count: int) -> Event:
    """Returns ``count`` releases, one in each round in which a client is asked."""
    return RepeatedEvent(release, count)


def with_earlier(earlier: Exposure, later: Exposure) -> Exposure:
    """Returns ``later`` with what each client has released in ``earlier``, to that adversary."""
    clients: dict[str, Event] = {}
    for name in sorted({*earlier.clients, *later.clients}):
        parts = [each.clients[name] for each in (earlier, later) if name in each.clients]
        clients[name] = ComposedEvent(tuple(parts))
    if len(clients) > 1:
        clients.pop("nobody", None)
    return replace(later, clients=clients)


def with_evaluation(exposure: Exposure, event: Event, counts: Mapping[int, int]) -> Exposure:
    """Returns ``exposure`` and the evaluations on clients: ``event`` so often for each client.

    Where ``exposure`` does not name its clients one by one, each gets the most exposed client's.

    Args:
        exposure: What one adversary has seen of the training.
        event: One evaluation as that adversary sees it.
        counts: How often each client may have answered; not empty.
    """
    assumed = exposure.assumptions
    if isinstance(event, SummedEvent):
        assumed += (
            f"every sum of an evaluation holds {event.honest_clients} honest clients' noise",
        )
    seen = {name: [before] for name, before in exposure.clients.items()}
    if all(name.isdigit() for name in seen):
        for name, count in sorted((str(client), count) for client, count in counts.items()):
            seen.setdefault(name, []).append(RepeatedEvent(event, count))
    else:
        for events in seen.values():
            events.append(RepeatedEvent(event, max(counts.values())))
    return replace(
        exposure,
        clients={name: ComposedEvent(tuple(events)) for name, events in seen.items()},
        notes=(*exposure.notes, _EVALUATED),
        assumptions=assumed,
    )


def rounded_up(event: Event, most: int) -> Event:
    """Returns ``event`` or a little more: counts beyond 127 are rounded to six binary digits.

    That is at most 3.2% more releases. Those up to ``most`` stay within it.
    """
    if isinstance(event, ComposedEvent):
        return ComposedEvent(tuple(rounded_up(part, most) for part in event.events))
    if not isinstance(event, RepeatedEvent):
        return event
    unit = 1
    if event.count > 127:
        unit = 1 << (event.count.bit_length() - 6)
    count = -(-event.count // unit) * unit
    return replace(event, count=max(event.count, min(count, most)))
