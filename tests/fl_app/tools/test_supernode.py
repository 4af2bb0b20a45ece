"""`murmur supernode` goes on where Flower's own gives up, and ends where nothing else helps."""

import contextlib
import ssl

import httpx
import pytest
from flwr.supercore.retry import make_simple_http_retry_invoker

from fl_app.tools.supernode import patient

BROKEN = [
    httpx.ConnectError("[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol"),
    httpx.ReadError(str(ssl.SSLZeroReturnError(6, "TLS/SSL connection has been closed (EOF)"))),
]
REFUSED = httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")


def invoke(make, error):
    """How often a call is made that fails twice with ``error``."""
    calls = []

    def call():
        calls.append(1)
        if len(calls) < 3:
            raise error

    invoker = make()
    invoker.wait_function = lambda seconds: None
    with contextlib.suppress(httpx.TransportError):
        invoker.invoke(call)
    return len(calls)


@pytest.mark.parametrize("error", BROKEN)
def test_connection_that_breaks_off_is_tried_again(error):
    assert invoke(make_simple_http_retry_invoker, error) == 1  # Flower's own gives up
    assert invoke(lambda: patient(make_simple_http_retry_invoker()), error) == 3


def test_certificate_that_is_refused_ends_it():
    assert invoke(lambda: patient(make_simple_http_retry_invoker()), REFUSED) == 1


def test_lost_network_is_waited_for_as_before():
    lost = httpx.ConnectError("Connection refused")
    assert invoke(lambda: patient(make_simple_http_retry_invoker()), lost) == 3
