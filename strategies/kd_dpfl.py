"""KD-DPFL, the server: one stage of private pseudo-labels, then rounds with a special client.

Tan, Xu, Wang, Luo: "Differential privacy federated learning method based on knowledge
distillation", Computer Science 51(6A), 2024 (abstract; the rest is this project's reading).

1. clients are large or general by public sizes
2. large clients label the public set, once, before round 1   (``murmur.algorithms.kd_dpfl.labels``)
3. the labelled public set is a *special client*, which trains here: its images are public and
   its labels are the server's own. In one round, from the same model w as everybody,

       w ← (Σ n_i w_i + n_s w_s) / (Σ n_i + n_s),    n_s = min(q, ½ of all)

4. the total ε is shared by labels and uploads                (``murmur.algorithms.kd_dpfl.budget``)

Symbols: q = ``labelling.queries``, ½ = ``special.cap``, w_s = ``_special``. In conservative mode
w_s comes from DP-SGD at ε_s = r·ε_g; in tight mode it needs no noise, being post-processing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from murmur.algorithms.dpsgd import Lots, signal_to_noise, train_privately
from murmur.algorithms.kd_dpfl.budget import Scheme, Sections
from murmur.learning.codec import Integers, WeightCodec
from murmur.learning.data.examples import LocalData
from murmur.learning.public_labels import plurality
from murmur.learning.training.dpsgd import ClippingNorm, DpSgd
from murmur.privacy.mechanisms.clipping import project_simplex
from murmur.privacy.mechanisms.randomized_response import debiased
from murmur.privacy.mechanisms.sampled_gaussian import LotSchedule
from murmur.random import experiment_rng
from murmur.round.question import Outcome, Question
from murmur.settings import Positive, settings
from strategies.base import (
    Adjacency,
    Claimed,
    Claims,
    CohortStrategy,
    Event,
    Forecast,
    Parameters,
    ServerSetup,
)


@settings
class SpecialClient(Lots):
    """How the labelled public set trains, here on the server.

    Its steps of DP-SGD run in conservative mode with general clients only; otherwise it trains in
    the open, in batches of ``lot_size``.

    Attributes:
        clipping_norm: C of one image's gradient, in DP-SGD.
        learning_rate: Learning rate of either way to train.
        cap: The largest share of it in a round's mean, at most ½.
    """

    clipping_norm: ClippingNorm
    learning_rate: Positive
    cap: Annotated[float, Field(gt=0, le=0.5)]

    def descent(self) -> DpSgd:
        """Its steps of DP-SGD."""
        return DpSgd(self.lot_size, self.clipping_norm, self.learning_rate)


class KdDpfl(CohortStrategy):
    """The server half; see ``conf/strategy/kd_dpfl.yaml`` for every knob.

    Neighbours differ in one record that is nulled; sizes and grouping are public. The adversary
    reads every upload, the special client's and the pseudo-labels included, so secure sums are
    refused. ValueError for settings that cannot be met, and for sizes that are not public.

    Args:
        setup: What the ServerApp gives; its public pool is what is labelled.
        sizes: Examples of every client, by id; None: those that the setup has made public.
        sections: Who is large, who may spend what, how labels are made and protected, and how
            general clients train and protect their models: the sections of the yaml, the same on
            clients.
        soft: Whether targets are distributions over classes rather than the plurality's labels.
        special: How the special client trains.

    Attributes:
        indices: (q,) int64. The public images that are labelled, ascending; drawn once, by
            the run's seed.
        targets: (q, C) float32. What they are taken for; empty before the label stage, and
            where there is none.
        labelled: Large clients that may have released labels.
        special_rounds: Rounds in which the special client has trained, and so has told of the
            labels again.
    """

    algorithm = "KD-DPFL"
    units = ("client", "record")
    has_paper_budget = True
    adjacency = Adjacency.REPLACE_SPECIAL
    weighted = True
    claim = (
        "ε_total = max(ε_general, ε_label + ε_special): records of large clients pay for their "
        "labels and for the special client's uploads, all others for their own (Tan et al. 2024, "
        "abstract)"
    )
    difference = (
        "each path's events are composed and converted once, at one δ, which is less than the "
        "sum of its parts; in tight mode the special client's uploads are post-processing."
    )

    def __init__(
        self,
        setup: ServerSetup,
        *,
        sizes: Sequence[int] | None,
        sections: Sections,
        soft: bool,
        special: SpecialClient,
    ) -> None:
        super().__init__(setup)
        known = setup.client_sizes if sizes is None else tuple(sizes)
        if setup.secure_sums.is_on:
            raise ValueError(
                "secure_aggregation='on': the label stage sums few large clients; switch it off"
            )
        if setup.cohorts.kind != "random":
            raise ValueError(
                f"schedule={setup.cohorts.kind}: KD-DPFL draws its cohorts afresh from the clients "
                "of its federated stage; set federation.schedule=random"
            )
        self.unit = setup.budget.record_unit
        self.extendable = not setup.budget.is_private  # an upload's noise is for all rounds
        self.special = special
        self.soft = soft
        self.scheme = Scheme.of(
            setup.budget,
            known,
            sections,
            special,
            classes=self.trainer.num_classes,
            pool=len(setup.public),
        )
        self.plan = self.scheme.plan
        self.labelling = self.scheme.labelling
        self.rounds.members = np.array(sorted(self.plan.general), np.int64)
        rng = experiment_rng(setup.seed, "labelled images")
        pool = rng.choice(len(setup.public), self.labelling.count, replace=False)
        self.indices = np.sort(pool).astype(np.int64)
        self.targets = np.zeros((0, self.labelling.classes), np.float32)
        self.labelled: list[int] = []  # large clients that may have labelled
        self.special_rounds = 0

    # The label stage ------------------------------------------------------------------------

    def before_rounds(self) -> Question | None:
        """Labels of the large clients, unless a checkpoint holds them.

        One question in the whole run. None also without a special client, the control that labels
        nothing.
        """
        if not self.plan.label or len(self.targets):
            return None
        return Question(
            purpose="label",
            number=1,
            cohort=list(self.plan.label),
            model=self.setup.initial_parameters(),
            codec=self.labelling.codec(self.soft),
            event=lambda: self.rounds.costliest(self._label_events()),
            arrays={"indices": self.indices},
            weights=self.weights(),
            alone=True,
        )

    def learn(self, question: Question, outcome: Outcome) -> None:
        """Turn what the teachers said into targets of the special client.

        Clients whose node failed are among ``labelled`` as well: their labels may have left.
        """
        self.labelled = sorted(set(outcome.possibly_released))
        self.targets = self._resolve(outcome.total, outcome.answered)

    def _resolve(self, total: Integers, teachers: Sequence[int]) -> NDArray[np.float32]:
        """Targets (q, C) from the sum of what the clients ``teachers`` said.

        Hard targets are the plurality, ties broken at random; soft ones are normalised by their
        mean total, then moved onto the simplex. Randomised labels are debiased with the mean share
        of labels that are kept, since each client may have an ε of its own.
        """
        of = self.weights().of
        weights = np.array([of(client) for client in teachers])
        votes = total.reshape(self.labelling.count, self.labelling.classes) / weights.sum()
        if not self.soft:
            return plurality(votes, experiment_rng(self.setup.seed, "ties")).astype(np.float32)
        if self.labelling.mechanism == "rr" and self.setup.budget.is_private:
            kept = np.average([self.scheme.kept(client) for client in teachers], weights=weights)
            votes = debiased(votes, float(kept))
        scale = votes.sum(axis=1, keepdims=True).mean()
        return project_simplex(votes / scale).astype(np.float32)

    # The federated stage --------------------------------------------------------------------

    def codec(self) -> WeightCodec:
        """All parameters (d,)."""
        return WeightCodec(self.trainer.num_parameters)

    def update(self, number: int, model: Parameters, total: Integers, weight: int) -> Parameters:
        """The mean of the general clients and the special one, which trains here and now.

        The special client weighs q beside the others' examples, but ``cap`` of the whole at most.
        In conservative mode its DP-SGD draws lots and noise anew each round.
        """
        if not len(self.targets):
            return self.codec().mean(total, weight).astype(np.float32)
        special = self._special(number, model)
        if not weight:
            return special
        share = min(len(self.targets) / (len(self.targets) + weight), self.special.cap)
        mean = self.codec().mean(total, weight)
        return ((1 - share) * mean + share * special).astype(np.float32)

    def _special(self, number: int, model: Parameters) -> Parameters:
        """Returns ``model`` (d,) trained on the labelled public set, at ε_s or without noise.

        Without noise it is post-processing of labels that are private already.
        """
        self.trainer.load(model)
        self.special_rounds += 1
        images = self.setup.public[self.indices]
        if self.plan.special:
            return train_privately(
                self.trainer,
                self.special.descent(),
                self.scheme.special,
                self.plan.special,
                self.plan.delta,
                len(images),
                LocalData(images, self.targets, np.arange(len(images))),
                self.setup.noise("special client", number),
                soft_targets=True,
            )
        return self.trainer.train(
            images,
            self.targets,
            rng=experiment_rng(self.setup.seed, "special client", number),
            epochs=self.special.epochs,
            batch_size=self.special.lot_size,
            lr=self.special.learning_rate,
            soft_targets=True,
        )

    def forecast(self) -> Forecast | None:
        """Returns the signal-to-noise ratio of general clients' gradients, if they use DP-SGD."""
        budget, uploads = self.setup.budget, self.scheme.uploads
        general = list(self.plan.general)
        if not budget.is_private or not general or not isinstance(uploads, LotSchedule):
            return None
        own = replace(budget, epsilon=min(self.plan.general.values()))
        size = int(np.median([self.scheme.sizes[client] for client in general]))
        clients = min(self.setup.cohort_size, len(general))
        numbers = self.trainer.num_parameters
        ratio = signal_to_noise(uploads, own, size, clients, numbers)
        return Forecast.of(self.setup, ratio)

    # Privacy --------------------------------------------------------------------------------

    def _path(self, client: int) -> Event:
        """Labels, own uploads, and the special client's uploads so far.

        A participation is counted for labels as well as for uploads, so those of ``labelled`` have
        one upload less.
        """
        labelled = client in self.labelled
        return self.scheme.path(
            client,
            labelled=labelled,
            uploads=self.rounds.participations[client] - labelled,
            special=self.special_rounds,
        )

    def release_event(self) -> Event:
        """The costliest round of any client: a round's upload, or the labels."""
        uploads = [self.scheme.upload_event(client) for client in self.plan.general]
        return self.rounds.costliest(uploads + self._label_events())

    def _label_events(self) -> list[Event]:
        return [self.scheme.label_event(client) for client in self.plan.label]

    def claims(self, claimed: Claimed = (None, None), before: Event | None = None) -> Claims:
        """Each client's path; who sees the uploads also sees the pseudo-labels.

        Claimed is the plan's sum on the costliest path, by basic composition; nothing is claimed
        for a single round. Planned is the costliest client's path over the whole run.
        """
        clients = sorted({*self.plan.general, *self.plan.label})
        if self.setup.budget.is_private:
            claimed = None, max(self.plan.sum_of(client) for client in clients)
        usual = self.rounds.claims_of_paths(
            self._path,
            "whoever reads every upload, the special client's included, and the pseudo-labels",
            claimed,
        )
        whole = self.scheme.whole_path
        return replace(usual, planned=lambda: self.rounds.costliest(map(whole, clients)))

    # Checkpoint -----------------------------------------------------------------------------

    def state(self) -> dict[str, NDArray]:
        """The labels, who made them, and how often they were trained on."""
        return {
            "targets": self.targets,
            "labelled": np.array(self.labelled, np.int64),
            "special_rounds": np.array([self.special_rounds], np.int64),
        }

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """The inverse of ``state``."""
        self.targets = state["targets"]
        self.labelled = state["labelled"].tolist()
        self.special_rounds = int(state["special_rounds"][0])
