"""A device's two processes: ``murmur device`` answers the messages that ``murmur supernode`` gets.

They run beside each other on one machine, each under an account of its own: the SuperNode holds the
node's key and speaks to the server, ``murmur device`` holds the data and speaks to the SuperNode.
The code that a server sends is not run. What answers is ``fl_app.device.resident.Device``, over a
SuperNode's interface for tasks (``murmur.compat.flower_runtime``); the words here are the owner's,
and the only settings that no server chooses.

``murmur supernode`` is Flower's SuperNode, mended (``murmur.compat.flower_supernode``). It proves
to `murmur device` that it is the one that knows their secret (``fl_app.device.proof``).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fl_app.tools.options import parser_of

if TYPE_CHECKING:
    from fl_app.device.resident import Resident

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
    arguments = parser_of("device").parse_args(argv)

    def resident() -> Resident:
        from fl_app.device.resident import Device

        return Device(pairs_in(arguments.node_config), arguments.bundle_sha256)

    return _serve("murmur device", arguments, resident)


def guard(argv: list[str]) -> int:
    """Answers them with the app that the server sends, locked in and protected: ``murmur guard``.

    The app is unmodified, in a process that reads the owner's data and writes nowhere
    (``fl_app.device.guard.Guard``). Its update is clipped, noised and masked here. What it may do
    is in the device's policy, under ``guard``.

    Args:
        argv: the words after ``murmur guard``: the owner's own, which no server can change.

    Returns:
        0: it was interrupted. 1: what listens at the address is not the SuperNode of this secret.
        2: the words, the secret's file, the device's policy, the installed Flower or this machine
        are not what is needed.
    """
    arguments = parser_of("guard").parse_args(argv)

    def resident() -> Resident:
        from fl_app.device.guard import Guard

        folder = arguments.device.expanduser().absolute()
        return Guard(folder, pairs_in(arguments.node_config))

    return _serve("murmur guard", arguments, resident)


def _serve(tool: str, arguments: argparse.Namespace, resident: Callable[[], Resident]) -> int:
    """Answers a SuperNode's messages until this process is interrupted; the exit status.

    What files it writes only its owner can read.

    Args:
        tool: that speaks on standard error.
        arguments: where the SuperNode is, and the file of its secret.
        resident: makes what answers; an error of its says what its owner must change.
    """
    from fl_app.device.node_settings import DeviceError

    os.umask(0o077)
    try:
        secret = arguments.superexec_auth_secret_file.expanduser().read_bytes()
        if not secret:
            raise ValueError(f"{arguments.superexec_auth_secret_file}: is empty")
        from fl_app.device.proof import proven_runtime
        from murmur.compat.flower_runtime import RuntimeApiError

        answering = resident()
    except (ImportError, OSError, ValueError, DeviceError) as error:
        print(f"{tool}: {error}", file=sys.stderr)
        return 2
    try:
        answering.serve(proven_runtime(arguments.runtime_api_address, secret))
    except RuntimeApiError as error:
        print(f"{tool}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


def pairs_in(text: str) -> dict[str, Any]:
    """Returns the pairs of ``--node-config``, as Flower reads it.

    Raises:
        ValueError: Flower cannot read it, or it holds no pair.
    """
    from murmur.compat.flower_supernode import node_config_pairs

    if not text:
        return {}
    try:
        pairs = node_config_pairs(text)
    except ValueError as error:
        raise ValueError(f"--node-config={text}: {error}") from error
    if not pairs:
        raise ValueError(f"--node-config={text}: must be pairs such as 'partition-id=0'")
    return pairs


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
