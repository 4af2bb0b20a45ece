"""The wrapper of a grid that turns each question to clients into a secure sum.

A strategy's ``start`` is called with a ``PrivateGrid`` in the place of Flower's grid, and a secure
sum happens inside one ``send_and_receive``. The strategy configures, samples and steps as it always
does. It is given one reply for each survivor, and each holds the same: what the clients were sent
plus the mean of their clipped, noised changes, with weight 1.

Where all nodes are asked, and what comes next is known, they advertise for the next round's sum
with the last message of this one.
"""

import hashlib
import json
import logging
import os
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common import log
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from murmur.compat.flower_grid import DeviceGrid, GridWrapper
from murmur.compat.flower_messages import with_content
from murmur.files import owner_only_folder, replace_file
from murmur.flower import ask as protocol
from murmur.flower import trials
from murmur.flower.ask import Ask
from murmur.flower.forecast import LOUD_NOISE, compared, forecast
from murmur.flower.model_arrays import ModelArrays
from murmur.flower.privacy_settings import MIN_SUM_NODES, PrivacySettings
from murmur.flower.round_phase import NextRound, RoundSetup, SampledNodes, WrappedQuestion
from murmur.flower.statement import FACTS, statement_of
from murmur.privacy.events import Release
from murmur.privacy.run_header import ServerKey
from murmur.round.aggregator import Aggregator
from murmur.round.asked_log import AskedLog
from murmur.round.phase import Phase
from murmur.round.question import Outcome
from murmur.round.secure_summation import SecureSummation
from murmur.round.signed import QuestionSigner
from murmur.round.task import RunError, in_words, printable_line, request_digest

if TYPE_CHECKING:
    from murmur.privacy.statement import Statement

PHASE_SECONDS = 120.0  # for each phase of the protocol; training has the strategy's own timeout
MAX_SIMULATED_NODES = 100
_FOLDER = "murmur-results"
_NO_FUNCTION = "No query function registered"  # Flower's words, of an app without Murmur
_OF_THE_SUM = "secure aggregation:"  # begins the reason of all clients of a sum that was lost


def weight_key(strategy: Strategy) -> str:
    """Returns the metric by which ``strategy`` weighs a reply."""
    return str(getattr(strategy, "weighted_by_key", "num-examples"))


