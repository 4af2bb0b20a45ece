"""The privacy statement of a run under ``private``, and the facts that its assumptions rest on."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from murmur.flower import ask as protocol
from murmur.flower.ask import Ask
from murmur.flower.privacy_settings import PrivacySettings
from murmur.privacy.accounting import Adjacency, Threat, Unit
from murmur.privacy.events import ComposedEvent, Event, Release, RepeatedEvent, SummedEvent

if TYPE_CHECKING:
    from murmur.privacy.statement import Statement

FACTS = {
    "owned": "no owner keeps a ledger: clients without a device's folder are trials",
    "pinned": "assumes that the server invents no clients: no peers are pinned",
    "guarded": "assumes that the app's bundle is honest: it brings the code that protects",
}
"""Facts that clients state of themselves, and the warning of a statement where one does not."""

_PROVES = {protocol.INVENTS_NOBODY: "pinned", protocol.HONEST_APP: "guarded"}
"""Assumptions that fall away where all clients state a fact. Their word suffices: a statement rests
on enough of them being honest, and those are what they say."""


def statement_of(
    settings: PrivacySettings,
    ask: Ask,
    released: Counter[tuple[Release, int]],
    facts: Sequence[Mapping[str, bool]],
    error: Exception | None = None,
) -> "Statement":
    """Returns the statement of all that was asked so far, with ``ask``.

    Two adversaries: a server that sees only sums, for which a sum holds the noise of its honest
    clients, and one that reads every message, for which each client's own share counts alone.
    Whoever was asked counts as having released, whether or not an answer came, and each client as
    asked in every round: a node that registers anew has another id, by which nobody knows it again.

    Args:
        settings: The run's, for δ and how it sums.
        ask: The round that is about to be asked for.
        released: How often somebody was asked for each event in a sum over at least so many.
        facts: What each node that was asked has said of itself; what one does not say becomes a
            warning (``FACTS``), and what all say is not assumed.
        error: Why the accountant has no ε, if it has none (``Statement.without_epsilon``).
    """
    from murmur.privacy.guarantee import Exposure
    from murmur.privacy.statement import Statement  # loads SciPy

    proven = [what for what, name in _PROVES.items() if all(fact.get(name) for fact in facts)]

    def stated(event: Release) -> Release:
        """Returns ``event`` with the assumptions that are left."""
        left = [assumption for assumption in event.assumptions if assumption not in proven]
        return replace(event, assumptions=tuple(left))

    alone: list[Event] = []
    hidden: list[Event] = []
    for (release, minimum), count in released.items():
        event = stated(release)
        alone.append(RepeatedEvent(event, count))
        hidden.append(RepeatedEvent(SummedEvent(event, minimum - ask.colluders), count))
    least = min(minimum for _, minimum in released)
    warnings = ["weights are equal: a client's number of examples is not sent"]
    for name, sentence in FACTS.items():
        without = sum(not fact.get(name) for fact in facts)
        if without:
            warnings.append(f"{sentence} ({without} of {len(facts)} nodes)")
    noisy = sum(bool(fact.get(protocol.OWN_NOISE)) for fact in facts)
    if noisy:
        warnings.append(f"{protocol.NOT_COUNTED} ({noisy} of {len(facts)} nodes)")
    stated_by = Statement.of
    if error is not None:
        stated_by = partial(Statement.without_epsilon, error)
    return stated_by(
        algorithm=f"Flower app under Murmur ({protocol.ALGORITHM})",
        unit=Unit.CLIENT,
        adjacency=Adjacency.REPLACE_ONE,
        delta=settings.delta,
        exposures=[
            Exposure(
                threat=Threat.SECURE_AGGREGATION,
                adversary=settings.sums.adversary,
                per_round=SummedEvent(stated(ask.event()), ask.minimum - ask.colluders),
                sizes={"each client": len(facts)},
                clients={"each client": ComposedEvent(tuple(hidden))},
                assumptions=(
                    f"at least {least - ask.colluders} of the {least} clients of every sum are "
                    "honest",
                    *settings.sums.conditions(len(facts)),
                ),
            ),
            Exposure(
                threat=Threat.LOCAL,
                adversary="a server that reads every message",
                per_round=stated(ask.event()),
                sizes={"each client": len(facts)},
                clients={"each client": ComposedEvent(tuple(alone))},
            ),
        ],
        warnings=tuple(warnings),
    )
