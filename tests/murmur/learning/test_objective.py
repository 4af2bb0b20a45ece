"""Tasks without classes: targets, losses and their gradients, scores."""

from functools import partial

import numpy as np
import pytest
import torch

from murmur.algorithms.gradient_rounds import gradient
from murmur.learning.metrics import chance
from murmur.learning.models import mlp
from murmur.learning.objective import CLASSIFICATION, Objective
from murmur.learning.training.dpsgd import PerSampleGradients
from murmur.learning.training.losses import loss, residuals
from murmur.learning.training.trainer import Trainer
from murmur.learning.training.trial import require_separate_examples, try_out

PRICE = Objective("regression", 100.0, 300.0)
LABELS = Objective("multilabel")
OUTPUTS = {"regression": 1, "multilabel": 3}


def labels_of(objective, count, rng):
    if objective.kind == "regression":
        return rng.uniform(50, 350, count).astype(np.float32)
    return rng.integers(0, 2, (count, 3)).astype(np.float32)


def trainer_of(objective, **more):
    model = partial(mlp, hidden=[4])
    trainer = Trainer(model, (1, 2, 2), OUTPUTS[objective.kind], objective=objective, **more)
    trainer.load(trainer.initial(np.random.default_rng(1)))
    return trainer


def test_a_target_is_the_label_within_the_public_range():
    targets = PRICE.targets(np.array([100, 200, 300, 0, 999], np.float32), 1)
    assert targets[:, 0].tolist() == [-1, 0, 1, -1, 1]
    assert PRICE.in_units(targets)[:3].tolist() == [100, 200, 300]


@pytest.mark.parametrize("objective", [PRICE, LABELS, CLASSIFICATION], ids=lambda o: o.kind)
def test_residuals_are_the_gradient_of_the_loss(objective):
    rng = torch.Generator().manual_seed(0)
    outputs = torch.randn(5, 3, generator=rng, requires_grad=True)
    targets = torch.rand(5, 3, generator=rng)
    if objective.has_classes:
        targets = targets / targets.sum(dim=1, keepdim=True)
    (found,) = torch.autograd.grad(loss(objective, outputs, targets), outputs)
    assert torch.allclose(residuals(objective, outputs.detach(), targets) / 5, found, atol=1e-6)


@pytest.mark.parametrize("objective", [PRICE, LABELS], ids=lambda o: o.kind)
def test_training_lowers_the_task_s_own_loss(objective):
    rng = np.random.default_rng(0)
    images = rng.random((60, 1, 2, 2), np.float32)
    labels = labels_of(objective, 60, rng)
    trainer = trainer_of(objective)
    before = objective.scores(trainer.logits(images), labels)["loss"]
    trainer.train(images, labels, rng=rng, batch_size=10, lr=0.1, epochs=20)
    assert objective.scores(trainer.logits(images), labels)["loss"] < before


@pytest.mark.parametrize("objective", [PRICE, LABELS], ids=lambda o: o.kind)
def test_no_kernel_and_no_stack_trains_without_classes(objective):
    trainer = trainer_of(objective, exact_stack=True)
    assert trainer.stack is None
    try_out(trainer)
    require_separate_examples(trainer)  # Opacus's gradients are those of the task's loss
    rng = np.random.default_rng(0)
    images = rng.random((8, 1, 2, 2), np.float32)
    targets = torch.from_numpy(objective.targets(labels_of(objective, 8, rng), trainer.num_classes))
    before = trainer.parameters()
    module = trainer.flat.module
    value = loss(objective, module(torch.from_numpy(images)), targets)
    wanted = torch.autograd.grad(value, list(module.parameters()))
    own = PerSampleGradients(trainer.flat, objective)
    samples = own.samples(torch.from_numpy(images), targets, torch.ones(8, 1))
    for (name, _), whole in zip(module.named_parameters(), wanted, strict=True):
        assert torch.allclose(samples[name].mean(dim=0), whole.flatten(), atol=1e-5)
    assert np.array_equal(before, trainer.parameters())


@pytest.mark.parametrize("objective", [PRICE, LABELS], ids=lambda o: o.kind)
def test_gradient_rounds_follow_the_task_s_loss(objective):
    rng = np.random.default_rng(0)
    features = rng.random((12, 4))
    labels = labels_of(objective, 12, rng)
    outputs = OUTPUTS[objective.kind]
    weights = rng.normal(size=(5, outputs))
    found = gradient(features, labels, weights, 0.3, 1.0, objective=objective)
    w = torch.from_numpy(weights).requires_grad_()
    logits = 0.3 * w[0] + torch.from_numpy(features) @ w[1:]
    value = loss(objective, logits, torch.from_numpy(objective.targets(labels, outputs)).double())
    (wanted,) = torch.autograd.grad(value, w)
    assert np.allclose(found, -wanted.numpy(), atol=1e-6)


def test_scores_of_numbers_are_in_the_label_s_unit():
    labels = np.array([100, 200, 300], np.float32)
    scores = PRICE.scores(np.array([[-1], [0], [0.9]], np.float32), labels)
    assert scores["rmse"] == pytest.approx(10 / np.sqrt(3), rel=1e-6)
    assert scores["mae"] == pytest.approx(10 / 3, rel=1e-6)
    assert scores["r2"] == pytest.approx(1 - 100 / 20_000, rel=1e-6)
    assert np.isnan(PRICE.scores(np.zeros((2, 1), np.float32), labels[[0, 0]])["r2"])


def test_scores_of_labels_are_scikit_learn_s():
    from sklearn.metrics import f1_score, roc_auc_score

    rng = np.random.default_rng(0)
    logits = rng.normal(size=(50, 3)).astype(np.float32)
    labels = labels_of(LABELS, 50, rng)
    scores = LABELS.scores(logits, labels)
    assert scores["accuracy"] == pytest.approx(np.mean((logits > 0) == labels))
    assert scores["auc"] == pytest.approx(roc_auc_score(labels, logits, average="macro"))
    assert scores["f1"] == pytest.approx(f1_score(labels, logits > 0, average="micro"))
    labels[:, 0] = 1  # a label that all have says nothing of ranks
    assert LABELS.scores(logits, labels)["auc"] == pytest.approx(
        roc_auc_score(labels[:, 1:], logits[:, 1:], average="macro")
    )
    assert chance(labels) == pytest.approx(np.maximum(labels.mean(0), 1 - labels.mean(0)).mean())


def test_labels_of_another_shape_or_type_are_refused():
    with pytest.raises(ValueError, match="labels=int64"):
        PRICE.targets(np.zeros(3, np.int64), 1)
    with pytest.raises(ValueError, match="task=multilabel"):
        LABELS.targets(np.zeros((3, 2), np.float32), 3)
    with pytest.raises(ValueError, match="num_classes=1"):
        Trainer(partial(mlp, hidden=[]), (1, 2, 2), 1, objective=LABELS)
