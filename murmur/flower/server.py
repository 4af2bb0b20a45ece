"""``private``: the server's half, a strategy around a strategy.

Its ``start`` calls the strategy's own with a grid around Flower's, and that grid is the place where
a secure sum of six phases happens inside one ``send_and_receive``. The strategy configures, samples
and steps as it always does. It is given one reply for each survivor, and each holds the same: what
the clients were sent plus the mean of their clipped, noised changes, with weight 1.

So a strategy must do no more with its replies than average them. ``probe`` tries that with a copy
of it, before anybody is asked.

The file reads in the order of a run: what a user writes (``private``, ``_Terms``), what starts
(``Private``, ``_Model``), a round (``PrivateGrid``), then what the run says of itself (``forecast``
before it, ``state`` before each release) and, last, the probe of strategies.

Whose noise: every client's own, a share of a discrete Gaussian. Against whom: a server that sees
sums only. What that rests on stands in the statement, ``privacy.txt`` in the folder of results
(``murmur-results``, or MURMUR_RESULTS in the environment), which is written before each round's
clients are asked.
"""

import copy
import inspect
import json
import logging
import math
import os
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.app.message import make_message
from flwr.common import log
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from murmur.checks import require_positive, require_probability
from murmur.compat.flower_grid import DeviceGrid, GridWrapper
from murmur.compat.flower_messages import limit_replies, pull_parts_soon
from murmur.files import owner_only_folder, replace_file
from murmur.flower import ask as protocol
from murmur.flower.ask import Ask, Layout
from murmur.privacy.accounting import Adjacency, Threat, Unit
from murmur.privacy.events import ComposedEvent, Event, Release, RepeatedEvent, SummedEvent
from murmur.round.aggregator import Aggregator
from murmur.round.phase import Phase
from murmur.round.placement import ClientPlacement, Placement
from murmur.round.question import Outcome, Question
from murmur.round.setup import SumSetup
from murmur.round.task import RunError, digest, printable_line
from murmur.secure_sum.settings import SecureSumSettings

if TYPE_CHECKING:
    from murmur.privacy.statement import Statement

PHASE_SECONDS = 120.0  # for each phase of the protocol; training has the strategy's own timeout
COLLUDERS = 1  # clients that may side with the server
_LEAST = COLLUDERS + 2  # nodes of a sum: two honest ones hide each other
# At least 67% of a cohort must be in its sum.
_SUMS = SecureSumSettings("on", threshold=None, minimum=0.67, colluders=COLLUDERS)
_EVALUATION = 2.0  # the noise on evaluations, in that on trainings
_MOST_SIMULATED = 100
_LOUD = 3.0  # noise of so many longest updates is warned of
_MOST_ADVISED = 10**7  # clients
_MEAN_ONLY = "FedAvg, FedAvgM, FedProx, FedAdam, FedYogi or FedAdagrad"
_FOLDER = "murmur-results"
_NO_FUNCTION = "No query function registered"  # Flower's words, of an app without Murmur
_OF_THE_SUM = "secure aggregation:"  # begins the reason of all clients of a sum that was lost
_PROBES = 6
_PROBED = 1000  # numbers of an array that a probe tries

FACTS = {
    "owned": "no owner keeps a ledger: clients without a device's folder are trials",
    "pinned": "assumes that the server invents no clients: no peers are pinned",
    "guarded": "assumes that the app's bundle is honest: it brings the code that protects",
}
"""What clients say of themselves, and what a statement says where they do not."""

_PROVES = {protocol.INVENTS_NOBODY: "pinned", protocol.HONEST_APP: "guarded"}
"""What need not be assumed where all clients say so. Their word suffices: a statement rests on
enough of them being honest, and those are what they say."""

Ranges = Mapping[str, tuple[float, float]]


