"""The inline engine: server and clients in the calling process, behind Flower's Grid.

No Ray and no SuperLink: breakpoints work and start-up is an import. The results are those of the
ray engine bit for bit, because the two halves are the same and sums do not depend on grouping.
"""

import importlib
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from omegaconf import DictConfig

from fl_app.config.overrides import to_run_config
from fl_app.device.node_settings import SIMULATED
from fl_app.run.results import RunFolder
from murmur.compat.flower_grid import Run, empty_run
from murmur.compat.flower_messages import identify, set_message_id
from murmur.round.task import RunError, error_log, in_words, reply_to
from murmur.settings import Count, settings

if TYPE_CHECKING:
    from fl_app.run.validated import ValidatedRun

FIRST_NODE = 101  # beyond the ids that Flower reserves for itself
Answer = Callable[[Message, Context], Message]  # what stands for the ClientApp


@settings
class InlineEngine:
    """``conf/engine/inline``.

    Attributes:
        workers: threads that let nodes answer at the same time.
        nodes: virtual SuperNodes that share a cohort; None: one for each worker.
        traceback: whether to print, at the end, what the clients' log says of their errors.
    """

    workers: Count = 1
    nodes: Count | None = None
    traceback: bool = False

    def begin(self) -> None:
        """Nothing starts before the run does."""

    def run(self, run: "ValidatedRun") -> None:
        """Run to the end; an exception of the server passes through.

        A run that was interrupted goes on with as many nodes as shared its cohort then, or more
        where more are set. What clients' code raises is a refusal of that client, in the run's log.
        """
        if self.workers > 1:
            import_before_threads()
        nodes = max(self.nodes or self.workers, run.folder.shares())
        try:
            serve(run, nodes, self.workers, _answer_of(run, self.workers))
        finally:
            log = error_log(run.folder.path)
            if self.traceback and log.exists():
                print(log.read_text(encoding="utf-8"), file=sys.stderr)


def _answer_of(run: "ValidatedRun", workers: int) -> Answer:
    """Returns what answers a message of ``run`` in this process.

    A single thread answers with the run's client half; each of several has one of its own, since
    they load parameters into their models at the same time.
    """
    from fl_app.run.hosts import SimulatedHost, host_for
    from murmur.round.site import SimulatedSite

    build: Any = SimulatedHost
    if workers == 1:
        build = partial(SimulatedHost, half=run.clients)
    config = run.config

    def answer(message: Message, _: Context) -> Message:
        site = SimulatedSite.of(run.folder.path, config.privacy.policy, config.run_name)
        host = host_for(config, site, build)
        return reply_to(message, host.answer(message.content, message.metadata.message_type))

    return answer


def serve(run: "ValidatedRun", nodes: int, workers: int, answer: Answer) -> None:
    """Do a run in this process over virtual SuperNodes.

    Args:
        run: the run.
        nodes: how many SuperNodes there are.
        workers: how many threads call ``answer`` at a time, at most.
        answer: stands for the ClientApp; on the ray engine it asks a worker, which composes the
            run from its overrides.
    """
    from fl_app import server_app

    with _grid(answer, nodes, workers, to_run_config(run.overrides)) as grid:
        server_app.serve(grid, run)


def run_config(config: DictConfig, folder: RunFolder, nodes: int = 1) -> None:
    """Run a composed ``config``, whose classes may be anybody's (``examples/one_file.py``).

    Nothing of it is checked against conf/. ``privacy.policy`` limits the clients, and their ledgers
    know the run by ``run_name``.

    Args:
        config: the whole configuration; ``engine`` in it is not read.
        folder: the run's, which is claimed here.
        nodes: virtual SuperNodes that share a cohort; they answer one after the other.

    Raises:
        ConfigError: a component refuses its settings, or another process does this run.
        RunError: the run ended early.
    """
    from fl_app.run.validated import ValidatedRun

    InlineEngine(nodes=nodes).run(ValidatedRun(config, folder.path))


def import_before_threads() -> None:
    """Import what several nodes may not import at the same time.

    A first training step imports torch._dynamo, which parses source, and two threads of Python 3.11
    may not parse at once (SystemError: AST constructor recursion depth mismatch).
    """
    importlib.import_module("torch._dynamo")


@contextmanager
def _grid(answer: Answer, nodes: int, workers: int, run_config: dict) -> Iterator["InlineGrid"]:
    """A grid for one run, during which Flower logs warnings only."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.WARNING)
    identify()
    try:
        if workers == 1:
            yield InlineGrid(answer, run_config, nodes)
        else:
            with ThreadPoolExecutor(workers) as pool:
                yield InlineGrid(answer, run_config, nodes, pool.map)
    finally:
        logger.setLevel(level)


class InlineGrid(Grid):
    """Flower's Grid without a SuperLink: nodes answer in this process, or in a worker of Ray.

    Node ids are 101, 102, ... A node whose answer raises replies with Flower's error message, as
    a ClientApp that raises does. Every node's context says that it is simulated, without which the
    ClientApp takes itself for a device.

    Args:
        answer: stands for the ClientApp; called by several threads at a time.
        run_config: of every node's context.
        nodes: how many there are.
        each: how messages are gone through: a pool's ``map``, many at a time, or ``map``, which
            lets a node answer when its reply is asked for.
    """

    def __init__(
        self, answer: Answer, run_config: dict, nodes: int, each: Callable[..., Iterator] = map
    ) -> None:
        self._answer = answer
        self._each = each
        self._run = empty_run()
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
        pushed = _named(messages)
        for reply in self._each(self._deliver, pushed):
            self._replies[reply.metadata.reply_to_message_id] = reply
        return [message.metadata.message_id for message in pushed]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies to these messages, each once; unknown ids are passed over."""
        return [self._replies.pop(key) for key in message_ids if key in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """The replies, one by one; nothing can be late here, so ``timeout`` has no effect."""
        return iter(self._each(self._deliver, _named(messages)))

    def _deliver(self, message: Message) -> Message:
        """The node's reply; for an exception, the error message that Flower would send.

        A RunError is no node's: it ends the run.
        """
        try:
            return self._answer(message, self._contexts[message.metadata.dst_node_id])
        except RunError:
            raise
        except Exception as error:
            reason = in_words(error)
            code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            return Message(Error(code=code, reason=reason), reply_to=message)


def _named(messages: Iterable[Message]) -> list[Message]:
    """``messages`` with the ids that Flower gives them when they are sent."""
    pushed = list(messages)
    for message in pushed:
        set_message_id(message, str(uuid4()))
    return pushed
