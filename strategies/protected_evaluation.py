"""Protected evaluation, the server: scores from what clients' protected results say together.

``ProtectedClustering`` is after "Horizontal Federated-Local Differential Privacy Inference Result
Protection" (MindSpore Federated documentation): each client's vector, or its argmax, arrives
protected (``clients.protected_evaluation``); the server labels vectors by their argmax and scores
them. Beside the score stands what it must be read against: pure noise of the same scale under the
same post-processing, and in simulations the clean score, the share of labels that survived, and
the rank correlation of protected and clean scores over the rounds.

``ProtectedAccuracy`` is for supervised models: every client answers with its right and wrong
predictions, each count under integer noise (``ProtectedCounts``), Gaussian noise also under secure
sums; the accuracy is Σ right / Σ (right + wrong).
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from murmur.algorithms import protected_evaluation as results
from murmur.format import format_number
from murmur.learning.codec import Codec, GridCodec, Integers
from murmur.learning.metrics import CLUSTERINGS, judge, rank_correlation
from murmur.privacy.accounting import Unit
from murmur.privacy.events import Event
from murmur.privacy.noise import NoiseGenerator
from murmur.round.client_evaluation import CLEAN, ClientEvaluation
from murmur.round.setup import ServerSetup

_NULLS = 5


class ProtectedClustering(ClientEvaluation):
    """The server half. See ``conf/evaluation/protected_clustering.yaml`` for every knob.

    Each client's row is private by itself, against whoever reads its message. ValueError for an
    unknown metric or post-processing, or for a result's settings out of range.

    Args:
        setup: The run's setup.
        cluster_client_num: How many clients are asked, all if there are fewer.
        metric: One of ``CLUSTERINGS``, or "none": nobody is asked.
        postprocess: "none"; "project": vectors are moved onto the simplex, which makes noise score
            well.
        every: Rounds from one evaluation to the next.
        show_clean: Whether simulated clients send the unprotected vector too.
        result: The fields of ``ResultSettings``; records are filled in from public sizes where
            unset.

    Attributes:
        history: (n, 3) float64. Of each evaluation so far: round, protected score, clean
            score (NaN where it is not known).
        rounds_like_noise: In how many of them the protected score was no better than noise.
    """

    name = "protected evaluation (clustering)"

    def __init__(
        self,
        setup: ServerSetup,
        *,
        cluster_client_num: int,
        metric: str,
        postprocess: Literal["none", "project"],
        every: int,
        show_clean: bool,
        result: Mapping[str, Any],
    ) -> None:
        super().__init__(setup, clients=cluster_client_num, every=every, show_clean=show_clean)
        if metric not in ("none", *CLUSTERINGS):
            raise ValueError(f"metric={metric}: must be one of none, {', '.join(CLUSTERINGS)}")
        self.metric, self.postprocess = metric, postprocess
        self.result = results.ResultSettings.of(result, setup.client_sizes)
        self.unit = Unit(self.result.unit)
        self.classes = setup.trainer.num_classes
        self.history = np.zeros((0, 3))  # round, protected score, clean score
        self.rounds_like_noise = 0
        if self.result.is_on:
            self.protection = self.result.protection(self.classes)

    @property
    def is_on(self) -> bool:
        """Without protection, or without a score, nobody uploads anything."""
        return self.result.is_on and self.metric != "none"

    def codec(self, purpose: str) -> Codec:
        """A protection's row; k grid steps where there is none."""
        return GridCodec(self.classes if purpose == CLEAN else self.protection.width)

    def event(self) -> Event:
        """One row, by its client's own noise."""
        return self.result.release(self.classes)

    def score(
        self, number: int, rows: Integers, clean: tuple[Integers, Integers] | None
    ) -> dict[str, float]:
        """Protected score, null, verdict; clean score, retention and correlation if known.

        ``noise_score`` is the mean of a few draws of as many rows of pure noise, post-processed
        alike; ``beats_noise`` is 1 or 0, by ``Verdict``. ``rank_correlation`` is Spearman's, over
        all rounds so far.
        """
        found = self._decode(rows)
        # Experiment randomness would do: this noise protects nothing.
        noise = NoiseGenerator.seeded(self.setup.seed, "evaluation null", number)
        nulls = [self._decode(self.protection.pure_noise(len(rows), noise)) for _ in range(_NULLS)]
        verdict = judge(self.metric, found.vectors, found.labels, nulls)
        scores = {"protected_score": verdict.score, "noise_score": verdict.null}
        truth = math.nan
        if clean is not None:
            # Compared over the clients that sent both, which are all unless some failed.
            paired = self._decode(clean[0])
            vectors = clean[1] / results.CLEAN_TOTAL
            verdict = judge(self.metric, paired.vectors, paired.labels, nulls, vectors)
            truth = verdict.clean
            scores |= {
                "clean_score": truth,
                "label_retention": verdict.retention,
                "label_chance": verdict.chance,
            }
        scores["beats_noise"] = float(verdict.beats_noise)
        self.rounds_like_noise += not verdict.beats_noise
        self.history = np.vstack([self.history, [number, scores["protected_score"], truth]])
        scores["rank_correlation"] = rank_correlation(self.history[:, 1], self.history[:, 2])
        return scores

    def _decode(self, rows: Integers) -> results.Decoded:
        """Returns the results that rows (n, width) stand for, after the post-processing."""
        decoded = self.protection.decode(np.asarray(rows))
        return results.project(decoded) if self.postprocess == "project" else decoded

    def warnings(self) -> list[str]:
        """The true ε of the document's noise; scores that say no more than noise."""
        found = super().warnings()
        if self.result.seed_compat:
            really = format_number(2 * self.result.epsilon)
            found.append(
                f"seed_compat=true: the noise assumes Δ=1, so epsilon={self.result.epsilon:g} is "
                f"really {really} for each result; no claim is made of it"
            )
        if self.rounds_like_noise:
            found.append(
                f"in {self.rounds_like_noise} of {len(self.history)} evaluations the protected "
                "score is no better than that of pure noise, or the labels are at chance: it says "
                "nothing of the clusters"
            )
        return found

    # Checkpoint -----------------------------------------------------------------------------

    def state(self) -> dict[str, NDArray]:
        """Participations and scores so far."""
        return {
            **super().state(),
            "history": self.history,
            "like_noise": np.array([self.rounds_like_noise], np.int64),
        }

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """The inverse of ``state``."""
        super().restore(state)
        self.history = np.asarray(state["history"], float).reshape(-1, 3)
        self.rounds_like_noise = int(state["like_noise"][0])


