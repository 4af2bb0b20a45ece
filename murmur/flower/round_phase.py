"""A round's secure sum as Murmur's phases know it, and the round that is expected after it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, RecordDict
from flwr.serverapp import Grid

from murmur.flower import ask as protocol
from murmur.flower.ask import Ask
from murmur.round.phase import Phase
from murmur.round.placement import ClientPlacement, Placement
from murmur.round.question import Question
from murmur.round.secure_summation import NextSums, SecureSummation
from murmur.round.setup import SumSetup


class SampledNodes(ClientPlacement):
    """Placement on the nodes that the strategy has sampled, by their places 0 to n - 1.

    Flower gives a node another id each time that it registers, so no id is worth remembering. The
    phase's clients are these places (``murmur.round.placement.ClientPlacement``).
    """

    def __init__(self, nodes: Sequence[int]) -> None:
        self.nodes = list(nodes)

    def place(self, grid: Grid, clients: Sequence[int]) -> Placement:
        """Places each on its own node; nobody is away, for the strategy saw them online."""
        return Placement({self.nodes[place]: [place] for place in clients})


@dataclass(frozen=True, kw_only=True)
class RoundSetup(SumSetup):
    """Settings of one round for phases and sums; its noise is the operating system's.

    Attributes:
        seed: Draws groups, of which there is one: it decides nothing.
        round_timeout: Seconds for each phase of the protocol; training has the strategy's own
            timeout.
        strategy, query: The algorithm's name in the terms of a sum, and Flower's type of the
            protocol's messages.
        minimum: The ask's.
    """

    seed: int = 0
    strategy: str = protocol.ALGORITHM
    query: str = protocol.KIND
    minimum: int

    @property
    def least_survivors(self) -> int:
        """The ask's ``minimum``: fewer would not hold the whole noise."""
        return self.minimum


@dataclass(frozen=True)
class WrappedQuestion(Question):
    """The strategy's own message, with Murmur's records beside its own.

    Attributes:
        records: What the strategy sends, with the model in the types with which it began.
    """

    records: RecordDict = field(default_factory=RecordDict)

    def content(self, clients: Sequence[int]) -> RecordDict:
        """The message to a node, which hosts one client: the place that it has in this sum."""
        about: dict[str, Any] = {**self.settings, "clients": list(clients)}
        return RecordDict({**self.records, protocol.ASKED: ConfigRecord(about)})


@dataclass(frozen=True)
class NextRound:
    """The round that is expected next, for whose sum clients advertise with the one before.

    Attributes:
        ask: What it will ask.
        nodes: Of whom, in the order of their places.
        sums: Its sum's terms, and what clients answer to them.
    """

    ask: Ask
    nodes: list[int]
    sums: NextSums

    @classmethod
    def of(cls, ask: Ask, nodes: list[int], phase: Phase) -> "NextRound | None":
        """The round of ``phase``, before that begins; None where nobody masks."""
        if not isinstance(phase.summation, SecureSummation):
            return None
        places = {node: [place] for place, node in enumerate(nodes)}
        terms = phase.summation.proposed(range(len(nodes)))
        return cls(ask, nodes, NextSums(terms, places))

    def is_round(self, ask: Ask, nodes: Collection[int]) -> bool:
        """True if it is what the strategy asks now, of the same nodes in whatever order."""
        return self.ask == ask and set(self.nodes) == set(nodes)
