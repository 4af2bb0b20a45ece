"""The inline engine: ServerApp and ClientApp in the calling process, behind Flower's Grid.

No Ray and no SuperLink: breakpoints work and start-up is an import. The results are those of the
ray engine bit for bit, because the apps are the same and sums do not depend on grouping.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from uuid import uuid4

from flwr.app import Context, Message, RecordDict
from flwr.app.error import Error
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from omegaconf import DictConfig

from fl_app.device.node_settings import SIMULATED, NodeSettings, error_log
from fl_app.run.results import RunFolder

FIRST_NODE = 101  # beyond the ids that Flower reserves for itself


class InlineEngine:
    """``workers`` threads serve ``nodes`` virtual SuperNodes (None: one for each worker).

    ``traceback``: whether to print what the clients' own log says of their errors.
    """

    def __init__(self, workers: int = 1, nodes: int | None = None, traceback: bool = False) -> None:
        if workers < 1:
            raise ValueError(f"workers={workers}: must be at least 1")
        if nodes is not None and nodes < 1:
            raise ValueError(f"nodes={nodes}: must be at least 1, or null")
        self.workers, self.nodes, self.traceback = workers, nodes or workers, traceback

    def begin(self) -> None:
        """Nothing starts before the run does."""

    def run(self, overrides: list[str], folder: RunFolder) -> None:
        """Run to the end; an exception of the server passes through."""
        from fl_app.client_app import app as client_app

        try:
            serve(overrides, max(self.nodes, folder.shares()), self.workers, client_app)
        finally:
            log = error_log(folder.path)
            if self.traceback and log.exists():
                print(log.read_text(encoding="utf-8"), file=sys.stderr)


Answer = Callable[[Message, Context], Message]


def serve(overrides: list[str], nodes: int, workers: int, answer: Answer) -> None:
    """Run the ServerApp in this process over ``nodes`` virtual SuperNodes.

    ``answer`` stands for the ClientApp; up to ``workers`` threads call it at a time.
    """
    from fl_app.config.run_config import to_run_config
    from fl_app.server_app import app as server_app

    words = to_run_config(overrides)
    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=words)
    with _grid(answer, nodes, workers, words) as grid:
        server_app(grid, context)


def identify() -> None:
    """Give this process the task's identity that Flower stamps on every new message."""
    TaskIdentity.task_id = TaskIdentity.run_id = 1
    TaskIdentity.node_id = SUPERLINK_NODE_ID


def run_config(config: DictConfig, folder: RunFolder, nodes: int = 1) -> None:
    """Run a composed ``config``, whose classes may be anybody's (``examples/one_file.py``)."""
    from fl_app.device.node import node_for
    from fl_app.run.experiment import Experiment

    settings = NodeSettings.simulation(folder.path)

    def answer(message: Message, _: Context) -> Message:
        return Message(node_for(config, settings).answer(message.content), reply_to=message)

    with folder.claim(), _grid(answer, nodes, 1, {}) as grid:
        Experiment(config).run(grid, folder)


@contextmanager
def _grid(answer: Answer, nodes: int, workers: int, run_config: dict) -> Iterator[InlineGrid]:
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.WARNING)
    identify()
    try:
        with ThreadPoolExecutor(workers) as pool:
            yield InlineGrid(answer, run_config, nodes, pool)
    finally:
        logger.setLevel(level)


class InlineGrid(Grid):
    """Flower's Grid without a SuperLink; node ids are 101, 102, ..."""

    def __init__(
        self, answer: Answer, run_config: dict, nodes: int, pool: ThreadPoolExecutor
    ) -> None:
        self._answer, self._pool = answer, pool
        self._run = Run.create_empty(run_id=1)
        self._contexts = {
            node: Context(
                run_id=1,
                node_id=node,
                node_config={SIMULATED: True},
                state=RecordDict(),
                run_config=run_config,
            )
            for node in range(FIRST_NODE, FIRST_NODE + nodes)
        }
        self._replies: dict[str, Message] = {}

    def set_run(self, run: Run) -> None:
        """The run that messages belong to."""
        self._run = run

    @property
    def run(self) -> Run:
        """Run information."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A message to one node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """101, 102, ..."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let every addressed node answer; the replies wait for ``pull_messages``."""
        pushed = list(messages)
        for message in pushed:
            message.metadata.__dict__["_message_id"] = str(uuid4())
        for reply in self._pool.map(self._deliver, pushed):
            self._replies[reply.metadata.reply_to_message_id] = reply
        return [message.metadata.message_id for message in pushed]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies to these messages, each once."""
        return [self._replies.pop(key) for key in message_ids if key in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push, then pull; nothing can be late here, so ``timeout`` has no effect."""
        return self.pull_messages(self.push_messages(messages))

    def _deliver(self, message: Message) -> Message:
        try:
            return self._answer(message, self._contexts[message.metadata.dst_node_id])
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            return Message(Error(code=code, reason=reason), reply_to=message)
