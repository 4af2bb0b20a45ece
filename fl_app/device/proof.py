"""The proof that `murmur device` and `murmur supernode` know the same secret.

A port on loopback belongs to whoever opens it first. So before anything else passes over a
connection, the device sends a nonce n_d and HMAC-SHA256(k, "device", n_d, ends), and the SuperNode
answers with a nonce n_s, HMAC-SHA256(k, "supernode", n_d, n_s, superlink, ends), and the address of
the SuperLink for which its owner has started it; k is derived from the secret. ``ends`` are the
addresses of the connection's two sockets as each side sees its own: a proof that is passed on from
another connection has other ends. The roles keep one side's proof from being sent back as the
other's. A connection stays with the process that it was made to, so each is asked once, when it is
made. That the device's proof is a new one, Flower checks: the request with
which tasks are taken is signed with the same secret, its time, and a nonce that counts once.
"""

import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from functools import partial
from ipaddress import IPv6Address, ip_address
from typing import Any

import h11
import httpcore

from murmur.compat.flower_runtime import NodeTransport, Runtime, RuntimeApiError
from murmur.format import framed

PATH = "/v1/murmur/proof"
ANSWER_SECONDS = 30.0  # as Flower's client has for any other answer
_NONCE_BYTES = 32
_MAC_BYTES = 32
_MAX_ADDRESS_BYTES = 512
_MAX_ANSWER_BYTES = 4096  # head and body

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Any]
Address = tuple[Any, ...]  # host and port, and what IPv6 adds to them


class NotProvenError(RuntimeApiError):
    """Whoever listens at an address has not shown that it knows the secret.

    Nothing but the device's own proof was sent to it, which is of no use on another connection.
    """


def proof(secret: bytes, role: bytes, nonces: bytes, device: Address, node: Address) -> bytes:
    """Returns what only a holder of ``secret`` can send over a connection between two addresses.

    Both sides compute both proofs, and compare in constant time.

    Args:
        secret: the bytes of the file that both were given (--superexec-auth-secret-file).
        role: who proves, b"device" or b"supernode".
        nonces: the device's; in the SuperNode's proof its own as well, and then the SuperLink's
            address. Nonces are 32 random bytes each.
        device: address of the device's socket.
        node: address of the SuperNode's.

    Returns:
        32 bytes: HMAC-SHA256 under a key that is derived from the secret.
    """
    key = hmac.digest(secret, b"murmur device and supernode, version 1", hashlib.sha256)
    return hmac.digest(key, framed(role, nonces, _end(device), _end(node)), hashlib.sha256)


