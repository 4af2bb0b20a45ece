"""KD-DPFL's settings as both halves and the planner read them: one grouping, one plan, one cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from murmur.papers.kd_dpfl.grouping import large_clients
from murmur.papers.kd_dpfl.labelling import Labelling
from murmur.papers.kd_dpfl.noisy_model import NoisyModel
from murmur.papers.kd_dpfl.plan import Needs, Plan, make_plan
from murmur.privacy.budget import Budget
from murmur.privacy.events import ComposedEvent, Event, NonPrivateEvent, RepeatedEvent
from murmur.privacy.mechanisms.sampled_gaussian import LotSchedule

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Scheme:
    """Who is large, who spends what, and on which mechanisms.

    ``uploads``: the lots of the general clients over all rounds, or the noise on their models;
    ``special``: the lots of the special client.
    """

    sizes: tuple[int, ...]
    plan: Plan
    labelling: Labelling
    uploads: LotSchedule | NoisyModel
    special: LotSchedule

    @classmethod
    def of(
        cls,
        budget: Budget,
        sizes: Sequence[int],
        *,
        classes: int,
        pool: int,
        sensitivity: int,
        grouping: Mapping[str, Any],
        spending: Mapping[str, Any],
        labelling: Mapping[str, Any],
        local: Mapping[str, Any],
        uploads: Mapping[str, Any],
        special: Mapping[str, Any],
    ) -> Scheme:
        """From the sections of ``conf/strategy/kd_dpfl.yaml``.

        ``classes``: C; ``pool``: size of the public set; ``sensitivity``: of one DP-SGD step, in
        grid steps. Raises ValueError for settings that cannot work, or that break the total.
        """
        if budget.per != "run":
            raise ValueError(
                f"privacy.per={budget.per}: KD-DPFL shares one total over the whole run; set "
                "privacy.per=run"
            )
        large = large_clients(sizes, **grouping)
        needs = Needs(**spending)
        plan = make_plan(budget.epsilon, budget.delta, sizes, large, needs)
        words = dict(labelling)
        if words["mechanism"] == "none" and needs.special and budget.is_private:
            raise ValueError(
                "labelling.mechanism='none': pseudo-labels without noise tell of the large "
                "clients' records; take dpsgd_teacher, pate or rr, or mark the whole run as not "
                "private with privacy=none"
            )
        queries = pool if words.pop("queries") is None else labelling["queries"]
        if not 1 <= queries <= pool:
            raise ValueError(
                f"labelling.queries={queries}: must lie in 1..{pool}, the size of the public pool"
            )
        teacher = LotSchedule(words.pop("lot_size"), words.pop("epochs"), sensitivity)
        rounds = budget.rounds
        if uploads["noise"] not in ("dpsgd", "nbafl"):
            raise ValueError(f"uploads.noise={uploads['noise']!r}: must be 'dpsgd' or 'nbafl'")
        lots = LotSchedule(local["lot_size"], local["epochs"], sensitivity, rounds)
        scheme = cls(
            tuple(sizes),
            plan,
            Labelling(
                queries=queries,
                classes=classes,
                schedule=teacher,
                clients=max(1, len(plan.label)),
                **words,
            ),
            lots if uploads["noise"] == "dpsgd" else NoisyModel(uploads["clip"], rounds),
            LotSchedule(special["lot_size"], special["epochs"], sensitivity, rounds),
        )
        scheme._require_total()
        return scheme

    def label_event(self, client: int) -> Event:
        """What a large client's labels tell of its records."""
        return self.labelling.event(self.plan.label[client], self.plan.delta, self.sizes[client])

    def upload_event(self, client: int) -> Event:
        """What one upload tells of a client's records."""
        epsilon = self.plan.general[client]
        if math.isinf(epsilon):
            return NonPrivateEvent()
        return self.uploads.event(epsilon, self.plan.delta, self.sizes[client])

    def special_event(self) -> Event | None:
        """What one upload of the special client tells; None where it is post-processing."""
        if not self.plan.special:
            return None
        return self.special.event(self.plan.special, self.plan.delta, self.labelling.queries)

    def path(self, client: int, *, labelled: bool, uploads: int, special: int) -> Event:
        """All that is released of ``client``: labels, its own uploads, the special client's."""
        parts: list[Event] = []
        if labelled:
            parts.append(self.label_event(client))
            event = self.special_event()
            if event is not None and special:
                parts.append(RepeatedEvent(event, special))
        if uploads:
            parts.append(RepeatedEvent(self.upload_event(client), uploads))
        return ComposedEvent(tuple(parts))

    def whole_path(self, client: int) -> Event:
        """``path`` over all rounds of the run."""
        rounds = self.uploads.rounds
        return self.path(
            client,
            labelled=client in self.plan.label,
            uploads=rounds if client in self.plan.general else 0,
            special=rounds,
        )

    def _require_total(self) -> None:
        """Large clients' parts are calibrated one by one; their composition must fit as well."""
        from murmur.privacy.accounting import epsilon

        plan = self.plan
        if math.isinf(plan.total):
            return
        for event, client in {self.whole_path(c): c for c in plan.label}.items():
            spent = epsilon(event, plan.delta).epsilon
            if spent > plan.total * (1 + _ROUNDING):
                raise ValueError(
                    f"spending.mode: large client {client} would spend {spent:.4g} of "
                    f"epsilon={plan.total:g} once its labels and its uploads are composed at "
                    f"δ={plan.delta:g}; lower spending.label_epsilon"
                )
