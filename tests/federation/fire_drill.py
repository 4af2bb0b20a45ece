"""Fire drills: what is lost, what recovers, and in what time, when parts of a federation fail.

``python -m tests.federation.fire_drill OUT.md [NAME ...]`` runs real processes on loopback (TLS,
node authentication, three devices with digits of their own) and writes their rows of the table of
``benchmarks/fire-drill.md``; rows of drills that are not named stay. After every drill the
ledgers are checked: no device has paid for a round more than once.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from pathlib import Path

from tests.federation.devices import federation_of_three
from tests.federation.drills import DRILLS

HEAD = ["| drill | lost | recovered | seconds |", "|---|---|---|---|"]


def write(out: Path, rows: dict[str, str]) -> None:
    """Put ``rows`` (drill: line) into the table of ``out``, in the order of ``DRILLS``."""
    old = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
    known = {line.split("|")[1].strip(): line for line in old if line.startswith("| ")} | rows
    table = [known[drill.name] for drill in DRILLS.values() if drill.name in known]
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    lines = [f"`python -m tests.federation.fire_drill OUT.md`, {machine}:", "", *HEAD, *table]
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> int:
    """Run the drills that are named, or all, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, metavar="OUT.md")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(DRILLS)}")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - DRILLS.keys():
        parser.error(f"no drill is called {', '.join(sorted(unknown))}")
    rows: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder, federation_of_three(Path(folder)) as federation:
        for name in arguments.names or DRILLS:
            drill = DRILLS[name]
            done = drill.run(federation)
            cells = (drill.name, done.lost, done.recovered, f"{done.seconds:.0f}")
            rows[drill.name] = f"| {' | '.join(cells)} |"
            print(rows[drill.name], flush=True)
            write(arguments.out, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
