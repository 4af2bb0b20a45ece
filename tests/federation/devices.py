"""What fire drills share: three devices online, runs on them, and what is left in their ledgers."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from safetensors.numpy import load_file

from fl_app.engines.inline import InlineEngine
from fl_app.run.results import RunFolder
from fl_app.run.validated import ValidatedRun
from fl_app.tools.export import export
from murmur.privacy.ledger import Ledger
from tests.federation.loopback import Federation, wait_for
from tests.federation.network import Network

WORDS = [
    "dataset=digits",
    "strategy=privatekt",
    "federation.num_clients=3",
    "federation.public=400",
    "federation.num_rounds=3",
    "federation.quorum=0.6",
    "privacy.noise=seeded",
    "strategy.local.epochs=1",
]
PUBLISHED = "346,346,345"  # every client's number of examples, as a simulation of WORDS gives them
SIZES = f"federation.devices.sizes=[{PUBLISHED}]"
VICTIM = 2  # the device that things happen to
PATIENCE = 900.0  # seconds for anything to happen
RESTART = 5.0  # seconds until a process that ended is started again, as in deploy/systemd


class Devices:
    """``federation``, with three devices online."""

    def __init__(self, federation: Federation) -> None:
        self.federation, self.runs = federation, 0

    def start(self, *words: str, timeout: float = 300) -> Attempt:
        """Start a run whose rounds wait ``timeout`` seconds for answers."""
        self.runs += 1
        folder = self.federation.folder / f"run-{self.runs}"
        return Attempt(self, folder, [*WORDS, *words, f"federation.round_timeout={timeout}"])

    def heard(self, kind: str) -> int:
        """Messages of this kind that ``VICTIM`` has received in its life."""
        return self.federation.log(f"node-{VICTIM}").count(f"Receiving: {kind} message")

    @contextmanager
    def network(self) -> Iterator[Network]:
        """A network before ``VICTIM``, for as long as this lasts."""
        with closing(Network(self.federation.port)) as between:
            self._move(between.port)
            yield between
            self._move(None)

    def _move(self, port: int | None) -> None:
        """Stop ``VICTIM`` in good order, and start it with ``port`` before it."""
        self.federation.send(f"node-{VICTIM}", signal.SIGTERM)
        gone = partial(self.federation.send, f"node-{VICTIM}", 0)
        wait_for(lambda: not gone(), PATIENCE, "the SuperNode to end")
        self.revive(port)

    def revive(self, port: int | None = None) -> float:
        """Start ``VICTIM`` again as systemd would, until it is active; the seconds it took."""
        begin = time.monotonic()
        active = self._active()
        while time.monotonic() < begin + PATIENCE:
            process = self.start_node(VICTIM, port)
            while process.poll() is None and self._active() == active:
                time.sleep(0.1)
            if process.poll() is None:
                return time.monotonic() - begin
            self.federation.kill(f"node-{VICTIM}")  # what it has started and left behind
            time.sleep(RESTART)
        raise TimeoutError("the SuperNode does not become active")

    def start_node(self, client: int, port: int | None = None) -> subprocess.Popen:
        """Start the SuperNode that hosts ``client``, whose key is enrolled."""
        key = self.federation.folder / f"node-{client}.key"
        config = {**self.federation.device(client), "sizes": PUBLISHED}
        return self.federation.start_node(client, key, config, port=port)

    def _active(self) -> int:
        return self.federation.log(f"node-{VICTIM}").count("SuperNode ID:")


class Attempt:
    """A run on the devices, as far as it has come."""

    def __init__(self, devices: Devices, path: Path, words: list[str]) -> None:
        self.devices, self.folder, self.words = devices, RunFolder(path), words
        self.seen = {kind: devices.heard(kind) for kind in ("query", "train")}
        command = [*devices.federation.words, SIZES, *words, f"run_dir={path}"]
        self.process = devices.federation.murmur(*command)

    def wait_until_heard(self, kind: str, number: int) -> None:
        """Wait until ``VICTIM`` has received its ``number``-th message of this kind."""
        wait_for(
            lambda: self.devices.heard(kind) >= self.seen[kind] + number,
            PATIENCE,
            f"message {number} of kind {kind}; see {self.devices.federation.folder}",
        )

    def wait_until_charged(self, number: int) -> None:
        """Wait until ``VICTIM`` has paid for round ``number``, for which it now computes."""
        wait_for(lambda: self._entries("charge", number) > 0, PATIENCE, "a charge")

    def has_answered(self, number: int) -> bool:
        """Whether ``VICTIM``'s reply in round ``number`` is committed, so may have left."""
        return self._entries("answer", number) > 0

    def rows(self) -> list[dict]:
        """One for each finished round, from round 1 on."""
        return self.folder.rows()[1:]

    def resume(self) -> None:
        """`murmur resume`, to the end."""
        self.process = self.devices.federation.murmur("resume", str(self.folder.path))
        self.finish()

    def finish(self) -> None:
        """Wait for the end of the run, which must be a good one."""
        if self.process.wait(PATIENCE) or self.folder.metrics() is None:
            raise RuntimeError(self.devices.federation.story())

    def charges(self) -> list[int]:
        """For how many rounds each device has paid; RuntimeError if for any of them twice."""
        counts = []
        for client in range(3):
            path = self._ledger(client)
            if not path.exists():
                counts.append(0)
                continue
            with Ledger(path, create=False) as ledger:
                ledger.verify()
                entries = ledger.entries(client, self.folder.path.name)
                paid = [entry.round for entry in entries if entry.kind == "charge"]
            if len(paid) != len(set(paid)):
                raise RuntimeError(f"client {client} paid twice: rounds {paid}")
            counts.append(len(paid))
        return counts

    def is_whole(self) -> bool:
        """Whether the model is, bit for bit, that of a simulation that nothing happened to."""
        path = self.folder.path.with_name(f"{self.folder.path.name}-whole")
        words = [*self.words, "engine=inline", f"run_dir={path}"]
        InlineEngine(nodes=3).run(ValidatedRun.of(words))
        return _weights(path) == _weights(self.folder.path)

    def _ledger(self, client: int) -> Path:
        return self.devices.federation.folder / f"state-{client}" / "ledger.sqlite"

    def _entries(self, kind: str, number: int) -> int:
        path = self._ledger(VICTIM)
        if not path.exists():
            return 0
        key = (kind, self.folder.path.name, number)
        query = "SELECT count(*) FROM entries WHERE kind = ? AND run = ? AND round = ?"
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            try:
                return int(database.execute(query, key).fetchone()[0])
            except sqlite3.OperationalError:  # it is being made
                return 0


@contextmanager
def federation_of_three(folder: Path) -> Iterator[Devices]:
    """Three devices online, with the shards that a simulation of ``WORDS`` gives its clients."""
    with Federation(folder) as running:
        export(folder / "data", WORDS, shards=True)
        running.start_link()
        devices = Devices(running)
        for client in range(3):
            running.enrol(client)
            devices.start_node(client)
        wait_for(lambda: running.online() == 3, PATIENCE, "three nodes")
        yield devices


def _weights(folder: Path) -> dict[str, bytes]:
    return {name: w.tobytes() for name, w in load_file(folder / "model/model.safetensors").items()}
