"""What a release did, as immutable values: the ledger stores them, accountants interpret them.

An event says which mechanism ran and with which parameters; ε is always derived from events
and never stored as the truth. Habits follow ``dp_accounting.dp_event``; unlike there, the
events are JSON-safe, because they live for years in a device's ledger.

First come the kinds of noise, then what wraps them (samples, sums, shuffles, repetition,
``Release``), then what can be asked of any event: its releases, their assumptions, whether its
noise is Gaussian, what it is in words. Whom a release protects, and between which data sets, is in
``neighbours``.

Every class raises ValueError ("name=value: must ...") for a parameter out of its range, so that an
event which exists can be accounted for. Neither NumPy nor SciPy is loaded: a ledger needs neither.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple

from murmur.checks import require_count, require_positive
from murmur.privacy.neighbours import STEPS, Adjacency, Neighbours, Unit

MAX_VECTOR_ENTRIES = 1 << 26
"""The most numbers of one release with discrete Gaussian noise. So long is what a fine grid is
proven for (``murmur.privacy.accounting.gaussian``), and no event says how long its vector was."""

_GAUSSIAN_FROM_BITS = 1000


@dataclass(frozen=True)
class Event:
    """One mechanism's use on one unit's data."""

    _kinds: ClassVar[dict[str, type["Event"]]] = {}

    def __init_subclass__(cls) -> None:
        Event._kinds[cls.__name__] = cls

    def to_dict(self) -> dict[str, Any]:
        """A JSON-safe mapping that ``event_from_dict`` turns back into an equal event."""
        plain = {f.name: _plain(getattr(self, f.name)) for f in fields(self)}
        return {"kind": type(self).__name__, **plain}


@dataclass(frozen=True)
class RandomizedResponseEvent(Event):
    """One label among ``categories`` values, reported by ``epsilon``-DP randomised response."""

    epsilon: float
    categories: int

    def __post_init__(self) -> None:
        require_positive("epsilon", self.epsilon)
        if self.categories < 2:
            raise ValueError(f"categories={self.categories}: must be at least 2")


@dataclass(frozen=True)
class RandomizedBitsEvent(Event):
    """``bits`` bits, each kept with probability ½ + ``gamma``; neighbours differ in all of them.

    ``sensitivity_bits`` is the number of bits in which two neighbours can differ (Hamming
    clipping makes it smaller than ``bits``).
    """

    gamma: float
    bits: int
    sensitivity_bits: int

    def __post_init__(self) -> None:
        if not 0 < self.gamma < 0.5:
            raise ValueError(f"gamma={self.gamma}: must lie in (0, 0.5)")
        if not 0 < self.sensitivity_bits <= self.bits:
            raise ValueError(
                f"sensitivity_bits={self.sensitivity_bits}: must lie in [1, bits={self.bits}]"
            )


@dataclass(frozen=True)
class GaussianEvent(Event):
    """Continuous Gaussian noise of ``noise_multiplier`` × the L2 sensitivity."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        require_positive("noise_multiplier", self.noise_multiplier)


@dataclass(frozen=True)
class DiscreteGaussianEvent(Event):
    """Discrete Gaussian noise on integers: ``sigma`` and L2 ``sensitivity`` in grid steps.

    ``scalar``: one number, not a vector; then more than concentrated DP can be said.
    """

    sigma: float
    sensitivity: float
    scalar: bool = False

    def __post_init__(self) -> None:
        require_positive("sigma", self.sigma)
        require_positive("sensitivity", self.sensitivity)


@dataclass(frozen=True)
class LaplaceEvent(Event):
    """Laplace noise (continuous or discrete): ``noise_multiplier`` = scale / L1 sensitivity.

    ``sensitivity_steps``: the L1 sensitivity in steps of the grid on which discrete noise was
    added; 0 for continuous noise. Left out, only ε = 1 / ``noise_multiplier`` is relied on.
    """

    noise_multiplier: float
    sensitivity_steps: int | None = None

    def __post_init__(self) -> None:
        require_positive("noise_multiplier", self.noise_multiplier)
        if self.sensitivity_steps is not None and self.sensitivity_steps < 0:
            raise ValueError(
                f"sensitivity_steps={self.sensitivity_steps}: must be at least 0, or left out"
            )


