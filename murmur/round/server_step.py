"""The server's step: how the global model follows the mean update of a round.

Reddi et al., "Adaptive federated optimization", ICLR 2021, with the formulas of Flower's FedAvgM,
FedAdam and FedYogi. Symbols: Δ = mean update, η = ``learning_rate``, m = first moment, v = second
moment, τ = degree of adaptivity.

A step is post-processing of a release: it costs no privacy. Each rule overrides ``direction``; what
it remembers is in ``moments``, and goes into the run's checkpoint.
"""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from murmur.checks import blocks, require_positive

Parameters = NDArray[np.float32]
Moment = NDArray[np.float64]


class Sgd:
    """w ← w + η Δ; with η = 1 the mean of the clients' models.

    Attributes:
        learning_rate: η, above 0; ValueError for any other.
        moments: What is kept from round to round, by its letter; empty before the first step.
    """

    def __init__(self, *, learning_rate: float) -> None:
        require_positive("learning_rate", learning_rate)
        self.learning_rate = learning_rate
        self.moments: dict[str, Moment] = {}

    def step(self, model: Parameters, update: Moment) -> Parameters:
        """The next model (d,) from ``model`` (d,) and the mean update (d,).

        Called once for each round that counts: moments move with it.
        """
        direction = self.direction(update)
        moved = np.empty(len(model), np.float32)
        for block in blocks(len(model)):
            moved[block] = model[block] + self.learning_rate * direction[block]
        return moved

    def direction(self, update: Moment) -> Moment:
        """Where to go for a step of η, (d,), from the mean update Δ (d,); moves the moments."""
        return update

    def state(self) -> dict[str, NDArray]:
        """Returns the moments, which a checkpoint must hold."""
        return dict(self.moments)

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """Take up what ``state`` returned."""
        self.moments = {name: values.copy() for name, values in state.items()}


class Momentum(Sgd):
    """FedAvgM: m ← β m + Δ; w ← w + η m, with m = 0 at first and β = ``momentum`` in [0, 1)."""

    def __init__(self, *, learning_rate: float, momentum: float) -> None:
        super().__init__(learning_rate=learning_rate)
        self.momentum = _decay("momentum", momentum)

    def direction(self, update: Moment) -> Moment:
        """The first moment m (d,), after Δ was added."""
        before = self.moments.get("m", np.zeros_like(update))
        self.moments["m"] = self.momentum * before + update
        return self.moments["m"]


class Yogi(Sgd):
    """FedYogi: m ← β₁m + (1−β₁)Δ; v ← v − (1−β₂)Δ² sign(v − Δ²); w ← w + η m/(√v + τ).

    All entry by entry, from m = v = 0 on. ``beta_1``, ``beta_2`` lie in [0, 1), ``tau`` above 0;
    ValueError else.
    """

    def __init__(self, *, learning_rate: float, beta_1: float, beta_2: float, tau: float) -> None:
        super().__init__(learning_rate=learning_rate)
        self.betas = _decay("beta_1", beta_1), _decay("beta_2", beta_2)
        require_positive("tau", tau)
        self.tau = tau

    def direction(self, update: Moment) -> Moment:
        """m/(√v + τ)."""
        beta = self.betas[0]
        moments = self.moments
        square = update**2
        moments["m"] = beta * moments.get("m", np.zeros_like(update)) + (1 - beta) * update
        moments["v"] = self.second(moments.get("v", np.zeros_like(update)), square)
        return moments["m"] / (np.sqrt(moments["v"]) + self.tau)

    def second(self, before: Moment, square: Moment) -> Moment:
        """The next v (d,), from v of the last round and ``square`` = Δ²."""
        return before - (1 - self.betas[1]) * square * np.sign(before - square)


class Adam(Yogi):
    """FedAdam: v ← β₂v + (1−β₂)Δ², and η √(1 − β₂^(t+1))/(1 − β₁^(t+1)) in round t for η.

    m and the step are FedYogi's. t counts the rounds in which a step was taken, from 1 on; the
    power t + 1 is Flower's.
    """

    def direction(self, update: Moment) -> Moment:
        """m/(√v + τ), bias-corrected."""
        t = self.moments.get("t", np.zeros(1)) + 1
        self.moments["t"] = t
        first, second = (1 - beta ** (float(t[0]) + 1) for beta in self.betas)
        return math.sqrt(second) / first * super().direction(update)

    def second(self, before: Moment, square: Moment) -> Moment:
        """The next v (d,), from v of the last round and ``square`` = Δ²."""
        return self.betas[1] * before + (1 - self.betas[1]) * square


def _decay(name: str, value: float) -> float:
    if not 0 <= value < 1:
        raise ValueError(f"{name}={value}: must be at least 0 and below 1")
    return value
