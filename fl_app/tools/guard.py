"""``murmur guard``: anybody's Flower app on this device, locked in and behind Murmur's protection.

Runs beside ``murmur supernode --superexec-auth-secret-file FILE`` on the same machine, as ``murmur
device`` does, and answers its messages with the app that the server sends: unmodified, in a process
that reads the owner's data and writes nowhere. Its update is clipped, noised and masked here. What
it may do is in the device's policy, under ``guard``.

What answers is ``fl_app.device.guard.Guard``.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from fl_app.tools.device import add_runtime, secret_in


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
    os.umask(0o077)
    try:
        config = _pairs(arguments.node_config)
        secret = secret_in(arguments.superexec_auth_secret_file)
        from fl_app.device.flower_runtime import Runtime, RuntimeApiError
        from fl_app.device.guard import Guard
        from fl_app.device.node_settings import DeviceError
    except (ImportError, OSError, ValueError) as error:
        print(f"murmur guard: {error}", file=sys.stderr)
        return 2
    try:
        guard = Guard(arguments.device.expanduser().absolute(), config)
        print(f"murmur guard: {guard.summary()}", flush=True)
        guard.serve(Runtime(arguments.runtime_api_address, secret))
    except DeviceError as error:
        print(f"murmur guard: {error}", file=sys.stderr)
        return 2
    except RuntimeApiError as error:
        print(f"murmur guard: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    return 0


def _pairs(text: str) -> dict[str, Any]:
    """The option's pairs, as Flower reads them; ValueError where it cannot."""
    from click import ClickException
    from flwr.common.config import parse_config_args

    if not text:
        return {}
    try:
        pairs = dict(parse_config_args([text]))
    except ClickException as error:
        raise ValueError(f"--node-config={text}: {' '.join(error.message.split())}") from error
    if not pairs:
        raise ValueError(f"--node-config={text}: must be pairs such as 'partition-id=0'")
    return pairs