class ProtectedAccuracy(ClientEvaluation):
    """The server half. See ``conf/evaluation/protected_counts.yaml`` for every knob.

    Its ε stands beside the run's budget and is composed into the same statement. With Gaussian
    noise clients add their shares to a sum; with Laplace noise each row is private by itself.

    Args:
        setup: The run's setup; who shares the noise of a sum follows from its budget.
        clients, every, show_clean: How many are asked, in which rounds, and whether simulated
            clients also send the true counts.
        counts: The fields of ``ProtectedCounts``; ValueError where they are out of range.
    """

    name = "protected evaluation (accuracy)"
    is_on = True

    def __init__(
        self,
        setup: ServerSetup,
        *,
        clients: int,
        every: int,
        show_clean: bool,
        counts: Mapping[str, Any],
    ) -> None:
        self.counts = results.ProtectedCounts.of(counts, setup.budget)
        self.summed = self.counts.is_summed
        super().__init__(setup, clients=clients, every=every, show_clean=show_clean)
        self.unit = Unit(self.counts.unit)

    def codec(self, purpose: str) -> Codec:
        """Two counts, right and wrong; whole numbers where they are clean."""
        return GridCodec(2) if purpose == CLEAN else self.counts.codec

    def event(self) -> Event:
        """One release of both counts, by one client's own noise."""
        return self.counts.event()

    def score(
        self, number: int, rows: Integers, clean: tuple[Integers, Integers] | None
    ) -> dict[str, float]:
        """The accuracy, its standard error through the noise, and in simulations the true one.

        The estimate is cut to [0, 1], and left out where noise makes the total 0 or less. The error
        is that of the noise alone, to first order: that clients are a sample is not in it.
        """
        right, wrong = (float(count) for count in self.counts.codec.mean(rows.sum(axis=0), 1))
        total = right + wrong
        scores: dict[str, float] = {}
        if total > 0:
            accuracy = float(np.clip(right / total, 0, 1))
            # Of right/(right + wrong) to first order; each sum has n times the noise's variance.
            spread = math.hypot(1 - accuracy, accuracy) / total
            scores["protected_accuracy"] = accuracy
            scores["protected_accuracy_error"] = self.counts.deviation(self.answered) * spread
        if clean is not None:
            truth = clean[1].sum(axis=0)
            scores["clean_accuracy"] = float(truth[0] / truth.sum())
        return scores
