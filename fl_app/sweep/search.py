"""A search: trials that a sweeper of Hydra's draws, of which the best is kept.

Trials are compared on validation data that no client has, unless the command says otherwise. All of
them learn from the same clients, so that keeping the best is a release of its own, which no run's ε
counts. ``privacy.search=charged`` counts it: the number of trials is then drawn from a distribution
(``murmur.privacy.accounting.best_of``), and so are their settings, at random. What was drawn stands
in ``search.json`` of the sweep's folder, so that the same command goes on with the same trials;
what the search costs in ``search.txt``.
"""

import json
import math
import secrets
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from fl_app.config.errors import ConfigError
from fl_app.run.progress import format_epsilon, shown_path
from fl_app.run.scores import compared_score, label_of
from murmur.files import owner_only_folder, replace_file
from murmur.format import pluralize

SWEEPER = "hydra/sweeper"
HELD_OUT = 200  # examples that a search chooses on where the command does not say
TRIALS = 20  # of Optuna's sweeper, where the command does not say
_N_TRIALS = "hydra.sweeper.n_trials"
_DIRECTION = "hydra.sweeper.direction"
_SAMPLER = "hydra/sweeper/sampler"
_SAMPLER_SEED = "hydra.sweeper.sampler.seed"
_NOT_COUNTED = (
    "choosing among trials that learned from the same clients is a release that no ε here counts; "
    "privacy.search=charged counts it"
)


@dataclass(frozen=True)
class Search:
    """One command that searches, before it starts.

    Attributes:
        added: words that the command gets beside those typed.
        trials: how many it does; None: nobody knows beforehand. Where it is charged their mean.
        is_charged: whether the choice is counted.
    """

    added: tuple[str, ...]
    trials: int | None
    is_charged: bool

    @classmethod
    def of(cls, words: Sequence[str], base: DictConfig) -> "Search":
        """The search of these words, which all trials have in common as ``base``.

        Raises:
            ConfigError: the worst trial would be kept, or the choice cannot be counted like this.
        """
        typed = _typed(words)
        added = []
        direction = typed.get(_DIRECTION)
        if direction is None:
            added.append(f"{_DIRECTION}=maximize")
        elif direction != "maximize":
            raise ConfigError(f"{_DIRECTION}={direction}: must be maximize; accuracy is compared")
        if "federation.score" not in typed and base.federation.score == "test":
            if not base.federation.validation and "federation.validation" not in typed:
                added.append(f"federation.validation={HELD_OUT}")
            added.append("federation.score=validation")
        is_charged = base.privacy.search == "charged"
        trials = _trials(typed)
        if is_charged:
            _require_chargeable(typed, base, trials)
        return cls(tuple(added), trials, is_charged)

    def drawn(self, folder: Path) -> tuple[int | None, tuple[str, ...]]:
        """How many trials are done, and the words that say so; drawn once for a folder.

        Raises:
            ConfigError: the folder has a search with another mean.
        """
        if not self.is_charged:
            return self.trials, self.added
        from murmur.privacy.accounting.best_of import draw_trials

        assert self.trials is not None, "a charged search has a mean"
        path = folder / "search.json"
        if not path.exists():
            owner_only_folder(folder)
            kept: dict[str, Any] = {"mean": self.trials, "trials": draw_trials(self.trials)}
            kept["seed"] = secrets.randbelow(2**31)
            replace_file(path, json.dumps(kept).encode())
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["mean"] != self.trials:
            raise ConfigError(
                f"{_N_TRIALS}={self.trials}: this search was drawn with {kept['mean']}; go on with "
                "that, or name another with sweep=NAME"
            )
        words = (f"{_SAMPLER}=random", f"{_SAMPLER_SEED}={kept['seed']}")
        return kept["trials"], (*self.added, *words, f"{_N_TRIALS}={kept['trials']}")


def is_search(words: Iterable[str]) -> bool:
    """Tells whether a sweeper of Hydra's draws the jobs."""
    return any(word.lstrip("+").startswith(f"{SWEEPER}=") for word in words)


def replaced(arguments: Sequence[str], words: Sequence[str]) -> list[str]:
    """``arguments`` with ``words`` behind them, and without what those replace."""
    keys = {word.partition("=")[0] for word in words}
    return [*(a for a in arguments if a.lstrip("+").partition("=")[0] not in keys), *words]


def conclusion(folder: Path, search: Search) -> list[str]:
    """Returns the result of the search in ``folder``: best trial, how to repeat it, its cost."""
    from fl_app.run.load import load_runs

    runs = load_runs(folder).runs
    ended = [(i, *compared_score(run.metrics)) for i, run in enumerate(runs, 1) if run.metrics]
    scored = [(i, score, value) for i, score, value in ended if value is not None]
    if not scored:
        return ["best:  none; no trial has an accuracy"]
    number, score, best = max(scored, key=lambda each: each[2])
    run = runs[number - 1]
    data = run.config["federation"]["score"]
    named = label_of(score)
    found = [f"best:  trial {number} of {len(runs)}, {named} {best:.3f} on {data} data"]
    if data == "test":
        found.append(f"note:  it was chosen on test data, so that its {named} there flatters")
    words = [word for word in run.overrides if not word.startswith(("privacy.search", "hydra"))]
    again = shlex.join([*replaced(words, ["federation.score=test"])])
    found.append(f"again: murmur {again}")
    if not search.is_charged:
        return [*found, f"note:  {_NOT_COUNTED}"]
    stated = statement(folder)
    replace_file(folder / "search.txt", ("\n".join(stated) + "\n").encode())
    kept = f"model: {shown_path(folder / run.name)}, the only one that may be published"
    return [found[0], kept, *stated]


