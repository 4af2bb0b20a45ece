"""``murmur guard``: anybody's Flower app on this device, locked in and behind Murmur's protection.

Runs beside ``murmur supernode --superexec-auth-secret-file FILE`` on the same machine, as ``murmur
device`` does, and answers its messages with the app that the server sends: unmodified, in a process
that reads the owner's data and writes nowhere. Its update is clipped, noised and masked here. What
it may do is in the device's policy, under ``guard``.

What answers is ``fl_app.device.guard.Guard``.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fl_app.tools.device import add_runtime, pairs_in, serve

if TYPE_CHECKING:
    from fl_app.device.resident import Resident


def main(argv: list[str]) -> int:
    """Answer a SuperNode's messages until this process is interrupted.

    Args:
        argv: the words after ``murmur guard``: the owner's own, which no server can change.

    Returns:
        0: it was interrupted. 1: what listens at the address is not the SuperNode of this secret.
        2: the words, the secret's file, the device's policy, the installed Flower or this machine
        are not what is needed.
    """
    parser = argparse.ArgumentParser(
        prog="murmur guard",
        description="Answer a SuperNode's messages with the Flower app that its server sends, "
        "locked in, and with Murmur's protection around it. Runs beside `murmur supernode`: "
        "docs/any-flower-app.md.",
    )
    parser.add_argument(
        "--device",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="policy.yaml with `guard`, and where ledger, key and log are kept",
    )
    parser.add_argument(
        "--node-config",
        default="",
        help="what the app finds in its context, such as 'partition-id=0 data=\"/srv/data\"'; "
        "nothing else reaches it",
    )
    add_runtime(parser)
    arguments = parser.parse_args(argv)

    def resident() -> "Resident":
        from fl_app.device.guard import Guard

        folder = arguments.device.expanduser().absolute()
        guard = Guard(folder, pairs_in(arguments.node_config))
        print(f"{parser.prog}: {guard.summary()}", flush=True)
        return guard

    return serve(parser.prog, arguments, resident)
