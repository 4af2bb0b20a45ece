"""DPFL-BNN, the client: mix, train a binary network, release one randomised bit per weight.

Liu, Zhang, Song, Letaief, "Binary federated learning with client-level differential privacy",
arXiv 2308.03320 (2023), algorithm 1; on BiFL (Yang, Zhang, Yang, JSAC 2021). In round t:

    W̄ ← β·mean + (1−β)·W̄          mean of the released ±1 bits, from the server
    W̄ ← clip(W̄ − Adam(∂L/∂W^b))    W^b = sign(W̄), a few local steps
    release each bit of W^b, kept with ½ + γ, flipped with ½ − γ

Symbols: W̄ = ``weights``, β = ``beta``, γ = ``release.gamma``. W̄ and the normalisation (scale,
shift, statistics) are what a client remembers (``ClientSetup.state_dir``); the normalisation
never leaves it. A round that is asked again starts from the state of the round before, so W̄ is
mixed once for each round, and evaluation changes nothing.
"""

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from clients.base import Canary, Client, ClientSetup, LocalData, Task, TaskError, vector_canary
from murmur.algorithms.dpfl_bnn.bits import ReleaseSettings
from murmur.algorithms.dpfl_bnn.network import refresh_statistics
from murmur.learning.codec import BitCodec, Codec, WeightCodec
from murmur.learning.metrics import evaluate_logits
from murmur.privacy.events import Event, NonPrivateEvent
from murmur.privacy.noise import NoiseGenerator
from murmur.random import experiment_rng
from murmur.settings import Count, Positive, settings

EVALUATE = "evaluate"
REFRESHED_ON = 600  # of a client's examples; enough for 16 to 100 channels' means and variances
Floats = NDArray[np.float32]


