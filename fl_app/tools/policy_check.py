"""Whether devices' policies would refuse a run, and from which of its releases on.

Nothing is asked of anybody, and no data is opened: the run is composed as the server composes it, a
device agrees to it by its own conf/, and its policy is asked about one release after the other, as
it would be by the messages of the run.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fl_app.config.compose import choices
from fl_app.device.agreement import overrides_for_devices
from fl_app.device.checks import FAIL, OK, Check, attempt
from fl_app.device.node_settings import OwnerSettings, device_folder
from fl_app.run.prepare import validated
from fl_app.run.validated import ValidatedRun
from murmur.privacy.events import ComposedEvent, Event, NonPrivateEvent, RepeatedEvent
from murmur.privacy.ledger import Ledger
from murmur.privacy.policy import Policy, Refusal

_ADVICE = "agree with the device's owner, or change the run's settings"


def planned_releases(experiment: ValidatedRun) -> list[Event]:
    """Returns the releases of the client that is asked most often, in order.

    Each participation is one release, as in the run's statement, followed by that of an evaluation
    where one is due.
    """
    strategy = experiment.strategy
    setup = strategy.setup
    release = strategy.release_event()
    if setup.secure_sums.is_on:
        release = strategy.rounds.exposure_in_sums(release, {}).per_round
    releases: list[Event] = []
    for number in range(1, setup.cohorts.participations + 1):
        releases.append(release)
        evaluation = strategy.rounds.evaluation
        if evaluation is not None and evaluation.is_on and number % evaluation.every == 0:
            releases.append(evaluation.event())
    return releases


def first_refusal(
    experiment: ValidatedRun, policy: Policy, before: Event
) -> tuple[int, str] | None:
    """The first of the run's releases (1, 2, ...) that ``policy`` refuses, and why; None: none.

    What is refused after some releases is refused after more, so the number is found by halving.

    Args:
        experiment: the run.
        policy: of the device.
        before: all that the client has released in its life.
    """
    releases = planned_releases(experiment)
    seeded = experiment.privacy.noise == "seeded"

    def refusal(count: int) -> str | None:
        """Why the first ``count`` are not all let out; the last of each kind is asked about."""
        latest = {event: place for place, event in enumerate(releases[:count])}
        for event, place in latest.items():
            earlier = Counter(releases[:place])
            spent = [RepeatedEvent(each, times) for each, times in earlier.items()]
            try:
                policy.check(
                    algorithm=experiment.config.strategy.name,
                    event=event,
                    spent=ComposedEvent((before, *spent)),
                    delta=experiment.privacy.delta,
                    # An evaluation without protection has no noise: a seed does not matter to it.
                    seeded_noise=seeded and not isinstance(event, NonPrivateEvent),
                    now=datetime.now(UTC),
                )
            except Refusal as reason:
                return str(reason)
        return None

    counts = range(len(releases) + 1)
    number = bisect_left(counts, True, key=lambda count: refusal(count) is not None)
    reason = refusal(number)
    if reason is None:
        return None
    return number, reason


def checks(
    words: Sequence[str], policies: Sequence[Path], node_config: Mapping[str, Any]
) -> Iterator[Check]:
    """Checks the run in ``words`` against policy files and a device's own node-config.

    Args:
        words: overrides, as for `murmur`.
        policies: files of devices' owners, each as it would be for a client that begins at zero.
        node_config: of this device; with its policy each of its clients is checked after what
            its ledger says it has spent.

    Yields:
        One check for the run, one for devices' conf/, and one for each policy and client.
    """
    experiment = validated(words)
    most = len(planned_releases(experiment))
    found = f"{experiment.config.strategy.name}; a client releases at most {most} times"
    yield Check("run", OK, found)
    yield attempt("devices' conf/", "see server_may_set in conf/", _agreement, experiment, words)
    for path in policies:
        name = f"policy {path}"
        yield attempt(name, _ADVICE, _verdict, name, experiment, path, None)
    if "policy" in node_config:
        ledger = device_folder(node_config) / "ledger.sqlite"
        for client in OwnerSettings.of(node_config).clients:
            name = f"policy for client {client}"
            path = Path(str(node_config["policy"]))
            before = None
            if ledger.exists():
                before = (ledger, client)
            yield attempt(name, _ADVICE, _verdict, name, experiment, path, before)


def _agreement(experiment: ValidatedRun, words: Sequence[str]) -> Check:
    """Checks that devices would compose the run's configuration from their own conf/.

    Raises:
        ConfigError: the run sets something that no server may.
    """
    overrides_for_devices(experiment.config, choices(list(words)))
    return Check("devices' conf/", OK, "allows the run's settings")


def _verdict(
    name: str, experiment: ValidatedRun, path: Path, before: tuple[Path, int] | None
) -> Check:
    """Checks that the policy in ``path`` would allow all of the run's releases.

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
    refused = first_refusal(experiment, policy, spent)
    most = len(planned_releases(experiment))
    after = ""
    if count:
        after = f", after {count} before this run"
    if refused is None:
        return Check(name, OK, f"allows all {most} releases{after}")
    number, reason = refused
    found = f"refuses release {number} of {most}{after}: {reason}"
    return Check(name, FAIL, " ".join(found.split()), _ADVICE)
