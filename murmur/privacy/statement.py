"""A run's privacy statement: the claimed and the proven ε of every adversary.

``Statement.of`` derives one ``Guarantee`` from each ``Exposure``. ``statement_text`` writes a
statement in words.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from murmur.format import printable
from murmur.privacy.accounting import Adjacency, Threat, Unit
from murmur.privacy.audit import CanaryAudit
from murmur.privacy.guarantee import Exposure, Guarantee, released

MORE_FOUND = "an attack found more than is stated against {}"
_INFINITY = "infinity"


@dataclass(frozen=True)
class Statement:
    """The privacy statement of a run.

    ``claim``: what the paper's theorem says, in words. ``difference``: one sentence on why
    proven differs from claimed. ``void``: reasons for which no figure here may be relied on.
    ``split``: what lies where nothing protects it though its owners are protected, if anything.
    ``underived``: why no ε is derived, where the accountant failed: every ε is infinite then, and
    ``charged`` has what was charged, as ``released`` says.
    """

    algorithm: str
    unit: Unit
    adjacency: Adjacency
    delta: float
    guarantees: tuple[Guarantee, ...]
    claim: str = ""
    difference: str = ""
    warnings: tuple[str, ...] = ()
    void: tuple[str, ...] = ()
    split: str = ""
    underived: str = ""
    charged: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of(
        cls,
        algorithm: str,
        unit: Unit,
        adjacency: Adjacency,
        delta: float,
        exposures: Sequence[Exposure],
        **others: Any,
    ) -> "Statement":
        """Derive every ε from the events in ``exposures``, one guarantee each.

        ``others``: fields with a default. Raises ValueError without exposures, or for a ``delta``
        not in [0, 1).
        """
        if not exposures:
            raise ValueError("exposures=[]: needs at least one adversary")
        guarantees = tuple(Guarantee.of(e, delta, unit, adjacency) for e in exposures)
        return cls(algorithm, unit, adjacency, delta, guarantees, **others)

    @classmethod
    def without_epsilon(
        cls,
        error: Exception,
        algorithm: str,
        unit: Unit,
        adjacency: Adjacency,
        delta: float,
        exposures: Sequence[Exposure],
        **others: Any,
    ) -> "Statement":
        """A statement after ``of`` has raised ``error``: charges, and that no ε is derived.

        For clients that have answered: whatever the accountant makes of it, they are told.
        """
        return cls(
            algorithm,
            unit,
            adjacency,
            delta,
            tuple(map(Guarantee.underived, exposures)),
            underived=printable(f"the accountant failed ({type(error).__name__}: {error})"),
            charged=tuple(charge for exposure in exposures for charge in released(exposure)),
            **others,
        )

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why no figure here may be relied on: what makes it ``void``, and what beats a figure."""
        beaten = [g.adversary for g in self.guarantees if g.attack_beats or g.canaries_beat]
        failed = [f"no ε is derived: {self.underived}"] if self.underived else []
        return (*self.void, *failed, *map(MORE_FOUND.format, beaten))

    @property
    def is_private(self) -> bool:
        """True if ε is proven against some adversary, and nothing makes the figures void."""
        return not self.doubts and any(math.isfinite(g.proven_total) for g in self.guarantees)

    @property
    def protects_model(self) -> bool:
        """True if a finite ε, proven or with its assumptions, covers whoever sees the model.

        Each adversary sees at least the models, so that a figure against any of them is enough.
        """
        return not self.doubts and any(math.isfinite(g.stated) for g in self.guarantees)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-safe mapping; an infinite ε is the string "infinity"."""
        return {f.name: _jsonable(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Statement":
        """The inverse of ``to_dict``; raises ValueError for anything else."""
        try:
            return cls(
                **{
                    **plain,
                    "unit": Unit(plain["unit"]),
                    "adjacency": Adjacency(plain["adjacency"]),
                    "guarantees": tuple(_guarantee(g) for g in plain["guarantees"]),
                    "warnings": tuple(plain["warnings"]),
                    "void": tuple(plain["void"]),
                    "charged": tuple(plain.get("charged", ())),
                }
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a privacy statement: {error}") from error


def _guarantee(plain: Mapping[str, Any]) -> Guarantee:
    """The inverse of ``_jsonable`` for one adversary; files of earlier versions have no notes."""
    values = dict(plain)
    for name, value in values.items():
        if name.startswith(("claimed", "proven", "assumed", "measured")):
            values[name] = _number(value)
        elif name in ("bounds", "clients"):
            values[name] = {key: _number(item) for key, item in value.items()}
    values["threat"] = Threat(values["threat"])
    values["assumptions"] = tuple(values["assumptions"])
    values["notes"] = tuple(values.get("notes", ()))
    found = values.get("canaries")
    if found is not None:
        values["canaries"] = CanaryAudit(**{key: _number(item) for key, item in found.items()})
    return Guarantee(**values)


def _number(value: Any) -> Any:
    if value == _INFINITY:
        return math.inf
    return value


def _jsonable(value: Any) -> Any:
    """``value`` of a field as JSON has it; ``_number`` and ``_guarantee`` are the way back."""
    if isinstance(value, Guarantee | CanaryAudit):
        return {f.name: _jsonable(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return _INFINITY
    return value
