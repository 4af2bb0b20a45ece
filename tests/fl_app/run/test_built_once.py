"""A process builds data, model, strategy and client half of a run once, whatever it runs."""

from collections import Counter
from contextlib import contextmanager

import numpy as np
import pytest
from flwr.app import Context, RecordDict

import clients.base
import murmur.learning.data.datasets
import strategies.base
from fl_app.cli import main
from fl_app.client_app import app as client_app
from fl_app.config.overrides import to_run_config
from fl_app.device.data import OwnData
from fl_app.engines.inline import InlineGrid, identify
from fl_app.run import hosts, population
from fl_app.run.prepare import prepare
from fl_app.server_app import app as server_app
from fl_app.sweep.sweep import Job, SweepFolder, run_job
from tests.fl_app.device_under_test import MINE, Device, model_size, question

WORDS = [
    *("engine=inline", "strategy=fedavg", "protection=distributed", "privacy.epsilon=8"),
    *("federation.num_clients=5", "federation.num_rounds=2", "tracking=none"),
]
ONCE = {"data": 1, "model": 1, "strategy": 1, "client half": 1}


@pytest.fixture
def built(monkeypatch):
    """Counts what is constructed, by what it is, from a process as good as new."""
    counts = Counter()

    def count(owner, name, what):
        plainly = getattr(owner, name)

        def counted(*arguments, **named):
            counts[what] += 1
            return plainly(*arguments, **named)

        monkeypatch.setattr(owner, name, counted)

    for cache in (population._dataset, population._images, population._population):
        cache.cache_clear()
    hosts._local.__dict__.clear()
    count(murmur.learning.data.datasets, "digits", "data")
    count(OwnData, "_found", "data")
    count(hosts, "Trainer", "model")  # not that of the model's folder, which a user could open
    count(strategies.base.CohortStrategy, "__init__", "strategy")
    count(clients.base.Client, "__init__", "client half")
    return counts


def test_murmur(built, tmp_path):
    assert main([*WORDS, f"run_dir={tmp_path / 'run'}"]) == 0
    assert built == ONCE


def test_a_job_of_a_sweep(built, tmp_path):
    accuracy = run_job(Job.of(WORDS, tmp_path), SweepFolder(tmp_path / "sweep"), tmp_path)
    assert accuracy > 0
    assert built == ONCE


def test_the_apps_of_flwr_run_each_in_its_process(built, tmp_path):
    identify()
    words = to_run_config([*WORDS, f"run_dir={tmp_path / 'run'}"])
    of_client = Counter()

    @contextmanager
    def counted_apart():
        """Counts for the ClientApp what is constructed in this context."""
        before = built.copy()
        yield
        of_client.update(built - before)
        built.subtract(built - before)

    def answer(message, context):
        with counted_apart():
            return client_app(message, context)

    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=words)
    server_app(InlineGrid(answer, words, 2), context)
    assert built == ONCE
    assert of_client == {"model": 1, "client half": 1}  # its data this process has read


def test_a_device(built, tmp_path):
    device = Device(tmp_path)
    words = device.words("strategy.K=3", "strategy.local.epochs=1", "privacy.epsilon=200")
    asked = {"indices": np.arange(3)}
    model = np.zeros(model_size(words), np.float32)
    built.clear()
    for number in (1, 2):
        reply = device.ask(words, question(model, round=number, arrays=asked), fresh=False)
        assert not reply.has_error(), device.log()
    assert len(device.charged()) == 2 * len(MINE), device.log()
    assert built == {"data": len(MINE), "model": 1, "client half": 1}


def test_a_run_is_started_once(tmp_path):
    run = prepare([*WORDS, f"run_dir={tmp_path / 'run'}"])
    run.run()
    with pytest.raises(RuntimeError, match="started before"):
        run.run()
