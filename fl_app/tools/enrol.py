"""``murmur enrol KEY.pub --clients 0,3 --table FILE [--superlink NAME]``: let a device take part.

Enters the public key of a node and the clients that it hosts into the table that runs name
(``federation.enrolled=FILE``), and registers the key at the SuperLink. A run asks for a client on
the node of its key and nowhere else. To end it: ``flwr supernode unregister``, and delete its line.
"""

import os
import subprocess
import sys
from pathlib import Path

from fl_app.tools.options import parser_of
from murmur.format import printable
from murmur.round.placement import Enrolment, parse_ids


def main(argv: list[str]) -> int:
    """Enter a device's key and its clients into the table, and register the key where asked.

    The line is on disk when this returns. A key or a client is in the table once.

    Returns:
        0, or 2 where the key or the table cannot be read, where the table has the key or one of the
        clients already, or where the SuperLink refuses the key; nothing is entered then.
    """
    arguments = parser_of("enrol").parse_args(argv)
    try:
        key = " ".join(arguments.key.read_text(encoding="utf-8").split()[:2])
        clients = parse_ids(arguments.clients)
        known = Enrolment({})
        if arguments.table.exists():
            known = Enrolment.load(arguments.table)
        known.with_node(key, clients)
        if arguments.superlink is not None:
            _register(arguments.key, arguments.superlink)
        with open(arguments.table, "a", encoding="utf-8") as table:
            table.write(f"{','.join(map(str, clients))} {key}\n")
            table.flush()
            os.fsync(table.fileno())
    except (OSError, ValueError) as error:
        print(f"murmur enrol: {printable(error)}", file=sys.stderr)
        return 2
    print(f"{arguments.table}: clients {arguments.clients} are hosted by {arguments.key}")
    return 0


def _register(key: Path, superlink: str) -> None:
    """Register ``key`` at the connection ``superlink`` by Flower's own command.

    Raises:
        ValueError: it fails; with what it says.
    """
    flwr = Path(sys.executable).parent / "flwr"
    command = [str(flwr), "supernode", "register", str(key), superlink]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"flwr supernode register: {(done.stdout + done.stderr).strip()}")