class Proving:
    """A SuperNode's ASGI application, which proves at ``PATH`` that it knows ``secret``.

    It proves nothing to whoever does not prove the same, or on a connection that was passed on. Any
    other request goes to ``app`` as it came. ``murmur supernode`` puts it around Flower's own.

    Args:
        app: Flower's.
        secret: as in ``proof``.
        superlink: for which the SuperNode was started, HOST:PORT.
    """

    def __init__(self, app: App, secret: bytes, superlink: str) -> None:
        self._app = app
        self._secret = secret
        self._superlink = superlink.encode()[:_MAX_ADDRESS_BYTES]

    async def __call__(
        self,
        scope: Scope,
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        """Answers a proof; passes any other request on to the application."""
        if scope["type"] != "http" or scope["path"] != PATH:
            await self._app(scope, receive, send)
            return
        body = b""
        more = True
        while more and len(body) <= _MAX_ANSWER_BYTES:
            part = await receive()
            body += part.get("body", b"")
            more = part.get("more_body", False)
        answer = self._answer(scope, body)
        status = 200 if answer else 403
        head = [(b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": answer})

    def _answer(self, scope: Scope, body: bytes) -> bytes:
        """Returns nonce, proof and SuperLink; empty where the device's proof is wrong."""
        # uvicorn takes the other end's address from this header, if there is one.
        passed_on = any(name.lower().startswith(b"x-forwarded") for name, _ in scope["headers"])
        device = scope.get("client")
        node = scope.get("server")
        if passed_on or not device or not node:
            return b""
        nonce = body[:_NONCE_BYTES]
        if not hmac.compare_digest(
            body[_NONCE_BYTES:], proof(self._secret, b"device", nonce, device, node)
        ):
            return b""
        own = secrets.token_bytes(_NONCE_BYTES)
        said = nonce + own + self._superlink
        return own + proof(self._secret, b"supernode", said, device, node) + self._superlink


class ProvenTransport(NodeTransport):
    """Connections on which nothing is sent before the other end has proved that it knows a secret.

    Each is proved once, when it is made. No proxy is used, whatever the environment names. A
    request raises NotProvenError where there is no proof.

    Args:
        secret: as in ``proof``.
    """

    def __init__(self, secret: bytes) -> None:
        super().__init__(trust_env=False)
        self._connections = _Connections(secret)
        self._pool = httpcore.ConnectionPool(network_backend=self._connections)

    @property
    def superlink(self) -> str:
        """The SuperLink that the SuperNode of the last connection has named."""
        return self._connections.superlink


class _Connections(httpcore.NetworkBackend):
    """Makes the connections of a pool, and lets each be proved before it is used."""

    def __init__(self, secret: bytes) -> None:
        self.superlink = ""
        self._secret = secret
        self._network = httpcore.SyncBackend()

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
        """Raises NotProvenError unless the other end answers the device's proof with its own."""
        ends = (stream.get_extra_info("client_addr"), stream.get_extra_info("server_addr"))
        nonce = secrets.token_bytes(_NONCE_BYTES)
        body = nonce + proof(self._secret, b"device", nonce, *ends)
        answer = _posted(stream, body)
        own = answer[:_NONCE_BYTES]
        given = answer[_NONCE_BYTES : _NONCE_BYTES + _MAC_BYTES]
        superlink = answer[_NONCE_BYTES + _MAC_BYTES :]
        wanted = proof(self._secret, b"supernode", nonce + own + superlink, *ends)
        if len(own) != _NONCE_BYTES or not hmac.compare_digest(given, wanted):
            raise NotProvenError(
                f"what listens at {address} does not prove that it knows the secret: it is no "
                "`murmur supernode`, or was given another --superexec-auth-secret-file; nothing "
                "was sent to it"
            )
        self.superlink = superlink.decode(errors="replace")


def _posted(stream: httpcore.NetworkStream, body: bytes) -> bytes:
    """Sends ``body`` to ``PATH``, and returns the body of the answer; empty where it is none.

    h11 speaks HTTP here, since httpx has no connection yet: this decides whether there is to be
    one.
    """
    link = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_ANSWER_BYTES)
    head = [("Host", "murmur"), ("Content-Length", str(len(body)))]
    request = h11.Request(method="POST", target=PATH, headers=head)
    for part in (request, h11.Data(data=body), h11.EndOfMessage()):
        stream.write(link.send(part) or b"", ANSWER_SECONDS)
    answer = b""
    try:
        while type(event := link.next_event()) is not h11.EndOfMessage:
            if event is h11.NEED_DATA:
                link.receive_data(stream.read(_MAX_ANSWER_BYTES, ANSWER_SECONDS))
            elif isinstance(event, h11.Data):
                answer += event.data
            elif not isinstance(event, h11.Response | h11.InformationalResponse):
                return b""  # it has hung up
            if len(answer) > _NONCE_BYTES + _MAC_BYTES + _MAX_ADDRESS_BYTES:
                return b""
    except (h11.RemoteProtocolError, httpcore.ReadTimeout):
        return b""
    if link.trailing_data[0]:  # would be taken for the answer to the next request
        return b""
    return answer


def _end(address: Address) -> bytes:
    """Returns an address as both sides write it: without a zone, mapped IPv4 as such."""
    host = ip_address(str(address[0]).partition("%")[0])
    if isinstance(host, IPv6Address) and host.ipv4_mapped:
        host = host.ipv4_mapped
    return f"{host} {address[1]}".encode()


def proven_runtime(address: str, secret: bytes) -> Runtime:
    """Returns the interface for tasks of the SuperNode at HOST:PORT, which proves itself first.

    Raises RuntimeApiError where another version of Flower is installed.
    """
    return Runtime(address, secret, partial(ProvenTransport, secret))