@dataclass(frozen=True)
class PureEvent(Event):
    """Any ``epsilon``-DP release of which nothing more is known (exponential mechanism, …)."""

    epsilon: float

    def __post_init__(self) -> None:
        require_positive("epsilon", self.epsilon)


@dataclass(frozen=True)
class NonPrivateEvent(Event):
    """A release without protection: ε is infinite."""


@dataclass(frozen=True)
class PoissonSampledEvent(Event):
    """``event`` on a Poisson sample of the records, each in it with probability ``rate``.

    ``event`` states no neighbours: a ``Release`` is around the sample, not in it.
    """

    rate: float
    event: Event

    def __post_init__(self) -> None:
        _require_event(self.event)
        _require_unstated(self.event, self)
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate={self.rate}: must lie in (0, 1]")


class Hiding(StrEnum):
    """How a sum over honest clients hides one client's release; only its mechanism can say it.

    ``NOISE``: fresh noise was added to every cell of the vector that is summed, after all that
    depends on data. ``REPORTS``: every client randomises its answer to the same question on its
    own, and reports fall into the same cells. Everything else is hidden by nobody: a row of its
    own, noise inside a training, a release that is more than its part of the sum.
    """

    NOT = "not at all"
    NOISE = "additive noise in every cell"
    REPORTS = "reports in shared cells"


@dataclass(frozen=True)
class SummedEvent(Event):
    """``event``, seen only as a secure sum with the same releases of other honest clients.

    Relief is given to the releases in ``event`` that say how a sum hides them (``Hiding``), and to
    nothing else. Against somebody who reads the client's message it is ``event``.

    Attributes:
        honest_clients: the fewest in any sum that is revealed, this one included: survivors less
            colluders.
        weight: what this client's release is multiplied by in the sum.
        least_weight, greatest_weight: of all clients of the sum, declared before data are read.
        terms: digest of what every client of the sum releases; empty where nobody compared any,
            as in plans and simulations.
        failure: how likely it is, at most, that the clients who share a client's secrets were
            drawn so that its release is not hidden: is added to δ.
    """

    event: Event
    honest_clients: int
    weight: int = 1
    least_weight: int = 1
    greatest_weight: int = 1
    terms: str = ""
    failure: float = 0.0

    def __post_init__(self) -> None:
        _require_event(self.event)
        require_count("honest_clients", self.honest_clients)
        require_count("least_weight", self.least_weight)
        if not 0 <= self.failure <= 1:
            raise ValueError(f"failure={self.failure}: must lie in [0, 1], a probability")
        if not self.least_weight <= self.weight <= self.greatest_weight:
            raise ValueError(
                f"weight={self.weight}: must lie in {self.least_weight}..{self.greatest_weight}, "
                "the weights of the sum"
            )


@dataclass(frozen=True)
class SecurelySummedEvent(Event):
    """A release in a sum, as ledgers of earlier versions hold it; nothing makes it any more.

    It does not say whether the sum hid ``event``, so that it counts as ``event`` by itself.
    """

    event: Event
    honest_clients: int

    def __post_init__(self) -> None:
        _require_event(self.event)
        require_count("honest_clients", self.honest_clients)


@dataclass(frozen=True)
class ShuffledEvent(Event):
    """``event``, mixed by a non-colluding shuffler with the same release of other clients.

    ``honest_clients`` as in ``SummedEvent``; one report per client and shuffle.
    """

    event: Event
    honest_clients: int

    def __post_init__(self) -> None:
        _require_event(self.event)
        require_count("honest_clients", self.honest_clients)


@dataclass(frozen=True)
class RepeatedEvent(Event):
    """``event``, ``count`` times, adaptively, on the same unit."""

    event: Event
    count: int

    def __post_init__(self) -> None:
        _require_event(self.event)
        require_count("count", self.count)


