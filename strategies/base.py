"""What every strategy has in common: cohorts over nodes, exact sums, quorum, participation.

A subclass says what to ask (``task``), in which form answers travel (``codec``), and what to do
with their sum (``update``); Flower's own ``start`` drives the rounds.
"""

from __future__ import annotations

import math
import uuid
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from learning.contribution import Codec, Integers, MalformedError, Sum
from learning.datasets import Examples
from learning.evaluation import area_under_curve, evaluate_logits
from learning.seeding import experiment_rng
from learning.trainer import Trainer
from privacy.accounting import Adjacency, Threat, Unit
from privacy.budget import Budget
from privacy.events import Event, RepeatedEvent
from privacy.noise import NoiseGenerator
from privacy.secure_aggregation import SecureSumError, SecureSumSettings
from privacy.statement import Exposure, Statement, by_participations
from strategies.secure_sum import RECORD, SecureRound, secure_exposure
from strategies.sizes import message_size

Parameters = NDArray[np.float32]
PATIENCE = 3  # rounds without a single answer after which a run ends


@dataclass(frozen=True)
class ServerSetup:
    """What the ServerApp gives to a strategy.

    ``cohort_size``: clients sampled in each round out of ``num_clients``. ``quorum``: the share of
    the cohort that must answer for a round to count. ``public``: the unlabelled pool
    (P, C, H, W), ``test`` the server's own test set. ``client_sizes``: examples of every client,
    public by configuration. ``seeded_noise``: for reproductions; the statement is then void.
    ``secure_sums``: whether clients mask what they send. ``round_timeout``: seconds for a phase.
    """

    trainer: Trainer
    public: NDArray[np.float32]
    test: Examples
    budget: Budget
    seed: int
    num_clients: int
    cohort_size: int
    quorum: float
    client_sizes: tuple[int, ...] | None = None
    seeded_noise: bool = False
    secure_sums: SecureSumSettings = field(default_factory=SecureSumSettings)
    round_timeout: float = 3600.0

    def noise(self, purpose: str, number: int) -> NoiseGenerator:
        """Where the server itself must add noise in round ``number``."""
        if self.seeded_noise:
            return NoiseGenerator.seeded(self.seed, "server noise", purpose, number)
        return NoiseGenerator.from_os()

    def __post_init__(self) -> None:
        if not 1 <= self.cohort_size <= self.num_clients:
            raise ValueError(
                f"clients_per_round={self.cohort_size}: must lie in 1..{self.num_clients} "
                "(federation.num_clients)"
            )
        if not 0 < self.quorum <= 1:
            raise ValueError(f"quorum={self.quorum}: must lie in (0, 1]")


@dataclass
class Round:
    """What happened in one round, for its result row.

    ``asked``: the cohort by node; ``invited``: those asked to train, which are fewer where
    somebody dropped out of a secure sum before.
    """

    number: int
    asked: dict[int, list[int]] = field(default_factory=dict)
    invited: dict[int, list[int]] = field(default_factory=dict)
    accepted: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    bytes_down: int = 0
    bytes_up: int = 0


