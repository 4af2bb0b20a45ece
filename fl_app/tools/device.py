"""A device's two processes: ``murmur device`` answers the messages that ``murmur supernode`` gets.

They run beside each other on one machine, each under an account of its own: the SuperNode holds the
node's key and speaks to the server, ``murmur device`` holds the data and speaks to the SuperNode.
The code that a server sends is not run. What answers is ``fl_app.device.service.Device``, over a
SuperNode's interface for tasks (``murmur.compat.flower_runtime``); the words here are the owner's,
and the only settings that no server chooses.

``murmur supernode`` is Flower's SuperNode, mended (``murmur.compat.flower_supernode``). It proves
to `murmur device` that it is the one that knows their secret (``fl_app.device.proof``).
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from fl_app.tools.options import parser_of

if TYPE_CHECKING:
    from fl_app.device.service import DeviceService

SECRET = "--superexec-auth-secret-file"
_NO_SECRET = "without it every account of this machine could take the device's messages"


def main(argv: list[str]) -> int:
    """Answers a SuperNode's messages until this process is interrupted.

    Args:
        argv: the words after ``murmur device``: the owner's own, which no server can change.

    Returns:
        0: it was interrupted. 1: what listens at the address is not the SuperNode of this secret.
        2: the words, the secret's file or the installed Flower are not what is needed.
    """
    from fl_app.device.command import pairs_in, serve

    arguments = parser_of("device").parse_args(argv)

    def device() -> DeviceService:
        from fl_app.device.service import Device

        return Device(pairs_in(arguments.node_config), arguments.bundle_sha256)

    return serve("murmur device", arguments, device)


def supernode(argv: list[str]) -> int:
    """Runs Flower's SuperNode with the words after ``murmur supernode``.

    An error of the SuperNode ends the process, so that a supervisor starts it again.

    Returns:
        2 where the secret's file is not named; else 0, after ``--help`` and the like only.
    """
    from fl_app.device.proof import Proving
    from murmur.compat import flower_supernode
    from murmur.round.task import REFUSED

    enough = {SECRET, "-h", "--help", "-V", "--version"}  # all but the first need no secret
    if enough.isdisjoint(word.partition("=")[0] for word in argv):
        print(f"murmur supernode: {SECRET} FILE: must be given; {_NO_SECRET}", file=sys.stderr)
        return 2
    try:
        flower_supernode.run(
            ["murmur supernode", *argv, "--isolation", "process"], Proving, REFUSED
        )
    except Exception:
        flower_supernode.log_error()
        os._exit(1)  # the thread of its interface for tasks would keep the process
    return 0
