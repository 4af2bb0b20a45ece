"""A device's command: reads its owner's words, and answers a SuperNode until it is interrupted."""

import argparse
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fl_app.device.node_settings import DeviceError

if TYPE_CHECKING:
    from fl_app.device.service import DeviceService


def serve(tool: str, arguments: argparse.Namespace, service: Callable[[], "DeviceService"]) -> int:
    """Answers a SuperNode's messages until this process is interrupted.

    What files it writes only its owner can read.

    Args:
        tool: that speaks on standard error.
        arguments: where the SuperNode is, and the file of its secret.
        service: makes what answers; an error of its says what its owner must change.

    Returns:
        0: it was interrupted. 1: what listens at the address is not the SuperNode of this secret.
        2: the words, the secret's file or the installed Flower are not what is needed.
    """
    os.umask(0o077)
    try:
        secret = arguments.superexec_auth_secret_file.expanduser().read_bytes()
        if not secret:
            raise ValueError(f"{arguments.superexec_auth_secret_file}: is empty")
        from fl_app.device.proof import proven_runtime
        from murmur.compat.flower_runtime import RuntimeApiError

        answering = service()
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
