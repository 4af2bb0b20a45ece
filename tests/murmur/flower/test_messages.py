"""How many messages a round takes, and what a server that follows the protocol is named for."""

from collections import Counter

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from murmur.flower import private
from murmur.privacy.ledger import Ledger
from murmur.round.task import RECORD
from tests.murmur.flower.nodes import MODEL, POLICY, Nodes, app_of, changed, record, without_noise

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


def phases(grid):
    """How many messages of each phase arrived at all nodes together."""
    return Counter(phase for phase in grid.phases if phase)


class Noting(Nodes):
    """Nodes that note of which phase each message is; None: of none."""

    def __init__(self, *given, **named):
        self.phases = []
        super().__init__(*given, **named)

    def _arrive(self, message, context):
        records = message.content.config_records
        self.phases.append(records[RECORD]["phase"] if RECORD in records else None)
        return super()._arrive(message, context)


def test_a_server_that_follows_the_protocol_gets_the_same_sum_by_fewer_messages(
    tmp_path, monkeypatch
):
    without_noise(monkeypatch)
    models = {}
    for server in ("lying", "honest"):
        grid = Noting(app_of(changed), count=5)
        models[server] = started(grid, server).arrays
        both = {"check": 5, "confirm": 5} if server == "lying" else {}
        assert phases(grid) == {"advertise": 5, "share": 5, "mask": 5, "reveal": 5, **both}
    for name, array in models["lying"].items():
        assert np.array_equal(array.numpy(), models["honest"][name].numpy())


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
    assert phases(grid)["confirm"] == 5
    assert "follows the protocol and" not in statement(tmp_path)


def test_server_is_lying_or_honest():
    with pytest.raises(ValueError, match=r"^server='trusted': must be one of honest, lying"):
        private(FedAvg(), **BUDGET, server="trusted")
