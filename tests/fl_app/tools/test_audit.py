"""`murmur audit`: never above the proof, close to it where the mechanism is tight, no fake."""

import json

import numpy as np
import pytest

from clients.privatekt import PrivateKTClient
from fl_app.cli import main as murmur
from fl_app.config.composition import compose
from fl_app.device.node import Node
from fl_app.device.node_settings import NodeSettings
from fl_app.run.experiment import Experiment
from fl_app.tools.audit import attack, first_task, main, node_data
from privacy.accounting import epsilon
from privacy.mechanisms import RandomizedResponse
from privacy.noise import NoiseGenerator
from tests.fl_app.running import SMALL, run_inline

SETTINGS = ["privacy.epsilon=3", "strategy.K=1", "strategy.local.epochs=5"]
RUNS = 20_000


@pytest.fixture
def parts(tmp_path):
    config = compose([*SMALL, *SETTINGS])
    strategy = Experiment(config).strategy
    node = Node(config, NodeSettings.simulation(tmp_path))
    proven = epsilon(strategy.release_event(), 0.0).epsilon
    return node.client, first_task(strategy), node_data(node), proven


def test_measured_epsilon_of_the_client_lies_between_half_and_all_of_the_proven(parts):
    client, task, data, proven = parts
    assert proven == pytest.approx(3.0)
    measured = attack(client, task, data, RUNS, 0.0).epsilon
    assert proven / 2 < measured <= proven


def test_client_with_half_the_noise_is_caught(parts, monkeypatch):
    client, task, data, proven = parts

    def careless(self, update, task, noise):
        return RandomizedResponse(2 * 3.0, 10).privatize(update, noise)

    monkeypatch.setattr(PrivateKTClient, "privatize", careless)
    assert attack(client, task, data, RUNS, 0.0).epsilon > proven


def test_client_that_forgets_to_randomise_is_caught(parts, monkeypatch):
    client, task, data, proven = parts
    monkeypatch.setattr(
        PrivateKTClient, "privatize", lambda self, update, task, noise: update.astype(np.uint8)
    )
    assert attack(client, task, data, RUNS, 0.0).epsilon > proven


def test_client_whose_noise_repeats_is_caught(parts, monkeypatch):
    client, task, data, proven = parts

    def predictable(self, update, task, noise):
        return RandomizedResponse(3.0, 10).privatize(update, NoiseGenerator.seeded("always"))

    monkeypatch.setattr(PrivateKTClient, "privatize", predictable)
    assert attack(client, task, data, RUNS, 0.0).epsilon > proven


def test_audit_of_a_run_is_written_into_its_statement(tmp_path, capsys):
    run = run_inline(tmp_path / "run", *SETTINGS)
    assert main([str(run.path), "--runs", "2000"]) == 0
    assert "measured ε  at least" in capsys.readouterr().out
    guarantee = json.loads((run.path / "privacy.json").read_text())["guarantees"][0]
    assert 0 < guarantee["measured"] <= guarantee["proven_per_round"]
    assert "by attack" in (run.path / "privacy.txt").read_text()


def test_bad_words_get_one_error(capsys):
    assert murmur(["audit", "privacy.epsilonn=1"]) == 2
    assert "privacy.epsilonn=1" in capsys.readouterr().err
