"""A binary network's gradients by hand are autograd's."""

from functools import partial

import numpy as np
import pytest

from murmur.algorithms.dpfl_bnn import network
from murmur.learning.models import InputShape
from murmur.learning.training.trainer import Trainer
from murmur_kernels import dpfl_bnn

SHAPE: InputShape = (1, 8, 8)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("channels", [(), (3,)])
def test_a_binary_network_trains_by_autograd_as_by_hand(monkeypatch, channels, optimizer):
    rng = np.random.default_rng(3)
    images = rng.random((40, *SHAPE), np.float32)
    labels = rng.integers(10, size=40)
    ended = []
    for kernels in (dpfl_bnn, None):
        monkeypatch.setattr(network, "kernels", lambda name, found=kernels: found)
        trainer = Trainer(partial(network.bnn, channels=channels, hidden=6), SHAPE, 10)
        assert isinstance(trainer._backend, network.BinaryAutograd) is (kernels is None)
        trainer.load(trainer.initial(np.random.default_rng(1)))
        trainer.train(
            images,
            labels,
            rng=np.random.default_rng(2),
            steps=3,
            batch_size=20,
            lr=0.01,
            optimizer=optimizer,
        )
        ended.append((trainer.parameters(), trainer.flat.buffers()))
    for by_hand, by_autograd in zip(*ended, strict=True):
        np.testing.assert_allclose(by_autograd, by_hand, atol=1e-4)
