"""The fire drills: each does one thing to three devices and their server, and says what became."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tests.federation.devices import VICTIM, Attempt, Devices
from tests.federation.loopback import NAME, wait_for

MASKED = [
    "strategy=fedavg",
    "federation.num_rounds=1",
    "privacy.secure_aggregation=on",
    "privacy.secure_sum.threshold=0.5",  # two of three suffice
]
# When a device is in a phase of a secure sum.
PHASES = {
    "advertise": ("query", 1),
    "share": ("query", 2),
    "check": ("query", 3),
    "mask": ("train", 1),
    "confirm": ("query", 4),
    "reveal": ("query", 5),
}
ALL = "federation.quorum=1.0"
LONG = "strategy.local.epochs=500"  # long enough to be killed in
DEADLINE = 45.0  # seconds
NODE = f"node-{VICTIM}"


@dataclass(frozen=True)
class Outcome:
    """``seconds``: from the failure until what was to recover had recovered."""

    lost: str
    recovered: str
    seconds: float


@dataclass(frozen=True)
class Drill:
    """``name``: what happens, in the table's words."""

    name: str
    run: Callable[[Devices], Outcome]


def node_killed_waiting(devices: Devices) -> Outcome:
    """A device's power fails while it has nothing to do; then a run starts that needs it."""
    devices.federation.kill(NODE)
    begin = time.monotonic()
    run = devices.start(ALL, "federation.num_rounds=1", timeout=300)
    away = devices.revive()
    run.finish()
    require(run.is_whole(), "the result is another")
    waited = f"the run waited for it, {run.rows()[0]['answered']} of 3 answered"
    return Outcome("nothing", f"active again after {away:.0f} s; {waited}", since(begin))


def node_killed_training(devices: Devices) -> Outcome:
    """A device's power fails after it has paid and before it answers; all must answer."""
    # Flower knows within a minute that it is gone: before it would be asked once more.
    run = devices.start(ALL, LONG, "federation.num_rounds=2", timeout=4 * DEADLINE)
    run.wait_until_charged(1)
    devices.federation.kill(NODE)
    begin = time.monotonic()
    require(not run.has_answered(1), "it had answered already; raise LONG")
    away = devices.revive()
    run.finish()
    first, second = run.rows()
    require((first["answered"], second["answered"]) == (2, 3), "other devices failed")
    lost = f"round 1 ({first['failed'][str(VICTIM)]}): 2 of 3 answered, the quorum is 3"
    recovered = f"active again after {away:.0f} s; round 2 waited for it and counted; {paid(run)}"
    return Outcome(lost, recovered, since(begin))


def node_killed_in_phase(devices: Devices, phase: str, timeout: float = DEADLINE) -> Outcome:
    """A device's power fails in one phase of a secure sum; two of three suffice."""
    run = devices.start(*MASKED, timeout=timeout)
    run.wait_until_heard(*PHASES[phase])
    devices.federation.kill(NODE)
    begin = time.monotonic()
    run.finish()
    took = since(begin)
    (row,) = run.rows()
    masked = phase in ("confirm", "reveal")
    require(row["answered"] == 2 + masked, f"{row}")
    sum_of = f"the sum of {row['answered']} counted"
    if masked:
        require(run.is_whole(), "the result is another")
        sum_of += ", its contribution included"
    recovered = f"{sum_of}; {paid(run)}; active again after {devices.revive():.0f} s"
    lost = row["failed"].get(str(VICTIM), "nothing")
    return Outcome(lost, recovered, took)


def link_killed(
    devices: Devices, moment: Callable[[Attempt], None], words: tuple[str, ...] = ()
) -> Outcome:
    """The server's power fails; it comes back, and the run is resumed."""
    run = devices.start(*words, ALL)
    moment(run)
    devices.federation.kill("superlink")
    begin = time.monotonic()
    run.process.wait()
    told = since(begin)
    kept = len(run.rows())
    require(run.folder.metrics() is None, "the run was over")
    devices.federation.start_link()
    run.resume()
    require(run.is_whole(), "the result is another")
    lost = f"Flower's run; murmur ended after {told:.0f} s; {kept} of {len(run.rows())} rounds kept"
    return Outcome(lost, f"`murmur resume`: the same result; {paid(run)}", since(begin))


def link_killed_behind_a_proxy(devices: Devices) -> Outcome:
    """The same, where a device's connections are still accepted, and end within the handshake."""
    with devices.network():
        return link_killed(devices, _after_round_1)


def murmur_stopped(devices: Devices) -> Outcome:
    """Whoever started the run ends it with SIGTERM, and resumes it."""
    run = devices.start(ALL)
    run.wait_until_heard("train", 2)
    run.process.send_signal(signal.SIGTERM)
    begin = time.monotonic()
    run.process.wait()
    told, kept = since(begin), len(run.rows())
    require('"running"' not in devices.federation.flwr("list", NAME, "--format", "json"), "it runs")
    run.resume()
    require(run.is_whole(), "the result is another")
    lost = f"Flower's run, stopped in {told:.0f} s; {kept} of {len(run.rows())} rounds kept"
    return Outcome(lost, f"`murmur resume`: the same result; {paid(run)}", since(begin))


