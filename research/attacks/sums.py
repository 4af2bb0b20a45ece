"""Clients that attack secure sums: ``python -m research.attacks.sums`` prints what that costs.

A tenth of the clients do the same wrong thing in every round, through the real ClientApp, in one
process; all else is an ordinary run of PrivateKT on digits. The table says how many rounds
counted, who was named and when, and for how many rounds the honest clients have paid.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import describe_machine
from fl_app.engines.inline import InlineEngine
from fl_app.run.results import RunFolder
from fl_app.run.validated import ValidatedRun
from murmur.privacy.ledger import Ledger
from murmur.round.task import RunError
from murmur.secure_sum.client import SEALED_BYTES, SecureClient
from murmur.secure_sum.identity import Advertisement, Party, about_dealing
from murmur.secure_sum.keys import POINT_BYTES, public_key, scalar
from murmur.secure_sum.shares import Dealing
from murmur.secure_sum.terms import Stage, join, part

VICTIM = 0
Lie = Callable[[SecureClient, bytes, bytes], bytes]  # the liar, its message, its honest answer


def equal_keys(liar: SecureClient, message: bytes, honest: bytes) -> bytes:
    """One key pair for everything."""
    one = public_key(liar.channel)
    return Advertisement.sign(liar.identity, liar.terms, liar.me, one, one, one)


def zero_keys(liar: SecureClient, message: bytes, honest: bytes) -> bytes:
    """Keys that are no points."""
    zero = bytes(POINT_BYTES)
    return Advertisement.sign(liar.identity, liar.terms, liar.me, zero, zero, zero)


def random_keys(liar: SecureClient, message: bytes, honest: bytes) -> bytes:
    """A channel key whose private half nobody has; the others are as they should be."""
    keys = (public_key(scalar()), public_key(liar.mask), public_key(liar.seed))
    return Advertisement.sign(liar.identity, liar.terms, liar.me, *keys)


def garbage_shares(liar: SecureClient, message: bytes, honest: bytes) -> bytes:
    """Boxes of random bytes."""
    size = SEALED_BYTES * len(liar.public)
    return honest[:-size] + os.urandom(size)


def shut_out(liar: SecureClient, message: bytes, honest: bytes) -> bytes:
    """A box of random bytes to the victim only."""
    neighbours = liar.terms.neighbours_of(liar.me)
    start = Dealing.size(liar.terms.threshold, liar.terms.holders)
    boxes = part(honest[start:], SEALED_BYTES, neighbours)
    if VICTIM in boxes:
        boxes[VICTIM] = os.urandom(SEALED_BYTES)
    return honest[:start] + join(boxes, neighbours)


def false_commitment(liar: SecureClient, message: bytes, honest: bytes) -> bytes:
    """Shares of a seed other than the one that it committed to."""
    terms = liar.terms
    about = about_dealing(terms, Party(liar.me, liar.advertised))
    own = Advertisement.of(liar.advertised)
    public = own.seed, own.mask
    dealing, _ = Dealing.of(scalar(), liar.mask, terms.threshold, terms.holders, about, public)
    return dealing.to_bytes() + honest[Dealing.size(terms.threshold, terms.holders) :]


def holds_nothing(liar: SecureClient, message: bytes, honest: bytes) -> bytes:
    """No word of anybody's shares, as if none had arrived."""
    return bytes(len(honest))


def rubbish(liar: SecureClient, message: bytes, honest: bytes) -> bytes:
    """Random bytes, as many as there should be."""
    return os.urandom(len(honest))


def wrong_reveal(liar: SecureClient, message: bytes, honest: bytes) -> bytes:
    """Random bytes in place of the shares."""
    head = (liar.terms.holders + 7) // 8
    return honest[:head] + os.urandom(len(honest) - head)


@dataclass(frozen=True)
class Attack:
    """What a liar makes of its answer in ``phase``."""

    phase: Stage
    lie: Lie


ATTACKS = {
    "equal keys": Attack(Stage.ADVERTISE, equal_keys),
    "zero keys": Attack(Stage.ADVERTISE, zero_keys),
    "random keys": Attack(Stage.ADVERTISE, random_keys),
    "garbage shares": Attack(Stage.SHARE, garbage_shares),
    "false commitment": Attack(Stage.SHARE, false_commitment),
    "shuts out a victim": Attack(Stage.SHARE, shut_out),
    "holds nothing": Attack(Stage.CHECK, holds_nothing),
    "false confirm": Attack(Stage.CONFIRM, rubbish),
    "wrong reveal": Attack(Stage.REVEAL, wrong_reveal),
    "random vector": Attack(Stage.MASK, rubbish),
}


