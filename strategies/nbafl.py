"""NbAFL, the server: weighted mean of noised models, noise of its own, broadcast.

Wei, Li, Ding, Ma, Yang, Farokhi, Jin, Quek, Poor: "Federated learning with differential privacy:
algorithms and performance analysis", IEEE TIFS 15 (2020), arXiv 1911.00222. One round:

1. K of N clients, drawn uniformly (K-random scheduling), answer w̃_i       (``clients.nbafl``)
2. w = Σ p_i w̃_i, p_i = |D_i| / Σ|D_j| over those who answered
3. broadcast w + N(0, σ_D² I), σ_D from the p_i of this very round

Symbols: T = ``rounds``, L = ``exposures``, σ_U and σ_D as in ``murmur.algorithms.nbafl.noise``,
which has the formulas. Sums and both noises are integers on one grid.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.algorithms.dpsgd import Lots, signal_to_noise
from murmur.algorithms.nbafl.noise import NbaflNoise, NbaflSettings, seen_by_outsider
from murmur.learning.codec import GridCodec, Integers
from murmur.privacy.accounting import Adjacency, Threat, Unit
from murmur.privacy.accounting.gaussian import MIN_CLIENT_SIGMA
from murmur.privacy.events import ComposedEvent, DiscreteGaussianEvent, Event, repeated
from murmur.privacy.guarantee import Exposure
from murmur.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from murmur.privacy.mechanisms.sampled_gaussian import LotSchedule
from strategies.base import Claimed, Claims, CohortStrategy, Forecast, Parameters, ServerSetup


class NbAFL(CohortStrategy):
    """The server half. See ``conf/strategy/nbafl.yaml`` for every knob.

    The paper's server is honest, and its outsider sees L uploads of a client and all broadcasts.
    The statement has both adversaries: a curious server sees every upload, without the downlink
    noise. ValueError for settings that do not fit together, and where sizes are not public.

    Args:
        setup: What the ServerApp gives.
        settings: What both halves must agree on.
        local: The clients' training; of it only epochs and batch size are read, for ``dpsgd``'s
            price.

    Attributes:
        noise: σ_U, σ_D and the grid.
        schedule: Lots of the clients' DP-SGD; None where the noise goes on uploads, or nothing is
            private.
        weakest: Least noise over weight of any broadcast so far, in the units of the weights:
            "rest" as it is, "stripped" to an outsider that knows all other uploads of the round.
            The statement charges all broadcasts at these.
    """

    algorithm = "NbAFL"
    difference = "nothing is claimed beyond what is proven."
    units = ("client", "record")
    unit = Unit.RECORD
    has_paper_budget = True
    weighted = True

    def __init__(
        self, setup: ServerSetup, *, settings: NbaflSettings, local: Mapping[str, Any]
    ) -> None:
        super().__init__(setup)
        if setup.client_sizes is None:
            raise ValueError("client_sizes=None: NbAFL weighs clients by their public sizes")
        self.sizes = setup.client_sizes
        size = self.trainer.num_parameters
        self.noise = NbaflNoise.of(setup.budget, self.sizes, size, settings)
        if setup.budget.paper_semantics:
            self.claim = (
                "noise before aggregation makes L uploads and all T broadcasts "
                "(ε, δ)-differentially private for a record (Wei et al. 2020)"
            )
            self.difference = (
                "the paper's constant √(2 ln(1.25/δ)) holds below ε = 1 only, it adds ε up over "
                "uploads, and it counts uploads and broadcasts apart; proven is their exact "
                "composition."
            )
        if self.noise.sensitivity == "worst":
            self.unit = Unit.CLIENT
        self.schedule: LotSchedule | None = None
        if self.noise.is_private and self.noise.sensitivity == "dpsgd":
            # Sizes are public.
            self.adjacency = Adjacency.REPLACE_SPECIAL
            lots = Lots(local["epochs"] or 1, local["batch_size"])
            self.schedule = lots.schedule(self.noise.participations)
        full = sorted(self.sizes)[-self.noise.scheduled :]
        sigma = self.noise.broadcast_sigma([size / sum(full) for size in full])
        if sigma:
            self._downlink(sigma, sum(full))  # ValueError here rather than in the first round
        # Noise / weight of the weakest broadcast so far, as it is and with others' uploads known.
        self.weakest = {"rest": math.inf, "stripped": math.inf}

    def warnings(self) -> list[str]:
        """Where noise is calibrated to less than the server sees, or less than is proven."""
        noise = self.noise
        if noise.calibration == "proven":
            if not noise.is_noisy or noise.exposures >= noise.participations:
                return []
            return [
                f"exposures={noise.exposures}: privacy.epsilon is kept against the paper's "
                f"outsider, who sees so many of a client's {noise.participations} uploads; the "
                "server sees all of them, and set strategy.exposures=null to keep it against that"
            ]
        if not noise.is_noisy or noise.scheduled == noise.clients:
            return []
        if noise.broadcast_sigma([1 / noise.scheduled] * noise.scheduled) > 0:
            return []
        return [
            f"clients_per_round={noise.scheduled}: the paper's condition T > ε/γ adds no noise to "
            "broadcasts here; privacy.calibration=proven does where it is needed"
        ]

    def forecast(self) -> Forecast | None:
        """Returns the signal-to-noise ratio of models of norm C; of gradients with ``dpsgd``.

        The gradients are the smallest client's.
        """
        noise, budget = self.noise, self.setup.budget
        if not noise.is_private:
            return None
        numbers = self.trainer.num_parameters
        if self.schedule is not None:
            ratio = signal_to_noise(
                self.schedule, budget, noise.smallest_dataset, noise.scheduled, numbers
            )
        else:
            ratio = noise.clip * math.sqrt(noise.scheduled / numbers) / noise.upload_sigma
        return Forecast.of(self.setup, ratio)

    # The round ------------------------------------------------------------------------------

    def codec(self) -> GridCodec:
        """All parameters (d,) on the clients' grid."""
        return GridCodec(self.trainer.num_parameters, self.noise.grid)

    def update(self, number: int, model: Parameters, total: Integers, weight: int) -> Parameters:
        """The weighted mean plus the downlink noise.

        σ_D follows from the weights of those who really answered (the paper's p_i); it may be 0.
        The noise is drawn for the sum, before any rounding, and the result is what is broadcast.
        """
        weights = [self.sizes[client] / weight for client in self.rounds.outcome.answered]
        sigma = self.noise.broadcast_sigma(weights)
        if sigma:
            noise = self.setup.noise("broadcast", number)
            total = self._downlink(sigma, weight).privatize_integers(total, noise)
        self._remember(weights, sigma)
        return self.codec().mean(total, weight).astype(np.float32)

    def _downlink(self, sigma: float, weight: int) -> DiscreteGaussian:
        """Noise of σ_D = ``sigma``, in grid steps of the sum: nothing is rounded before it."""
        return DiscreteGaussian(sigma * weight / self.noise.grid, sensitivity=1.0)

    def _remember(self, weights: list[float], sigma: float) -> None:
        """Note how little noise this broadcast had, over the weight of its heaviest client.

        Noise of weight w lies on a lattice of step w: that of others counts only where it is fine
        beside all of these (``gaussian.in_sum``). Nothing is noted with ``dpsgd``: there the
        uploads' own price covers the broadcasts.
        """
        if not self.noise.is_noisy:
            return
        uplink = self.noise.upload_sigma
        most = max(weights)
        sizes = [self.sizes[client] for client in self.rounds.outcome.answered]
        step = self.noise.grid * max(sizes) / math.gcd(*sizes)
        counted = weights if uplink >= MIN_CLIENT_SIGMA * step else [most]
        spread = math.hypot(uplink * math.hypot(*counted), sigma) / most
        ratios = {"rest": spread, "stripped": math.hypot(uplink, sigma / most)}
        self.weakest = {name: min(self.weakest[name], ratio) for name, ratio in ratios.items()}

    # Privacy --------------------------------------------------------------------------------

    def release_event(self) -> Event:
        """One upload, of the client that spends most in a round, by that client's own noise.

        Its assumptions, if the sensitivity rests on any, are part of the event.
        """
        return self.rounds.costliest(map(self._upload, sorted(set(self.sizes))))

    def _upload(self, size: int) -> Event:
        """One upload of a client of so many examples: with ``dpsgd`` its noise depends on them."""
        if self.schedule is None:
            return self.noise.release()
        return self.schedule.event(self.noise.epsilon, self.noise.delta, size)

    def _path(self, client: int) -> Event:
        return repeated(self._upload(self.sizes[client]), self.rounds.participations[client])

    def claims(self, claimed: Claimed = (None, None), before: Event | None = None) -> Claims:
        """A curious server sees every upload; the paper's outsider L of them and all broadcasts.

        Claimed is the paper's theorem with the number of uploads that the server sees for L; None
        with ``calibration=proven``, where the figure is not the paper's, and with ``dpsgd``.
        """
        noise = self.noise
        if noise.calibration != "proven" and noise.is_noisy:
            each = noise.epsilon / noise.exposures
            claimed = each, each * max(self.rounds.participations.values(), default=0)
        usual = super().claims(claimed, before)
        spent = usual.spent  # clients differ in how often they were asked only
        if self.schedule is not None:
            spent = partial(self.rounds.costliest_path, self._path)
        return replace(usual, exposures=partial(self._exposures, usual), spent=spent)

    def _exposures(self, usual: Claims) -> list[Exposure]:
        server, *others = usual.exposures()
        uploads = self.noise.exposures
        released = dict(sorted(self.rounds.participations.items())) or {0: 0}
        outsider = Exposure(
            threat=Threat.OUTSIDER,
            adversary=f"an outsider, which sees every broadcast and {uploads} "
            f"upload{'s' if uploads > 1 else ''} of each client",
            per_round=self.release_event(),
            clients={str(c): self._seen(c, count) for c, count in released.items()},
            claimed_total=self.noise.epsilon if self.noise.is_private else None,
        )
        if self.schedule is not None:  # a sum hides nothing of such noise
            clients = {str(client): self._path(client) for client in released}
            server, *others = [replace(each, clients=clients) for each in (server, *others)]
        return [server, outsider, *others]

    def _seen(self, client: int, participations: int) -> Event:
        """Returns the event that the outsider sees of a client after ``participations``.

        It has L uploads, as many broadcasts without the others' noise, and the rest with it
        (``seen_by_outsider``); with ``dpsgd`` every upload.
        """
        if not self.noise.is_noisy:
            # All that follows from an upload shows in the broadcasts as well.
            return self._path(client)
        uploads, stripped, rest = seen_by_outsider(self.noise.exposures, participations)
        parts = [repeated(self.noise.release(), uploads)]
        noise = self.noise
        worst = 2 * noise.clip / noise.grid + math.sqrt(noise.dimension)
        for name, count in (("stripped", stripped), ("rest", rest)):
            # A sum of discrete Gaussians of so many steps is one (Kairouz, Liu, Steinke 2021).
            if math.isfinite(self.weakest[name]):
                sigma = self.weakest[name] / noise.grid
                seen = DiscreteGaussianEvent(sigma, noise.released_sensitivity / noise.grid)
                event = noise.resting(seen, DiscreteGaussianEvent(sigma, worst))
                parts.append(repeated(event, count))
        return ComposedEvent(tuple(parts))

    # Checkpoint -----------------------------------------------------------------------------

    def state(self) -> dict[str, NDArray]:
        """The weakest broadcasts: a resumed run must go on to charge them."""
        return {f"weakest.{name}": np.array([value]) for name, value in self.weakest.items()}

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """The inverse of ``state``."""
        self.weakest = {name: float(state[f"weakest.{name}"][0]) for name in self.weakest}
