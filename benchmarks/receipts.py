"""What checking receipts costs: ``python -m benchmarks.receipts [CLIENTS] [PHASES]``.

Makes a statement and a receipt of each client, signed by keys of their own, all with other Gaussian
noise, and has ``deploy/verify_statement.py`` check them in a process of its own. Then mixtures that
have no closed form, each distinct one by itself, and the size of one receipt.
"""

import base64
import hashlib
import importlib.util
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.processes import ROOT
from murmur.format import framed
from murmur.privacy.accounting import Adjacency, Unit
from murmur.privacy.envelope import Envelope
from murmur.privacy.events import ComposedEvent, GaussianEvent, Release, RepeatedEvent
from murmur.privacy.exposure import by_paths
from murmur.privacy.ledger.chain import LedgerSigner
from murmur.privacy.run_header import PlannedPhase, RunHeader, ServerKey, SignedHeader
from murmur.privacy.statement import Statement

VERIFIER = ROOT / "deploy" / "verify_statement.py"
DEFAULTS = [1_000, 100]  # clients, phases
MIXTURES = {
    "labels beside Gaussian noise": {
        ("RandomizedResponse", 1.5, 10): 40,
        ("Sampled", 1.0, 2.0, 0.0): 1,
    },
    "labels of two kinds": {("RandomizedResponse", 1.5, 10): 40, ("Pure", 0.71): 9},
    "steps of DP-SGD": {("Sampled", 0.02, 1.1, 0.0): 2_000},
    "counts with Laplace noise": {("Laplace", 3.0, 0): 20},
    "votes": {("DiscreteGaussian", 20.0, 2.0, True): 50},
}


def digest_of(number: int) -> str:
    """An entry's digest, of a question that nobody keeps."""
    words = framed(hashlib.sha256(b"question %d" % number).digest(), b"", b"")
    return base64.urlsafe_b64encode(hashlib.sha256(words).digest()).decode().rstrip("=")


def write(folder: Path, clients: int, phases: int) -> int:
    """Statement, roster and receipts of an honest run; the size of one receipt in bytes."""
    key = ServerKey.generate()
    unit, adjacency = Unit.CLIENT, Adjacency.REPLACE_ONE
    header = RunHeader(
        name="receipts",
        server=key.public_key,
        algorithm="noise",
        unit=unit,
        adjacency=adjacency,
        delta=1e-5,
        threat="local",
        schedule={"kind": "all", "clients": clients, "cohort": clients, "rounds": phases},
        secret=False,
        phases=(PlannedPhase("train", 1, phases),),
        settings={},
        questions="each its own",
    )
    releases = {
        client: Release(GaussianEvent(20 + client / 100), unit, adjacency)
        for client in range(1, clients + 1)
    }
    paths = {c: ComposedEvent((RepeatedEvent(r, phases),)) for c, r in releases.items()}
    exposure = by_paths(releases[1], paths, "a server that reads every message", (None, None))
    privacy = Statement.of("noise", unit, adjacency, header.delta, [exposure]).to_dict()
    signed = SignedHeader.of(header, key)
    questions = []
    empty = {"kind": "train", "started": "", "arrays": [], "settings": [], "metrics": []}
    words = framed(b"question to a sum", b"train", b"")
    for number in range(1, phases + 1):
        one = {"round": number, "purpose": "train", "question": hashlib.sha256(words).hexdigest()}
        questions.append({**one, "opened": empty})
    predicate = {
        **{"format": 1, "header": signed.text.decode(), "signature": signed.signature.hex()},
        **{"privacy": privacy, "questions": questions, "sums": []},
    }
    subject = {"header": signed.digest, "model": "00" * 32}
    statement = Envelope.of("urn:murmur:statement:1", subject, predicate, key)
    (folder / "statement.json").write_bytes(statement.to_bytes())
    (folder / "receipts").mkdir()
    roster = ""
    about = {"header": signed.digest, "statement": statement.digest}
    size = 0
    for client, release in releases.items():
        ledger = LedgerSigner.generate()
        roster += f"{client} - {ledger.public_key} owner {client}\n"
        entries = [[number, 0, 0, digest_of(number)] for number in range(1, phases + 1)]
        receipt = {
            **{"format": 1, **about, "client": str(client), "number": 1, "previous": None},
            **{"unit": unit, "adjacency": adjacency, "peers": None, "beside": []},
            **{"events": [release.to_dict()], "purposes": ["train"], "entries": entries},
        }
        content = Envelope.of("urn:murmur:receipt:1", about, receipt, ledger).to_bytes()
        (folder / "receipts" / f"{client}.json").write_bytes(content)
        size = max(size, len(content))
    (folder / "roster.txt").write_text(roster)
    return size


def check(folder: Path) -> tuple[int, float]:
    """The verifier's status and its processor seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, str(VERIFIER), str(folder), "--roster", str(folder / "roster.txt")]
    done = subprocess.run(command, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.returncode, spent


def mixtures() -> list[tuple[str, float, float]]:
    """ε and seconds of each mixture; the library is loaded before."""
    found = importlib.util.spec_from_file_location("verify_statement", VERIFIER)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    module.by_losses({("Pure", 1.0): 2}, 1e-5, True)
    rows = []
    for name, counts in MIXTURES.items():
        begun = time.process_time()
        value = module.by_losses(counts, 1e-5, True)
        module.by_losses(counts, 1e-5, False)
        rows.append((name, value, time.process_time() - begun))
    return rows


def main() -> None:
    """Print one table."""
    given = [int(word) for word in sys.argv[1:]]
    clients, phases = given + DEFAULTS[len(given) :]
    with tempfile.TemporaryDirectory() as folder:
        size = write(Path(folder), clients, phases)
        status, seconds = check(Path(folder))
    print("| what | figure |\n|---|---|")
    print(f"| {clients:,} receipts of distinct Gaussian lives, status {status} | {seconds:.1f} s |")
    print(f"| one receipt of {phases} phases | {size / 1000:.1f} kB |")
    for name, value, spent in mixtures():
        print(f"| {name}, epsilon = {value:.4g} | {spent:.2f} s |")


if __name__ == "__main__":
    main()
