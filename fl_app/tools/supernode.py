"""``murmur supernode``: Flower's SuperNode, which runs nothing that it is sent, and goes on.

Flower 1.41's own stops asking for work for good when the SuperLink ends while it answers a request
(the TLS connection then ends without a farewell, which Flower takes for a refusal), and its process
stays, so that no supervisor starts it again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flwr.supercore.retry import RetryInvoker

# What OpenSSL says of a peer that has gone; a certificate that is refused is another matter.
BROKEN_OFF = "eof"


def main(argv: list[str]) -> int:
    """Run Flower's SuperNode with the words after ``murmur supernode``; does not return."""
    import signal

    from flwr.supernode import fleet_http_connection
    from flwr.supernode.cli.flower_supernode import flower_supernode

    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Flower has its own way to end
    make = fleet_http_connection.make_simple_http_retry_invoker
    fleet_http_connection.make_simple_http_retry_invoker = lambda: patient(make())
    sys.argv = ["murmur supernode", *argv, "--isolation", "process"]
    flower_supernode()
    return 0


def patient(invoker: RetryInvoker) -> RetryInvoker:
    """``invoker``, which from now on also tries again where a TLS connection breaks off."""
    import httpx

    gives_up: Callable[[Exception], bool] | None = invoker.should_giveup

    def should_giveup(error: Exception) -> bool:
        if isinstance(error, httpx.TransportError) and BROKEN_OFF in str(error).lower():
            return False
        return gives_up is not None and gives_up(error)

    invoker.should_giveup = should_giveup
    return invoker
