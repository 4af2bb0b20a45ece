"""Whole runs of tiny clients: the result does not depend on how many train at once."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from fl_app.run import hosts
from murmur_kernels import lockstep
from murmur_kernels.lockstep import Lockstep
from tests.fl_app.engines.test_engines import comparable, weights
from tests.fl_app.running import run_inline

TINY = ["model=linear", "federation.num_clients=150", "federation.public=0"]


@pytest.fixture
def in_lockstep(monkeypatch):
    """How many clients each group had that trained in lockstep, also in trials."""
    trained = []
    together = Lockstep._train
    monkeypatch.setattr(
        Lockstep, "_train", lambda *given: trained.append(len(given[3])) or together(*given)
    )
    monkeypatch.setattr(lockstep, "TRIED_AFTER", 8)
    return trained


@pytest.mark.parametrize("words", [["strategy=fedavg", "privacy=none"], ["strategy=dp_fedavg"]])
def test_result_does_not_depend_on_how_many_tiny_clients_train_at_once(
    tmp_path, monkeypatch, in_lockstep, words
):
    monkeypatch.setattr(hosts, "BLOCK_CLIENTS", 1)
    reference = run_inline(tmp_path / "one", *words, *TINY, workers=1)
    for block, workers in ((64, 1), (64, 2), (1_024, 1), (1_024, 2), (1_024, 8)):
        monkeypatch.setattr(hosts, "BLOCK_CLIENTS", block)
        in_lockstep.clear()
        other = run_inline(tmp_path / f"{block}-{workers}", *words, *TINY, workers=workers)
        assert in_lockstep, "lockstep was not even tried"
        assert comparable(other) == comparable(reference), (block, workers)
        assert weights(other.path) == weights(reference.path), (block, workers)


def test_tiny_clients_train_in_lockstep_where_this_processor_has_equal_bits_for_many(
    tmp_path, monkeypatch, in_lockstep
):
    """As if it had; else nothing would be trained in lockstep where it has not."""
    monkeypatch.setattr(hosts, "BLOCK_CLIENTS", 1)
    words = ["strategy=fedavg", "privacy=none", *TINY]
    alone = load_file(run_inline(tmp_path / "alone", *words).path / "model/model.safetensors")
    monkeypatch.setattr(hosts, "BLOCK_CLIENTS", 1_024)
    monkeypatch.setattr(Lockstep, "_try", lambda *_: True)
    together = load_file(run_inline(tmp_path / "together", *words).path / "model/model.safetensors")
    assert sum(in_lockstep) >= 150
    for name in alone:
        np.testing.assert_allclose(together[name], alone[name], rtol=1e-3, atol=1e-4)
