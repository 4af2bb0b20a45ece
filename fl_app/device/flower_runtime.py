"""The SuperNode as ``murmur device`` sees it: a proof that it is the right one, and its tasks.

``murmur supernode`` starts no app. It serves the messages that arrive as tasks (protobuf over HTTP,
``/v1/runtime/*``) to whoever holds its secret. Flower promises nothing about this interface, so the
version for which this is written is checked before anything else, and no other module uses it.

**The proof.** A port on loopback belongs to whoever opens it first. So before anything else passes
over a connection, the device sends a nonce n_d and HMAC-SHA256(k, "device", n_d, ends), and the
SuperNode answers with a nonce n_s and HMAC-SHA256(k, "supernode", n_d, n_s, ends); k is derived
from the secret. ``ends`` are the addresses of the connection's two sockets as each side sees its
own: a proof that is passed on from another connection has other ends. The roles keep one side's
proof from being sent back as the other's. A connection stays with the process that it was made to,
so each is asked once, when it is made. That the device's proof is a new one, Flower checks: the
request with which tasks are taken is signed with the same secret, its time, and a nonce that counts
once.
"""

import contextlib
import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from importlib.metadata import version
from ipaddress import IPv6Address, ip_address
from typing import Any

from fl_app import FLOWER, is_supported
from murmur.common import framed
from murmur.compat.flower_messages import PART_SECONDS

try:
    import h11
    import httpcore
    import httpx
    from flwr.app import Context, Message
    from flwr.common.constant import SubStatus
    from flwr.common.serde import context_from_proto, fab_from_proto, run_from_proto
    from flwr.proto.message_pb2 import ObjectTree
    from flwr.proto.node_pb2 import Node
    from flwr.proto.runtime_pb2 import (
        AcquireTaskRequest,
        PullAppMessagesRequest,
        PullTaskInputRequest,
        PushTaskOutputRequest,
        SendTaskHeartbeatRequest,
    )
    from flwr.supercore.constant import TaskType
    from flwr.supercore.inflatable.inflatable_protobuf_utils import (
        make_confirm_message_received_fn_protobuf,
        make_pull_object_fn_protobuf,
    )
    from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
    from flwr.supercore.interceptors import (
        RuntimeTokenHttpInterceptor,
        RuntimeVersionHttpInterceptor,
        SuperExecAuthHttpInterceptor,
    )
    from flwr.supercore.protobuf.client import ProtobufClientInterceptor
    from flwr.supercore.retry import RetryInvoker, exponential
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.supernode.runtime.run_clientapp import push_message
except ImportError as error:
    raise ImportError(
        f"Flower {version('flwr')} has another runtime API than {' and '.join(FLOWER)}, for which "
        f"this is written ({error}); pip install 'flwr=={FLOWER[-1]}.*'"
    ) from error

COMPONENT = "murmur-device"  # how this process is called in the SuperNode's log
MESSAGE_SECONDS = 0.25  # a task exists before its message does
MESSAGE_LOOKS = 80
HEARTBEAT_SECONDS = 10.0  # a task is taken for dead 60 s after its last sign of life
RETRY_SECONDS = 30.0  # a SuperNode closes connections that rest for 5 s, also one that is just used

# The proof ---------------------------------------------------------------------------------------

PATH = "/v1/murmur/proof"
_NONCE = _MAC = 32
_LARGEST = 4096  # bytes of an answer, head and body
PATIENCE = 30.0  # seconds for it, as Flower's client has for any other

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Any]
Address = tuple[Any, ...]  # host and port, and what IPv6 adds to them


class NotProvenError(Exception):
    """Whoever listens at an address has not shown that it knows the secret.

    Nothing but the device's own proof was sent to it, which is of no use on another connection.
    """


def proof(secret: bytes, role: bytes, nonces: bytes, device: Address, node: Address) -> bytes:
    """What only who knows ``secret`` can send over a connection between these two addresses.

    Both sides compute both proofs, and compare in constant time.

    Args:
        secret: the bytes of the file that both were given (--superexec-auth-secret-file).
        role: who proves, b"device" or b"supernode".
        nonces: the device's, and in the SuperNode's proof its own as well; 32 random bytes each.
        device: address of the device's socket.
        node: address of the SuperNode's.

    Returns:
        32 bytes: HMAC-SHA256 under a key that is derived from the secret.
    """
    key = hmac.digest(secret, b"murmur device and supernode, version 1", hashlib.sha256)
    return hmac.digest(key, framed(role, nonces, _end(device), _end(node)), hashlib.sha256)


