"""Every policy of deploy/policies lets devices take part in the runs that its README is about."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl_app.config.groups import groups
from fl_app.tools.export import export
from murmur.privacy.policy import Policy
from tests.fl_app.device.test_devices import run_devices
from tests.node_keys import openssh

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "policies"
ROW = re.compile(r"\| `(.+)` \| \[.+\]\((.+)\) \| (?:`(.+)`)? ?\|")
FEW, MANY = 3, 100
TINY = ["model=mlp", "model.hidden=[4]", "strategy.local.epochs=1"]
SMALL = {
    "dpfl_bnn": ["model.channels=[]", "model.hidden=8", "strategy.local.steps=1"],
    "class_statistics": ["features.components=9"],
    "class_moments": [],
    "votes": ["features.components=9"],
    "gradient_rounds": [],
    "clustering": TINY[1:],
    "kd_dpfl": [*TINY, "strategy.grouping.top_k=1", "strategy.labelling.epochs=1"],
}
WORST = "strategy=nbafl privacy.sensitivity=worst"
WORDS = ["federation.num_rounds=1", "federation.quorum=1.0", "federation.public=400"]


@dataclass(frozen=True)
class Run:
    """A row of the README under one variant of its policy."""

    words: str
    policy: str
    clients: int
    secure: bool

    @property
    def strategy(self) -> str:
        return self.words.partition("strategy=")[2].partition(" ")[0]


def runs() -> list[Run]:
    """Every row for few clients; for many the first row of each policy and variant."""
    found, seen = [], set()
    for words, policy, masked in ROW.findall((FOLDER / "README.md").read_text()):
        for text, secure in ((words, False), *([(f"{words} {masked}", True)] if masked else [])):
            found.append(Run(text, policy, FEW, secure))
            if (policy, secure) not in seen:
                found.append(Run(text, policy, MANY, secure))
            seen.add((policy, secure))
    return found


def variant(policy: str, clients: int, secure: bool) -> str:
    """The file's text for so many clients, with or without secure sums."""
    head, _, masked = (FOLDER / policy).read_text().partition("\n# With secure sums")
    if not secure:
        return head
    chosen = next(part for part in masked.split("\n# With secure sums") if f", {clients} " in part)
    lines = [line.removeprefix("# ") for line in chosen.splitlines()[1:] if line.startswith("# ")]
    return "\n".join([*head.rstrip().splitlines()[: -len(lines)], *lines])


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    """By number of clients: a folder with a device's files, and everybody's sizes."""
    made = {}
    for clients in (FEW, MANY):
        folder = tmp_path_factory.mktemp(f"{clients}-clients")
        # Of a strategy without features: each run here fits its own.
        words = [*WORDS, "strategy=privatekt", f"federation.num_clients={clients}"]
        export(folder, words, shards=True)
        ids = ",".join(map(str, range(clients)))
        (folder / "enrolled.txt").write_text(f"{ids} {openssh(0)}\n")
        sizes = [len(np.load(folder / f"client-{c}.npz")["labels"]) for c in range(clients)]
        made[clients] = folder, sizes
    return made


def run(people, folder, asked, policy):
    """One device hosts them all: what is asked, allowed and charged is each client's own."""
    files, sizes = people[asked.clients]
    words = [*asked.words.split(), *SMALL.get(asked.strategy, TINY)]
    return run_devices(
        files,
        folder,
        *words,
        f"federation.num_clients={asked.clients}",
        f"federation.devices.sizes={sizes}".replace(" ", ""),
        hosted=[",".join(map(str, range(asked.clients)))],
        usual=WORDS,
        policy=str(policy),
    )


def rows() -> Iterator[Any]:
    """``runs``; those of a hundred devices take a quarter of a minute each."""
    for asked in runs():
        marks = [pytest.mark.long] * (asked.clients == MANY)
        yield pytest.param(asked, marks=marks, id=f"{asked.words}, {asked.clients} clients")


@pytest.mark.parametrize("asked", rows())
def test_devices_under_a_policy_answer_the_runs_that_it_is_for(people, tmp_path, asked):
    policy = tmp_path / "policy.yaml"
    policy.write_text(variant(asked.policy, asked.clients, asked.secure))
    assert Policy.load(policy).defect is None
    row = run(people, tmp_path, asked, policy).rows()[-1]
    # KD-DPFL's large client labels, and trains no model.
    assert row["answered"] == asked.clients - (asked.strategy == "kd_dpfl"), row["failed"]


@pytest.mark.parametrize("words", ["strategy=privatekt privacy.epsilon=5", WORST])
def test_the_example_allows_what_it_names(people, tmp_path, words):
    policy = FOLDER.parent / "policy.example.yaml"
    done = run(people, tmp_path, Run(words, str(policy), FEW, False), policy)
    assert done.rows()[-1]["answered"] == FEW, done.rows()[-1]["failed"]


def test_there_is_a_policy_for_every_strategy_that_a_server_may_choose():
    for_simulations = {"centralised", "local_only"}
    assert {asked.strategy for asked in runs()} == set(groups()["strategy"]) - for_simulations
    assert {asked.policy for asked in runs()} == {path.name for path in FOLDER.glob("*.yaml")}