def statement(folder: Path) -> list[str]:
    """Returns the cost of keeping the best trial of the search in ``folder``, for people."""
    from fl_app.run.load import load_runs
    from murmur.privacy.accounting import Threat, View
    from murmur.privacy.accounting.best_of import (
        DISTRIBUTION,
        THEOREM,
        epsilon_of_all,
        epsilon_of_best,
    )
    from murmur.privacy.events import event_from_dict
    from murmur.privacy.statement_text import THREATS

    drawn = json.loads((folder / "search.json").read_text(encoding="utf-8"))
    mean = drawn["mean"]
    done = [run for run in load_runs(folder).runs if run.statement is not None and run.metrics]
    if len(done) < drawn["trials"]:
        number = f"{len(done)} of {pluralize(drawn['trials'], 'trial')}"
        verb = "is" if len(done) == 1 else "are"
        said = f"not stated yet: {number} {verb} finished; the same command goes on"
        return [f"ε of the search: {said}"]
    first = done[0].statement
    assert first is not None
    doubts = {doubt for run in done if run.statement for doubt in run.statement.doubts}
    if doubts:
        return [f"ε of the search: void, rely on none: {'; '.join(sorted(doubts))}"]
    released: dict[str, list[list[Any]]] = {}
    for run in done:
        by_threat: dict[str, list[Any]] = {}
        text = (folder / run.name / "released.json").read_text(encoding="utf-8")
        for each in json.loads(text):
            by_threat.setdefault(each["threat"], []).append(event_from_dict(each["event"]))
        for threat, events in by_threat.items():
            released.setdefault(threat, []).append(events)
    main = first.guarantees[0]
    source = released.get(Threat.CENTRAL, released[main.threat])
    view = View(Threat.CENTRAL, first.adjacency, first.unit, None)
    best = epsilon_of_best(source, mean, first.delta, view)
    of_one = max(run.statement.guarantees[0].stated for run in done if run.statement)
    lines = [
        f"ε of the search: {format_epsilon(best)} against {THREATS[Threat.CENTRAL]}, "
        f"δ = {first.delta:g}; of one trial: {format_epsilon(of_one)} against {main.adversary}",
        f"by:    {THEOREM}; number of trials: {DISTRIBUTION}, mean {mean}",
        "holds if: only the best trial's model is published, and nothing of the others; no setting "
        "that could have been drawn releases more than those that were; scores are of data that no "
        "client has" + "".join(f"; {assumption}" for assumption in dict.fromkeys(main.assumptions)),
    ]
    for threat, runs in released.items():
        if threat == Threat.CENTRAL:
            continue
        view = View(Threat(threat), first.adjacency, first.unit, None)
        spent = format_epsilon(epsilon_of_all(runs, first.delta, view))
        lines.append(
            f"ε of all {pluralize(len(runs), 'trial')}: {spent} against {THREATS[Threat(threat)]}, "
            "which sees each of them"
        )
    return lines


def _typed(words: Iterable[str]) -> dict[str, str]:
    """Key -> value of overrides."""
    pairs = (word.lstrip("+").partition("=") for word in words)
    return {key: value for key, _, value in pairs}


def _trials(typed: dict[str, str]) -> int | None:
    """How many trials the command asks for; None where its sweeper or sampler decides."""
    if typed[SWEEPER] != "optuna" or typed.get(_SAMPLER) == "grid":
        return None
    said = typed.get(_N_TRIALS, str(TRIALS))
    return int(said) if said.isdigit() else None


def _require_chargeable(typed: dict[str, str], base: DictConfig, trials: int | None) -> None:
    """ConfigError unless trials are drawn alike, independently, and their number at random."""
    if typed[SWEEPER] != "optuna":
        raise ConfigError(
            f"{SWEEPER}={typed[SWEEPER]}: privacy.search=charged draws trials itself; use "
            f"{SWEEPER}=optuna"
        )
    if typed.get(_SAMPLER, "random") != "random":
        raise ConfigError(
            f"{_SAMPLER}={typed[_SAMPLER]}: with privacy.search=charged no trial may depend on "
            "others; leave it out (random)"
        )
    if _SAMPLER_SEED in typed:
        raise ConfigError(
            f"{_SAMPLER_SEED}={typed[_SAMPLER_SEED]}: privacy.search=charged draws it; leave it out"
        )
    if not trials:
        raise ConfigError(
            f"{_N_TRIALS}={typed.get(_N_TRIALS)}: must be 1 or more; privacy.search=charged draws "
            "the number of trials, and this is its mean"
        )
    if base.privacy.delta <= 0 or not math.isfinite(base.privacy.epsilon):
        raise ConfigError(
            "privacy.search=charged: there is nothing to count without protection, or with "
            "privacy.delta=0; set a finite privacy.epsilon, and a delta"
        )
