"""The device owner's policy: what may leave this device, whatever a server asks for.

Default deny: what the policy does not name is refused, and a policy that is missing, malformed or
expired refuses everything. A release is allowed only if everything that it is made of is: the
algorithm, whom it protects and on which assumptions, each mechanism with its parameters, each
secure sum, its own ε, and the ε of all that its client has released in its life.

``policy_file`` reads the limits from the owner's file, which ``deploy/policy.example.yaml``
explains line by line.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from murmur.format import format_number
from murmur.privacy import events
from murmur.privacy.events import Adjacency, Event, Neighbours, Unit, releases
from murmur.privacy.policy_terms import MECHANISMS, GuardRules
from murmur.privacy.run_header import RunHeader, SignedHeader, is_trusted

# ε is computed in floating point: three labels at 5/3 may come out a little above 5.
_RELATIVE_TOLERANCE = 1e-9
_UNACCOUNTABLE = "unaccountable"
_FOREVER = datetime.max.replace(tzinfo=UTC)


class Refusal(Exception):  # noqa: N818 - it is an answer, not a failure
    """Why nothing is released.

    Attributes:
        reason: for the device's owner; names what was asked, what is allowed and what to change.
        code: a short slug for machines ("policy-expired", "epsilon-per-release", ...).
    """

    def __init__(self, reason: str, code: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code


def elements(event: Event) -> Iterator[Event]:
    """The elementary events in ``event``, and the secure sums around them.

    Sampling is looked through: it does not let a mechanism be weaker. A shuffled event counts as
    elementary, and so as one that no policy can allow: a device cannot see who shuffles.
    """
    waiting = [event]
    while waiting:
        current = waiting.pop()
        if isinstance(current, events.ComposedEvent):
            waiting.extend(reversed(current.events))
        elif isinstance(
            current, events.RepeatedEvent | events.PoissonSampledEvent | events.Release
        ):
            waiting.append(current.event)
        else:
            yield current
            if isinstance(current, events.SummedEvent):
                waiting.append(current.event)


@dataclass(frozen=True)
class Policy:
    """Releases that a device allows; by default, none.

    Attributes:
        source: names the policy in refusals.
        defect: why it refuses everything, or None.
        expires: the first instant at which it no longer holds.
        epsilon_per_release: the largest ε of one release, by algorithm; algorithms that it does
            not name are refused. None allows all.
        epsilon_per_lifetime: the largest ε of all that a client ever releases.
        delta: the δ at which both are meant, and the largest that a server may state.
        threat: against whom they hold: "local", or "secure_aggregation", where a secure sum
            counts.
        minimum_surviving_clients: how many honest clients every secure sum must have.
        mechanisms: the weakest allowed setting, by mechanism; those that it does not name are
            refused. None allows all.
        unit: whom every release must protect (a client's releases protect its records too), and
            whom the limits are counted for. None allows all.
        adjacency: between which neighbours every release must hold, and the limits do; what older
            releases state counts by ``neighbours.STEPS``. None: as releases state, and of several
            the neighbours that all of them cover (``neighbours.common``).
        assumptions: names of those that a guarantee may rest on. None allows all.
        ledger: the id of the only ledger that is believed. None: any, also a new one.
        servers: public keys of the servers that may ask, in hex; a run then needs a header that
            one of them has signed. None: any server may ask.
        allow_seeded_noise: whether noise may follow from a run's seed, which the server knows.
        allow_non_private: whether anything may leave without protection.
        clip: the least and the largest norm to which a server may have the update of a Flower app
            clipped; None: any. It bounds what is learnt, for the charge is the same at any norm.
        guard: what a foreign app is locked in with; None: no such app runs here.
        model: whether a run's model is kept: "refuse", "finite" (where a finite ε covers whoever
            sees it, by the server's word), or "any".
        model_bytes: the most that such a model may have.
        receipts: whether a server is given receipts of finished runs: "none", "run", or "run,
            sizes", which also gives those from which a client's number of examples follows.
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
    servers: tuple[str, ...] | None = None
    allow_seeded_noise: bool = False
    allow_non_private: bool = False
    clip: tuple[float, float] | None = None
    guard: GuardRules | None = None
    model: str = "refuse"
    model_bytes: int = 0
    receipts: str = "none"

    @classmethod
    def load(cls, path: Path | str) -> "Policy":
        """The policy in the YAML file ``path``.

        Never raises: a file that is missing, malformed or too long gives a policy that refuses
        everything and says why in ``defect``.
        """
        source = f"the policy {path}"
        try:
            from murmur.privacy.policy_file import read  # loads PyYAML

            return cls(source, **read(Path(path)))
        except Exception as error:  # whatever is wrong with it, it must let nothing through
            reason = " ".join(str(error).split()) or type(error).__name__
            return cls(source, defect=reason[:500])

    @classmethod
    def simulation(cls) -> "Policy":
        """The policy of virtual clients, which have no owner.

        All is allowed, and still counted in their ledger.
        """
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

    def spend(self, event: Event) -> float:
        """ε of ``event`` as this policy counts it: δ, threat, unit, neighbours and assumptions.

        Raises UnsupportedEventError for what this version cannot account for.
        """
        from murmur.privacy.accounting import Threat, epsilon

        return epsilon(
            event,
            self.delta,
            Threat(self.threat),
            self.adjacency,
            unit=self.unit,
            assumptions=self.assumptions,
        ).epsilon

    def require_valid(self, now: datetime) -> None:
        """Refusal if nothing at all is allowed at ``now`` (which has a time zone).

        Asked before a message is read any further, and again with each release.
        """
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
        """Refusal if nothing of ``algorithm`` is allowed at ``now``.

        For phases that release nothing yet, such as those of a secure sum before the masked vector.
        """
        self.require_valid(now)
        if self.epsilon_per_release is not None and algorithm not in self.epsilon_per_release:
            allowed = _names(self.epsilon_per_release)
            raise self._refusal("algorithm", algorithm, allowed, "algorithms")

    def require_server(self, header: SignedHeader | None) -> None:
        """Refusal unless ``header``, which was verified, is signed by a server that may ask."""
        if self.servers is None:
            return
        if header is None:
            raise Refusal(
                "run header: none that holds has come with the question, and "
                f"servers of {self.source} names who must sign it",
                "server",
            )
        said = header.header
        if not is_trusted(said.server, said.successions, self.servers):
            raise self._refusal("server", said.server, _names(self.servers), "servers")

    def check(
        self,
        *,
        algorithm: str,
        event: Event,
        spent: Event,
        delta: float,
        seeded_noise: bool,
        now: datetime,
    ) -> None:
        """Return if ``event`` may be released; Refusal otherwise.

        Args:
            algorithm: the algorithm's name in conf/strategy.
            event: what is about to leave the device.
            spent: all that this client has released in its life.
            delta: the δ of the server's own statement; the limits hold at the policy's.
            seeded_noise: whether the noise follows from the run's seed.
            now: the time, with a time zone.
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
        limit = self.epsilon_per_lifetime
        if limit != math.inf:  # else nothing is composed, which takes the most time
            life = events.ComposedEvent((spent, event))
            self._check_epsilon("of this client's life", life, limit, "epsilon_per_lifetime")

    def check_clip(self, norm: float) -> None:
        """Refusal if no update may be clipped to ``norm``."""
        if self.clip is None:
            return
        least, largest = self.clip
        if not least <= norm <= largest:
            allowed = f"clipping norms from {least:g} to {largest:g}"
            raise self._refusal("clip", f"{norm:g}", allowed, "clip")

    def check_model_size(self, size: int) -> None:
        """Refusal if a run's model of ``size`` bytes may not be kept; asked before it is read."""
        if self.model == "refuse":
            raise self._refusal("model", "offered", "no model to be kept", "model")
        if size > self.model_bytes:
            allowed = f"models of {self.model_bytes} bytes at most"
            raise self._refusal("model", f"{size} bytes", allowed, "model_mib")

    def check_model_privacy(self, protects_model: bool) -> None:
        """Refusal if a model may not be kept by what its statement says of whoever sees it."""
        if self.model != "any" and not protects_model:
            allowed = "models whose statement has a finite ε against whoever sees them"
            raise self._refusal("model", "without a finite ε", allowed, "model")

    def require_receipts(self) -> None:
        """Refusal if no receipt at all may leave; asked before a request for one is read."""
        if self.receipts == "none":
            raise self._refusal("receipt", "asked for", "none to be given", "receipts")

    def check_receipt(
        self, header: RunHeader, charged: Iterable[tuple[int, str, Event]] = ()
    ) -> None:
        """Refusal if no receipt of a run may leave.

        Args:
            header: the run's.
            charged: round, purpose and event of each of its charges.
        """
        self.require_receipts()
        if header.secret and self.servers is None:
            # Given where a client was drawn and not elsewhere, it would say who was drawn.
            allowed = "no receipt of a run with secret cohorts whose server is not named"
            raise self._refusal("receipt", "asked for", allowed, "servers")
        if self.receipts == "run" and not all(header.names_event(*each) for each in charged):
            allowed = "receipts that do not tell how many examples a client has"
            raise self._refusal("receipt", "with sizes", allowed, "receipts")

    def _check_statement(self, event: Event) -> None:
        """Check the unit, the neighbours and the assumptions of ``event``.

        An event that cannot be charged is refused before anything else is asked of it.
        """
        from murmur.privacy.accounting.flatten import UnsupportedEventError, View, flatten

        try:
            flatten(event, View())
        except UnsupportedEventError as error:
            reason = f"what cannot be charged is not released: {error}"
            raise Refusal(reason, _UNACCOUNTABLE) from error
        for release in releases(event):
            if self.unit is not None:
                self._check_neighbours(release.neighbours, self.unit)
            for name, sentence in release.assumptions:
                if self.assumptions is not None and name not in self.assumptions:
                    allowed = f"{_names(self.assumptions)}, and this rests on it: {sentence}"
                    raise self._refusal("assumption", name, allowed, "assumptions")

    def _check_neighbours(self, stated: Neighbours, unit: Unit) -> None:
        """Check that a release for ``stated`` neighbours protects a ``unit`` as the policy says."""
        exchanged = Neighbours(unit, Adjacency.REPLACE_ONE)  # follows for a unit if anything does
        if stated.steps(exchanged) is None:
            allowed = f"only what protects a whole {unit}"
            raise self._refusal("unit", stated.unit, allowed, "unit")
        if self.adjacency is None:
            return
        wanted = Neighbours(unit, self.adjacency)
        if stated.steps(wanted) != 1:
            asked = f"{stated.adjacency} (of a {stated.unit})"
            allowed = f"{wanted.adjacency} (of a {wanted.unit}) and what covers it"
            raise self._refusal("adjacency", asked, allowed, "adjacency")

    def _check_element(self, event: Event) -> None:
        """Check that this part of a release may leave: unprotected, in a sum, or by a mechanism."""
        if isinstance(event, events.NonPrivateEvent):
            if not self.allow_non_private:
                allowed = "protected releases only"
                raise self._refusal("protection", "none", allowed, "allow_non_private")
        elif isinstance(event, events.SummedEvent):
            least = self.minimum_surviving_clients
            if not event.honest_clients >= least:
                allowed = f"secure sums over at least {least} clients"
                key = "minimum_surviving_clients"
                raise self._refusal("honest_clients", event.honest_clients, allowed, key)
        elif self.mechanisms is not None:
            self._check_mechanism(event, self.mechanisms)

    def _check_mechanism(self, event: Event, allowed: Mapping[str, float]) -> None:
        """Check that the mechanism behind ``event`` is ``allowed``, and not weaker than that.

        A subclass of an event has none: its parameters may mean other things.
        """
        name = type(event).__name__
        for known in MECHANISMS.values():
            if type(event) is known.event:
                name = known.name
        if name not in allowed:
            raise self._refusal("mechanism", name, _names(allowed), "mechanisms")
        mechanism = MECHANISMS[name]
        if not mechanism.allows(event, allowed[name]):
            value = f"{mechanism.strength(event):g}"
            bound = "at least" if mechanism.is_least else "at most"
            limit = f"{bound} {allowed[name]:g} in {name}"
            quantity = mechanism.limit.partition("_")[2]
            raise self._refusal(quantity, value, limit, f"mechanisms.{name}.{mechanism.limit}")

    def _check_epsilon(self, whose: str, event: Event, limit: float, key: str) -> None:
        """Check that the ε of ``event`` is within ``limit``, which the policy has under ``key``.

        ``whose``: in words, for the refusal. What cannot be accounted for cannot be allowed.
        """
        try:
            if self._keeps(event, limit):
                return
            spend = self.spend(event)
        except Exception as error:  # what cannot be accounted for cannot be allowed
            raise Refusal(
                f"epsilon {whose}: {self.source} cannot be applied, since no ε can be proven: "
                f"{error}",
                _UNACCOUNTABLE,
            ) from error
        if not spend <= limit * (1 + _RELATIVE_TOLERANCE):
            allowed = f"at most {limit:g} at delta={self.delta:g} ({self.threat})"
            raise self._refusal(f"epsilon {whose}", format_number(spend), allowed, key)

    def _keeps(self, event: Event, limit: float) -> bool:
        """True if ``event`` is Gaussian noise that keeps ``limit``, where ``math`` alone can tell.

        A device answers each message in a process of its own, and SciPy takes as long to load as
        many an answer to compute: the accountant is asked where this says nothing.
        """
        from murmur.privacy.accounting.flatten import Threat, View, failure, flatten
        from murmur.privacy.accounting.gaussian import costs_at_most

        granted = self.assumptions
        if granted is not None:
            granted = frozenset(granted)
        view = View(Threat(self.threat), self.adjacency, self.unit, granted)
        if failure(event, view) > 0:
            return False
        return costs_at_most(flatten(event, view), limit, self.delta)

    def _refusal(self, name: str, value: object, allowed: str, key: str) -> Refusal:
        """Says what was asked for, what is allowed, and which key of the file decides it."""
        return Refusal(
            f"{name}={value}: {self.source} allows {allowed}; the device's owner may change "
            f"`{key}` there",
            key.partition(".")[0].replace("_", "-"),
        )


def _names(allowed: Iterable[str]) -> str:
    return ", ".join(sorted(allowed)) or "none"
