"""Whether devices' policies would refuse a run, and from which of its releases on.

Nothing is asked of anybody, and no data is opened: the run is composed as the server composes it, a
device agrees to it by its own conf/, and its policy is asked about one release after the other, as
it would be by the messages of the run.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from fl_app.config.composition import choices
from fl_app.device.agreement import overrides_for_devices
from fl_app.device.node_settings import OwnerSettings, device_folder
from fl_app.run.experiment import Experiment
from fl_app.run.prepare import validated
from fl_app.tools.doctor import FAIL, OK, Check, attempt
from murmur.privacy.events import ComposedEvent, Event, NonPrivateEvent, RepeatedEvent
from murmur.privacy.ledger import Ledger
from murmur.privacy.policy import Policy, Refusal

_ADVICE = "agree with the device's owner, or change the run's settings"


@dataclass(frozen=True)
class PlannedReleases:
    """What a run asks of the client that is asked most often.

    Attributes:
        algorithm: the strategy's name.
        releases: what it releases, in order: a round's answer, or an evaluation's.
        delta: the δ of the run's statement.
        seeded: whether the noise follows from the run's seed.
    """

    algorithm: str
    releases: Sequence[Event]
    delta: float
    seeded: bool

    @classmethod
    def of(cls, experiment: Experiment) -> "PlannedReleases":
        """By what the run's statement would say of one participation."""
        strategy = experiment.strategy
        privacy = experiment.privacy
        setup = strategy.setup
        release = strategy.release_event()
        if setup.secure_sums.is_on:
            release = strategy.report.secure_exposure(release, {}).per_round
        releases: list[Event] = []
        for number in range(1, setup.cohorts.participations + 1):
            releases.append(release)
            evaluation = strategy.evaluation
            if evaluation is not None and evaluation.is_on and number % evaluation.every == 0:
                releases.append(evaluation.event())
        name = str(experiment.config.strategy.name)
        return cls(name, releases, privacy.delta, privacy.noise == "seeded")

    def refusal(self, policy: Policy, before: Event) -> tuple[int, Refusal] | None:
        """The first release (1, 2, ...) that ``policy`` refuses, and why; None: it allows all.

        ``before``: all that the client has released in its life. Only the first release of each
        kind and the last one are tried, and between them the place is halved: what is refused
        after some releases is refused after more.
        """
        kinds = {self.releases.index(event) for event in self.releases}
        allowed = -1  # a release that is allowed by itself is refused at most for those before it
        for place in sorted({*kinds, len(self.releases) - 1}):
            reason = self._refusal_at(policy, before, place)
            if reason is None:
                allowed = place
                continue
            while place - allowed > 1:
                middle = (place + allowed) // 2
                earlier = self._refusal_at(policy, before, middle)
                if earlier is None:
                    allowed = middle
                else:
                    place = middle
                    reason = earlier
            return place + 1, reason
        return None

    def _refusal_at(self, policy: Policy, before: Event, place: int) -> Refusal | None:
        """Why ``policy`` refuses the release at ``place``, after those before it; else None.

        An evaluation without protection has no noise, so a seed does not matter to it.
        """
        event = self.releases[place]
        earlier = Counter(self.releases[:place])
        spent = [before, *(RepeatedEvent(each, count) for each, count in earlier.items())]
        try:
            policy.check(
                algorithm=self.algorithm,
                event=event,
                spent=spent,
                delta=self.delta,
                seeded_noise=self.seeded and not isinstance(event, NonPrivateEvent),
                now=datetime.now(UTC),
            )
        except Refusal as refusal:
            return refusal
        return None


def checks(
    words: Sequence[str], policies: Sequence[Path], node_config: Mapping[str, Any]
) -> Iterator[Check]:
    """Of the run that ``words`` describe, by policy files and by a device's own node-config.

    Args:
        words: overrides, as for `murmur`.
        policies: files of devices' owners, each as it would be for a client that begins at zero.
        node_config: of this device; with its policy each of its clients is checked after what
            its ledger says it has spent.

    Yields:
        One check for the run, one for devices' conf/, and one for each policy and client.
    """
    experiment = validated(words)
    planned = PlannedReleases.of(experiment)
    found = f"{planned.algorithm}; a client releases at most {len(planned.releases)} times"
    yield Check("run", OK, found)
    agreement = partial(_agreement, experiment, words)
    yield attempt("devices' conf/", agreement, "see server_may_set in conf/")
    for path in policies:
        name = f"policy {path}"
        yield attempt(name, partial(_verdict, name, planned, path, None), _ADVICE)
    if "policy" in node_config:
        ledger = device_folder(node_config) / "ledger.sqlite"
        for client in OwnerSettings.of(node_config).clients:
            name = f"policy for client {client}"
            path = Path(str(node_config["policy"]))
            before = None
            if ledger.exists():
                before = (ledger, client)
            yield attempt(name, partial(_verdict, name, planned, path, before), _ADVICE)


def _agreement(experiment: Experiment, words: Sequence[str]) -> Check:
    """Whether devices would compose the run's configuration by their own conf/.

    Raises:
        ConfigError: the run sets something that no server may.
    """
    overrides_for_devices(experiment.config, choices(list(words)))
    return Check("devices' conf/", OK, "allows the run's settings")


def _verdict(
    name: str, planned: PlannedReleases, path: Path, before: tuple[Path, int] | None
) -> Check:
    """Whether the policy in ``path`` would let out all of the run's releases.

    ``name``: the check's. ``before``: the ledger and the client in it that has released something
    already; None: nothing. LedgerError where that ledger cannot be read.
    """
    policy = Policy.load(path.expanduser())
    spent = ComposedEvent(())
    count = 0
    if before is not None:
        with Ledger(before[0], create=False) as ledger:
            spent = ledger.spent(before[1])
            count = len(ledger.events(before[1]))
    refused = planned.refusal(policy, spent)
    after = ""
    if count:
        after = f", after {count} before this run"
    if refused is None:
        return Check(name, OK, f"allows all {len(planned.releases)} releases{after}")
    number, reason = refused
    found = f"refuses release {number} of {len(planned.releases)}{after}: {reason}"
    return Check(name, FAIL, " ".join(found.split()), _ADVICE)