@dataclass(frozen=True)
class ComposedEvent(Event):
    """All of ``events``, adaptively, on the same unit."""

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        for event in self.events:
            _require_event(event)


class Assumption(NamedTuple):
    """Condition of a guarantee that no device can check: a ``name`` for policies, a sentence."""

    name: str
    sentence: str


@dataclass(frozen=True)
class Release(Event):
    """``event`` and what it protects; whoever adds the noise makes it.

    ``unit`` and ``adjacency``: between which neighbours the noise was calibrated; sampling
    amplifies for these. ``assumptions``: what that rests on. ``otherwise``: what is proven
    without them, between the same neighbours or, as a ``Release``, its own; None: nothing.
    ``hiding``: how a sum hides it. ``in_part``: see ``Neighbours``; left out where it is False.
    """

    event: Event
    unit: Unit
    adjacency: Adjacency
    assumptions: tuple[Assumption, ...] = ()
    otherwise: Event | None = None
    hiding: Hiding = Hiding.NOT
    in_part: bool = False

    def __post_init__(self) -> None:
        _require_event(self.event)
        _require_unstated(self.event, self)
        object.__setattr__(self, "unit", Unit(self.unit))
        object.__setattr__(self, "adjacency", Adjacency(self.adjacency))
        object.__setattr__(self, "assumptions", tuple(Assumption(*a) for a in self.assumptions))
        object.__setattr__(self, "hiding", Hiding(self.hiding))
        if self.neighbours not in STEPS:
            raise ValueError(f"in_part=true: is of a client that is nulled, not {self.neighbours}")
        if self.otherwise is not None and not isinstance(self.otherwise, Release):
            _require_event(self.otherwise)
            _require_unstated(self.otherwise, self)

    @property
    def neighbours(self) -> Neighbours:
        """Between which data sets ``event`` is what it says."""
        return Neighbours(self.unit, self.adjacency, self.in_part)

    def to_dict(self) -> dict[str, Any]:
        """As earlier versions wrote it, but where they had no word for it."""
        plain = super().to_dict()
        if not self.in_part:
            del plain["in_part"]
        return plain


@dataclass(frozen=True)
class UnknownEvent(Event):
    """A charge by another version that this one cannot read: ``text`` is its JSON."""

    text: str

    def to_dict(self) -> dict[str, Any]:
        """The charge in the JSON of the version that wrote it."""
        return dict(json.loads(self.text))


def event_from_dict(plain: Mapping[str, Any]) -> Event:
    """The inverse of ``Event.to_dict``; raises ValueError for anything that is not an event."""
    kind = plain.get("kind")
    cls = Event._kinds.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise ValueError(f"kind={kind!r}: not an event; known are {sorted(Event._kinds)}")
    values = {key: _revive(value) for key, value in plain.items() if key != "kind"}
    try:
        return cls(**values)
    except TypeError as error:
        raise ValueError(f"{kind}: {error}") from error


UNRECORDED = Assumption(
    "unrecorded", "an earlier version charged this without saying what its sensitivity rests on"
)


def releases(event: Event) -> Iterator[Release]:
    """The releases in ``event``; parts that state nothing as ``as_release`` reads them."""
    if isinstance(event, Release):
        yield event
    elif isinstance(event, ComposedEvent):
        for part in event.events:
            yield from releases(part)
    elif isinstance(event, RepeatedEvent | SummedEvent | SecurelySummedEvent | ShuffledEvent):
        yield from releases(event.event)
    else:
        yield as_release(event)


def assumptions_of(event: Event) -> list[Assumption]:
    """Everything that some release in ``event`` rests on, each once."""
    found = (assumption for release in releases(event) for assumption in release.assumptions)
    return list(dict.fromkeys(found))


def repeated(event: Event, count: int) -> Event:
    """``event``, ``count`` times; nothing where that is 0."""
    return RepeatedEvent(event, count) if count else ComposedEvent(())


