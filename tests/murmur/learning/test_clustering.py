"""The clustering autoencoder: its gradient, its targets, its place in the house's trainer."""

import numpy as np
import pytest
import torch

from clients.base import ClientSetup, LocalData, Task, TaskError
from clients.clustering import ClusteringClient
from clients.local_training import LocalSgd
from murmur.learning.clustering import (
    assignments,
    autoencoder,
    clustering_accuracy,
    clustering_model,
    latents,
    place_centroids,
    reconstruction_loss,
    target_distribution,
)
from murmur.learning.codec import WeightCodec
from murmur.learning.models import mlp
from murmur.learning.training.trainer import Trainer
from murmur.privacy.budget import Budget
from murmur.privacy.protection import Unprotected
from murmur.round.client_state import ClientState

K = 3


def blobs(count=90):
    """Three kinds of images, 1×4×4, each bright in a corner of its own."""
    rng = np.random.default_rng(0)
    kinds = np.arange(count) % K
    images = 0.1 * rng.random((count, 1, 4, 4), dtype=np.float32)
    for kind, (row, column) in enumerate([(0, 0), (0, 2), (2, 0)]):
        images[kinds == kind, 0, row : row + 2, column : column + 2] += 0.9
    return images, kinds


@pytest.fixture
def trainer():
    it = Trainer(
        lambda input_shape, num_classes: autoencoder(
            input_shape, num_classes, hidden=[12], latent=2
        ),
        (1, 4, 4),
        K,
    )
    it.load(it.initial(np.random.default_rng(0)))
    return it


def fit(trainer, images, weight=0.0, epochs=60):
    clustering_model(trainer).clustering_weight = weight
    soft = assignments(trainer, images)
    trainer.train(
        images,
        target_distribution(soft, soft.mean(axis=0)),
        rng=np.random.default_rng(1),
        epochs=epochs,
        batch_size=30,
        lr=0.01,
        optimizer="adam",
        soft_targets=True,
    )


def test_outputs_are_soft_assignments_of_the_students_kernel(trainer):
    images, _ = blobs(7)
    centroids = trainer.flat.state_dict()["centroids"].numpy()
    kernel = 1 / (1 + ((latents(trainer, images)[:, None] - centroids) ** 2).sum(axis=2))
    expected = kernel / kernel.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(assignments(trainer, images), expected, atol=1e-6)


def test_backends_gradient_is_that_of_the_loss(trainer):
    images, _ = blobs(6)
    model = clustering_model(trainer)
    model.clustering_weight = 0.7
    target = target_distribution(assignments(trainer, images), np.full(K, 1 / K))
    found = trainer._backend.gradient(torch.tensor(images), torch.tensor(target)).numpy().copy()
    start, step = trainer.parameters(), 1e-2

    def loss(parameters):
        trainer.load(parameters.astype(np.float32))
        soft = assignments(trainer, images)
        kl = -(target * np.log(soft)).sum(axis=1).mean()
        return reconstruction_loss(trainer, images) + 0.7 * kl

    for place in np.argsort(-np.abs(found))[:5]:
        shift = np.zeros_like(start)
        shift[place] = step
        slope = (loss(start + shift) - loss(start - shift)) / (2 * step)
        assert found[place] == pytest.approx(slope, rel=0.03)


def test_targets_sharpen_and_even_out():
    soft = np.array([[0.6, 0.4, 0.0], [0.5, 0.5, 0.0]])
    target = target_distribution(soft, np.array([1 / 3, 1 / 3, 1 / 3]))
    assert target[0, 0] == pytest.approx(0.36 / 0.52)
    np.testing.assert_allclose(target.sum(axis=1), 1, rtol=1e-6)
    rare = target_distribution(soft, np.array([0.8, 0.1, 0.1]))
    assert rare[1, 1] > 0.8


def test_pretraining_then_k_means_then_clustering_finds_the_kinds(trainer):
    images, kinds = blobs()
    before = reconstruction_loss(trainer, images)
    fit(trainer, images)
    assert reconstruction_loss(trainer, images) < 0.5 * before
    trainer.load(place_centroids(trainer, images, np.random.default_rng(2)))
    sure = assignments(trainer, images).max(axis=1).mean()
    fit(trainer, images, weight=0.1, epochs=20)
    found = assignments(trainer, images)
    assert clustering_accuracy(found.argmax(axis=1), kinds) > 0.95
    assert found.max(axis=1).mean() > sure


def test_parameters_travel_as_any_other_weights(trainer):
    codec = WeightCodec(trainer.num_parameters)
    values = codec.mean(codec.expand(codec.pack(trainer.parameters()), 3), 3)
    np.testing.assert_allclose(values, trainer.parameters(), atol=1e-8)


def test_accuracy_matches_clusters_to_classes():
    labels = np.array([0, 0, 1, 1, 2, 2])
    assert clustering_accuracy((labels + 1) % 3, labels) == 1
    assert clustering_accuracy(np.zeros(6, np.int64), labels) == pytest.approx(1 / 3)


def test_other_models_and_wrong_sizes_are_refused():
    plain = Trainer(mlp, (1, 4, 4), K)
    with pytest.raises(ValueError, match=r"^model=Network.*model=clustering"):
        clustering_model(plain)
    with pytest.raises(ValueError, match="latent=0"):
        autoencoder((1, 4, 4), K, latent=0)


def client_of(trainer, images, folder):
    setup = ClientSetup(trainer, images, None, Budget(np.inf, 1e-5), 1, ClientState(folder))
    return ClusteringClient(
        setup,
        local=LocalSgd(epochs=1, batch_size=10, learning_rate=0.01),
        pretrain_rounds=1,
        clustering_weight=0.1,
        protection=Unprotected,
    )


def test_client_uses_no_labels_and_checks_the_servers_frequencies(trainer, tmp_path):
    images, kinds = blobs(30)
    client = client_of(trainer, images, tmp_path)
    model = trainer.initial(np.random.default_rng(0))
    even = {"frequencies": np.full(K, 1 / K)}
    data = LocalData(images, kinds, np.arange(20))
    other = LocalData(images, np.zeros_like(kinds), np.arange(20))
    task = Task(2, 0, model, even, {})
    assert np.array_equal(client.train(task, data), client.train(task, other))
    assert not np.array_equal(
        client.train(task, data), client.train(Task(1, 0, model, even, {}), data)
    )
    for bad in (np.zeros(K), np.full(K + 1, 0.1), np.full(K, np.nan), np.full(K, 1, np.float32)):
        with pytest.raises(TaskError, match=r"^frequencies"):
            client.event(Task(2, 0, model, {"frequencies": bad}, {}))


def test_frequencies_under_which_some_images_have_no_targets_are_answered_all_the_same(
    trainer, tmp_path
):
    """Else a server would see, in a refusal, which side of a border some image lies on."""
    images, kinds = blobs(30)
    client = client_of(trainer, images, tmp_path)
    model = trainer.initial(np.random.default_rng(0))
    data = LocalData(images, kinds, np.arange(20))
    trainer.load(model)
    border = np.median(assignments(trainer, images[:20])[:, 0])
    smallest = border**2 / np.finfo(float).max
    task = Task(2, 0, model, {"frequencies": np.array([smallest, 1.0, 1.0])}, {})
    client.event(task)
    assert not client.train(task, data).any()