def private(
    strategy: Strategy,
    *,
    epsilon: float,
    delta: float,
    clip: float,
    metrics: Ranges | None = None,
    evaluate: Ranges | None = None,
    frozen: Sequence[str] = (),
    simulated: bool = False,
) -> "Private":
    """``strategy`` under client-level differential privacy, against a server that sees sums only.

    Neighbours differ in all data of one client (replace-one). At least three nodes must take part
    in a round, of whom one may side with the server.

    Parameters
    ----------
    strategy : Strategy
        One of Flower's message strategies that averages its replies, or a subclass of one.
    epsilon, delta : float
        What everything costs one client that the run ever asks of it: training, metrics and
        evaluation together. ε is finite and above 0, δ in (0, 1).
    clip : float
        The L2 norm to which each client's change of the model is clipped, above 0.
    metrics, evaluate : mapping
        Which metrics clients release in training and in evaluation, each with its range:
        ``{"train_loss": (0, 10)}``. Nothing else of what a client returns is released; without
        ``evaluate`` no evaluation is asked for.
    frozen : sequence of str
        Names of arrays that no client trains, which then take no noise.
    simulated : bool
        Whether the server may see what it sums, for simulations of more than 100 nodes. The
        statement says so, and devices refuse it.

    Returns
    -------
    Private
        What stands in the strategy's place; its ``start`` is one run.

    Raises
    ------
    ValueError
        A value is outside its range.
    """
    require_positive("epsilon", epsilon)
    require_probability("delta", delta)
    require_positive("clip", clip)
    terms = _Terms(
        epsilon=epsilon,
        delta=delta,
        clip=clip,
        metrics={"train": _ranges(metrics), "evaluate": _ranges(evaluate)},
        frozen=tuple(frozen),
        simulated=simulated,
    )
    return Private(strategy, terms)


def _ranges(given: Ranges | None) -> tuple[tuple[str, float, float], ...]:
    """Names and ranges as an ask has them, in the order of names; all numbers as floats."""
    ranges = sorted((given or {}).items())
    return tuple((name, float(low), float(high)) for name, (low, high) in ranges)


@dataclass(frozen=True)
class _Terms:
    """What ``private`` was given; ``rounds`` is known when the strategy starts.

    Attributes
    ----------
    epsilon, delta, clip, frozen, simulated
        As in ``private``.
    metrics : mapping
        (name, low, high) of each metric, under "train" and "evaluate".
    rounds : int
        How many the noise is made for; 1 until the run starts, when only ranges are checked.
    """

    epsilon: float
    delta: float
    clip: float
    metrics: Mapping[str, tuple[tuple[str, float, float], ...]]
    frozen: tuple[str, ...]
    simulated: bool
    rounds: int = 1

    def __post_init__(self) -> None:
        # An ask refuses what is out of range, before anything is started.
        for purpose in ("train", "evaluate"):
            if purpose == "train" or self.metrics[purpose]:
                self.ask(purpose, 1, self.minimum(100))

    @cached_property
    def noise(self) -> dict[str, float]:
        """The noise multiplier of each purpose: σ of the noise on a sum over its sensitivity.

        All that one client can be asked keeps the budget: with r rounds, r (1/z_train² + 1/z_ev²) =
        1/z², where z alone would keep it. An evaluation gets twice the noise of a training. A
        client is taken to be asked in every round, whatever the strategy samples: nothing is gained
        from sampling.
        """
        from murmur.privacy.accounting.calibrate import discrete_noise_multiplier  # loads SciPy

        releases = self.rounds
        share = 1.0
        if self.metrics["evaluate"]:
            releases = 2 * self.rounds
            share = (1 + 1 / _EVALUATION**2) / 2
        multiplier = discrete_noise_multiplier(self.epsilon, self.delta, releases)
        train = multiplier * math.sqrt(share)
        return {"train": train, "evaluate": _EVALUATION * train}

    def minimum(self, clients: int) -> int:
        """The fewest of ``clients`` whose sum is revealed: 67% of them, and three at least."""
        return self.sums.least_survivors(clients)

    @property
    def sums(self) -> SecureSumSettings:
        """How a cohort sums: one group, in which each client shares its secrets with all others."""
        if self.simulated:
            return replace(_SUMS, mode="simulated")
        return _SUMS

    def ask(self, purpose: str, number: int, minimum: int) -> Ask:
        """What round ``number`` asks of each client.

        ``purpose``: "train" or "evaluate". ``minimum``: of this round's cohort. ValueError for a
        value that an ask refuses.
        """
        return Ask(
            purpose=purpose,  # type: ignore[arg-type]
            round=number,
            rounds=self.rounds,
            epsilon=float(self.epsilon),
            delta=float(self.delta),
            noise_multiplier=self.noise[purpose],
            clip=float(self.clip),
            minimum=minimum,
            colluders=COLLUDERS,
            frozen=self.frozen,
            metrics=self.metrics[purpose],
            simulated=self.simulated,
        )


