"""A SuperNode's interface for tasks: protobuf over HTTP, below ``/v1/runtime/``.

``murmur supernode`` starts no app. It serves the messages that arrive as tasks to whoever holds its
secret. Flower promises nothing about this interface, so the version for which this is written is
checked before anything else. ``fl_app.device.proof`` makes the connections, each of which is proved
before a request is sent.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version

from murmur.compat import FLOWER, is_supported
from murmur.compat.flower_messages import PART_SECONDS, identify, set_message_id

try:
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
    from flwr.supernode.runtime.run_clientapp import push_message
except ImportError as error:
    raise ImportError(
        f"Flower {version('flwr')} has another runtime API than {' and '.join(FLOWER)}, for which "
        f"this is written ({error}); pip install 'flwr=={FLOWER[-1]}.*'"
    ) from error

COMPONENT = "murmur-device"  # this process in the SuperNode's log
MESSAGE_LOOK_SECONDS = 0.25  # a task exists before its message does
MAX_MESSAGE_LOOKS = 80
HEARTBEAT_SECONDS = 10.0  # a task is taken for dead 60 s after its last sign of life
RETRY_SECONDS = 30.0  # a SuperNode closes connections that rest for 5 s, also one that is just used


class RuntimeApiError(Exception):
    """The SuperNode, or its version of Flower, cannot be worked with; the message says why."""


class NodeTransport(httpx.HTTPTransport):
    """Connections to a SuperNode."""

    @property
    def superlink(self) -> str:
        """The SuperLink for which its owner has started it; empty where it has not said."""
        return ""


Transport = Callable[[], NodeTransport]


@dataclass(frozen=True)
class TaskInput:
    """The message, context and bundle of one task.

    Attributes:
        message: the server's.
        context: the run's, as the SuperNode has it.
        app, version: of the bundle, in the server's words.
        bundle: its bytes, neither unpacked nor run.
        superlink: for which the SuperNode was started, in its owner's words.
    """

    message: Message
    context: Context
    app: str
    version: str
    bundle: bytes
    superlink: str


class Runtime:
    """The SuperNode's interface, for a holder of its secret.

    Args:
        address: HOST:PORT.
        secret: the bytes of the SuperNode's --superexec-auth-secret-file; signs the requests for
            tasks.
        transport: makes the connections, and raises RuntimeApiError where one cannot be trusted.

    Raises:
        RuntimeApiError: another version of Flower is installed.
    """

    def __init__(self, address: str, secret: bytes, transport: Transport) -> None:
        if not is_supported(version("flwr")):
            raise RuntimeApiError(
                f"flwr {version('flwr')} is installed, and the runtime API that is used here is "
                f"that of {' and '.join(FLOWER)}; pip install 'flwr=={FLOWER[-1]}.*'"
            )
        self.address = address
        self._transport = transport
        methods = ["/flwr.proto.Runtime/AcquireTask"]
        signed = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=methods)
        self._client = _client(address, transport(), signed)

    def claim(self) -> "RuntimeTask | None":
        """Claims the oldest task that waits; None also while no SuperNode answers.

        Every type is taken: one that nobody claims would keep the SuperNode waiting for ever.
        RuntimeApiError where what answers is not the SuperNode, or refuses the secret.
        """
        try:
            claimed = self._client.AcquireTask(
                AcquireTaskRequest(supported_task_types=[each.value for each in TaskType])
            )
        except httpx.TransportError:
            return None  # not started yet, or being started again
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
        task = claimed.task.task_id
        return RuntimeTask(self.address, self._transport, claimed.token, task, meant)


@dataclass
class RuntimeTask:
    """A task that was claimed here: its message, its reply, its end.

    A context manager, entered in the process that is to answer it; leaving it closes the
    connection. ``pull`` once, then ``reply`` once. It gives signs of life meanwhile: one that falls
    silent is taken for dead after a minute, and the SuperNode then tells the server so. Their
    failure must not end the process (those of Flower 1.41 and 1.42 send it SIGINT): what has been
    charged is still to be answered.

    Attributes:
        address, transport: as in ``Runtime``.
        token: what the task's own requests are authorised by.
        number: its id.
        for_client: whether it is meant for a ClientApp; any other is refused.
    """

    address: str
    transport: Transport = field(repr=False)
    token: str = field(repr=False)
    number: int
    for_client: bool
    _client: RuntimeHttpClient = field(init=False, repr=False)
    _carrier: NodeTransport = field(init=False, repr=False)
    _closed: threading.Event = field(default_factory=threading.Event, repr=False)

    def __enter__(self) -> "RuntimeTask":
        own = RuntimeTokenHttpInterceptor(self.token)
        self._carrier = self.transport()
        self._client = _client(self.address, self._carrier, own, _retrying())
        pulse = _client(self.address, self.transport(), own)
        threading.Thread(target=self._beat, args=(pulse,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._client.close()

    def pull(self) -> TaskInput:
        """Pulls the task's message; waits up to 20 seconds for it.

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
        identify(run.run_id, context.node_id, given.task_id)
        message = pull_and_inflate_object_from_tree(
            tree,
            make_pull_object_fn_protobuf(client.PullObject, node, run.run_id),
            make_confirm_message_received_fn_protobuf(
                client.ConfirmMessageReceived, node, run.run_id
            ),
            return_type=Message,
            initial_backoff=PART_SECONDS,
        )
        set_message_id(message, tree.object_id)
        return TaskInput(
            message,
            context,
            run.fab_id,
            run.fab_version,
            fab_from_proto(given.fab).content,
            self._carrier.superlink,
        )

    def reply(self, task_input: TaskInput, reply: Message) -> None:
        """Pushes the reply, and ends the task.

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
        """Returns where the message's objects are; None if it does not come within 20 seconds."""
        for _ in range(MAX_MESSAGE_LOOKS):
            pulled = self._client.PullMessages(PullAppMessagesRequest())
            if pulled.messages_list:
                return pulled.message_object_trees[0]
            time.sleep(MESSAGE_LOOK_SECONDS)
        return None

    def _beat(self, client: RuntimeHttpClient) -> None:
        while not self._closed.wait(HEARTBEAT_SECONDS):
            with contextlib.suppress(httpx.HTTPError, RuntimeApiError):
                client.SendTaskHeartbeat(SendTaskHeartbeatRequest())


def _retrying() -> RetryInvoker:
    """Returns an invoker that tries a call again where the connection fails, and nothing else."""
    return RetryInvoker(
        lambda: exponential(base_delay=0.1, max_delay=5),
        httpx.TransportError,
        max_tries=None,
        max_time=RETRY_SECONDS,
    )


def _client(
    address: str,
    transport: NodeTransport,
    interceptor: ProtobufClientInterceptor,
    retry: RetryInvoker | None = None,
) -> RuntimeHttpClient:
    """Returns a client of the interface whose connections ``transport`` makes.

    Flower 1.41 and 1.42 make their own, on which nothing is proved, also by way of a proxy that the
    environment names.

    Args:
        address: HOST:PORT.
        transport: makes the connections.
        interceptor: authorises the requests.
        retry: tries a call again; None: nothing does.
    """
    client = RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name=COMPONENT), interceptor],
        retry_invoker=retry,
    )
    plain = client._client
    client._client = httpx.Client(transport=transport, timeout=plain.timeout, trust_env=False)
    plain.close()
    return client