@settings
class LocalAdam:
    """``steps`` batches by Adam, at a rate that falls by ``decay`` every ``decay_every`` rounds.

    Attributes:
        steps, batch_size: steps of a round and examples of a step, at least 1.
        learning_rate: rate of round 1, finite and above 0.
        decay: factor in (0, 1]; 1 keeps the rate.
        decay_every: rounds from one fall of the rate to the next.
        beta1: Adam's β₁; β₂ is 0.999. Its moments start afresh in each round.
    """

    steps: Count
    batch_size: Count
    learning_rate: Positive
    decay: Annotated[float, Field(gt=0, le=1)]  # 1 keeps the rate
    decay_every: Count
    beta1: float

    def rate(self, number: int) -> float:
        """Learning rate of round ``number``, from 1."""
        return self.learning_rate * self.decay ** ((number - 1) // self.decay_every)


@settings
class Personal:
    """Personal model: how a client uses the server's mean, and how a simulation looks at its model.

    Attributes:
        beta: β in [0, 1]: share of the server's mean when a client mixes it into its weights.
        evaluate_examples: test examples for each client, in a simulation's report; None: all.
    """

    beta: Annotated[float, Field(ge=0, le=1)]
    evaluate_examples: int | None


class DPFLBNNClient(Client):
    """Answers with the noisy bits of its own binary weights.

    The protected unit is a client: all its bits may differ between neighbours, unless Hamming
    clipping is on. Each client remembers ``weights`` W̄ (d,) and ``normalisation`` from round to
    round.

    Args:
        setup: tools, public data and budget, from the host.
        release: quantisation and noise of bits, the same as on the server.
        personal: mixing and reports of the personal model.
        local: local training.
    """

    threats = ("local", "secure_aggregation")
    purposes = ("train", EVALUATE)
    keeps_statistics = True

    def __init__(
        self,
        setup: ClientSetup,
        *,
        release: ReleaseSettings,
        personal: Personal,
        local: LocalAdam,
    ) -> None:
        super().__init__(setup)
        self.personal = personal
        self.local = local
        self.flip = release.flip
        self.release = release.plan(self.trainer.num_parameters, setup.budget)
        self.fresh = self.trainer.flat.buffers()

    def codec(self, task: Task) -> Codec:
        """One bit for each uploaded weight; for the report two accuracies.

        Which weights are uploaded is public, so they travel without their places.
        """
        if task.purpose == EVALUATE:
            return WeightCodec(2, bound=1.0)
        return BitCodec(self.release.uploaded)

    def event(self, task: Task) -> Event | None:
        """Randomised bits; nothing at all for the report, which only a simulation makes.

        Not private with ``flip=tensor``. A state that is damaged or gone raises here, before
        anything is charged.
        """
        self.require_model(task)
        if task.purpose == EVALUATE:
            return None
        self.require_asked(task)
        self.setup.state_dir.load(task.client, task.round - 1)  # refused where it is gone
        if self.flip == "tensor":
            return NonPrivateEvent()
        return self.release.event()

    def train(self, task: Task, data: LocalData) -> NDArray:
        """W̄ (d,) after local training, which is then remembered.

        It starts from the state of the round before, mixed with the task's mean. Training that
        diverges counts as no training.
        """
        try:
            if task.purpose == EVALUATE:
                return self._report(task, data)
            return self._trained(task, data)
        finally:
            # In a simulation the server has the same module, and must not see whose it was last.
            self.trainer.flat.load_buffers(self.fresh)

    def _trained(self, task: Task, data: LocalData) -> NDArray:
        """See ``train``; the module is left with the client's normalisation."""
        weights, normalisation = self._mixed(task, task.round - 1)
        self.trainer.load(weights)
        self.trainer.flat.load_buffers(normalisation)
        trained = self.trainer.train(
            data.images,
            data.labels,
            indices=data.indices,
            rng=self.rng(task, "local training"),
            steps=self.local.steps,
            batch_size=self.local.batch_size,
            lr=self.local.rate(task.round),
            optimizer="adam",
            betas=(self.local.beta1, 0.999),
        )
        statistics = self.trainer.flat.buffers()
        if not (np.isfinite(trained).all() and np.isfinite(statistics).all()):
            trained = weights  # diverged: as if it had not trained
            statistics = normalisation
        state = {"weights": trained, "normalisation": statistics}
        self.setup.state_dir.save(task.client, task.round, state)
        return trained

    def canary(self, task: Task, name: int, count: int) -> Canary:
        """Weights of random signs; of this round's coordinates, where not all are sent.

        They are ±1, as far from each other as binary weights can be.
        """
        signs = vector_canary(self.trainer.num_parameters, 1, self.setup.seed, name, 1).direction
        sent = self.release.coordinates(self.setup.seed, task.round)
        weights = signs.astype(np.float32)
        return Canary(weights, -weights, signs if sent is None else signs[sent])

    def privatize(self, update: NDArray, task: Task, noise: NoiseGenerator) -> NDArray:
        """The noisy bits of this round's coordinates; the report as it is.

        The signs of the task's model are the public reference of Hamming clipping.
        """
        if task.purpose == EVALUATE:
            return update
        if self.flip == "tensor":
            return self._flip_tensors(update, noise)
        coordinates = self.release.coordinates(self.setup.seed, task.round)
        if coordinates is None:
            return self.release.privatize(update, task.model, noise)
        return self.release.privatize(update[coordinates], task.model[coordinates], noise)

    def _mixed(self, task: Task, as_of: int) -> tuple[Floats, Floats]:
        """W̄ of round ``as_of`` after mixing, and the normalisation; a newcomer's W̄ is the mean."""
        model = np.clip(self.require_model(task), -1, 1)
        memory = self.setup.state_dir.load(task.client, as_of)
        if memory is None:
            return model, self.fresh
        beta = np.float32(self.personal.beta)
        # The unclipped mean: values beyond ±1 are part of debiasing's unbiased estimate.
        mixed = beta * task.model + (1 - beta) * memory["weights"]
        return np.clip(mixed, -1, 1), memory["normalisation"]

    def _report(self, task: Task, data: LocalData) -> NDArray[np.float32]:
        """Test accuracy of the client's mixed model, and of the server's signs, (2,).

        Both with the client's own normalisation, refreshed on its data: the server has none.
        """
        if self.setup.test is None:
            raise TaskError("test: the report needs a test set on the client")
        images, labels = self.setup.test
        examples = self.personal.evaluate_examples
        if examples is not None and examples < len(labels):
            rng = experiment_rng(self.setup.seed, "test examples", client=task.client)
            chosen = np.sort(rng.choice(len(labels), examples, replace=False))
            images, labels = images[chosen], labels[chosen]
        weights, normalisation = self._mixed(task, task.round)
        every = -(-len(data) // REFRESHED_ON)
        accuracies = []
        for model in (weights, task.model):
            self.trainer.load(model)
            self.trainer.flat.load_buffers(normalisation)
            refresh_statistics(self.trainer, data.images[data.indices[::every]])
            logits = self.trainer.logits(images, batch_size=256)
            accuracies.append(evaluate_logits(logits, labels).accuracy)
        return np.array(accuracies, np.float32)

    def _flip_tensors(self, update: NDArray, noise: NoiseGenerator) -> NDArray[np.uint8]:
        """The authors' code: one coin decides for all the bits of a tensor."""
        tensors = self.trainer.flat.state_dict()
        numbered = {n: t * 0 + i for i, (n, t) in enumerate(tensors.items())}
        owner = self.trainer.flat.flatten(numbered).astype(np.int64)
        coins = self.release.privatize(np.ones(len(tensors), np.float32), update, noise)
        return ((update >= 0) == coins[owner].astype(bool)).astype(np.uint8)