class Private:
    """A strategy, protected; everything but ``start`` is the strategy's own.

    One object is one run, since its budget is meant for one. Attributes that are not its own are
    those of the strategy, so that an app may go on reading them.
    """

    def __init__(self, strategy: Strategy, terms: _Terms) -> None:
        self._strategy = strategy
        self._private_terms = terms
        self._started = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy, name)

    def start(self, grid: Grid, *args: Any, **kwargs: Any) -> Result:
        """The strategy's own ``start``, over protected rounds.

        Takes what that takes, ``grid`` first. The app's ``evaluate_fn`` on the server and the final
        result get the model in the types with which it began, and with its fixed arrays as they
        were.

        Raises
        ------
        RunError
            The run cannot be protected: ``private`` was started before, the strategy does more than
            average, clients' app is not Murmur's, a round's cohort is too small. Before anybody is
            asked where that can be known.
        ValueError
            ``frozen`` has names that the model lacks, or leaves nothing to train.
        """
        if self._started:
            raise RunError(
                "one private(...) is one run, whose budget is spent in it; make another one"
            )
        given = inspect.signature(self._strategy.start).bind(grid, *args, **kwargs)
        given.apply_defaults()
        asked = given.arguments
        model = _Model(asked["initial_arrays"], self._private_terms.frozen)
        terms = replace(self._private_terms, rounds=asked["num_rounds"])
        probe(self._strategy, model, terms.metrics["train"])
        self._started = True
        limit_replies()
        pull_parts_soon()
        asked["grid"] = PrivateGrid(grid, self._strategy, model, terms)
        evaluate = asked.get("evaluate_fn")
        if evaluate is not None:
            asked["evaluate_fn"] = lambda number, arrays: evaluate(number, model.restored(arrays))
        result = self._strategy.start(*given.args, **given.kwargs)
        if result.arrays:
            result.arrays = model.restored(result.arrays)
        return result


class _Model:
    """The arrays that a run begins with, and what of them stays.

    Parameters
    ----------
    initial : ArrayRecord
        The strategy's ``initial_arrays``.
    frozen : sequence of str
        Names of arrays that nobody trains. ValueError for one that is not there, or where no floats
        are left to train.

    Attributes
    ----------
    layout : Layout
        Which numbers the clients release, and in which order.
    fixed : dict
        The arrays that stay as they were, as Flower holds them.
    """

    def __init__(self, initial: ArrayRecord, frozen: Sequence[str]) -> None:
        arrays = protocol.arrays_of(initial)
        missing = [name for name in frozen if name not in arrays]
        if missing:
            known = ", ".join(list(arrays)[:8])
            raise ValueError(f"frozen={missing[0]!r}: must be an array of the model ({known}, ...)")
        self.layout = Layout(arrays, frozen)
        if not self.layout.size:
            raise ValueError("frozen: leaves no floats to train")
        self.fixed = {name: initial[name] for name in self.layout.fixed}

    def restored(self, arrays: ArrayRecord) -> ArrayRecord:
        """``arrays`` as the run began: in its types, and with what is fixed as it was.

        A strategy that averages turns integers into floats, and an adaptive one may move what
        nobody trained by a rounding error, or a variance below 0. RunError for an array that the
        model did not begin with.
        """
        found = {}
        for name, array in arrays.items():
            if name in self.fixed:
                found[name] = self.fixed[name]
                continue
            dtype = self.layout.trained.get(name)
            if dtype is None:
                raise RunError(f"{name}: an array that the model did not begin with")
            found[name] = Array(protocol.non_negative(name, array.numpy()).astype(dtype))
        return ArrayRecord(found)


# A round -----------------------------------------------------------------------------------------


class _Places(ClientPlacement):
    """The nodes that the strategy has sampled, by their places in the cohort: 0 to n - 1.

    Flower gives a node another id each time that it registers, so no id is worth remembering. The
    phase's clients are these places (``murmur.round.placement.ClientPlacement``).
    """

    def __init__(self, nodes: Sequence[int]) -> None:
        self.nodes = list(nodes)

    def place(self, grid: Grid, clients: Sequence[int]) -> Placement:
        """All of them, each on its own node; nobody is away, for the strategy saw them online."""
        return Placement({self.nodes[place]: [place] for place in clients})


@dataclass(frozen=True, kw_only=True)
class _Setup(SumSetup):
    """What phases and sums need to know, of one round; its noise is the operating system's.

    Attributes
    ----------
    seed : int
        Draws groups, of which there is one: it decides nothing.
    round_timeout : float
        Seconds for each phase of the protocol; training has the strategy's own timeout.
    strategy, query : str
        The algorithm's name in the terms of a sum, and Flower's type of the protocol's messages.
    minimum : int
        The ask's.
    """

    seed: int = 0
    round_timeout: float = field(default_factory=lambda: PHASE_SECONDS)
    strategy: str = protocol.ALGORITHM
    query: str = protocol.KIND
    minimum: int

    @property
    def least_survivors(self) -> int:
        """The ask's ``minimum``: fewer would not hold the whole noise."""
        return self.minimum