class CohortStrategy(Strategy):
    """A Flower Strategy whose rounds sum integer contributions over nodes that host cohorts.

    ``algorithm``, ``claim`` and ``difference`` are words for the privacy statement: the name, what
    the paper's theorem says, and why the proven figure differs. ``weighted``: whether clients
    count by their number of examples, rather than alike. ``unit`` and ``adjacency``: whose data
    is protected, and which two data sets are neighbours.
    """

    algorithm: ClassVar[str]
    unit: Unit = Unit.CLIENT
    adjacency: Adjacency = Adjacency.REPLACE_ONE
    claim: ClassVar[str] = ""
    difference: ClassVar[str] = ""
    weighted: ClassVar[bool] = False

    def __init__(self, setup: ServerSetup) -> None:
        self.setup = setup
        self.trainer = setup.trainer
        self.first_round = 0  # rounds already done by an interrupted run
        self.participations: Counter[int] = Counter()
        self.round = Round(0)
        self.silent_rounds = 0
        self.run = uuid.uuid4().hex  # names this process's secure sums; no draw follows from it
        self.secure_round: SecureRound | None = None
        self.least_survivors = 0  # of any sum that was taken; 0: none was
        self.model: Parameters = np.zeros(0, np.float32)

    # What an algorithm fills in -------------------------------------------------------------

    @abstractmethod
    def task(self, number: int, model: Parameters) -> tuple[dict[str, NDArray], dict[str, int]]:
        """Arrays and settings that the cohort needs in round ``number`` beside the model."""

    @abstractmethod
    def codec(self) -> Codec:
        """The form of this round's contributions; called after ``task``."""

    @abstractmethod
    def update(self, number: int, model: Parameters, total: Integers, weight: int) -> Parameters:
        """The next global model from the sum of this round's contributions."""

    @abstractmethod
    def release_event(self) -> Event:
        """What one participation releases about one client."""

    def claimed_epsilon(self) -> tuple[float | None, float | None]:
        """What the paper's theorem states: ε of one round and of the whole run."""
        return None, None

    def exposures(self) -> list[Exposure]:
        """What each adversary has seen of every client so far."""
        released = {str(client): count for client, count in sorted(self.participations.items())}
        per_round, total = self.claimed_epsilon()
        exposures = [
            Exposure(
                threat=Threat.LOCAL,
                adversary="a curious server, which reads every client's message",
                per_round=self.release_event(),
                clients=by_participations(self.release_event(), released or {"nobody": 0}),
                claimed_per_round=per_round,
                claimed_total=total,
            )
        ]
        if self.setup.secure_sums.mode != "off":
            exposures.append(self.secure_exposure(self.release_event()))
        return exposures

    def secure_exposure(self, release: Event) -> Exposure:
        """What a server that sees sums only has learned, where each answer is ``release``."""
        setup = self.setup
        survivors = self.least_survivors or setup.secure_sums.least_survivors(setup.cohort_size)
        return secure_exposure(setup.secure_sums, release, self.participations, survivors)

    def statement(self, void: Iterable[str] = ()) -> Statement:
        """Claimed and proven privacy of everything released so far."""
        return Statement.of(
            algorithm=self.algorithm,
            unit=self.unit,
            adjacency=self.adjacency,
            delta=self.setup.budget.delta,
            exposures=self.exposures(),
            claim=self.claim,
            difference=self.difference,
            warnings=self.warnings(),
            void=void,
        )

    def cohort(self, number: int) -> NDArray[np.int64]:
        """The clients asked in round ``number``, ascending; as many as configured, any as likely."""
        setup = self.setup
        rng = experiment_rng(setup.seed, "cohort", number)
        return np.sort(rng.choice(setup.num_clients, setup.cohort_size, replace=False))

    def initial_parameters(self) -> Parameters:
        """The global model before the first round."""
        return self.trainer.initial(experiment_rng(self.setup.seed, "initial model"))

    def evaluate(self, model: Parameters) -> dict[str, float]:
        """Accuracy and loss on the server's test set; of two classes, the ROC curve's area too."""
        self.trainer.load(model)
        test = self.setup.test
        logits = self.trainer.logits(test.images)
        result = evaluate_logits(logits, test.labels)
        scores = {"accuracy": result.accuracy, "loss": result.loss}
        if self.trainer.num_classes == 2:
            scores["auc"] = area_under_curve(logits[:, 1] - logits[:, 0], test.labels)
        return scores

    def warnings(self) -> list[str]:
        """What a user should know before the run starts: settings that work against each other."""
        return []

    def state(self) -> dict[str, NDArray]:
        """What a checkpoint must hold beside the model; override together with ``restore``."""
        return {}

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """Take up the state that ``state`` returned."""

    def snapshot(self) -> dict[str, NDArray]:
        """All that a checkpoint holds beside model and participations."""
        return {**self.state(), "least_survivors": np.array([self.least_survivors], np.int64)}

    def resume(self, snapshot: Mapping[str, NDArray]) -> None:
        """The inverse of ``snapshot``."""
        state = dict(snapshot)
        self.least_survivors = int(state.pop("least_survivors")[0])
        self.restore(state)

    def max_weight(self) -> int:
        """The largest weight of one client."""
        if not self.weighted:
            return 1
        setup = self.setup
        largest = setup.secure_sums.max_weight or max(setup.client_sizes or (), default=0)
        if not largest:
            raise ValueError(
                "max_weight=null: clients' sizes are not public; set privacy.secure_sum.max_weight"
            )
        return largest

    # Flower's own methods -------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample the cohort, split it evenly over the nodes, one message for each node."""
        number = self.first_round + server_round
        self.round = Round(number)
        self.model = arrays["model"].numpy()
        extra, settings = self.task(number, self.model)
        record = ArrayRecord({"model": arrays["model"]})
        for name, values in extra.items():
            record[name] = Array(values)
        self.round.asked = self._assign(number, sorted(grid.get_node_ids()))
        self.round.invited = self.round.asked
        self.secure_round = None
        if self.setup.secure_sums.is_on:
            self.round.invited = self._prepare_secure_sum(grid)
        messages = []
        for node, clients in self.round.invited.items():
            knobs = ConfigRecord({**settings, "round": number, "clients": clients})
            content = RecordDict({"model": record, "task": knobs})
            if self.secure_round is not None:
                content[RECORD] = self.secure_round.invitation(clients)
            messages.append(
                Message(content, dst_node_id=node, message_type="train", group_id=str(number))
            )
            self.round.bytes_down += message_size(content)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Sum the nodes' contributions and update the model, if the quorum answered."""
        total = Sum(self.codec())
        waiting = dict(self.round.invited)
        for reply in replies:
            node = reply.metadata.src_node_id
            clients = waiting.pop(node, None)
            if clients is None:
                continue  # a duplicate, or a node that was not asked
            if reply.has_error():
                # Ray's reasons are whole tracebacks; the last line says what happened.
                reason = (reply.error.reason or "").strip().splitlines() or ["no reason given"]
                self._fail(clients, f"node failed: {reason[-1]}")
                continue
            self.round.bytes_up += message_size(reply.content)
            try:
                into = self.secure_round or total
                self.participations.update(self._accept(into, clients, reply.content))
            except (MalformedError, KeyError, TypeError, ValueError) as error:
                self._fail(clients, f"rejected: {error}")
        for clients in waiting.values():
            self._fail(clients, "no answer before the deadline")
        if self.secure_round is not None:
            self._take_secure_sum(self.secure_round, total)
        self._remember_survivors(len(total.clients))
        self.round.accepted = sorted(total.clients)
        self._give_up_when_nobody_answers()
        if len(total.clients) < self._least_answers():
            return None, None
        model = self.update(self.round.number, self.model, total.total, total.weight)
        return ArrayRecord({"model": Array(model)}), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing: evaluation on clients would be a release of its own."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Nothing was asked."""
        return None

    def summary(self) -> None:
        """Nothing: the run's folder holds the whole configuration."""

    # Helpers --------------------------------------------------------------------------------

    def _assign(self, number: int, nodes: list[int]) -> dict[int, list[int]]:
        """The round's cohort, split evenly over the nodes: {node: client ids}."""
        shares = np.array_split(self.cohort(number), len(nodes))
        return {
            node: share.tolist() for node, share in zip(nodes, shares, strict=True) if len(share)
        }

    def _prepare_secure_sum(self, grid: Grid) -> dict[int, list[int]]:
        """Exchange keys; who may be asked to train, by node: nobody where too few take part."""
        try:
            self.secure_round = SecureRound(
                self.setup.secure_sums,
                self.run,
                self.round,
                self.codec(),
                self.max_weight(),
                grid,
                self.setup.round_timeout,
            )
        except ValueError as error:  # a cohort that was drawn too small for its own rules
            clients = [client for clients in self.round.asked.values() for client in clients]
            self.round.failed = dict.fromkeys(clients, f"secure aggregation: {error}")
            return {}
        return self.secure_round.prepare()

    def _take_secure_sum(self, secure: SecureRound, total: Sum) -> None:
        """Let the survivors reveal their sum, and put it into ``total``."""
        try:
            total.add_total(*secure.finish())
        except MalformedError as error:
            self._remember_survivors(secure.revealed)
            secure.abort(f"the sum is not possible: {error}")
        except SecureSumError as error:
            secure.abort(str(error))

    def _remember_survivors(self, count: int) -> None:
        """A sum over ``count`` clients was seen; 0: none was."""
        if count:
            self.least_survivors = min(self.least_survivors or count, count)

    def _accept(
        self, total: Sum | SecureRound, clients: list[int], content: RecordDict
    ) -> list[int]:
        """Add one node's answer to ``total``; the clients that answered.

        Raises on anything an honest node cannot send.
        """
        report = content.config_records["report"]
        answered, refused = _ids(report["clients"]), _ids(report["refused"])
        reasons = report["reasons"]
        if sorted(answered + refused) != sorted(clients):
            raise MalformedError("it answers for other clients than it was asked for")
        if not isinstance(reasons, list) or len(reasons) != len(refused):
            raise MalformedError("every refusal needs its reason")
        if not answered:
            pass
        elif isinstance(total, SecureRound):
            total.collect(answered, content.array_records["contribution"]["masked"].numpy())
        else:
            values = content.array_records["contribution"]["sum"].numpy()
            weight = report["weight"]
            if not isinstance(weight, int):
                raise MalformedError(f"weight={weight!r}: must be an integer")
            if report["packed"]:
                if len(answered) != 1:
                    raise MalformedError("a packed contribution comes from exactly one client")
                total.add(answered[0], values, weight)
            else:
                total.add_total(answered, values, weight)
        for client, reason in zip(refused, reasons, strict=True):
            self.round.failed[client] = str(reason)
        return answered

    def _fail(self, clients: list[int], reason: str) -> None:
        # They may have released something before the failure, so they count as participants.
        self.participations.update(clients)
        self.round.failed.update(dict.fromkeys(clients, reason))

    def _give_up_when_nobody_answers(self) -> None:
        answered = bool(self.round.accepted) or not self.round.asked
        self.silent_rounds = 0 if answered else self.silent_rounds + 1
        if self.silent_rounds == PATIENCE:
            client, reason = next(iter(self.round.failed.items()))
            raise RuntimeError(
                f"no client answered in {PATIENCE} rounds; client {client} said: {reason}"
            )

    def _least_answers(self) -> int:
        asked = sum(len(clients) for clients in self.round.asked.values())
        return math.ceil(self.setup.quorum * asked)

    def spent(self) -> Event:
        """What the most exposed client has released so far."""
        return RepeatedEvent(self.release_event(), max(self.participations.values(), default=1))


def _ids(value: object) -> list[int]:
    if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
        raise MalformedError(f"client ids must be a list of integers, got {value!r}")
    return value
