"""DPFL-BNN, the server: the mean of the clients' noisy bits, sent back as it is.

Liu, Zhang, Song, Letaief, "Binary federated learning with client-level differential privacy",
arXiv 2308.03320 (2023), algorithm 1. The server sees sums of bits; with n clients and counts c

    mean = 2c/n − 1 ∈ [−1, 1]      E[mean] = 2γ · (mean of the clients' W^b)

and sends ``mean`` down (``clients.dpfl_bnn`` mixes it into W̄). Symbols: γ = ``gamma``. Two controls
tell noise and shrinkage apart: ``debias`` divides by 2γ, ``scale_only`` multiplies by 2γ what was
sent without noise.

There is no global model to test: every client has its own. In a simulation the researcher may look
at all of them (``murmur.round.own_models``); those reports are no part of the protocol.
"""

import math
from dataclasses import replace

import numpy as np

from murmur.algorithms.dpfl_bnn.bits import ReleaseSettings, claimed_epsilon
from murmur.learning.codec import BitCodec, Integers
from murmur.privacy.events import Event, NonPrivateEvent
from murmur.round.own_models import OwnModels
from strategies.base import Claimed, Claims, CohortStrategy, Forecast, Parameters, ServerSetup

# How far clients agree on a bit: what brings the accuracies below onto the forecast's curve.
_AGREEMENT = 0.6


class DPFLBNN(CohortStrategy):
    """The server half. See ``conf/strategy/dpfl_bnn.yaml`` for every knob.

    From round 1 on the global model (d,) is the released mean, in [−1, 1] unless it is debiased.
    ValueError for settings that contradict each other.

    Args:
        setup: What the ServerApp gives.
        release: How bits are made and noised, the same as on clients.
        debias, scale_only: The two controls, of which one at most is on. The first needs noise,
            the second goes without. Both are post-processing.
        evaluate_every: Rounds between two looks at all clients' models; 0: after the last only.
    """

    algorithm = "DPFL-BNN"
    threats = ("local", "secure_aggregation")
    has_paper_budget = True
    claim = "(ε, δ)-differential privacy of a client over all rounds (Liu et al. 2023, theorem 1)"
    difference = (
        "theorem 1 counts a single bit of a client's vector, and a client's data decides all of "
        "them; nor does it say who sees them one by one."
    )

    def __init__(
        self,
        setup: ServerSetup,
        *,
        release: ReleaseSettings,
        debias: bool,
        scale_only: bool,
        evaluate_every: int,
    ) -> None:
        super().__init__(setup)
        if evaluate_every < 0:
            raise ValueError(f"evaluate_every={evaluate_every}: must be at least 0 rounds")
        if debias and scale_only:
            raise ValueError("debias=True: contradicts scale_only=True; set one of them to false")
        if (debias and not release.noise) or (scale_only and release.noise):
            raise ValueError(
                f"noise={release.noise}: debias needs the noise that it undoes, scale_only goes "
                "without"
            )
        self.release = release.plan(self.trainer.num_parameters, setup.budget)
        gamma = self.release.gamma if release.noise else release.gamma
        if gamma is None and (debias or scale_only):
            raise ValueError("gamma=None: debias and scale_only need the γ to scale by")
        self.flip = release.flip
        self.scale = 1.0
        if gamma is not None and (debias or scale_only):
            self.scale = 1 / (2 * gamma) if debias else 2 * gamma
        names = ["accuracy", "accuracy_server_signs"]
        self.rounds.own_models = OwnModels(setup, self.rounds.sums, names, evaluate_every)

    def forecast(self) -> Forecast | None:
        """By the lead of a bit in standard errors of the noise, as far as clients agree.

        A client's model follows the noisy mean: on digits, 40 clients and 60 rounds reach 0.18,
        0.19, 0.49 and 0.78 at γ = 0.004, 0.024, 0.08 and 0.24, and 0.74 without noise.

        Returns:
            None without noise.
        """
        gamma = self.release.gamma
        if gamma is None or gamma >= 0.5:
            return None
        deviation = math.sqrt((0.25 - gamma**2) * self.setup.cohort_size)
        lead = gamma * self.setup.cohort_size / deviation
        noise = {"gamma": gamma, "lead at most": lead}
        return Forecast.of(self.setup, _AGREEMENT * lead, noise=noise)

    # The round ------------------------------------------------------------------------------

    def codec(self) -> BitCodec:
        """One bit for each uploaded coordinate; all clients upload the same ones."""
        return BitCodec(self.release.uploaded)

    def update(self, number: int, model: Parameters, total: Integers, weight: int) -> Parameters:
        """Mean of the ±1 values; coordinates that were not uploaded keep theirs.

        ``total``: how many of the ``weight`` clients sent a 1, (uploaded,). Post-processing.
        """
        mean = (self.scale * (2 * total / weight - 1)).astype(np.float32)
        coordinates = self.release.coordinates(self.setup.seed, number)
        if coordinates is None:
            return mean
        updated = model.copy()
        updated[coordinates] = mean
        return updated

    # Privacy --------------------------------------------------------------------------------

    def release_event(self) -> Event:
        """Randomised bits; nothing private for the authors' one coin per tensor.

        To whoever reads the client's message. A secure sum with n other clients' bits hides them
        better (``Hiding.REPORTS``), which the report works out.
        """
        return NonPrivateEvent() if self.flip == "tensor" else self.release.event()

    def claims(self, claimed: Claimed = (None, None), before: Event | None = None) -> Claims:
        """The usual ones; Theorem 1 is one claim, which names no adversary, so it is beside each.

        It counts one bit of a client, for one round and for the rounds of the most frequent
        participant. None without noise, or where δ is 0.
        """
        gamma = self.release.gamma
        delta = self.setup.budget.delta
        if gamma is not None and delta > 0:
            rounds = max(self.rounds.participations.values(), default=0)
            total = claimed_epsilon(gamma, rounds, delta) if rounds else 0.0
            claimed = claimed_epsilon(gamma, 1, delta), total
        usual = super().claims(claimed, before)
        each, whole = claimed
        return replace(
            usual,
            exposures=lambda: [
                replace(exposure, claimed_per_round=each, claimed_total=whole)
                for exposure in usual.exposures()
            ],
        )