class Proving:
    """``app``, a SuperNode's ASGI application, which proves at ``PATH`` that it knows ``secret``.

    To nobody who does not prove the same, and to nobody on a connection that was passed on. Any
    other request goes to ``app`` as it came. ``murmur supernode`` puts it around Flower's own.

    Args:
        app: Flower's.
        secret: as in ``proof``.
    """

    def __init__(self, app: App, secret: bytes) -> None:
        self._app = app
        self._secret = secret

    async def __call__(
        self,
        scope: Scope,
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        """One request: a proof is answered here, anything else by the application."""
        if scope["type"] != "http" or scope["path"] != PATH:
            await self._app(scope, receive, send)
            return
        body = b""
        more = True
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
        """The SuperNode's nonce and proof; empty where the device's proof is wrong."""
        # uvicorn takes the other end's address from this header, if there is one.
        passed_on = any(name.lower().startswith(b"x-forwarded") for name, _ in scope["headers"])
        device = scope.get("client")
        node = scope.get("server")
        if passed_on or not device or not node:
            return b""
        nonce = body[:_NONCE]
        if not hmac.compare_digest(
            body[_NONCE:], proof(self._secret, b"device", nonce, device, node)
        ):
            return b""
        own = secrets.token_bytes(_NONCE)
        return own + proof(self._secret, b"supernode", nonce + own, device, node)


class ProvenTransport(httpx.HTTPTransport):
    """Connections on which nothing is sent before the other end has proved that it knows a secret.

    Each is proved once, when it is made. No proxy is used, whatever the environment names. A
    request raises NotProvenError where there is no proof.

    Args:
        secret: as in ``proof``.
    """

    def __init__(self, secret: bytes) -> None:
        super().__init__(trust_env=False)
        self._pool = httpcore.ConnectionPool(network_backend=_Connections(secret))


class _Connections(httpcore.NetworkBackend):
    """Makes the connections of a pool, and lets each be proved before it is used."""

    def __init__(self, secret: bytes) -> None:
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
        """NotProvenError unless the other end answers the device's proof with its own."""
        ends = (stream.get_extra_info("client_addr"), stream.get_extra_info("server_addr"))
        nonce = secrets.token_bytes(_NONCE)
        body = nonce + proof(self._secret, b"device", nonce, *ends)
        answer = _posted(stream, body)
        own = answer[:_NONCE]
        wanted = proof(self._secret, b"supernode", nonce + own, *ends)
        if len(own) != _NONCE or not hmac.compare_digest(answer[_NONCE:], wanted):
            raise NotProvenError(
                f"what listens at {address} does not prove that it knows the secret: it is no "
                "`murmur supernode`, or was given another --superexec-auth-secret-file; nothing "
                "was sent to it"
            )


def _posted(stream: httpcore.NetworkStream, body: bytes) -> bytes:
    """The body of the answer to ``body``, sent to ``PATH``; empty where it is none.

    h11 speaks HTTP here, since httpx has no connection yet: this decides whether there is to be
    one.
    """
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
    if link.trailing_data[0]:  # would be taken for the answer to the next request
        return b""
    return answer


def _end(address: Address) -> bytes:
    """An address as both sides write it: without a zone, and IPv4 as such where it is mapped."""
    host = ip_address(str(address[0]).partition("%")[0])
    if isinstance(host, IPv6Address) and host.ipv4_mapped:
        host = host.ipv4_mapped
    return f"{host} {address[1]}".encode()


# The runtime API --------------------------------------------------------------------------------


class RuntimeApiError(Exception):
    """The SuperNode, or its version of Flower, cannot be worked with; the message says why."""


@dataclass(frozen=True)
class TaskInput:
    """What one task asks.

    Attributes:
        message: the server's.
        context: the run's, as the SuperNode has it.
        app, version: of the bundle, in the server's words.
        bundle: its bytes, as they are; they are neither unpacked nor run.
    """

    message: Message
    context: Context
    app: str
    version: str
    bundle: bytes


class Runtime:
    """The SuperNode's runtime API, for one who holds its secret.

    Args:
        address: HOST:PORT.
        secret: as in ``proof``; it also signs the requests for tasks.

    Raises:
        RuntimeApiError: another version of Flower is installed.
    """

    def __init__(self, address: str, secret: bytes) -> None:
        if not is_supported(version("flwr")):
            raise RuntimeApiError(
                f"flwr {version('flwr')} is installed, and the runtime API that is used here is "
                f"that of {' and '.join(FLOWER)}; pip install 'flwr=={FLOWER[-1]}.*'"
            )
        self.address = address
        self._secret = secret
        methods = ["/flwr.proto.Runtime/AcquireTask"]
        signed = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=methods)
        self._client = _client(address, secret, signed)

    def claim(self) -> "Task | None":
        """The oldest task that waits, of whatever type; None also while no SuperNode answers.

        Every type is taken: one that nobody claims would keep the SuperNode waiting for ever.
        RuntimeApiError where what answers is not the SuperNode, or refuses the secret.
        """
        try:
            claimed = self._client.AcquireTask(
                AcquireTaskRequest(supported_task_types=[each.value for each in TaskType])
            )
        except httpx.TransportError:
            return None  # not started yet, or being started again
        except NotProvenError as error:
            raise RuntimeApiError(str(error)) from error
        except httpx.HTTPStatusError as error:
            if error.response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
                raise RuntimeApiError(
                    f"the SuperNode at {self.address} refuses the secret: give both the same "
                    "--superexec-auth-secret-file, and see that their clocks agree"
                ) from error
            raise RuntimeApiError(f"the SuperNode at {self.address}: {error}") from error
        if not claimed.HasField("task") or not claimed.token:
            return None
        meant = claimed.task.type == TaskType.CLIENT_APP.value
        return Task(self.address, self._secret, claimed.token, claimed.task.task_id, meant)


