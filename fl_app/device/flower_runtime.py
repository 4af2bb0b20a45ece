"""A client of the SuperNode's runtime API, for ``murmur device``; no other module uses that API.

``murmur supernode`` starts no app. It serves the messages that arrive as tasks (protobuf over HTTP,
``/v1/runtime/*``) to whoever holds its secret, and each connection begins with its proof that it
holds the secret too (``fl_app.device.proof``). Flower promises nothing about this interface, so the
version for which this is written is checked before anything else.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from importlib.metadata import version

from fl_app.device.proof import NotProvenError, ProvenTransport

SUPPORTED = "1.41."

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
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.supernode.runtime.run_clientapp import push_message
except ImportError as error:
    raise ImportError(
        f"Flower {version('flwr')} has another runtime API than {SUPPORTED}x, for which this is "
        f"written ({error}); pip install 'flwr=={SUPPORTED}*'"
    ) from error

COMPONENT = "murmur-device"  # how this process is called in the SuperNode's log
MESSAGE_SECONDS = 0.25  # a task exists before its message does
MESSAGE_LOOKS = 80
HEARTBEAT_SECONDS = 10.0  # a task is taken for dead 60 s after its last sign of life
RETRY_SECONDS = 30.0  # a SuperNode closes connections that rest for 5 s, also one that is just used


class RuntimeApiError(Exception):
    """The SuperNode refuses this process; the message says why."""


@dataclass(frozen=True)
class TaskInput:
    """What one task asks. ``context``: the run's, as the SuperNode has it.

    ``app``, ``version``: of the bundle, in the server's words. ``bundle``: its bytes, as they are.
    """

    message: Message
    context: Context
    app: str
    version: str
    bundle: bytes


class Runtime:
    """The SuperNode's runtime API at ``address`` (HOST:PORT), for one who holds its ``secret``."""

    def __init__(self, address: str, secret: bytes) -> None:
        if not version("flwr").startswith(SUPPORTED):
            raise RuntimeApiError(
                f"flwr {version('flwr')} is installed, and the runtime API that is used here is "
                f"that of {SUPPORTED}x; pip install 'flwr=={SUPPORTED}*'"
            )
        self.address, self._secret = address, secret
        methods = ["/flwr.proto.Runtime/AcquireTask"]
        signed = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=methods)
        self._client = _client(address, secret, signed)

    def claim(self) -> Task | None:
        """The oldest task that waits, of whatever type; None also while no SuperNode answers.

        Every type is taken: one that nobody claims would keep the SuperNode waiting for ever.
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


@dataclass(frozen=True)
class Task:
    """A task that was claimed here. ``for_client``: it is meant for a ClientApp."""

    address: str
    secret: bytes = field(repr=False)
    token: str = field(repr=False)
    number: int
    for_client: bool

    def open(self) -> OpenTask:
        """Begin with it, in the process that is to answer it."""
        return OpenTask(self.address, self.secret, self.token)


class OpenTask:
    """A task that this process works on: what it asks, its reply, its end.

    Gives signs of life until it is closed: one that falls silent is taken for dead after a minute,
    and the SuperNode then tells the server so. Their failure must not end the process (Flower's own
    raise SIGINT): what has been charged is still to be answered.
    """

    def __init__(self, address: str, secret: bytes, token: str) -> None:
        own = RuntimeTokenHttpInterceptor(token)
        self._client = _client(address, secret, own, _patient())
        self._closed = threading.Event()
        pulse = _client(address, secret, own)
        threading.Thread(target=self._beat, args=(pulse,), daemon=True).start()

    def __enter__(self) -> OpenTask:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._client.close()

    def pull(self) -> TaskInput:
        """Pull what is asked; raises whatever Flower or httpx do where it cannot be had."""
        client = self._client
        # The message first: a task that falls silent between the two is then given out again, and
        # one that has begun is reported to the server. In Flower's order it would be neither.
        tree = self._message_tree()
        given = client.PullTaskInput(PullTaskInputRequest())
        if tree is None:
            raise RuntimeApiError("the task's message was given out before, to one that has ended")
        context, run = context_from_proto(given.context), run_from_proto(given.run)
        node = Node(node_id=context.node_id)
        # Flower's messages refuse to be made in a process that does not say whose task it has.
        TaskIdentity.task_id, TaskIdentity.run_id = given.task_id, run.run_id
        TaskIdentity.node_id = context.node_id
        message = pull_and_inflate_object_from_tree(
            tree,
            make_pull_object_fn_protobuf(client.PullObject, node, run.run_id),
            make_confirm_message_received_fn_protobuf(
                client.ConfirmMessageReceived, node, run.run_id
            ),
            return_type=Message,
        )
        message.metadata.__dict__["_message_id"] = tree.object_id
        return TaskInput(
            message, context, run.fab_id, run.fab_version, fab_from_proto(given.fab).content
        )

    def reply(self, task_input: TaskInput, reply: Message) -> None:
        """Push the reply, and end the task; raises where the reply did not arrive.

        The task is then left to expire: a SuperNode reports that to the server, but not a task
        that ended as failed.
        """
        push_message(self._client, reply, task_input.context)
        state = SubStatus.FAILED if reply.has_error() else SubStatus.COMPLETED
        self._client.PushTaskOutput(PushTaskOutputRequest(sub_status=state, details=""))

    def _message_tree(self) -> ObjectTree | None:
        """Where the message's objects are; None if it does not come."""
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
