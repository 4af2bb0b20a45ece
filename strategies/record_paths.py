"""What clients have released whose records each have a budget of their own: a part of strategies.

Clients are disjoint, so that of all that leaves a client only its own path counts, and the run
costs what the costliest path does. Uploads are read one by one; nothing is hidden in a sum.

A strategy whose clients differ in noise (by size, by an ε of their own) has one ``RecordPaths``
and answers ``release_event``, ``spent`` and ``exposures`` with it, instead of the usual report,
which takes all clients for alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from murmur.privacy.accounting import Threat, epsilon
from murmur.privacy.events import ComposedEvent, Event
from murmur.privacy.statement import Exposure


class RecordPaths:
    """What each client's records were exposed to, and whose were exposed most.

    Parameters
    ----------
    path : callable
        Gives all that a client (its id) has released so far, as one event. It is asked anew each
        time, since it grows with the rounds.
    delta : float
        δ at which the ε of events are compared.
    """

    def __init__(self, path: Callable[[int], Event], delta: float) -> None:
        self.path = path
        self.delta = delta

    def worst(self, events: Iterable[Event]) -> Event:
        """The event with the largest ε at δ, of at least one; equal events are converted once."""
        distinct = list(dict.fromkeys(events))
        if len(distinct) == 1:
            return distinct[0]
        return max(distinct, key=lambda event: epsilon(event, self.delta).epsilon)

    def spent(self, participations: Mapping[int, int]) -> Event:
        """All that the most exposed of those who took part has released so far; nothing for nobody.

        ``participations``: by client; how often is not read here, but by ``path``.
        """
        if not participations:
            return ComposedEvent(())
        return self.worst(map(self.path, participations))

    def exposure(
        self,
        participations: Mapping[int, int],
        per_round: Event,
        claimed: tuple[float | None, float | None],
        adversary: str,
    ) -> Exposure:
        """The statement's part for ``adversary``, who sees the clients' messages.

        Parameters
        ----------
        participations : mapping
            Whose paths are listed, by id; empty: "nobody", who has released nothing.
        per_round : Event
            The costliest single release.
        claimed : tuple
            ε of a round and of the run by the paper's theorem; None where it states none.
        adversary : str
            Who that is, in the statement's words.

        Returns
        -------
        Exposure
            To the local threat: nothing counts on a sum or on a trusted server.
        """
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
