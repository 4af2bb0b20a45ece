"""What the device's ledger costs: ``python -m benchmarks.ledger [--folder DISK] [--rounds N]``.

Prints, as Markdown, medians and 95th percentiles of wall time and medians of processor time. Every
charge and every stored reply is durable when it returns (one commit to the write-ahead log and one
anchor, both synced), so the disk decides: give the folder of the disk in question; the default is
the system's temporary one. On a machine with all cores busy, waiting for each sync also costs a
scheduler's tick.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from murmur.privacy.events import ComposedEvent, RandomizedResponseEvent, RepeatedEvent
from murmur.privacy.ledger import Charge, Ledger

EVENT = RepeatedEvent(RandomizedResponseEvent(2.5, 10), 2)


class Timings:
    """Wall and processor times of one thing done many times."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.processor: list[float] = []

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Time the block."""
        start, processor = time.perf_counter(), time.process_time()
        yield
        self.seconds.append(time.perf_counter() - start)
        self.processor.append(time.process_time() - processor)

    def row(self, what: str) -> str:
        """A Markdown table row, in milliseconds."""
        ordered = sorted(self.seconds)
        median, high = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.95)]
        processor = sorted(self.processor)[len(ordered) // 2]
        times = " | ".join(f"{1e3 * seconds:.2f}" for seconds in (median, high, processor))
        return f"| {what} | {times} | {len(ordered)} |"


def charges_of(number: int, clients: int, run: str) -> list[Charge]:
    """One node message: ``clients`` clients asked for one round."""
    request = hashlib.sha256(f"{run} {number}".encode()).hexdigest()
    return [Charge(client, run, number, "train", request, EVENT) for client in range(clients)]


def append_and_sync(folder: Path) -> Timings:
    """The disk by itself: 20 kB appended and synced, what a small commit writes."""
    timings = Timings()
    descriptor = os.open(folder / "appended", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for _ in range(200):
        with timings.measure():
            os.write(descriptor, bytes(20_000))
            os.fsync(descriptor)
    os.close(descriptor)
    return timings


def messages(
    ledger: Ledger,
    clients: int,
    reply_bytes: int,
    repetitions: int,
    admit: Callable[[Charge, ComposedEvent], None] | None = None,
    blocks: bool = False,
) -> tuple[Timings, Timings]:
    """Charging ``repetitions`` messages, and storing their replies."""
    charging, storing = Timings(), Timings()
    run = f"{clients} {reply_bytes} {admit} {blocks}"
    reply = os.urandom(reply_bytes)
    for number in range(repetitions):
        charges = charges_of(number, clients, run)
        with charging.measure():
            outcomes = ledger.charge(charges, admit, blocks=blocks)
        if not all(outcome.may_compute for outcome in outcomes):
            raise RuntimeError(f"a charge was refused: {outcomes}")
        with storing.measure():
            ledger.store_reply(charges[0].request, reply)
    return charging, storing


def lifetime_admission(charge: Charge, spent: ComposedEvent) -> None:
    """What a policy does: the proven ε of a whole life."""
    from murmur.privacy.accounting import epsilon

    if not epsilon(ComposedEvent((spent, charge.event)), 1e-5).epsilon > 0:
        raise RuntimeError("free of charge")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What the device's ledger costs.")
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--rounds", type=int, default=500, help="of 1,000 clients, for reading")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        measure(Path(folder), options.rounds)


def measure(folder: Path, rounds: int) -> None:
    """All measurements, in files under ``folder``."""
    print("| writing | median, ms | 95th, ms | processor, ms | runs |\n|---|---|---|---|---|")
    print(append_and_sync(folder).row("20 kB appended to a file and synced (the disk by itself)"))
    with Ledger(folder / "small.sqlite") as ledger:
        for clients, repetitions in ((1, 300), (50, 300), (1000, 60)):
            charging, storing = messages(ledger, clients, 1_000, repetitions)
            print(charging.row(f"charge a message for {clients} clients"))
            print(storing.row(f"store its reply of 1 kB ({clients} clients)"))
        charging, _ = messages(ledger, 1000, 1_000, 60, blocks=True)
        print(charging.row("charge a message for 1000 clients in blocks, as a simulation does"))
        charging, _ = messages(ledger, 50, 1_000, 100, lifetime_admission)
        print(charging.row("charge 50 clients, each with its lifetime ε computed first"))
        _, storing = messages(ledger, 50, 4_000_000, 60)
        print(storing.row("store a reply of 4 MB"))

    path = folder / "large.sqlite"
    with Ledger(path) as ledger:
        for number in range(rounds):
            ledger.charge(charges_of(number, 1000, "large"))
    print(f"\nA ledger of {rounds} rounds × 1,000 clients, {path.stat().st_size / 1e6:.0f} MB:\n")
    print("| reading | median, ms | 95th, ms | processor, ms | runs |\n|---|---|---|---|---|")
    opening, spending, charging, verifying = Timings(), Timings(), Timings(), Timings()
    for _ in range(5):
        with opening.measure():
            ledger = Ledger(path)
        ledger.close()
    with Ledger(path) as ledger:
        for client in range(1000):
            with spending.measure():
                ledger.spent(client)
        for number in range(50):
            with charging.measure():
                ledger.charge(charges_of(number, 50, "more"))
        with verifying.measure():
            ledger.verify()
    print(opening.row("open"))
    print(spending.row("all that one client spent in its life"))
    print(charging.row("charge a message for 50 clients"))
    print(verifying.row("verify everything"))


if __name__ == "__main__":
    main()
