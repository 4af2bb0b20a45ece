"""Fire drills: what is lost, what recovers, and in what time, when parts of a federation fail.

``python -m benchmarks.fire_drill OUT.md [NAME ...]`` runs real processes on loopback (TLS, node
authentication, three devices with digits of their own) and writes the table of
``docs/fire-drill.md``. Every drill ends with a run whose ledgers are checked: no device paid for
a round more than once.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.loopback import Federation, wait_for
from fl_app.results import RunFolder
from fl_app.tools.export import export
from privacy.ledger import Ledger

WORDS = [
    "dataset=digits",
    "federation.num_clients=3",
    "federation.public=400",
    "federation.num_rounds=3",
    "federation.quorum=0.6",
    "privacy.noise=seeded",
    "strategy.local.epochs=1",
]
MASKED = ["strategy=fedavg", "privacy.secure_aggregation=on", "privacy.secure_sum.max_weight=1000"]
PATIENCE = 900.0  # seconds for anything to happen


@dataclass(frozen=True)
class Outcome:
    """One row of the table."""

    drill: str
    lost: str
    recovered: str
    seconds: float


class Drill:
    """A federation, and the steps that drills share."""

    def __init__(self, federation: Federation) -> None:
        self.federation, self.runs = federation, 0

    def start(self, *words: str, timeout: float = 600) -> tuple[subprocess.Popen, RunFolder]:
        """Start a run; its process and folder."""
        self.runs += 1
        folder = self.federation.folder / f"run-{self.runs}"
        command = ["engine=deploy", "engine.superlink=loopback", *WORDS, *words]
        command += [f"federation.round_timeout={timeout}", f"run_dir={folder}"]
        return self.federation.murmur(*command), RunFolder(folder)

    def wait_until_training(self, node: int, number: int, seen: int) -> None:
        """Wait until ``node`` has been asked to train in round ``number``; see ``asked``."""
        wait_for(lambda: self.asked(node, "train") >= seen + number, PATIENCE, "training")

    def asked(self, node: int, kind: str) -> int:
        """Messages of this kind that ``node`` has received in its life."""
        return self.federation.log(f"node-{node}").count(f"Receiving: {kind} message")

    def revive(self, node: int) -> None:
        """Start a node again, as its owner would."""
        key = self.federation.folder / f"node-{node}.key"
        self.federation.start_node(node, key, self.federation.device(node))

    def finish(self, process: subprocess.Popen, folder: RunFolder) -> None:
        """Wait for the end of a run, which must be a good one."""
        if process.wait(PATIENCE) or folder.metrics() is None:
            raise RuntimeError(self.federation.log("murmur")[-2000:])

    def charges(self, folder: RunFolder) -> list[int]:
        """What each device has paid for in this run; RuntimeError if any round is in it twice."""
        counts = []
        for client in range(3):
            path = self.federation.folder / f"state-{client}" / "ledger.sqlite"
            with Ledger(path, create=False) as ledger:
                ledger.verify()
                entries = list(ledger.entries(client, folder.path.name))
            paid = [entry.round for entry in entries if entry.kind == "charge"]
            if len(paid) != len(set(paid)):
                raise RuntimeError(f"client {client} paid twice: rounds {paid}")
            counts.append(len(paid))
        return counts


def node_killed(drill: Drill, *words: str) -> Outcome:
    """A device's power fails while it trains; it comes back."""
    seen = drill.asked(2, "train")
    process, folder = drill.start(*words, timeout=60)
    drill.wait_until_training(2, 1, seen)
    drill.federation.kill(drill.federation.nodes[2])
    begin = time.monotonic()
    drill.revive(2)
    drill.finish(process, folder)
    rows = folder.rows()[1:]
    back = next((row["round"] for row in rows if row["answered"] == 3), None)
    lost = [f"round {row['round']}: {row['failed']}" for row in rows if row["failed"]]
    recovered = "all rounds counted" if all(r["answered"] >= 2 for r in rows) else "not all rounds"
    if back is not None:
        recovered += f"; the device answers again in round {back}"
    return Outcome("node killed while it trains", "; ".join(lost), recovered, _since(begin))