class PrivateGrid(GridWrapper):
    """A grid in which every question to clients is a secure sum.

    Lives as long as the strategy's ``start``. Replies prove that they answer their message, and
    whoever is silent is asked once more (``DeviceGrid``).

    Args:
        grid: Flower's.
        strategy: Names the key under which it looks for weights in replies.
        model: What the run begins with.
        settings: What may be asked.
        key: Signs what is asked; None: nothing is signed.

    Attributes:
        weight_key: The metric by which the strategy weighs a reply; all get 1.
        signer: Signs what is asked, under the run's header.
        run_name: Random; names the run's sums and its folder of results.
        num_rounds: Rounds of each purpose that the strategy has asked for. One beyond those that
            the noise is made for is a RunError.
        released: How often somebody was asked for each event, in a sum over at least so many.
        asked: The nodes that were.
        folder: Where the statement is written.
        known: What nodes have said of themselves (``FACTS``); whoever has answered is not asked
            again.
        started: Digest of the run-config with which a node says that it was started.
        stated: Whether the log has named the statement's file.
        clip: The clipping norm of the next training.
        statement: Of all that was asked so far; None: nothing was.
        upcoming: The round that is expected next; None: nobody has been asked for it.
        unused: Rounds that were expected and did not come. Clients may have joined their sums, so
            that later ones have another name.
        is_foreseen: Whether the strategy has asked for what was expected, whomever it asked.
    """

    def __init__(
        self,
        grid: Grid,
        strategy: Strategy,
        model: ModelArrays,
        settings: PrivacySettings,
        key: ServerKey | None = None,
    ) -> None:
        super().__init__(cast(Grid, DeviceGrid(grid)))
        self.model = model
        self.settings = settings
        self.weight_key = weight_key(strategy)
        self.run_name = uuid.uuid4().hex
        self.signer: QuestionSigner | None = None
        if key is not None:
            self.signer = QuestionSigner(key, settings.header(self.run_name, key))
        self.num_rounds = {"train": 0, "evaluate": 0}
        self.released: Counter[tuple[Release, int]] = Counter()
        self.asked: set[int] = set()
        self.folder = Path(os.environ.get("MURMUR_RESULTS", _FOLDER)).absolute() / self.run_name
        self.known: dict[int, dict[str, bool]] = {}
        self.started: dict[int, str] = {}
        self.stated = False
        self.clip = settings.clip
        self.statement: Statement | None = None
        if self.signer is not None:
            self.signer.log = AskedLog(self.folder / "asked.jsonl")
        self.upcoming: NextRound | None = None
        self.unused = 0
        self.is_foreseen = True

    def sign_statement(self, arrays: ArrayRecord) -> None:
        """Signs what was asked in a run that is over, as ``statement.json``.

        Nothing without a key, or where nobody was asked. ``arrays``: The final model.
        """
        if self.signer is None or self.signer.log is None or self.statement is None:
            return
        from murmur.round.statement_file import FILE, SignedStatement  # loads SciPy

        model = hashlib.sha256()
        for array in arrays.values():
            model.update(np.asarray(array.numpy(), "<f4").tobytes())
        asked = self.signer.log.read()
        signed = SignedStatement(self.signer.signed, self.statement, model.hexdigest(), *asked)
        replace_file(self.folder / FILE, signed.signed(self.signer.key).to_bytes())

    def collect_receipts(self) -> None:
        """Asks devices for receipts of a run whose statement is signed; each is a file of its node.

        Trials have no owner and give none, so they are not asked. What goes wrong is logged: the
        run itself is complete.
        """
        has_owners = any(facts["owned"] for facts in self.known.values())
        if self.signer is None or self.statement is None or not has_owners:
            return
        from murmur.round.receipts import collected, keep, signed_request
        from murmur.round.statement_file import FILE

        kept = 0
        try:
            statement = (self.folder / FILE).read_bytes()
            hosted = {node: {str(protocol.OWNER)} for node in self._grid.get_node_ids()}
            self.signer.known.clear()  # who was never drawn has no header yet
            content = signed_request(statement, self.signer, hosted)
            found = collected(self._grid, content, hosted, protocol.KIND, PHASE_SECONDS)
            for node, _, receipt in found:
                keep(self.folder, str(node), receipt)
                kept += 1
        except Exception as error:
            log(logging.WARNING, "receipts were not all collected (%s)", in_words(error))
        log(logging.INFO, "devices gave %d receipts", kept)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Raises RunError: a message that is pushed by itself is no part of a sum."""
        raise RunError(
            "push_messages: under private(...) clients are asked by send_and_receive only, where "
            "their answers are summed"
        )

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Returns a reply for each survivor, all with the mean; an error for each if a sum is lost.

        The strategy calls it for each training and each evaluation. A round that is lost counts as
        released by all that were asked, and its place in the budget is not used again.

        Args:
            messages: One for each node, all with the same content.
            timeout: Seconds that training may take. Each other phase of the protocol has 120.

        Returns:
            Empty for an evaluation where ``private`` names no metrics of evaluations.

        Raises:
            RunError: The messages cannot be a sum (of fewer than three nodes only in the first
                round, later ones are lost), a round is beyond those that the noise was made for, or
                a node's app is not protected. Nothing was released in this round then.
        """
        asked = list(messages)
        if not asked:
            return []
        kind = asked[0].metadata.message_type
        purpose = kind.partition(".")[0]
        if purpose == "evaluate" and not self.settings.metrics["evaluate"]:
            if not self.num_rounds["evaluate"]:
                log(
                    logging.INFO,
                    "no evaluation on clients: name what it releases, with its range: "
                    "private(..., evaluate={'accuracy': (0, 1)})",
                )
            self.num_rounds["evaluate"] += 1
            return []
        if purpose not in self.num_rounds:
            raise RunError(f"`{kind}`: private(...) protects train and evaluate; nothing was asked")
        self.num_rounds[purpose] += 1
        number = self.num_rounds[purpose]
        if number > self.settings.rounds:
            raise RunError(
                f"round {number}: the noise was made for {self.settings.rounds} rounds; start "
                f"again with num_rounds={number} or more"
            )
        content = self._content(asked)
        nodes = [message.metadata.dst_node_id for message in asked]
        if number > 1 and len(nodes) < MIN_SUM_NODES:
            # Some may be away for a while; that ends no run of which rounds are paid for.
            lost = f"{len(nodes)} nodes, a sum needs at least {MIN_SUM_NODES}"
            return _errors(asked, f"round {number} was lost: {lost}")
        self._require_cohort(nodes, purpose)
        ask = self.settings.ask(purpose, number, self.settings.minimum(len(nodes)), self.clip)
        if number == 1 and purpose == "train":
            self._log_forecast(ask, len(nodes))
        self._greet(nodes)
        given = self._summed(ask, kind, content, asked, timeout)
        if number == 1 and purpose == "train":
            self._log_lengths(ask, len(nodes))
        return given

    def _content(self, asked: Sequence[Message]) -> RecordDict:
        """Returns what all clients are sent, in the model's own types.

        Raises RunError unless it is the same for all.
        """
        content = asked[0].content
        contents = {id(each.content): each.content for each in asked}
        sent = {
            request_digest(self.run_name, protocol.ALGORITHM, "os", each)
            for each in contents.values()
        }
        kinds = {each.metadata.message_type for each in asked}
        if len(sent) > 1 or len(kinds) > 1:
            raise RunError(
                "the strategy sends different messages to different clients; a mean of changes "
                "needs one model, and the same settings, for all"
            )
        try:
            name, arrays = protocol.array_record(content)
        except ValueError as error:
            raise RunError(str(error)) from error
        return RecordDict({**content, name: self.model.restored(arrays)})

    def _require_cohort(self, nodes: Sequence[int], purpose: str) -> None:
        """Raises RunError where the nodes make no sum: fewer than three, or one of them twice.

        Warns of more than 100 in a simulation of the whole protocol.
        """
        if len(set(nodes)) < len(nodes):
            raise RunError("the strategy asks one node twice in a round")
        if len(nodes) < MIN_SUM_NODES:
            raise RunError(
                f"{len(nodes)} nodes: a sum needs at least {MIN_SUM_NODES}, of which one may side "
                f"with the server; sample more (min_{purpose}_nodes={MIN_SUM_NODES}), or start more"
            )
        if len(nodes) > MAX_SIMULATED_NODES and not self.settings.simulated:
            log(
                logging.WARNING,
                "%d nodes: each shares secrets with each other one, which takes long in a "
                "simulation; private(..., simulated=True) sums without, and says so",
                len(nodes),
            )

    def _log_forecast(self, ask: Ask, clients: int) -> None:
        """Logs what the noise does to the model, before anybody is asked."""
        loud, line = forecast(ask, self.model.layout.size, clients)
        level = logging.INFO
        if loud > LOUD_NOISE:
            level = logging.WARNING
        log(level, line)
        normalised = [name for name in self.model.layout.shapes if name.endswith("running_var")]
        if normalised:
            log(
                logging.WARNING,
                "%s, ...: the statistics of batch normalisation are averaged, clipped and noised "
                "with the weights; GroupNorm keeps none and learns better under noise",
                normalised[0],
            )

    def _log_lengths(self, ask: Ask, clients: int) -> None:
        """Logs how long changes were before clipping, where trials on this machine kept it.

        So it is in a simulation. Nothing of it travels: whoever reads these files can read the
        data, too.
        """
        lengths = trials.lengths_of(self._grid.run.run_id)
        if not lengths:
            return
        loud, _ = forecast(ask, self.model.layout.size, clients)
        is_far, line = compared(ask, loud, lengths)
        log(logging.WARNING if is_far else logging.INFO, line)

    def _summed(
        self,
        ask: Ask,
        kind: str,
        content: RecordDict,
        asked: Sequence[Message],
        timeout: float | None,
    ) -> list[Message]:
        """Runs the secure sum of one round, and returns what the strategy is given of it.

        ``kind``: Flower's type of the strategy's messages. ``content``: what all are sent.
        ``asked``: the strategy's messages, for their nodes. ``timeout``: seconds for the training
        itself.

        The statement is on disk before the question is sent. RunError where 32 bits cannot hold the
        noise.
        """
        begun = self._begun(ask, asked)
        if begun is not None:
            by_node = {message.metadata.dst_node_id: message for message in asked}
            asked = [by_node[node] for node in begun.nodes]
        nodes = [message.metadata.dst_node_id for message in asked]
        phase = self._phase(ask, nodes, kind, content)
        if begun is not None and isinstance(phase.summation, SecureSummation):
            phase.summation.begun = begun.sums
        messages = phase.ask(self._grid)
        replies: list[Message] = []
        if messages:
            # Durable before a client pays: whatever becomes of the round, it is in the statement.
            self._write_statement(ask, [message.metadata.dst_node_id for message in messages])
            replies = list(self._grid.send_and_receive(messages, timeout=timeout))
        self.upcoming = self._expected(ask, nodes)
        if self.upcoming is not None and isinstance(phase.summation, SecureSummation):
            phase.summation.following = self.upcoming.sums
        return self._for_strategy(ask, content, asked, replies, phase.take(replies))

    def _phase(self, ask: Ask, nodes: list[int], kind: str, content: RecordDict) -> Phase:
        """Returns the phase that asks ``nodes``, by their places; parameters as for ``_summed``."""
        size = ask.num_extra_entries
        if ask.purpose == "train":
            size += self.model.layout.size
        try:
            codec = ask.codec(size)
        except ValueError as error:
            raise RunError(str(error)) from error
        setup = RoundSetup(
            num_clients=len(nodes),
            secure_sums=self.settings.sums,
            round_timeout=PHASE_SECONDS,
            placement=SampledNodes(nodes),
            minimum=ask.minimum,
        )
        # This process is not told with what clients are started. One that says another digest than
        # most will refuse, and drop out.
        said = Counter(self.started[node] for node in nodes if node in self.started)
        started = max(said, key=said.__getitem__, default="")
        about: Any = {"ask": ask.to_json(), "kind": kind, protocol.STARTED: started}
        sums = Aggregator(setup, len(nodes), "murmur flower")
        sums.run = f"{self.run_name} {ask.purpose}"
        if self.unused:
            sums.run += f" {self.unused}"
        sums.signer = self.signer
        if self.signer is not None:
            self.signer.known.clear()  # a place is another client's in each round
        question = WrappedQuestion(
            purpose=ask.purpose,
            number=ask.round,
            cohort=list(range(len(nodes))),
            model=np.zeros(0, np.float32),
            codec=codec,
            event=ask.event,
            settings=about,
            kind=kind,
            records=content,
        )
        return Phase(question, sums, setup)

    def _begun(self, ask: Ask, asked: Sequence[Message]) -> NextRound | None:
        """Returns the round that was expected, if it is this one; None where it is another."""
        expected, self.upcoming = self.upcoming, None
        nodes = [message.metadata.dst_node_id for message in asked]
        if expected is None or expected.is_round(ask, nodes):
            return expected
        self.unused += 1
        self.is_foreseen = (expected.ask.purpose, expected.ask.round) == (ask.purpose, ask.round)
        return None

    def _expected(self, ask: Ask, nodes: list[int]) -> NextRound | None:
        """Returns the round after ``ask``; None where it, or whom it asks, is not known by now.

        Whom it asks is known where this round has asked everybody who is there.
        """
        following = self.settings.following(ask)
        if following is None or not self.is_foreseen:
            return None
        if set(self._grid.get_node_ids()) != set(nodes):
            return None
        phase = self._phase(following, nodes, following.purpose, RecordDict())
        return NextRound.of(following, nodes, phase)

    def _greet(self, nodes: Sequence[int]) -> None:
        """Asks new nodes what they are, so that an app without Murmur is asked for nothing else.

        A node that does not answer, or has no Murmur, stays unknown: it counts as a trial in the
        statement, and drops out of the sum. RunError where all are without Murmur: so is the app.
        """
        messages = [
            Message(RecordDict({protocol.ASKED: ConfigRecord({})}), node, protocol.KIND)
            for node in nodes
            if node not in self.known
        ]
        unprotected = 0
        for reply in self._grid.send_and_receive(messages, timeout=PHASE_SECONDS):
            node = reply.metadata.src_node_id
            if reply.has_error():
                unprotected += _NO_FUNCTION in str(reply.error.reason)
                continue
            record = reply.content.config_records.get(protocol.DEVICE, ConfigRecord())
            names = (*FACTS, protocol.OWN_NOISE)
            self.known[node] = {name: record.get(name) is True for name in names}
            self.started[node] = str(record.get(protocol.STARTED, ""))
        if unprotected == len(nodes):
            raise RunError(
                "the clients' app is not protected, so nothing was asked of it "
                f"({unprotected} nodes); in client_app.py, in place of Flower's: from "
                "murmur.flower import ClientApp"
            )
        if not self.stated and any(fact[protocol.OWN_NOISE] for fact in self.known.values()):
            log(logging.WARNING, protocol.NOT_COUNTED)

    def _for_strategy(
        self,
        ask: Ask,
        content: RecordDict,
        asked: Sequence[Message],
        replies: Sequence[Message],
        outcome: Outcome,
    ) -> list[Message]:
        """Returns a reply for each survivor, real but for its content; errors if the sum is lost.

        Content is the same for all: the mean of the named metrics, weight 1 and, in training, the
        arrays that were sent plus the mean change. So the mean that the strategy takes of them is
        that of the clients. ``outcome``: the phase's; its failures are logged here.
        """
        for place, why in outcome.failed.items():
            if not why.startswith(_OF_THE_SUM):
                log(
                    logging.WARNING,
                    "round %d, node %d: %s",
                    ask.round,
                    asked[place].metadata.dst_node_id,
                    why,
                )
        if not (outcome.answered and outcome.accepted):
            return _errors(asked, _lost(ask, outcome))
        codec = ask.codec(outcome.total.size)
        mean = codec.mean(outcome.total, outcome.weight)
        changes = mean[: len(mean) - ask.num_extra_entries]
        metrics = ask.metric_means(mean[len(changes) :][: len(ask.metrics)])
        if ask.bit_weight and self.settings.adaptive is not None:
            share = ask.short_share(float(mean[-1]))
            self.clip = self.settings.adaptive.next_norm(ask.clip, share)
            log(
                logging.INFO,
                "round %d: about %.0f%% of changes were within clip=%.3g; the next is %.3g",
                ask.round,
                100 * share,
                ask.clip,
                self.clip,
            )
        name, arrays = protocol.array_record(content)
        new = {}
        if ask.purpose == "train":
            moved = self.model.layout.moved(protocol.arrays_of(arrays), changes)
            new = {key: Array(values) for key, values in moved.items()}
        by_node = {reply.metadata.src_node_id: reply for reply in replies}
        given = []
        for place in outcome.answered:
            reply = by_node[asked[place].metadata.dst_node_id]
            found = RecordDict({"metrics": ReleasedMetrics(ask.purpose, self.weight_key, metrics)})
            if ask.purpose == "train":
                found[name] = ArrayRecord({**arrays, **new})
            given.append(with_content(reply.metadata, found))
        return given

    def _write_statement(self, ask: Ask, nodes: Sequence[int]) -> None:
        """Writes the statement with all that ``nodes`` are about to release.

        Called before the question is sent, so that an interruption leaves no release out. Files:
        ``privacy.json`` and ``privacy.txt``, readable by this user only. Where the accountant
        fails before the first release, its error ends the run; later what clients have paid for is
        not lost: the log has the traceback, and the statement says what was charged and no ε.
        """
        self.released[ask.event(), ask.minimum] += 1
        self.asked.update(nodes)
        facts = [self.known.get(node, {}) for node in self.asked]
        try:
            statement = statement_of(self.settings, ask, self.released, facts)
        except Exception as error:
            if self.released.total() == 1:
                raise  # nobody has answered yet
            log(logging.ERROR, "no ε is derived: the accountant failed", exc_info=error)
            statement = statement_of(self.settings, ask, self.released, facts, error)
        from murmur.privacy.statement_text import render

        self.statement = statement
        owner_only_folder(self.folder)
        replace_file(self.folder / "privacy.json", json.dumps(statement.to_dict()).encode())
        replace_file(self.folder / "privacy.txt", f"{render(statement)}\n".encode())
        if not self.stated:
            log(logging.INFO, "privacy statement: %s", self.folder / "privacy.txt")
            self.stated = True