@dataclass(frozen=True)
class _Asked(Question):
    """The strategy's own message, with Murmur's records beside its own.

    Attributes
    ----------
    records : RecordDict
        What the strategy sends, with the model in the types with which it began.
    """

    records: RecordDict = field(default_factory=RecordDict)

    def content(self, clients: Sequence[int]) -> RecordDict:
        """The message to a node, which hosts one client: the place that it has in this sum."""
        about: dict[str, Any] = {**self.settings, "clients": list(clients)}
        return RecordDict({**self.records, protocol.ASKED: ConfigRecord(about)})


class PrivateGrid(GridWrapper):
    """``grid``, in which every question to clients is a secure sum.

    Lives as long as the strategy's ``start``. Replies prove that they answer their message, and
    whoever is silent is asked once more (``DeviceGrid``).

    Parameters
    ----------
    grid : Grid
        Flower's.
    strategy : Strategy
        Names the key under which it looks for weights in replies.
    model : _Model
        What the run begins with.
    terms : _Terms
        What may be asked.

    Attributes
    ----------
    weight_key : str
        The metric by which the strategy weighs a reply; all get 1.
    run_name : str
        Random; names the run's sums and its folder of results.
    rounds : dict
        How many rounds of each purpose the strategy has asked for. One beyond those that the noise
        is made for is a RunError.
    released : Counter
        How often somebody was asked for each event, in a sum over at least so many.
    asked : set of int
        The nodes that were.
    folder : Path
        Where the statement is written.
    known : dict
        What nodes have said of themselves (``FACTS``); whoever has answered is not asked again.
    started : dict
        Digest of the run-config with which a node says that it was started.
    stated : bool
        Whether the log has named the statement's file.
    """

    def __init__(self, grid: Grid, strategy: Strategy, model: _Model, terms: _Terms) -> None:
        super().__init__(cast(Grid, DeviceGrid(grid)))
        self.model = model
        self.terms = terms
        self.weight_key = str(getattr(strategy, "weighted_by_key", "num-examples"))
        self.run_name = uuid.uuid4().hex
        self.rounds = {"train": 0, "evaluate": 0}
        self.released: Counter[tuple[Release, int]] = Counter()
        self.asked: set[int] = set()
        self.folder = Path(os.environ.get("MURMUR_RESULTS", _FOLDER)).absolute() / self.run_name
        self.known: dict[int, dict[str, bool]] = {}
        self.started: dict[int, str] = {}
        self.stated = False

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """RunError: what is pushed by itself is no part of a sum."""
        raise RunError(
            "push_messages: under private(...) clients are asked by send_and_receive only, where "
            "their answers are summed"
        )

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """One reply for each survivor, all with the mean; or an error for each if a sum is lost.

        The strategy calls it for each training and each evaluation. A round that is lost counts as
        released by all that were asked, and its place in the budget is not used again.

        Parameters
        ----------
        messages : iterable of Message
            One for each node, all with the same content.
        timeout : float or None
            Seconds that training may take. Each other phase of the protocol has 120.

        Returns
        -------
        list of Message
            Empty for an evaluation where ``private`` names no metrics of evaluations.

        Raises
        ------
        RunError
            The messages cannot be a sum (of fewer than three nodes only in the first round, later
            ones are lost), a round is beyond those that the noise was made for, or a node's app is
            not protected. Nothing was released in this round then.
        """
        asked = list(messages)
        if not asked:
            return []
        kind = asked[0].metadata.message_type
        purpose = kind.partition(".")[0]
        if purpose == "evaluate" and not self.terms.metrics["evaluate"]:
            if not self.rounds["evaluate"]:
                log(
                    logging.INFO,
                    "no evaluation on clients: name what it releases, with its range: "
                    "private(..., evaluate={'accuracy': (0, 1)})",
                )
            self.rounds["evaluate"] += 1
            return []
        if purpose not in self.rounds:
            raise RunError(f"`{kind}`: private(...) protects train and evaluate; nothing was asked")
        self.rounds[purpose] += 1
        number = self.rounds[purpose]
        if number > self.terms.rounds:
            raise RunError(
                f"round {number}: the noise was made for {self.terms.rounds} rounds; start again "
                f"with num_rounds={number} or more"
            )
        content = self._content(asked)
        nodes = [message.metadata.dst_node_id for message in asked]
        if number > 1 and len(nodes) < _LEAST:
            # Some may be away for a while; that ends no run of which rounds are paid for.
            return _errors(
                asked, f"round {number} was lost: {len(nodes)} nodes, a sum needs at least {_LEAST}"
            )
        self._require_cohort(nodes)
        ask = self.terms.ask(purpose, number, self.terms.minimum(len(nodes)))
        if number == 1 and purpose == "train":
            self._foretell(ask, len(nodes))
        self._greet(nodes)
        return self._summed(ask, kind, content, asked, timeout)

    def _content(self, asked: Sequence[Message]) -> RecordDict:
        """What all clients are sent, in the model's own types; RunError unless it is the same."""
        content = asked[0].content
        contents = {id(each.content): each.content for each in asked}
        sent = {digest(self.run_name, protocol.ALGORITHM, "os", each) for each in contents.values()}
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

    def _require_cohort(self, nodes: Sequence[int]) -> None:
        """RunError where so many nodes make no sum: fewer than three, or one of them twice.

        Warns of more than 100 in a simulation of the whole protocol.
        """
        if len(set(nodes)) < len(nodes):
            raise RunError("the strategy asks one node twice in a round")
        if len(nodes) < _LEAST:
            raise RunError(
                f"{len(nodes)} nodes: a sum needs at least {_LEAST}, of which one may side with "
                "the server; sample more, or start more"
            )
        if len(nodes) > _MOST_SIMULATED and not self.terms.simulated:
            log(
                logging.WARNING,
                "%d nodes: each shares secrets with each other one, which takes long in a "
                "simulation; private(..., simulated=True) sums without, and says so",
                len(nodes),
            )

    def _foretell(self, ask: Ask, clients: int) -> None:
        """Say in the log what the noise does to the model, before anybody is asked."""
        loud, line = forecast(ask, self.model.layout.size, clients)
        level = logging.INFO
        if loud > _LOUD:
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

    def _summed(
        self,
        ask: Ask,
        kind: str,
        content: RecordDict,
        asked: Sequence[Message],
        timeout: float | None,
    ) -> list[Message]:
        """The secure sum of one round, and what the strategy is given of it.

        ``kind``: Flower's type of the strategy's messages. ``content``: what all are sent.
        ``asked``: the strategy's messages, for their nodes. ``timeout``: seconds for the training
        itself.

        The statement is on disk before the question is sent. RunError where 32 bits cannot hold the
        noise.
        """
        nodes = [message.metadata.dst_node_id for message in asked]
        size = len(ask.metrics)
        if ask.purpose == "train":
            size += self.model.layout.size
        try:
            codec = ask.codec(size)
        except ValueError as error:
            raise RunError(str(error)) from error
        setup = _Setup(
            num_clients=len(nodes),
            secure_sums=self.terms.sums,
            placement=_Places(nodes),
            minimum=ask.minimum,
        )
        # This process is not told with what clients are started. One that says another digest than
        # most will refuse, and drop out.
        said = Counter(self.started[node] for node in nodes if node in self.started)
        started = max(said, key=said.__getitem__, default="")
        about: Any = {"ask": ask.to_json(), "kind": kind, protocol.STARTED: started}
        sums = Aggregator(setup, len(nodes), "murmur flower")
        sums.run = f"{self.run_name} {ask.purpose}"
        phase = Phase(
            _Asked(
                purpose=ask.purpose,
                number=ask.round,
                cohort=list(range(len(nodes))),
                model=np.zeros(0, np.float32),
                codec=codec,
                event=ask.event,
                settings=about,
                kind=kind,
                records=content,
            ),
            sums,
            setup,
        )
        messages = phase.ask(self._grid)
        replies: list[Message] = []
        if messages:
            # Durable before a client pays: whatever becomes of the round, it is in the statement.
            self._state(ask, [message.metadata.dst_node_id for message in messages])
            replies = list(self._grid.send_and_receive(messages, timeout=timeout))
        return self._for_strategy(ask, content, asked, replies, phase.take(replies))

    def _greet(self, nodes: Sequence[int]) -> None:
        """Ask whoever is new what it is, so that an app without Murmur is asked for nothing else.

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
            self.known[node] = {name: record.get(name) is True for name in FACTS}
            self.started[node] = str(record.get(protocol.STARTED, ""))
        if unprotected == len(nodes):
            raise RunError(
                "the clients' app is not protected, so nothing was asked of it "
                f"({unprotected} nodes); in client_app.py, in place of Flower's: from "
                "murmur.flower import ClientApp"
            )

    def _for_strategy(
        self,
        ask: Ask,
        content: RecordDict,
        asked: Sequence[Message],
        replies: Sequence[Message],
        outcome: Outcome,
    ) -> list[Message]:
        """A reply for each survivor, real but for its content; errors where the sum is lost.

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
        changes = mean[: len(mean) - len(ask.metrics)]
        metrics = ask.metric_means(mean[len(changes) :])
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
            given.append(make_message(reply.metadata, content=found))
        return given

    def _state(self, ask: Ask, nodes: Sequence[int]) -> None:
        """Write the statement with all that ``nodes`` are about to release.

        Called before the question is sent, so that an interruption leaves no release out. Files:
        ``privacy.json`` and ``privacy.txt``, readable by this user only. Where the accountant
        fails before the first release, its error ends the run; later what clients have paid for is
        not lost: the log has the traceback, and the statement says what was charged and no ε.
        """
        self.released[ask.event(), ask.minimum] += 1
        self.asked.update(nodes)
        facts = [self.known.get(node, {}) for node in self.asked]
        try:
            statement = state(self.terms, ask, self.released, facts)
        except Exception as error:
            if self.released.total() == 1:
                raise  # nobody has answered yet
            log(logging.ERROR, "no ε is derived: the accountant failed", exc_info=error)
            statement = state(self.terms, ask, self.released, facts, error)
        from murmur.privacy.statement_text import render

        owner_only_folder(self.folder)
        replace_file(self.folder / "privacy.json", json.dumps(statement.to_dict()).encode())
        replace_file(self.folder / "privacy.txt", f"{render(statement)}\n".encode())
        if not self.stated:
            log(logging.INFO, "privacy statement: %s", self.folder / "privacy.txt")
            self.stated = True


