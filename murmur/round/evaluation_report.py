"""What every adversary has seen of a client, once an evaluation on clients is counted in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from murmur.privacy.events import ComposedEvent, Event, RepeatedEvent, SummedEvent
from murmur.privacy.statement import Exposure

_NOTE = "what is proven includes the protected evaluation, what is claimed does not"


def with_evaluation(exposure: Exposure, event: Event, counts: Mapping[int, int]) -> Exposure:
    """``exposure`` and the evaluations: ``event`` so often for each client."""
    own = {str(client): RepeatedEvent(event, count) for client, count in counts.items()}
    worst: list[Event] = [RepeatedEvent(event, max(counts.values()))]
    assumed = exposure.assumptions
    if isinstance(event, SummedEvent):
        assumed += (
            f"every sum of an evaluation holds {event.honest_clients} honest clients' noise",
        )
    clients = _with(exposure.clients, own, worst)
    return replace(exposure, clients=clients, notes=(*exposure.notes, _NOTE), assumptions=assumed)


def _with(
    clients: Mapping[str, Event], own: Mapping[str, Event], worst: list[Event]
) -> dict[str, Event]:
    """``clients`` and their evaluations; names that are no client's id get ``worst``."""
    named = all(name.isdigit() for name in clients)
    composed: dict[str, Event] = {
        name: ComposedEvent((event, *([own[name]] if name in own else [] if named else worst)))
        for name, event in clients.items()
    }
    missing = own.keys() - clients.keys() if named else set()
    return composed | {name: ComposedEvent((own[name],)) for name in sorted(missing)}
