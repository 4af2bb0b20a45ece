"""Run folders as `murmur` writes them, without the work of running."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from fl_app.run.results import RunFolder
from murmur.privacy.accounting import Adjacency, Threat, Unit
from murmur.privacy.audit import CanaryAudit
from murmur.privacy.events import GaussianEvent, NonPrivateEvent, RandomizedResponseEvent
from murmur.privacy.guarantee import Exposure, by_participations
from murmur.privacy.statement import Statement
from tests.sums import noised

NAMES = {"privatekt": "PrivateKT", "nbafl": "NbAFL", "fedavg": "FedAvg"}


def write_run(
    path: Path,
    *overrides: str,
    rounds: int = 6,
    done: int | None = None,
    void: str = "",
    clients: int = 4,
    honest: int | None = None,
    found: float | None = None,
    chance: float | None = None,
    extra: Mapping[str, Any] | None = None,
) -> RunFolder:
    """A run of ``rounds`` rounds, ``done`` of them finished; a whole one has its statement.

    Where so many clients of a sum are ``honest`` its ε is assumed; canaries ``found`` that much.
    Where ``chance`` is known, so is whether it was beaten.
    """
    words = dict(word.split("=", 1) for word in overrides)
    name, seed = words.get("strategy", "privatekt"), int(words.get("seed", 1))
    budget = float(words.get("privacy.epsilon", 5))
    done = rounds if done is None else done
    folder = RunFolder(path)
    config = {
        "dataset": {"_target_": "murmur.learning.data.datasets.digits"},
        "partition": {"_target_": "murmur.learning.data.partitions.IID"},
        "privacy": {"epsilon": budget, "delta": 1e-5, "paper": True},
        "federation": {"num_clients": clients, "num_rounds": rounds},
        "strategy": {"name": name, "K": 4},
        "seed": seed,
        "run_dir": str(path),
        **(extra or {}),
    }
    folder.save_config(OmegaConf.create(config))
    folder.save_overrides([*overrides, f"run_dir={path}"])
    held = {"shown": list(range(clients)), "counts": [[1, 1, 1]] * clients}
    folder.save_partition({**held, "clients": clients, "examples": 3 * clients})
    per_round = NonPrivateEvent() if np.isinf(budget) else RandomizedResponseEvent(budget, 10)
    for number in range(done + 1):
        folder.append_row(
            {
                "round": number,
                "accuracy": 0.1 + 0.1 * number + 0.01 * seed,
                "loss": 2.0 / (number + 1),
                "epsilon_proven": "infinity" if np.isinf(budget) else budget * number,
                "answered": clients if number else 0,
                "failed": {"3": "NaN in the update"} if number == 2 else {},
                "bytes_down": 0,
                "bytes_up": 1000 if number else 0,
                "seconds": 0.5,
            }
        )
    if done == rounds:
        counts = {str(client): rounds - client % 2 for client in range(clients)}
        threat = Threat.LOCAL
        assumptions: tuple[str, ...] = ()
        if honest is not None:
            threat, per_round = Threat.SECURE_AGGREGATION, noised(GaussianEvent(1.0), honest)
            assumptions = (f"{honest} clients are honest",)
        exposure = Exposure(
            threat,
            "a curious server",
            per_round,
            by_participations(per_round, counts),
            claimed_per_round=budget,
            claimed_total=budget,
            assumptions=assumptions,
            canaries=None if found is None else CanaryAudit(16, found),
        )
        statement = Statement.of(
            NAMES[name],
            Unit.CLIENT,
            Adjacency.REPLACE_ONE,
            1e-5,
            [exposure],
            void=(void,) if void else (),
        )
        folder.save_statement(statement)
        metrics = {"rounds": rounds, "accuracy": 0.1 + 0.1 * rounds}
        if chance is not None:
            at_chance = metrics["accuracy"] + 0.01 * seed <= chance
            metrics |= {"chance": chance, "at_chance": at_chance}
        folder.save_metrics(metrics)
    return folder


def write_sweep(path: Path, chance: float | None = 0.12) -> Path:
    """Two algorithms, three budgets, two seeds; one job failed, one unfinished, one not begun."""
    jobs = []
    for name in ("privatekt", "nbafl"):
        for budget in ("1", "5", "inf"):
            for seed in ("1", "2"):
                words = [f"strategy={name}", f"privacy.epsilon={budget}", f"seed={seed}"]
                jobs.append({"key": f"{name}-{budget}-{seed}", "overrides": words})
    for job in jobs[:-3]:
        write_run(path / job["key"], *job["overrides"], chance=chance)
    write_run(path / jobs[-3]["key"], *jobs[-3]["overrides"], done=2)
    RunFolder(path / jobs[-2]["key"]).save_error("ValueError: client 7: the update is not finite")
    words = ["strategy=privatekt,nbafl", "privacy.epsilon=1,5,inf", "seed=1,2"]
    (path / "sweep.json").write_text(json.dumps({"overrides": words, "jobs": jobs}))
    return path