class NotReleasedError(RunError):
    """A strategy looks for a metric that no client has released; the text says how to name it."""


class ReleasedMetrics(MetricRecord):
    """Metrics as clients release them: the means of those that were named, and weight 1.

    Looking for any other raises NotReleasedError, in whichever way: a default in its place would
    look like a measurement.

    Args:
        purpose: "train" or "evaluate", for the error's advice.
        weight: The key by which the strategy weighs replies.
        metrics: Each named metric's noised mean.
    """

    def __init__(self, purpose: str, weight: str, metrics: Mapping[str, float]) -> None:
        super().__init__({weight: 1, **metrics})
        self.purpose = purpose
        self.missed: list[object] = []

    def __contains__(self, name: object) -> bool:
        self._look_for(name)
        return True

    def __getitem__(self, name: str) -> Any:
        self._look_for(name)
        return super().__getitem__(name)

    def _look_for(self, name: object) -> None:
        if not super().__contains__(name):
            self.missed.append(name)
            self.require_no_other()

    def require_no_other(self) -> None:
        """Raises NotReleasedError where an unnamed metric was looked for, whoever caught it."""
        if self.missed:
            argument = "metrics" if self.purpose == "train" else "evaluate"
            raise NotReleasedError(
                f"{self.missed[0]}: was not released by the clients; name it with its range: "
                f"{argument}={{{self.missed[0]!r}: (0, 1)}}"
            )


def _errors(asked: Sequence[Message], lost: str) -> list[Message]:
    """Returns errors for a lost round, at which a strategy keeps its model; logs ``lost``."""
    log(logging.WARNING, lost)
    error = Error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE, lost)
    return [Message(error, reply_to=message) for message in asked]


def _lost(ask: Ask, outcome: Outcome) -> str:
    """Returns why a round does not count, for the strategy's own log.

    Either too few are left, or the first failure's own words as one printable line.
    """
    own = [why for why in outcome.failed.values() if not why.startswith(_OF_THE_SUM)]
    clients = outcome.cohort_size
    left = clients - len(own) - len(outcome.accused)
    if left < ask.minimum:
        return (
            f"round {ask.round} was lost: {left} of {clients} clients are left, a sum needs "
            f"{ask.minimum}"
        )
    reason = next(iter(outcome.failed.values()), "no sum was revealed")
    return f"round {ask.round} was lost: {printable_line(reason)}"