class NotReleasedError(KeyError):
    """A strategy looks for a metric that no client has released; its text says how to name it."""

    def __str__(self) -> str:
        return str(self.args[0])


class ReleasedMetrics(MetricRecord):
    """What clients release of their metrics: the means of those that were named, and weight 1.

    Looking for any other raises NotReleasedError.

    Parameters
    ----------
    purpose : str
        "train" or "evaluate", for the error's advice.
    weight : str
        The key by which the strategy weighs replies.
    metrics : mapping
        Each named metric's noised mean.
    """

    def __init__(self, purpose: str, weight: str, metrics: Mapping[str, float]) -> None:
        super().__init__({weight: 1, **metrics})
        self.__dict__["_purpose"] = purpose

    def __getitem__(self, name: str) -> Any:
        if name in self:
            return super().__getitem__(name)
        argument = "metrics" if self.__dict__["_purpose"] == "train" else "evaluate"
        raise NotReleasedError(
            f"{name}: was not released by the clients; name it with its range: "
            f"{argument}={{{name!r}: (0, 1)}}"
        )


class _AnyMetrics(ReleasedMetrics):
    """Whatever is looked for is there: what a strategy makes of arrays is seen, not of metrics."""

    def __getitem__(self, name: str) -> Any:
        return self.__dict__["_data"].get(name, 0.5)


