"""How ``murmur device`` and ``murmur supernode`` prove to each other that they know the secret.

A port on loopback belongs to whoever opens it first. So before anything else passes over a
connection, the device sends a nonce n_d and HMAC-SHA256(k, "device", n_d, ends), and the SuperNode
answers with a nonce n_s and HMAC-SHA256(k, "supernode", n_d, n_s, ends); k is derived from the
secret. ``ends`` are the addresses of the connection's two sockets as each side sees its own: a
proof that is passed on from another connection has other ends. The roles keep one side's proof from
being sent back as the other's. A connection stays with the process that it was made to, so each is
asked once, when it is made. That the device's proof is a new one, Flower checks: the request with
which tasks are taken is signed with the same secret, its time, and a nonce that counts once.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from ipaddress import IPv6Address, ip_address
from typing import Any

import h11
import httpcore
import httpx

from murmur.common import framed

PATH = "/v1/murmur/proof"
_NONCE = _MAC = 32
_LARGEST = 4096  # bytes of an answer, head and body
PATIENCE = 30.0  # seconds for it, as Flower's client has for any other

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Any]
Address = tuple[Any, ...]  # host and port, and what IPv6 adds to them


class NotProvenError(Exception):
    """Whoever listens at an address has not shown that it knows the secret."""


def proof(secret: bytes, role: bytes, nonces: bytes, device: Address, node: Address) -> bytes:
    """What only who knows ``secret`` can send over a connection between these two addresses."""
    key = hmac.digest(secret, b"murmur device and supernode, version 1", hashlib.sha256)
    return hmac.digest(key, framed(role, nonces, _end(device), _end(node)), hashlib.sha256)


class Proving:
    """``app``, a SuperNode's ASGI application, which proves at ``PATH`` that it knows ``secret``.

    To nobody who does not prove the same, and to nobody on a connection that was passed on.
    """

    def __init__(self, app: App, secret: bytes) -> None:
        self._app, self._secret = app, secret

    async def __call__(
        self,
        scope: Scope,
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        """One request."""
        if scope["type"] != "http" or scope["path"] != PATH:
            await self._app(scope, receive, send)
            return
        body, more = b"", True
        while more and len(body) <= _LARGEST:
            part = await receive()
            body += part.get("body", b"")
            more = part.get("more_body", False)
        answer = self._answer(scope, body)
        status = 200 if answer else 403
        head = [(b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": answer})

    def _answer(self, scope: Scope, body: bytes) -> bytes:
        # uvicorn takes the other end's address from this header, if there is one.
        passed_on = any(name.lower().startswith(b"x-forwarded") for name, _ in scope["headers"])
        device, node = scope.get("client"), scope.get("server")
        if passed_on or not device or not node:
            return b""
        asked, shown = body[:_NONCE], body[_NONCE:]
        if not hmac.compare_digest(shown, proof(self._secret, b"device", asked, device, node)):
            return b""
        own = secrets.token_bytes(_NONCE)
        return own + proof(self._secret, b"supernode", asked + own, device, node)


class ProvenTransport(httpx.HTTPTransport):
    """Connections on which nothing is sent before the other end has proved that it knows a secret.

    A request raises NotProvenError where it does not.
    """

    def __init__(self, secret: bytes) -> None:
        super().__init__(trust_env=False)
        self._pool = httpcore.ConnectionPool(network_backend=_Connections(secret))


class _Connections(httpcore.NetworkBackend):
    """Makes the connections, and lets each be proved."""

    def __init__(self, secret: bytes) -> None:
        self._secret, self._network = secret, httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        stream = self._network.connect_tcp(host, port, timeout, local_address, socket_options)
        try:
            self._require_proof(stream, f"{host}:{port}")
        except BaseException:
            stream.close()
            raise
        return stream

    def _require_proof(self, stream: httpcore.NetworkStream, address: str) -> None:
        ends = stream.get_extra_info("client_addr"), stream.get_extra_info("server_addr")
        nonce = secrets.token_bytes(_NONCE)
        body = nonce + proof(self._secret, b"device", nonce, *ends)
        answer = _posted(stream, body)
        own, shown = answer[:_NONCE], answer[_NONCE:]
        wanted = proof(self._secret, b"supernode", nonce + own, *ends)
        if len(own) != _NONCE or not hmac.compare_digest(shown, wanted):
            raise NotProvenError(
                f"what listens at {address} does not prove that it knows the secret: it is no "
                "`murmur supernode`, or was given another --superexec-auth-secret-file; nothing "
                "was sent to it"
            )


def _posted(stream: httpcore.NetworkStream, body: bytes) -> bytes:
    """The body of the answer to ``body``; empty where it is none."""
    link = h11.Connection(h11.CLIENT, max_incomplete_event_size=_LARGEST)
    head = [("Host", "murmur"), ("Content-Length", str(len(body)))]
    request = h11.Request(method="POST", target=PATH, headers=head)
    for part in (request, h11.Data(data=body), h11.EndOfMessage()):
        stream.write(link.send(part) or b"", PATIENCE)
    answer = b""
    try:
        while type(event := link.next_event()) is not h11.EndOfMessage:
            if event is h11.NEED_DATA:
                link.receive_data(stream.read(_LARGEST, PATIENCE))
            elif isinstance(event, h11.Data):
                answer += event.data
            elif not isinstance(event, h11.Response | h11.InformationalResponse):
                return b""  # it has hung up
            if len(answer) > _NONCE + _MAC:
                return b""
    except (h11.RemoteProtocolError, httpcore.ReadTimeout):
        return b""
    # What follows the answer would be taken for that to the next request.
    return b"" if link.trailing_data[0] else answer


def _end(address: Address) -> bytes:
    host = ip_address(str(address[0]).partition("%")[0])
    if isinstance(host, IPv6Address) and host.ipv4_mapped:
        host = host.ipv4_mapped
    return f"{host} {address[1]}".encode()
