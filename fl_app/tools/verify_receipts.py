"""A signed statement beside a roster and receipts: ``deploy/verify_statement.py`` compares them.

It runs in a process of its own, as whoever has nothing of Murmur runs it.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

SERVERS_WORD = "the server's word"
_RECEIPTS = "receipts"
_SIMULATION = "simulation.json"


def verifier() -> Path:
    """The file that compares them, in a checkout or where it is installed."""
    here = Path(__file__).resolve()
    checkout = here.parents[2] / "deploy" / "verify_statement.py"
    if checkout.is_file():
        return checkout
    return here.with_name("verify_statement.py")


def compare(statement: Path, roster: Path | None, argv: list[str]) -> int:
    """The verifier's status for the words ``argv``; 2 where what it needs is not installed.

    Of a simulation's folder it checks arithmetic, since there is nothing else.
    """
    if importlib.util.find_spec("dp_accounting") is None:
        needs = "needs dp-accounting: pip install 'dp-accounting>=0.6,<0.7'"
        print(f"murmur verify: {needs}", file=sys.stderr)
        return 2
    command = [sys.executable, str(verifier()), *argv]
    if roster is None and (statement / _RECEIPTS / _SIMULATION).exists():
        command.append("--arithmetic")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout, end="")
    print(done.stderr, end="", file=sys.stderr)
    return done.returncode


def whose_word(run: Path | None, roster: Path | None) -> str:
    """On whose word the statement in a ``run``'s folder rests, such as "shown: receipts of 5 of 5".

    The server's, unless there are receipts of others and the ``roster`` that says whose they are.
    """
    if run is None or not (run / _RECEIPTS).is_dir():
        return SERVERS_WORD
    if roster is None or not roster.is_file():
        return SERVERS_WORD
    if importlib.util.find_spec("dp_accounting") is None:
        return f"{SERVERS_WORD}; with dp-accounting installed, receipts are compared with it"
    command = [sys.executable, str(verifier()), str(run), "--roster", str(roster), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found = json.loads(done.stdout)
    except ValueError:
        return f"{SERVERS_WORD}; its receipts cannot be read"
    return f"{found['word']}: receipts of {found['receipts']} of {found['clients']} agree"
