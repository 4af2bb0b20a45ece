"""How many messages a round takes, and what a server that follows the protocol is named for."""

import copy
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from murmur.flower import private
from murmur.privacy.ledger import Ledger
from murmur.round.task import AHEAD, RECORD
from tests.murmur.flower.nodes import (
    MODEL,
    POLICY,
    Nodes,
    SilentError,
    app_of,
    changed,
    record,
    without_noise,
)

BUDGET = {"epsilon": 50.0, "delta": 1e-5, "clip": 1.0}
GRANTED = POLICY.replace("no_invented_clients", "honest_server")


def started(grid, server, rounds=1, **settings):
    strategy = private(FedAvg(fraction_evaluate=0.0), **BUDGET, server=server, **settings)
    return strategy.start(grid, record(MODEL), num_rounds=rounds, timeout=0.5)


def statement(tmp_path):
    text = next((tmp_path / "murmur-results").glob("*/privacy.txt")).read_text()
    return " ".join(text.split())


def devices(tmp_path, policy, count=5):
    for place in range(count):
        folder = tmp_path / "devices" / str(place)
        folder.mkdir(parents=True)
        (folder / "policy.yaml").write_text(policy)
    return tmp_path / "devices"


class Noting(Nodes):
    """Nodes that note each message's phase of a sum, and that each is answered alike again.

    Attributes:
        noted: of which phase each message was that arrived.
        away: so many nodes are not there from the first REVEAL on.
        silent: a node whose first answers for the sum that follows are lost; None: none.
    """

    def __init__(self, *given, away=0, silent=None, **named):
        self.noted = []
        self.away = away
        self.silent = silent
        super().__init__(*given, **named)

    def get_node_ids(self):
        nodes = list(super().get_node_ids())
        if "reveal" in self.noted:
            return nodes[: len(nodes) - self.away]
        return nodes

    def _arrive(self, message, context):
        records = message.content.config_records
        place = context.node_config["partition-id"]
        again = copy.deepcopy(message)
        reply = super()._arrive(message, context)
        if RECORD in records:
            self.noted.append(records[RECORD]["phase"])
        if AHEAD in records:
            assert self.app(again, context).content == reply.content
            if place == self.silent and records[AHEAD]["round"] == 2:
                raise SilentError
        return reply


def of(grid):
    """How many messages of each phase arrived."""
    return Counter(grid.noted)


@pytest.mark.parametrize(
    ("server", "later"),
    [
        ("lying", ("share", "check", "mask", "confirm", "reveal")),
        ("honest", ("share", "mask", "reveal")),
    ],
)
def test_a_round_takes_five_messages_and_three_where_the_server_follows_the_protocol(
    monkeypatch, server, later
):
    without_noise(monkeypatch)
    grid = Noting(app_of(changed), count=4)
    result = started(grid, server, rounds=3)
    assert of(grid) == {"advertise": 4, **dict.fromkeys(later, 12)}
    base = {name: values.copy() for name, values in MODEL.items()}
    for _ in range(3):
        moved = [changed(place)(base)["weights"] for place in range(4)]
        base["weights"] = np.mean(moved, axis=0)
    assert np.allclose(result.arrays["weights"].numpy(), base["weights"], atol=1e-4)


def test_evaluations_between_trainings_are_advertised_for_as_well():
    grid = Noting(app_of(), count=4)
    own = private(FedAvg(), **BUDGET, server="honest", evaluate={"accuracy": (0, 1)})
    own.start(grid, record(MODEL), num_rounds=2, timeout=0.5)
    assert of(grid) == {"advertise": 4, "share": 16, "mask": 16, "reveal": 16}


@pytest.mark.parametrize("fraction", [0.8, 0.0])
def test_evaluations_of_others_or_of_nobody_begin_as_ever(fraction, caplog):
    grid = Noting(app_of(), count=5)
    strategy = FedAvg(fraction_evaluate=fraction, min_evaluate_nodes=int(5 * fraction))
    own = private(strategy, **BUDGET, evaluate={"accuracy": (0, 1)})
    own.start(grid, record(MODEL), num_rounds=2, timeout=0.5)
    evaluated = 2 * int(5 * fraction)
    assert of(grid)["reveal"] == 10 + evaluated and "lost" not in caplog.text
    assert of(grid)["advertise"] == of(grid)["reveal"]


def test_whoever_is_gone_when_the_next_round_comes_costs_it_a_message_and_no_more(caplog):
    grid = Noting(app_of(), count=5, away=1)
    started(grid, "lying", rounds=3)
    assert of(grid)["advertise"] == 5 + 4 and of(grid)["mask"] == 5 + 4 + 4
    assert "lost" not in caplog.text


def test_whose_advertisement_is_lost_on_its_way_is_asked_once_more_for_it(caplog):
    grid = Noting(app_of(), count=5, silent=2)
    started(grid, "lying", rounds=2)
    assert of(grid)["advertise"] == 5 + 1 and of(grid)["mask"] == 10
    assert "lost" not in caplog.text


def test_nothing_is_foreseen_after_the_last_round_nor_where_the_norm_follows_from_the_sum():
    settings = private(FedAvg(), **BUDGET)._privacy_settings
    settings = replace(settings, rounds=2)
    first, last = (settings.ask("train", number, 4) for number in (1, 2))
    assert settings.following(first) == last and settings.following(last) is None
    assert settings.following(replace(first, bit_weight=0.5)) is None


def test_a_device_takes_part_only_where_its_policy_takes_the_server_for_honest(tmp_path, caplog):
    folders = devices(tmp_path, POLICY)
    grid = Nodes(app_of(lambda place: pytest.fail("trained")), 5, folders)
    started(grid, "honest")
    assert "round 1 was lost" in caplog.text and "train" not in grid.asked
    told = (folders / "0" / "errors.log").read_text()
    assert "server=honest: must be lying" in told and "assumptions: [honest_server]" in told
    assert not (folders / "0" / "ledger.sqlite").exists()


def test_an_owner_who_grants_it_is_charged_at_the_minimum_under_that_assumption(tmp_path):
    folders = devices(tmp_path, GRANTED)
    result = started(Nodes(app_of(), 5, folders), "honest")
    assert result.arrays["weights"].data != record(MODEL)["weights"].data
    with Ledger(folders / "0" / "ledger.sqlite", create=False) as ledger:
        [charged] = ledger.events(0)
        assert "confirmed" not in [entry.kind for entry in ledger.entries()]
    assert charged.honest_clients == 3  # four of five are sure to be there, and one may collude
    assert [one.name for one in charged.event.assumptions] == ["honest_server", "honest_app"]
    said = statement(tmp_path)
    assert "Against a server that follows the protocol and sees only sums" in said
    assert "it follows the protocol (one that tells clients different things, invents" in said


def test_a_policy_for_an_honest_server_still_takes_part_against_one_that_lies(tmp_path):
    both = POLICY.replace("no_invented", "honest_server, no_invented")
    grid = Noting(app_of(), 5, devices(tmp_path, both))
    started(grid, "lying")
    assert of(grid)["confirm"] == 5
    assert "follows the protocol and" not in statement(tmp_path)


def test_server_is_lying_or_honest():
    with pytest.raises(ValueError, match=r"^server='trusted': must be one of honest, lying"):
        private(FedAvg(), **BUDGET, server="trusted")
