"""``murmur device``: answer a SuperNode's messages with the Murmur that is installed here.

Runs beside ``murmur supernode --superexec-auth-secret-file FILE`` on the same machine, under an
account of its own: the SuperNode holds the node's key and speaks to the server, this process holds
the data and speaks to the SuperNode. The code that a server sends is not run.

What answers is ``fl_app.device.serving.Device``, over Flower's runtime API
(``fl_app.device.flower_runtime``); the words here are the owner's, and the only settings that no
server chooses.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def main(argv: list[str]) -> int:
    """Answer a SuperNode's messages until this process is interrupted.

    What files it writes only its owner can read.

    Args:
        argv: the words after ``murmur device``: the owner's own, which no server can change.

    Returns:
        0: it was interrupted. 1: what listens at the address is not the SuperNode of this secret.
        2: the words, the secret's file or the installed Flower are not what is needed.
    """
    parser = argparse.ArgumentParser(
        prog="murmur device",
        description="Answer a SuperNode's messages with the Murmur that is installed here; code "
        "that a server sends is not run. Runs beside `murmur supernode`, under "
        "an account of its own: deploy/README.md.",
    )
    parser.add_argument(
        "--node-config",
        required=True,
        help="what no server can set, such as 'clients=3 policy=...': see deploy/README.md",
    )
    add_runtime(parser)
    parser.add_argument(
        "--bundle-sha256",
        type=_digest,
        action="append",
        default=[],
        metavar="HEX",
        help="refuse runs of any other bundle; may be given again (default: any; none is run)",
    )
    arguments = parser.parse_args(argv)
    os.umask(0o077)
    try:
        from flwr.common.config import parse_config_args

        owner = parse_config_args([arguments.node_config])
        secret = secret_in(arguments.superexec_auth_secret_file)
        from fl_app.device.flower_runtime import Runtime, RuntimeApiError
    except (ImportError, OSError, ValueError) as error:
        print(f"murmur device: {error}", file=sys.stderr)
        return 2
    from fl_app.device.serving import Device

    try:
        runtime = Runtime(arguments.runtime_api_address, secret)
        Device(owner, arguments.bundle_sha256).serve(runtime)
    except RuntimeApiError as error:
        print(f"murmur device: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    return 0


def add_runtime(parser: argparse.ArgumentParser) -> None:
    """The options by which a resident process finds its SuperNode."""
    parser.add_argument(
        "--superexec-auth-secret-file",
        type=Path,
        required=True,
        metavar="FILE",
        help="as given to murmur supernode",
    )
    parser.add_argument(
        "--runtime-api-address",
        type=loopback,
        default="127.0.0.1:9094",
        metavar="HOST:PORT",
        help="the SuperNode's --port on this machine (default: %(default)s)",
    )


def secret_in(path: Path) -> bytes:
    """What ``path`` holds; OSError or ValueError where it cannot be read or is empty."""
    secret = path.expanduser().read_bytes()
    if not secret:
        raise ValueError(f"{path}: is empty")
    return secret


def loopback(text: str) -> str:
    """An option's value: an address that leaves this machine nowhere.

    Raises:
        ArgumentTypeError: the host is not this machine, or the port no number.
    """
    host, _, port = text.rpartition(":")
    if host not in LOOPBACK or not port.isdecimal():
        raise argparse.ArgumentTypeError(
            f"{text}: must be HOST:PORT with a host of {', '.join(LOOPBACK)}: what passes there "
            "is not encrypted"
        )
    return text


def _digest(text: str) -> str:
    """An option's value: SHA-256 in hexadecimal, in small letters."""
    if re.fullmatch(r"[0-9a-fA-F]{64}", text) is None:
        raise argparse.ArgumentTypeError(f"{text}: must be 64 hexadecimal digits")
    return text.lower()