def link_killed(drill: Drill, *words: str) -> Outcome:
    """The server's power fails while devices train; it comes back, and the run is resumed."""
    seen = drill.asked(2, "train")
    process, folder = drill.start(*words, "federation.quorum=1.0")
    drill.wait_until_training(2, 2, seen)
    return _link_restarted(drill, process, folder, "SuperLink killed within round 2")


def link_killed_between(drill: Drill, *words: str) -> Outcome:
    """The server's power fails right after a round was written."""
    process, folder = drill.start(*words, "federation.quorum=1.0")
    wait_for(lambda: len(folder.rows()) >= 2, PATIENCE, "round 1")
    return _link_restarted(drill, process, folder, "SuperLink killed after round 1")


def _link_restarted(
    drill: Drill, process: subprocess.Popen, folder: RunFolder, name: str
) -> Outcome:
    federation = drill.federation
    assert federation.link is not None
    federation.kill(federation.link)
    begin = time.monotonic()
    status = process.wait(PATIENCE)
    rows = len(folder.rows()) - 1
    federation.start_link()
    drill.finish(federation.murmur("resume", str(folder.path)), folder)
    charges = drill.charges(folder)
    lost = f"Flower's run (murmur ended with status {status}); {rows} of 3 rounds were kept"
    recovered = f"murmur resume: all 3 rounds; each device has paid for {charges} rounds"
    return Outcome(name, lost, recovered, _since(begin))


def slow_node(drill: Drill, *words: str) -> Outcome:
    """A device stands still past the deadline of a round, and goes on later."""
    seen = drill.asked(2, "train")
    process, folder = drill.start(*words, timeout=45)
    drill.wait_until_training(2, 1, seen)
    begin = time.monotonic()
    os.killpg(drill.federation.nodes[2].pid, signal.SIGSTOP)
    wait_for(lambda: len(folder.rows()) >= 2, PATIENCE, "round 1 without the slow node")
    took = _since(begin)
    os.killpg(drill.federation.nodes[2].pid, signal.SIGCONT)
    drill.finish(process, folder)
    rows = folder.rows()[1:]
    lost = f"round 1: {rows[0]['failed']}"
    recovered = f"answers by round: {[row['answered'] for row in rows]}"
    return Outcome("slow node past the deadline (45 s)", lost, recovered, took)


DRILLS: dict[str, Callable[[Drill], Outcome]] = {
    "node": node_killed,
    "link-within": link_killed,
    "link-between": link_killed_between,
    "slow": slow_node,
    "masked-node": lambda drill: node_killed(drill, *MASKED),
}


@contextmanager
def federation_of_three(folder: Path) -> Iterator[Drill]:
    """Three devices online."""
    with Federation(folder) as running:
        export(folder / "data", WORDS, shards=True)
        running.start_link()
        for client in range(3):
            running.start_node(client, running.enrol(client), running.device(client))
        wait_for(lambda: running.online() == 3, PATIENCE, "three nodes")
        yield Drill(running)


def _since(begin: float) -> float:
    return time.monotonic() - begin


def main() -> int:
    """Run the drills that are named, or all, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, metavar="OUT.md")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(DRILLS)}")
    arguments = parser.parse_args()
    lines = [
        f"`python -m benchmarks.fire_drill {' '.join(sys.argv[1:])}` on {os.cpu_count()} cores, "
        f"{platform.machine()}, load {os.getloadavg()[0]:.0f} at the start.",
        "",
        "| drill | lost | recovered | seconds |",
        "|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as folder, federation_of_three(Path(folder)) as drill:
        for name in arguments.names or DRILLS:
            done = DRILLS[name](drill)
            lines.append(f"| {done.drill} | {done.lost} | {done.recovered} | {done.seconds:.0f} |")
            print(lines[-1], flush=True)
            arguments.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