def network_cut(devices: Devices, seconds: float, words: tuple[str, ...] = ()) -> Outcome:
    """A device's network fails while it trains, and is back before the deadline."""
    with devices.network() as network:
        run = devices.start(*words, ALL)
        run.wait_until_heard("train", 1)
        network.cut()
        begin = time.monotonic()
        time.sleep(seconds)
        network.restore()
        run.finish()
        took = since(begin)
    require(run.is_whole(), "the result is another")
    answers = [row["answered"] for row in run.rows()]
    rounds = f"round 1 took {run.rows()[0]['seconds']:.0f} s; answers by round: {answers}"
    return Outcome("nothing", f"{rounds}; {paid(run)}", took)


def network_cut_past_deadline(devices: Devices) -> Outcome:
    """A device's network fails for longer than a round waits."""
    with devices.network() as network:
        run = devices.start("federation.num_rounds=6", timeout=DEADLINE)
        run.wait_until_heard("train", 1)
        network.cut()
        begin = time.monotonic()
        wait_for(lambda: len(run.rows()) >= 1, 900, "round 1 without the device")
        took = since(begin)
        network.restore()
        run.finish()
    return late(run, took)


def node_slow(devices: Devices) -> Outcome:
    """A device stands still past the deadline of a round, and goes on later."""
    run = devices.start("federation.num_rounds=6", timeout=DEADLINE)
    run.wait_until_heard("train", 1)
    devices.federation.send(NODE, signal.SIGSTOP)
    begin = time.monotonic()
    wait_for(lambda: len(run.rows()) >= 1, 900, "round 1 without the slow device")
    took = since(begin)
    devices.federation.send(NODE, signal.SIGCONT)
    run.finish()
    return late(run, took)


def late(run: Attempt, seconds: float) -> Outcome:
    """The outcome of a run whose first round went on without ``VICTIM``."""
    answers = [row["answered"] for row in run.rows()]
    require(answers[0] == 2 and min(answers) >= 2, f"answers by round: {answers}")
    lost = f"its answer of round 1 ({run.rows()[0]['failed'][str(VICTIM)]})"
    return Outcome(lost, f"answers by round: {answers}; {paid(run)}", seconds)


def paid(run: Attempt) -> str:
    """What the ledgers say."""
    return f"rounds paid for: {run.charges()}"


def since(begin: float) -> float:
    """Seconds."""
    return time.monotonic() - begin


def require(holds: bool, otherwise: str) -> None:
    """RuntimeError where a drill did not end as it should."""
    if not holds:
        raise RuntimeError(otherwise)


def in_phase(phase: str) -> Callable[[Attempt], None]:
    """Waits until ``VICTIM`` has been asked in that phase of a secure sum."""
    return lambda run: run.wait_until_heard(*PHASES[phase])


def _after_round_1(run: Attempt) -> None:
    wait_for(lambda: len(run.rows()) >= 1, 900, "round 1")


DRILLS: dict[str, Drill] = {
    "node-waiting": Drill("device killed while it waits", node_killed_waiting),
    "node-training": Drill("device killed while it trains", node_killed_training),
    **{
        f"node-{phase}": Drill(
            f"device killed in phase *{phase}* of a secure sum",
            partial(node_killed_in_phase, phase=phase),
        )
        for phase in PHASES
    },
    "link-within": Drill(
        "SuperLink killed within round 2",
        partial(link_killed, moment=lambda run: run.wait_until_heard("train", 2)),
    ),
    "link-between": Drill(
        "SuperLink killed after round 1", partial(link_killed, moment=_after_round_1)
    ),
    **{
        f"link-{phase}": Drill(
            f"SuperLink killed in phase *{phase}* of a secure sum",
            partial(link_killed, moment=in_phase(phase), words=tuple(MASKED)),
        )
        for phase in ("mask", "confirm")
    },
    "link-proxy": Drill(
        "SuperLink killed after round 1, behind a proxy that still accepts connections",
        link_killed_behind_a_proxy,
    ),
    "murmur-stopped": Drill("`murmur` ended by SIGTERM within round 2", murmur_stopped),
    "network": Drill("device's network cut for 30 s", partial(network_cut, seconds=30)),
    "network-deadline": Drill(
        f"device's network cut past the deadline ({DEADLINE:.0f} s), quorum 0.6",
        network_cut_past_deadline,
    ),
    "slow": Drill(
        f"device stands still past the deadline ({DEADLINE:.0f} s), quorum 0.6", node_slow
    ),
}
