"""What every client class has in common: the shape of one round on the client's side.

The host (``murmur.round.host``) drives each client through the same steps, in this order:

1. ``event``: what would answering the server's task release? Checked against the device's policy
   and charged in the device's ledger before anything else happens.
2. ``train``: the local computation; its result never leaves by itself.
3. ``privatize``: the mechanism turns that result into the release.

First come what an audit and the host give to clients (``Canary``, ``ClientSetup``),
then ``Client`` itself. What every algorithm's client names of other rooms
(``Codec``, ``Event``, ``LocalData``, ...) it may import from here.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from murmur.checks import is_finite
from murmur.learning.codec import Codec
from murmur.learning.data.examples import LocalData
from murmur.privacy.budget import Budget, Cohorts
from murmur.privacy.events import Event
from murmur.privacy.noise import NoiseGenerator
from murmur.privacy.record_choice import RecordKey
from murmur.random import experiment_rng
from murmur.round.task import Task, TaskError

if TYPE_CHECKING:  # a device must not wait for PyTorch where a message needs none of it
    from murmur.learning.training.stack import ClientBatch
    from murmur.learning.training.trainer import Trainer
    from murmur.round.client_state import ClientState

__all__ = [
    "Canary",
    "Client",
    "ClientSetup",
    "Codec",
    "Event",
    "LocalData",
    "NoiseGenerator",
    "Task",
    "TaskError",
    "has_canaries",
    "null_records",
    "vector_canary",
]


class Canary(NamedTuple):
    """Two results of training, as far apart as clipping allows, and how to tell their releases.

    Attributes:
        result, negated (array): results of ``Client.train``, inputs of ``Client.privatize``, in
            its shape.
        direction (int8 array): its inner product with a release, in the integers that are summed,
            is larger of ``result`` than of ``negated``; it begins with the model's parameters
            where those are sent.
    """

    result: NDArray
    negated: NDArray
    direction: NDArray[np.int8]


@dataclass(frozen=True)
class ClientSetup:
    """Setup of a client class by its host: its tools, its public data and its budget.

    Attributes:
        trainer: the process's one model, reset in place and shared by all clients here.
        public (float32 array (P, C, H, W)): the unlabelled pool, which everybody has.
        test: images and labels of a public test set, for reports in simulations; None: there is
            none here.
        budget: ε, δ, the adversary and the number of participations, from the settings that this
            client runs with. No task changes it.
        seed: public seed of the experiment stream, never of noise.
        state_dir: clients' state between rounds, on their own disk. A round may be asked again
            after a kill, so a client states which round it means: training in round t starts from
            ``load(client, t - 1)``, and ends with ``save(client, t, arrays)``.
        client_sizes: examples of every client, where the federation has made them public. In
            simulations they are known; on devices None, unless the owner's terms state them.
        cohorts: public schedule of the clients that are asked.
        record_key: key under which records are hashed (``murmur.privacy.record_choice``); None: one
            beside ``state_dir``.
    """

    trainer: "Trainer"
    public: NDArray[np.float32]
    test: tuple[NDArray[np.float32], NDArray[np.int64]] | None
    budget: Budget
    seed: int
    state_dir: "ClientState"
    client_sizes: tuple[int, ...] | None = None
    cohorts: Cohorts = field(default_factory=Cohorts)
    record_key: RecordKey | None = None


def vector_canary(size: int, norm: float, seed: int, name: int, count: int) -> Canary:
    """Random signs of ``norm`` on every ``count``-th entry of (size,), and their opposite.

    No entry belongs to two canaries, so that none disturbs another. ``name`` tells the ``count``
    canaries apart, at most one for each entry (``Client.most_canaries``); the signs follow from it
    and ``seed``, in every round the same.
    """
    signs = np.zeros(size, np.int8)
    rng, own = experiment_rng(seed, "canary", client=name), signs[name % count :: count]
    own[:] = 2 * rng.integers(2, size=len(own), dtype=np.int8) - 1
    result = signs * (norm / math.sqrt(len(own)))
    return Canary(result, -result, signs)


def null_records(data: LocalData) -> LocalData:
    """As many records as in ``data``, of NaN: DP-SGD counts each as none, other training diverges.

    A client of them contributes nothing, and still answers: what training starts from, protected.
    """
    images = np.full((len(data), *data.images.shape[1:]), np.nan, np.float32)
    return LocalData(images, data.labels[data.indices], np.arange(len(data)))


class Client(ABC):
    """Base class of client halves; one instance per process serves all clients it hosts.

    The host calls no more than the protocol ``murmur.round.task.Client`` names. This class adds the
    three steps ``event``, ``train`` and ``privatize``, canaries, and checks of what a task holds.

    So nothing about a client may stay in it from one task to the next: what a client remembers is
    in ``setup.state_dir``. A subclass fills in ``codec``, ``event``, ``train`` and ``privatize``.
    The budget that its noise keeps is that of its own settings, never one that a task names.

    Attributes:
        summed: whether a node sums its clients' releases; else they travel as one row each.
        threats: adversaries that it supports (``Budget.threat``); a private budget for another one
            is refused when it is made. Sums only where its mechanism says that a sum hides it
            (``murmur.privacy.events.Hiding``).
        units: units that it can protect (``Budget.unit``). With "record" no record may make
            training fail: one that overflows counts as nothing, or as what a record can count as,
            for itself alone.
        keeps_statistics: whether it keeps a model's statistics beside its parameters (batch
            normalisation).
        purposes: purposes of tasks that it answers; each is charged by itself.
    """

    summed: bool = True
    threats: tuple[str, ...] = ("local",)
    units: tuple[str, ...] = ("client",)
    keeps_statistics: ClassVar[bool] = False
    purposes: tuple[str, ...] = ("train",)

    def __init__(self, setup: ClientSetup) -> None:
        setup.budget.require_threat("this strategy", self.threats)
        setup.budget.require_unit("this strategy", self.units)
        self.setup = setup
        self.trainer = setup.trainer

    @abstractmethod
    def codec(self, task: Task) -> Codec:
        """The form in which the answer to ``task`` travels; TaskError if the task is malformed.

        By the task and the client's own settings alone; the server half builds an equal one.
        """

    @abstractmethod
    def event(self, task: Task) -> Event | None:
        """Price of an answer to ``task``; TaskError if the task is malformed.

        Called before the data are opened. It sees no data, so neither a charge nor a refusal can
        depend on any. The price is by this client's own noise, to whoever reads its message; what a
        sum hides in addition is worked out where sums are known.

        None: a report to the researcher who watches a simulation, such as the score of a model
        that stays with its client. It is no part of the protocol, so nothing is charged, and a
        device refuses it.
        """

    @abstractmethod
    def train(self, task: Task, data: LocalData) -> NDArray:
        """The local result, before protection; it never leaves by itself.

        Called after the charge is on disk. An error that the data cause costs a simulated client
        its answer; a device answers with blank records instead, since whether it answers must not
        depend on its data. Where a record is protected, none may cause one (``units``).
        """

    @abstractmethod
    def privatize(self, update: NDArray, task: Task, noise: NoiseGenerator) -> NDArray:
        """The release: what may leave the client, in the form that ``codec(task).pack`` takes.

        ``update``: what ``train`` returned, or what ``answer`` gives it; it may be overwritten.
        Each call draws fresh noise.
        """

    def train_ahead(self, asked: Sequence[tuple[Task, LocalData]]) -> None:  # noqa: B027
        """Compute what ``train`` will need for each of ``asked``, together; nothing by default.

        Called before the answers of a stack (``compute.stack``), whose tasks are all of one purpose
        and one model, and have been charged.
        """

    def answer(self, task: Task, data: LocalData, noise: NoiseGenerator) -> NDArray:
        """``train``, then ``privatize``; overridden where noise belongs inside the training.

        What the host calls once for each charged task. Its result is stored before it leaves, so
        that a message that comes again gets the same release.
        """
        return self.privatize(self.train(task, data), task, noise)

    @property
    def noise_in_training(self) -> bool:
        """True if ``answer`` is more than ``train`` and then ``privatize``.

        There are no canaries then: ``privatize`` alone would release them without noise.
        """
        return type(self).answer is not Client.answer

    def most_canaries(self) -> int | None:
        """How many canaries an answer has room for (``vector_canary``); None: any number."""
        return None

    def canary(self, task: Task, name: int, count: int) -> Canary:
        """Canary ``name`` of ``count`` for ``audit=canaries``, by the run's seed.

        Called on the server of a simulation, with a task of that round's cohort. TypeError where an
        algorithm has no canaries (``has_canaries``).
        """
        raise TypeError(f"{type(self).__name__}: has no canaries")

    def weight(self, client: int) -> int:
        """The release's weight in the sum; 1 unless the algorithm weighs clients by ``size``.

        Public, and the same as the server half's: a weight that follows the data would be data.
        """
        return 1

    def size(self, client: int) -> int:
        """Public number of examples of ``client``; TaskError where it is not published."""
        sizes = self.setup.client_sizes
        if sizes is None or client >= len(sizes):
            raise TaskError(
                "sizes: this needs the clients' numbers of examples, which are not published here"
            )
        return sizes[client]

    def record_key(self, client: int) -> bytes:
        """The key under which this place hashes the records of ``client``; it never leaves it.

        Who needs it asks in ``event``, too: one that cannot be had costs nothing then.
        """
        key = self.setup.record_key or RecordKey(self.setup.state_dir.folder / "records.key")
        return key.of(client)

    def rng(self, task: Task, purpose: str) -> np.random.Generator:
        """The experiment stream of this client in this round, for training; never for noise.

        It follows from the run's seed, ``purpose``, round and client, not from scheduling.
        """
        return experiment_rng(self.setup.seed, purpose, task.round, task.client)

    def share(self, task: Task, data: LocalData) -> "ClientBatch":
        """From what, and on which rows, this client trains: the task's model, and its own."""
        from murmur.learning.training.stack import ClientBatch

        return ClientBatch(self.require_model(task), data.indices, self.rng(task, "local training"))

    def require_asked(self, task: Task) -> None:
        """TaskError in a round for which this client's share of the budget was not planned."""
        if not self.setup.cohorts.includes(task.client, task.round):
            raise TaskError(
                f"round={task.round}: client {task.client} is not in its cohort, and the budget is "
                "shared out over the rounds in which it is (federation.schedule)"
            )

    def array(
        self, task: Task, name: str, kind: type[np.generic], shape: tuple[int, ...]
    ) -> NDArray:
        """Returns the task's array ``name``: finite, of this kind and shape; else TaskError."""
        found = task.arrays.get(name)
        if found is None or found.dtype != kind or found.shape != shape:
            raise TaskError(f"{name}: the task must have it as {kind.__name__}{list(shape)}")
        if not is_finite(found):
            raise TaskError(f"{name}: holds NaN or infinite values")
        return found

    def public_images(self, indices: NDArray | None) -> NDArray[np.int64]:
        """``indices`` if they name distinct images of the public pool as int64; else TaskError."""
        if indices is None or indices.dtype != np.int64 or indices.ndim != 1:
            raise TaskError("indices: the task must name public images as int64")
        pool = len(self.setup.public)
        if len(np.unique(indices[(indices >= 0) & (indices < pool)])) != len(indices):
            raise TaskError(f"indices: must be distinct and lie in 0..{pool - 1}")
        return indices

    def require_model(self, task: Task) -> NDArray[np.float32]:
        """The task's model, if it fits this client's own; TaskError otherwise.

        Float32 of the trainer's size, without NaN or infinite values.
        """
        model, size = task.model, self.trainer.num_parameters
        if model.dtype != np.float32 or model.shape != (size,):
            raise TaskError(
                f"model={model.dtype}{list(model.shape)}: this client's model has float32[{size}]"
            )
        if not is_finite(model):
            raise TaskError("model: holds NaN or infinite values")
        return model


def has_canaries(client: Client) -> bool:
    """True if ``canary`` says what releases come from: not where noise goes into training."""
    return type(client).canary is not Client.canary and not client.noise_in_training
