"""``clip="adaptive"``: the norm follows the clients' changes, and the charge follows nothing."""

import math
from dataclasses import replace

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg
from numpy.testing import assert_allclose

from murmur.flower import private
from murmur.flower.ask import Ask
from murmur.flower.privacy_settings import BIT_WEIGHT, adaptive_clipping
from murmur.flower.server import Private
from murmur.privacy.ledger import Ledger
from murmur.privacy.mechanisms.clipping import CLIP_STEPS
from murmur.privacy.mechanisms.distributed_gaussian import DistributedGaussian
from murmur.round.task import REFUSED
from tests.murmur.flower.nodes import POLICY, Nodes, app_of, record, without_noise

ADAPTIVE = adaptive_clipping()

BUDGET = {"epsilon": 8.0, "delta": 1e-5}
MODEL = {"w": np.zeros((3, 4))}
NODES = 8


def of_length(lengths):
    """Clients whose changes have these lengths, in directions of their own."""

    def train(place):
        step = np.random.default_rng(place).normal(size=(3, 4))
        step *= lengths[place] / np.linalg.norm(step)
        return lambda arrays: {"w": arrays["w"] + step}

    return train


def asked_clips(nodes):
    """Notes the clipping norm of each training that nodes are sent, by its round."""
    found = {}

    def look(message, node):
        if message.metadata.message_type == "train":
            ask = Ask.in_message(message.content)
            found[ask.round] = ask.clip
        return message

    nodes.spoil = look
    return found


def started(nodes, rounds=1, clip="adaptive", **terms):
    own = private(FedAvg(), **BUDGET, clip=clip, **terms)
    return own.start(nodes, record(MODEL), num_rounds=rounds, timeout=5.0)


def test_a_rounds_norm_follows_from_how_many_were_within_the_last_one(monkeypatch):
    without_noise(monkeypatch)
    lengths = [0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5]
    nodes = Nodes(app_of(of_length(lengths)), NODES)
    clips = asked_clips(nodes)
    started(nodes, rounds=6)
    expected = {1: ADAPTIVE.norm}
    for number in range(1, 6):
        share = np.mean(np.array(lengths) <= expected[number])
        factor = math.exp(-ADAPTIVE.learning_rate * (share - ADAPTIVE.quantile))
        expected[number + 1] = expected[number] * factor
    assert list(clips) == list(expected)
    assert_allclose(list(clips.values()), list(expected.values()), rtol=1e-5)
    assert 0.25 < clips[6] < 0.45  # about the median


def test_a_model_moves_by_the_mean_of_clipped_changes_beside_the_bit(monkeypatch):
    without_noise(monkeypatch)
    lengths = [0.01 * (place + 1) for place in range(NODES)]
    metrics = {"loss": 0.25}
    nodes = Nodes(app_of(of_length(lengths), metrics=metrics), NODES)
    result = started(nodes, metrics={"loss": (0, 1)})
    steps = [of_length(lengths)(place)(MODEL)["w"] for place in range(NODES)]
    assert_allclose(result.arrays["w"].numpy(), np.mean(steps, axis=0), atol=1e-6)
    assert result.train_metrics_clientapp[1]["loss"] == pytest.approx(0.25, abs=1e-5)


def test_what_one_client_moves_is_the_pairs_length_and_the_metrics_on_top():
    clip = 0.1
    settings = private(FedAvg(), **BUDGET, clip="adaptive")._privacy_settings
    alone = math.sqrt(1 + BIT_WEIGHT**2 / 4)
    assert settings.ask("train", 1, 3).radius == pytest.approx(clip * alone)
    named = private(FedAvg(), **BUDGET, clip="adaptive", metrics={"loss": (0, 1)})
    ask = named._privacy_settings.ask("train", 1, 3)
    assert ask.radius == pytest.approx(clip * math.hypot(alone, 0.5))
    assert ask.mechanism.sensitivity == 2 * CLIP_STEPS  # replace-one: twice


