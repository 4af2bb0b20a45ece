"""The limits that one device's owner sets, and the check of a release against them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from murmur.privacy.events import (
    Adjacency,
    ComposedEvent,
    Event,
    NonPrivateEvent,
    SummedEvent,
    Unit,
    releases,
)
from murmur.privacy.policy.mechanisms import elements, mechanism_of
from murmur.privacy.policy.refusal import Refusal

# ε is computed in floating point: three labels at 5/3 may come out a little above 5.
_ROUNDING = 1e-9
_UNACCOUNTABLE = "unaccountable"
_FOREVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Policy:
    """What a device may release; as it stands without arguments, nothing.

    ``source`` names the policy in refusals. ``defect``: why it refuses everything, or None.
    ``expires``: the first instant at which it no longer holds. ``epsilon_per_release``: the
    largest ε of one release, by algorithm; algorithms that it does not name are refused; None
    allows all. ``epsilon_per_lifetime``: the largest ε of all that a client ever releases.
    ``delta``: the δ at which both are meant, and the largest that a server may state.
    ``threat``: against whom they hold: "local", or "secure_aggregation", where a secure sum
    counts. ``minimum_surviving_clients``: how many clients every secure sum must hide.
    ``mechanisms``: the weakest allowed setting, by mechanism; those that it does not name are
    refused; None allows all. ``unit``: whom every release must protect (a client's releases
    protect its records too), and whom the limits are counted for. ``adjacency``: between which
    neighbours; None: as each release states. ``assumptions``: names of those that a guarantee may
    rest on. For the three of them None allows all. ``ledger``: the id of the only ledger that is
    believed; None: any, also a new one.
    """

    source: str
    defect: str | None = None
    expires: datetime = _FOREVER
    epsilon_per_release: Mapping[str, float] | None = field(default_factory=dict)
    epsilon_per_lifetime: float = 0.0
    delta: float = 0.0
    threat: str = "local"
    minimum_surviving_clients: int = 1
    mechanisms: Mapping[str, float] | None = field(default_factory=dict)
    unit: Unit | None = Unit.CLIENT
    adjacency: Adjacency | None = None
    assumptions: Collection[str] | None = ()
    ledger: str | None = None
    allow_seeded_noise: bool = False
    allow_non_private: bool = False

    @classmethod
    def load(cls, path: Path | str) -> Policy:
        """The policy in the YAML file ``path``; if that is not valid, one that refuses all."""
        from murmur.privacy.policy.file import read

        source = f"the policy {path}"
        try:
            return cls(source, **read(Path(path)))
        except Exception as error:  # whatever is wrong with it, it must let nothing through
            reason = " ".join(str(error).split()) or type(error).__name__
            return cls(source, defect=reason[:500])

    @classmethod
    def simulation(cls) -> Policy:
        """The policy of virtual clients, which have no owner: all is allowed, and still counted."""
        return cls(
            source="the simulation, which has no owner's policy,",
            epsilon_per_release=None,
            epsilon_per_lifetime=math.inf,
            delta=math.nextafter(1.0, 0.0),
            mechanisms=None,
            unit=None,
            assumptions=None,
            allow_seeded_noise=True,
            allow_non_private=True,
        )

    @property
    def counts_lifetime(self) -> bool:
        """Whether ``check`` needs to know what was spent before."""
        return self.epsilon_per_lifetime != math.inf

    def spend(self, event: Event) -> float:
        """ε of ``event`` as this policy counts it: its δ, threat, unit and assumptions.

        Raises UnsupportedEventError for what this version cannot account for.
        """
        from murmur.privacy.accounting import Threat, epsilon

        threat = Threat(self.threat)
        seen = epsilon(event, self.delta, threat, unit=self.unit, assumptions=self.assumptions)
        return seen.epsilon

    def require_valid(self, now: datetime) -> None:
        """Refusal if nothing at all is allowed at ``now`` (which has a time zone)."""
        if self.defect is not None:
            raise Refusal(
                f"{self.source} is not valid, so everything is refused; the device's owner must "
                f"correct it: {self.defect}",
                "policy-malformed",
            )
        if not now < self.expires:
            raise Refusal(
                f"expires={self.expires:%Y-%m-%d %H:%M %Z}: {self.source} has expired, so "
                "everything is refused; the device's owner may renew it",
                "policy-expired",
            )

    def require_algorithm(self, algorithm: str, now: datetime) -> None:
        """Refusal if nothing of ``algorithm`` is allowed at ``now``."""
        self.require_valid(now)
        if self.epsilon_per_release is not None and algorithm not in self.epsilon_per_release:
            allowed = _names(self.epsilon_per_release)
            raise self._refusal("algorithm", algorithm, allowed, "algorithms")

    def check(
        self,
        *,
        algorithm: str,
        event: Event,
        spent: Event | Sequence[Event],
        delta: float,
        seeded_noise: bool,
        now: datetime,
    ) -> None:
        """Return if ``event`` may be released; Refusal otherwise.

        ``spent``: all that this client has released in its life. ``delta``: the δ of the
        server's own statement; the limits hold at the policy's.
        """
        self.require_algorithm(algorithm, now)
        if seeded_noise and not self.allow_seeded_noise:
            raise self._refusal("noise", "seeded", "unpredictable noise only", "allow_seeded_noise")
        if not 0 <= delta <= self.delta:
            raise self._refusal("delta", delta, f"0 to {self.delta:g}", "delta")
        self._check_statement(event)
        for element in elements(event):
            self._check_element(element)
        if self.epsilon_per_release is not None:
            limit = self.epsilon_per_release[algorithm]
            self._check_epsilon("of one release", event, limit, "epsilon_per_release")
        if self.counts_lifetime:
            before = (spent,) if isinstance(spent, Event) else tuple(spent)
            life = ComposedEvent((*before, event))
            limit = self.epsilon_per_lifetime
            self._check_epsilon("of this client's life", life, limit, "epsilon_per_lifetime")

    def _check_statement(self, event: Event) -> None:
        """Whom ``event`` protects, from what, and under which assumptions."""
        from murmur.privacy.accounting.flatten import UnsupportedEventError, View, flatten

        try:
            flatten(event, View())
        except UnsupportedEventError as error:
            reason = f"what cannot be charged is not released: {error}"
            raise Refusal(reason, _UNACCOUNTABLE) from error
        for release in releases(event):
            if self.unit is not None and not release.unit.covers(self.unit):
                allowed = f"only what protects a whole {self.unit}"
                raise self._refusal("unit", release.unit, allowed, "unit")
            if self.adjacency is not None and not release.adjacency.covers(self.adjacency):
                raise self._refusal("adjacency", release.adjacency, self.adjacency, "adjacency")
            for name, sentence in release.assumptions:
                if self.assumptions is not None and name not in self.assumptions:
                    allowed = f"{_names(self.assumptions)}, and this rests on it: {sentence}"
                    raise self._refusal("assumption", name, allowed, "assumptions")

    def _check_element(self, event: Event) -> None:
        if isinstance(event, NonPrivateEvent):
            if not self.allow_non_private:
                allowed = "protected releases only"
                raise self._refusal("protection", "none", allowed, "allow_non_private")
        elif isinstance(event, SummedEvent):
            least = self.minimum_surviving_clients
            if not event.honest_clients >= least:
                raise self._refusal(
                    "honest_clients",
                    event.honest_clients,
                    f"secure sums over at least {least} clients",
                    "minimum_surviving_clients",
                )
        elif self.mechanisms is not None:
            mechanism = mechanism_of(event)
            if mechanism is None or mechanism.name not in self.mechanisms:
                name = type(event).__name__ if mechanism is None else mechanism.name
                raise self._refusal("mechanism", name, _names(self.mechanisms), "mechanisms")
            limit = self.mechanisms[mechanism.name]
            if not mechanism.allows(event, limit):
                raise self._refusal(
                    mechanism.limit.partition("_")[2],
                    f"{mechanism.strength(event):g}",
                    f"{'at least' if mechanism.limit.startswith('min_') else 'at most'} {limit:g} "
                    f"in {mechanism.name}",
                    f"mechanisms.{mechanism.name}.{mechanism.limit}",
                )

    def _check_epsilon(self, whose: str, event: Event, limit: float, key: str) -> None:
        try:
            spend = self.spend(event)
        except Exception as error:  # what cannot be accounted for cannot be allowed
            raise Refusal(
                f"epsilon {whose}: {self.source} cannot be applied, since no ε can be proven: "
                f"{error}",
                _UNACCOUNTABLE,
            ) from error
        if not spend <= limit * (1 + _ROUNDING):
            allowed = f"at most {limit:g} at delta={self.delta:g} ({self.threat})"
            raise self._refusal(f"epsilon {whose}", f"{spend:.4g}", allowed, key)

    def _refusal(self, name: str, value: object, allowed: str, key: str) -> Refusal:
        return Refusal(
            f"{name}={value}: {self.source} allows {allowed}; the device's owner may change "
            f"`{key}` there",
            key.partition(".")[0].replace("_", "-"),
        )


def _names(allowed: Iterable[str]) -> str:
    return ", ".join(sorted(allowed)) or "none"