@contextmanager
def attacked(attack: Attack, liars: Sequence[int]) -> Iterator[None]:
    """Within it, ``liars`` lie."""
    answer, add_masks = SecureClient.answer, SecureClient.add_masks

    def answering(self: SecureClient, phase: Stage, message: bytes, *rest: object) -> bytes:
        honest = answer(self, phase, message, *rest)  # type: ignore[arg-type]
        lies = phase is attack.phase and self.me in liars
        return attack.lie(self, message, honest) if lies else honest

    def masking(self: SecureClient, vector: object, message: bytes, asked: bytes) -> NDArray:
        honest = add_masks(self, vector, message, asked)  # type: ignore[arg-type]
        if attack.phase is not Stage.MASK or self.me not in liars:
            return honest
        return np.frombuffer(attack.lie(self, message, honest.tobytes()), np.uint8)

    with (
        mock.patch.object(SecureClient, "answer", answering),
        mock.patch.object(SecureClient, "add_masks", masking),
    ):
        yield


@dataclass(frozen=True)
class Outcome:
    """``counted``: rounds; ``named``: client and first round; ``paid``: rounds by client."""

    counted: list[int]
    named: dict[int, int]
    paid: dict[int, int]
    seconds: float
    ended: str = ""


def run(
    folder: Path, attack: Attack | None, clients: int, liars: Sequence[int], *words: str
) -> Outcome:
    """One run of ``clients`` of whom ``liars`` lie in every round."""
    overrides = [
        "engine=inline",
        f"federation.num_clients={clients}",
        "strategy.local.epochs=1",
        "privacy.noise=seeded",
        "privacy.secure_aggregation=on",
        f"run_dir={folder}",
        *words,
    ]
    results, begun, ended = RunFolder(folder), time.monotonic(), ""
    with attacked(attack or Attack(Stage.MASK, rubbish), liars if attack else ()):
        try:
            InlineEngine().run(ValidatedRun.of(overrides))
        except RunError as error:
            ended = str(error)
    rows = [row for row in results.rows() if row["round"]]
    named: dict[int, int] = {}
    for row in rows:
        named = {int(client): row["round"] for client in row["accused"]} | named
    with Ledger(folder / "ledger.sqlite") as ledger:
        paid = {client: len(list(ledger.entries(client))) for client in range(clients)}
    counted = [row["round"] for row in rows if row["answered"]]
    return Outcome(counted, named, paid, time.monotonic() - begun, ended)


def row(name: str, outcome: Outcome, rounds: int, liars: Sequence[int]) -> str:
    """One line of the table."""
    named = [outcome.named[c] for c in liars if c in outcome.named]
    when = f"{len(named)} of {len(liars)}" + (f", in round {_span(named)}" if named else "")
    honest = [n for c, n in outcome.paid.items() if c not in liars]
    theirs = [outcome.paid[c] for c in liars]
    wrong = len(outcome.named.keys() - set(liars))
    cells = (
        name,
        f"{len(outcome.counted)} of {rounds}" + ", then the run ended" * bool(outcome.ended),
        when,
        str(wrong),
        _span(honest),
        _span(theirs) if theirs else "",
        f"{outcome.seconds:.0f}",
    )
    return f"| {' | '.join(cells)} |"


def _span(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--liars", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--groups", type=int, default=10, help="against random vectors")
    parser.add_argument("attacks", nargs="*", metavar="ATTACK")
    chosen = parser.parse_args()
    liars = range(chosen.clients - chosen.liars, chosen.clients)
    grouped = f"privacy.secure_sum.groups={chosen.groups}"
    cases: dict[str, tuple[Attack | None, str]] = {"nothing": (None, "")}
    cases |= {name: (attack, "") for name, attack in ATTACKS.items()}
    cases[f"random vector, {chosen.groups} groups"] = (ATTACKS["random vector"], grouped)
    print(f"{chosen.clients} clients, {chosen.liars} liars; {describe_machine('cryptography')}\n")
    print("| every round | rounds that counted | named | honest, named | rounds paid for, honest "
          "| liars | s |")  # fmt: skip
    print("|---|---|---|---|---|---|---|")
    for name in chosen.attacks or cases:
        attack, words = cases[name]
        with tempfile.TemporaryDirectory() as folder:
            settings = [f"federation.num_rounds={chosen.rounds}", *([words] if words else [])]
            outcome = run(Path(folder), attack, chosen.clients, liars if attack else (), *settings)
        print(row(name, outcome, chosen.rounds, liars if attack else ()), flush=True)


if __name__ == "__main__":
    main()