@pytest.mark.parametrize("clip", [1e-30, 1e30])
def test_a_servers_norm_changes_no_charge(tmp_path, monkeypatch, clip):
    released = []
    drawn = DistributedGaussian.privatize_integers

    def noted(self, k, rng, out=None):
        released.append(np.linalg.norm(np.asarray(k, float)))
        return drawn(self, k, rng, out)

    monkeypatch.setattr(DistributedGaussian, "privatize_integers", noted)

    def charges(clip, name):
        settings = private(FedAvg(), **BUDGET, clip="adaptive")._privacy_settings
        nodes = Nodes(app_of(of_length([0.1] * NODES)), NODES, devices=tmp_path / name)
        own = Private(FedAvg(), replace(settings, clip=clip))
        own.start(nodes, record(MODEL), num_rounds=2, timeout=5.0)
        found = []
        for place in range(NODES):
            with Ledger(tmp_path / name / str(place) / "ledger.sqlite", create=False) as ledger:
                entries = [entry for entry in ledger.entries() if entry.kind == "charge"]
                found.append([(e.round, e.event.event, e.event.honest_clients) for e in entries])
        return found

    honest = charges(ADAPTIVE.norm, "honest")
    assert all(len(found) == 2 for found in honest)
    assert charges(clip, "hostile") == honest
    assert max(released) <= CLIP_STEPS


@pytest.mark.parametrize(("clip", "answers"), [(1e-30, 0), (1e30, 0), (ADAPTIVE.norm, 1)])
def test_a_norm_outside_an_owners_bound_is_refused_and_costs_nothing(tmp_path, clip, answers):
    for place in range(NODES):
        folder = tmp_path / "devices" / str(place)
        folder.mkdir(parents=True)
        (folder / "policy.yaml").write_text(f"{POLICY}clip: {{min: 0.001, max: 10}}\n")
    settings = private(FedAvg(), **BUDGET, clip="adaptive")._privacy_settings
    nodes = Nodes(app_of(of_length([0.1] * NODES)), NODES, devices=tmp_path / "devices")
    own = Private(FedAvg(), replace(settings, clip=clip))
    own.start(nodes, record(MODEL), num_rounds=1, timeout=5.0)
    for place in range(NODES):
        folder = tmp_path / "devices" / str(place)
        if answers:
            with Ledger(folder / "ledger.sqlite", create=False) as ledger:
                assert ledger.releases() == answers
        else:
            assert not (folder / "ledger.sqlite").exists()
            said = (folder / "errors.log").read_text()
            assert f"clip={clip:g}: this device's policy allows clipping norms from 0.001" in said
            assert "may change `clip` there" in said
    errors = [reply.error.reason for reply in nodes.replies if reply.has_error()]
    assert errors == [REFUSED] * (NODES - NODES * answers)


def test_the_statement_is_that_of_a_fixed_norm(tmp_path, monkeypatch):
    stated = []
    for clip in (1.0, "adaptive"):
        monkeypatch.setenv("MURMUR_RESULTS", str(tmp_path / str(clip)))
        started(Nodes(app_of(of_length([0.1] * NODES)), NODES), rounds=3, clip=clip)
        (path,) = (tmp_path / str(clip)).glob("*/privacy.txt")
        stated.append(path.read_text())
    assert stated[0] == stated[1]


def test_a_norm_is_a_number_or_adaptive():
    with pytest.raises(ValueError, match="clip='adapt': must be a number above 0, or 'adaptive'"):
        private(FedAvg(), **BUDGET, clip="adapt")
    settings = private(FedAvg(), **BUDGET, clip="adaptive")._privacy_settings
    ask = settings.ask("train", 1, 3)
    with pytest.raises(ValueError, match="bit_weight=3"):
        replace(ask, bit_weight=3.0)
    with pytest.raises(ValueError, match="an evaluation clips nothing"):
        replace(ask, purpose="evaluate", metrics=(("loss", 0.0, 1.0),))


def test_a_simulation_says_that_changes_are_far_shorter_than_the_norm(caplog, tmp_path):
    nodes = Nodes(app_of(of_length([0.01] * NODES)), NODES)
    started(nodes, rounds=2, clip=1.0)
    (said,) = [r for r in caplog.records if "a look at private data" in r.getMessage()]
    assert said.levelname == "WARNING"
    assert "changes are 0.01 long in the median, clip=1: far shorter" in said.getMessage()
    assert "clip=0.01 or clip='adaptive'" in said.getMessage()
    caplog.clear()
    with caplog.at_level("INFO"):
        started(Nodes(app_of(of_length([0.8] * NODES)), NODES), clip=1.0)
    (said,) = [r for r in caplog.records if "a look at private data" in r.getMessage()]
    assert said.levelname == "INFO"


def test_no_device_notes_how_long_its_change_was(caplog, tmp_path):
    nodes = Nodes(app_of(of_length([0.01] * NODES)), NODES, devices=tmp_path / "devices")
    started(nodes, clip=1.0)
    assert "a look at private data" not in caplog.text
    assert not list((tmp_path / "devices").rglob("length"))
