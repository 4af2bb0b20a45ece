"""What clients have released whose records each have a budget of their own: a part of strategies.

Clients are disjoint, so that of all that leaves a client only its own path counts, and the run
costs what the costliest path does. Uploads are read one by one; nothing is hidden in a sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from murmur.privacy.accounting import Threat, epsilon
from murmur.privacy.events import ComposedEvent, Event
from murmur.privacy.statement import Exposure


class RecordPaths:
    """``path``: all that a client has released so far; ``delta``: at which paths are compared."""

    def __init__(self, path: Callable[[int], Event], delta: float) -> None:
        self.path = path
        self.delta = delta

    def worst(self, events: Iterable[Event]) -> Event:
        """The event with the largest ε, of at least one."""
        distinct = list(dict.fromkeys(events))
        if len(distinct) == 1:
            return distinct[0]
        return max(distinct, key=lambda event: epsilon(event, self.delta).epsilon)

    def spent(self, participations: Mapping[int, int]) -> Event:
        """All that the most exposed of those who took part has released so far."""
        return self.worst(map(self.path, participations))

    def exposure(
        self,
        participations: Mapping[int, int],
        per_round: Event,
        claimed: tuple[float | None, float | None],
        adversary: str,
    ) -> Exposure:
        """The statement's part for ``adversary``, who sees the clients' messages."""
        events = {str(client): self.path(client) for client in sorted(participations)}
        return Exposure(
            threat=Threat.LOCAL,
            adversary=adversary,
            per_round=per_round,
            clients=events or {"nobody": ComposedEvent(())},
            claimed_per_round=claimed[0],
            claimed_total=claimed[1],
            notes=("clients' sizes are public",),
        )