def _errors(asked: Sequence[Message], lost: str) -> list[Message]:
    """What the strategy is given of a lost round, so that it keeps its model; logs ``lost``."""
    log(logging.WARNING, lost)
    error = Error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE, lost)
    return [Message(error, reply_to=message) for message in asked]


def _lost(ask: Ask, outcome: Outcome) -> str:
    """Why a round does not count, for the strategy's own log.

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


# What it costs, and what it does ----------------------------------------------------------------


def forecast(ask: Ask, size: int, clients: int) -> tuple[float, str]:
    """The noise on a mean of ``clients`` changes of ``size`` numbers, and what would lessen it.

    As a multiple of the longest possible mean change, C: sqrt(d) 2 z r / (C sqrt(h n)), with d =
    ``size``, n = ``clients``, the noise multiplier z, r = ``Ask.radius`` and h honest clients.
    Nothing is released by it: it depends on the settings alone.

    Returns
    -------
    float, str
        The multiple, and a line for the log. Above three the line also says how many clients, or
        how few numbers, would bring the noise down to that.
    """
    per_number = 2 * ask.noise_multiplier * ask.radius / ask.clip

    def noise(cohort: int) -> float:
        honest = _SUMS.least_survivors(cohort) - COLLUDERS
        return per_number * math.sqrt(size / (honest * cohort))

    loud = noise(clients)
    line = (
        f"noise of {loud:.2g} times the longest possible mean update ({clients} clients a round, "
        f"{size} numbers to train)"
    )
    if loud <= _LOUD:
        return loud, line
    needed = clients
    while needed < _MOST_ADVISED and noise(needed) > _LOUD:
        needed += max(1, needed // 500)
    numbers = int(size * (_LOUD / loud) ** 2)
    return loud, (
        f"{line}: above {_LOUD:g} little is learnt; below would be about {needed} clients a round, "
        f"or {numbers} numbers to train (frozen=[...])"
    )


def state(
    terms: _Terms,
    ask: Ask,
    released: Counter[tuple[Release, int]],
    facts: Sequence[Mapping[str, bool]],
    error: Exception | None = None,
) -> "Statement":
    """The statement of all that was asked so far, with ``ask``.

    Two adversaries: a server that sees only sums, for which a sum holds the noise of its honest
    clients, and one that reads every message, for which each client's own share counts alone.
    Whoever was asked counts as having released, whether or not an answer came, and each client as
    asked in every round: a node that registers anew has another id, by which nobody knows it again.

    Parameters
    ----------
    terms : _Terms
        The run's, for δ and how it sums.
    ask : Ask
        The round that is about to be asked for.
    released : Counter
        How often somebody was asked for each event in a sum over at least so many.
    facts : sequence of mapping
        What each node that was asked has said of itself; what one does not say becomes a warning
        (``FACTS``), and what all say is not assumed.
    error : Exception or None
        Why the accountant has no ε, if it has none (``Statement.without_epsilon``).
    """
    from murmur.privacy.guarantee import Exposure  # loads SciPy
    from murmur.privacy.statement import Statement  # loads SciPy

    proven = [what for what, name in _PROVES.items() if all(fact.get(name) for fact in facts)]

    def stated(event: Release) -> Release:
        """With the assumptions that are left."""
        left = [assumption for assumption in event.assumptions if assumption not in proven]
        return replace(event, assumptions=tuple(left))

    alone: list[Event] = []
    hidden: list[Event] = []
    for (release, minimum), count in released.items():
        event = stated(release)
        alone.append(RepeatedEvent(event, count))
        hidden.append(RepeatedEvent(SummedEvent(event, minimum - ask.colluders), count))
    least = min(minimum for _, minimum in released)
    warnings = ["weights are equal: a client's number of examples is not sent"]
    for name, sentence in FACTS.items():
        without = sum(not fact.get(name) for fact in facts)
        if without:
            warnings.append(f"{sentence} ({without} of {len(facts)} nodes)")
    stated_by = Statement.of
    if error is not None:
        stated_by = partial(Statement.without_epsilon, error)
    return stated_by(
        algorithm=f"Flower app under Murmur ({protocol.ALGORITHM})",
        unit=Unit.CLIENT,
        adjacency=Adjacency.REPLACE_ONE,
        delta=terms.delta,
        exposures=[
            Exposure(
                threat=Threat.SECURE_AGGREGATION,
                adversary="a server that sees only sums",
                per_round=SummedEvent(stated(ask.event()), ask.minimum - ask.colluders),
                sizes={"each client": len(facts)},
                clients={"each client": ComposedEvent(tuple(hidden))},
                assumptions=(
                    f"at least {least - ask.colluders} of the {least} clients of every sum are "
                    "honest",
                    *terms.sums.conditions(len(facts)),
                ),
            ),
            Exposure(
                threat=Threat.LOCAL,
                adversary="a server that reads every message",
                per_round=stated(ask.event()),
                sizes={"each client": len(facts)},
                clients={"each client": ComposedEvent(tuple(alone))},
            ),
        ],
        warnings=tuple(warnings),
    )


# Whether a strategy averages --------------------------------------------------------------------


def probe(strategy: Strategy, model: _Model, metrics: Sequence[tuple[str, float, float]]) -> None:
    """RunError unless ``strategy`` does no more with its replies than average them.

    Two copies of it take two rounds of six replies each: six that differ, and six that all hold
    their mean. Both must come to the same model. Nobody is asked, and Flower's log is silent
    meanwhile.

    Parameters
    ----------
    strategy : Strategy
        Tried by copies, so that it stays as it is.
    model : _Model
        For names and shapes: large arrays are tried with 1,000 numbers each.
    metrics : sequence of (name, low, high)
        Those of trainings. Once more the strategy takes a round in which replies have only these,
        so that one that looks for another fails now: NotReleasedError.
    """
    shapes = {
        name: shape if math.prod(shape) <= _PROBED else (_PROBED,)
        for name, shape in model.layout.shapes.items()
    }
    rng = np.random.default_rng(6)

    def drawn() -> dict[str, NDArray]:
        return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}

    base = drawn()
    rounds = [[drawn() for _ in range(_PROBES)] for _ in range(2)]
    means = [
        [{name: np.mean([r[name] for r in replies], axis=0) for name in base}] * _PROBES
        for replies in rounds
    ]
    named = {name: (low + high) / 2 for name, low, high in metrics}
    with _quiet():
        try:
            one = _aggregated(strategy, base, rounds, None)
            other = _aggregated(strategy, base, means, None)
        except Exception:  # whatever it looks for, replies of a mean do not have it
            one = None
        if one is not None and _close(one, other):
            _aggregated(strategy, base, rounds[:1], named)
            return
    raise RunError(
        f"{type(strategy).__name__} does more with its clients' replies than average them (or adds "
        "noise of its own); under secure sums the server sees their mean only. Use "
        f"{_MEAN_ONLY}"
    )


def _aggregated(
    strategy: Strategy,
    base: Mapping[str, NDArray],
    rounds: Sequence[Sequence[Mapping[str, NDArray]]],
    metrics: Mapping[str, float] | None,
) -> dict[str, NDArray] | None:
    """The model to which a copy of ``strategy`` comes; None where it comes to none.

    ``base``: the model of the first round. ``rounds``: the arrays of each reply of each round.
    ``metrics``: what replies have of them; None: whatever is looked for.
    """
    tried = _copied(strategy)
    key = str(getattr(strategy, "weighted_by_key", "num-examples"))
    arrays: ArrayRecord | None = _record(base)
    for number, replies in enumerate(rounds, start=1):
        if arrays is None:
            return None
        asked = list(tried.configure_train(number, arrays, ConfigRecord(), _ManyNodes(tried)))
        if not asked:
            asked = [Message(RecordDict(), 1, "train")]
        found: ReleasedMetrics = _AnyMetrics("train", key, {})
        if metrics is not None:
            found = ReleasedMetrics("train", key, metrics)
        given = []
        for node, reply in enumerate(replies, start=1):
            about = copy.copy(asked[0].metadata)
            about.__dict__["_dst_node_id"] = node
            content = RecordDict({"arrays": _record(reply), "metrics": found})
            sent = make_message(about, content=asked[0].content)
            given.append(Message(content, reply_to=sent))
        arrays, _ = tried.aggregate_train(number, given)
    if arrays is None:
        return None
    return {name: array.numpy() for name, array in arrays.items()}


class _ManyNodes:
    """A grid that has as many nodes as ``strategy`` waits for, and sends nothing.

    A strategy around a strategy (``strategy.strategy``) may wait for more than the one inside.
    """

    def __init__(self, strategy: Any) -> None:
        least = _PROBES
        while strategy is not None:
            names = ("min_available_nodes", "min_train_nodes")
            least = max(least, *(int(getattr(strategy, name, 0)) for name in names))
            strategy = getattr(strategy, "strategy", None)
        self._nodes = list(range(1, least + 1))

    def get_node_ids(self) -> list[int]:
        """1, 2, ..."""
        return self._nodes


def _copied(strategy: Strategy) -> Any:
    """One that shares with ``strategy`` only what cannot be copied: open files, connections, locks.

    What it remembers of rounds, such as momentum, is arrays and lists, and stays the original's.
    """
    twin = copy.copy(strategy)
    for name, value in vars(strategy).items():
        try:
            own = copy.deepcopy(value)
        except Exception:
            continue
        setattr(twin, name, own)
    return twin


def _record(arrays: Mapping[str, NDArray]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(values)) for name, values in arrays.items()})


def _close(one: Mapping[str, NDArray], other: Mapping[str, NDArray] | None) -> bool:
    if other is None or one.keys() != other.keys():
        return False
    return all(
        one[name].shape == other[name].shape
        and np.allclose(one[name], other[name], rtol=1e-3, atol=1e-3)
        for name in one
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Flower's log says nothing of what is only tried."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