@dataclass
class Task:
    """A task that was claimed here: what it asks, its reply, its end.

    A context manager, entered in the process that is to answer it; leaving it closes the
    connection. ``pull`` once, then ``reply`` once. It gives signs of life meanwhile: one that falls
    silent is taken for dead after a minute, and the SuperNode then tells the server so. Their
    failure must not end the process (Flower's own raise SIGINT): what has been charged is still to
    be answered.

    Attributes:
        address, secret: of the SuperNode.
        token: what the task's own requests are authorised by.
        number: its id.
        for_client: whether it is meant for a ClientApp; any other is refused.
    """

    address: str
    secret: bytes = field(repr=False)
    token: str = field(repr=False)
    number: int
    for_client: bool
    _client: RuntimeHttpClient = field(init=False, repr=False)
    _closed: threading.Event = field(default_factory=threading.Event, repr=False)

    def __enter__(self) -> "Task":
        own = RuntimeTokenHttpInterceptor(self.token)
        self._client = _client(self.address, self.secret, own, _patient())
        pulse = _client(self.address, self.secret, own)
        threading.Thread(target=self._beat, args=(pulse,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._client.close()

    def pull(self) -> TaskInput:
        """Pull what is asked; waits up to 20 seconds for the message.

        A call whose connection fails is tried again for 30 seconds.

        Raises:
            RuntimeApiError: the message did not come: it was given out before, to one that has
                ended.
            Exception: whatever Flower or httpx raise where it cannot be had.
        """
        client = self._client
        # The message first: a task that falls silent between the two is then given out again, and
        # one that has begun is reported to the server. In Flower's order it would be neither.
        tree = self._message_tree()
        given = client.PullTaskInput(PullTaskInputRequest())
        if tree is None:
            raise RuntimeApiError("the task's message was given out before, to one that has ended")
        context = context_from_proto(given.context)
        run = run_from_proto(given.run)
        node = Node(node_id=context.node_id)
        # Flower's messages refuse to be made in a process that does not say whose task it has.
        TaskIdentity.task_id = given.task_id
        TaskIdentity.run_id = run.run_id
        TaskIdentity.node_id = context.node_id
        message = pull_and_inflate_object_from_tree(
            tree,
            make_pull_object_fn_protobuf(client.PullObject, node, run.run_id),
            make_confirm_message_received_fn_protobuf(
                client.ConfirmMessageReceived, node, run.run_id
            ),
            return_type=Message,
            initial_backoff=PART_SECONDS,
        )
        message.metadata.__dict__["_message_id"] = tree.object_id
        return TaskInput(
            message, context, run.fab_id, run.fab_version, fab_from_proto(given.fab).content
        )

    def reply(self, task_input: TaskInput, reply: Message) -> None:
        """Push the reply, and end the task.

        Where that fails the task is left to expire: a SuperNode reports that to the server, but not
        a task that ended as failed.

        Args:
            task_input: what ``pull`` has given.
            reply: what leaves; an error ends the task as failed.

        Raises:
            Exception: whatever Flower or httpx raise where the reply did not arrive.
        """
        push_message(self._client, reply, task_input.context)
        state = SubStatus.FAILED if reply.has_error() else SubStatus.COMPLETED
        self._client.PushTaskOutput(PushTaskOutputRequest(sub_status=state, details=""))

    def _message_tree(self) -> ObjectTree | None:
        """Where the message's objects are; None if it does not come within 20 seconds."""
        for _ in range(MESSAGE_LOOKS):
            pulled = self._client.PullMessages(PullAppMessagesRequest())
            if pulled.messages_list:
                return pulled.message_object_trees[0]
            time.sleep(MESSAGE_SECONDS)
        return None

    def _beat(self, client: RuntimeHttpClient) -> None:
        while not self._closed.wait(HEARTBEAT_SECONDS):
            with contextlib.suppress(httpx.HTTPError, NotProvenError):
                client.SendTaskHeartbeat(SendTaskHeartbeatRequest())


def _patient() -> RetryInvoker:
    """What tries a call again where the connection fails, and nothing else."""
    return RetryInvoker(
        lambda: exponential(base_delay=0.1, max_delay=5),
        httpx.TransportError,
        max_tries=None,
        max_time=RETRY_SECONDS,
    )


def _client(
    address: str,
    secret: bytes,
    interceptor: ProtobufClientInterceptor,
    retry: RetryInvoker | None = None,
) -> RuntimeHttpClient:
    """A client of the runtime API whose every connection is proved first.

    ``interceptor``: what authorises its requests. ``retry``: what tries again; None: nothing.
    """
    client = RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name=COMPONENT), interceptor],
        retry_invoker=retry,
    )
    plain = client._client
    # Flower's own would also go by way of a proxy that the environment names.
    client._client = httpx.Client(
        transport=ProvenTransport(secret), timeout=plain.timeout, trust_env=False
    )
    plain.close()
    return client