def as_release(event: Event) -> Release:
    """``event``, which states no unit, as what ledgers of versions that recorded none meant.

    Randomised labels and bits protected a client, since any report may come from any data. What
    had another noise protected a record at least: on a Poisson sample between null records,
    else between any two. Of Gaussian noise on a vector it is not known what its sensitivity
    rested on, which is an assumption of its own.
    """
    if isinstance(event, RandomizedResponseEvent | RandomizedBitsEvent | NonPrivateEvent):
        return Release(event, Unit.CLIENT, Adjacency.REPLACE_ONE)
    if isinstance(event, PoissonSampledEvent):
        return Release(event, Unit.RECORD, Adjacency.REPLACE_SPECIAL)
    if isinstance(event, DiscreteGaussianEvent):
        return Release(event, Unit.RECORD, Adjacency.REPLACE_ONE, (UNRECORDED,))
    return Release(event, Unit.RECORD, Adjacency.REPLACE_ONE)


def is_gaussian(event: Event, exactly: bool = False) -> bool:
    """True if the noise of ``event`` is Gaussian, or nearly so.

    Nearly, unless ``exactly``: on samples; and on so many bits that the sum of their losses is
    close to a normal one (Dong, Roth and Su 2022, theorem 5).
    """
    if isinstance(event, ComposedEvent):
        return all(is_gaussian(each, exactly) for each in event.events)
    if isinstance(event, PoissonSampledEvent) and exactly and event.rate < 1:
        return False
    if isinstance(event, Release | RepeatedEvent | SummedEvent | PoissonSampledEvent):
        return is_gaussian(event.event, exactly)
    if isinstance(event, RandomizedBitsEvent):
        return not exactly and event.sensitivity_bits >= _GAUSSIAN_FROM_BITS
    return isinstance(event, DiscreteGaussianEvent)


def describe(event: Event) -> str:
    """``event`` on one line, for people: mechanism and parameters, whom it protects, on what.

    `murmur ledger` and statements say by these lines what was charged. An event that this version
    does not know is shown as the ledger has it.

    Args:
        event: of any kind; events within it are described within.
    """
    if isinstance(event, Release):
        rests = [assumption.name for assumption in event.assumptions]
        whom = f"{describe(event.event)} per {event.unit}"
        if rests:
            whom += f" if {' and '.join(rests)}"
        return whom
    if isinstance(event, SummedEvent):
        inner = describe(event.event)
        if event.greatest_weight > 1:
            inner += f" times {event.weight}"
        return f"{inner} in a sum over {event.honest_clients} honest clients"
    if isinstance(event, UnknownEvent):
        return f"unknown to this version: {event.text}"
    if isinstance(event, RepeatedEvent):
        return f"{event.count} x {describe(event.event)}"
    parts: list[str] = []
    for name in (f.name for f in fields(event)):
        value = getattr(event, name)
        if isinstance(value, tuple):
            parts.extend(describe(part) for part in value)
        elif isinstance(value, Event):
            parts.append(describe(value))
        else:
            parts.append(f"{name}={value:g}")
    return f"{type(event).__name__.removesuffix('Event')}({', '.join(parts)})"


def _plain(value: Any) -> Any:
    """``value`` of an event's field as JSON has it; the inverse of ``_revive``."""
    if isinstance(value, Event):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, StrEnum):
        return value.value
    return value


def _revive(value: Any) -> Any:
    if isinstance(value, Mapping):
        return event_from_dict(value)
    if isinstance(value, list):
        return tuple(_revive(item) for item in value)
    return value


def _require_event(value: object) -> None:
    if not isinstance(value, Event):
        raise ValueError(f"event={value!r}: must be an event")


def _require_unstated(event: Event, around: Event) -> None:
    """ValueError where some part of ``event`` is a ``Release``: ``around`` has no place for one."""
    if isinstance(event, Release):
        raise ValueError(
            f"{type(around).__name__}: holds a release between neighbours of its own "
            f"({event.neighbours}); state them once, around the whole"
        )
    if isinstance(event, ComposedEvent):
        for part in event.events:
            _require_unstated(part, around)
    inner = getattr(event, "event", None)
    if isinstance(inner, Event):
        _require_unstated(inner, around)
