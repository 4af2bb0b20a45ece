"""Weights that are given stay; PyTorch's own random layers are repeatable; trial of a model."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from murmur.learning.pretrained import torchvision_model
from murmur.learning.training.dpsgd import SENSITIVITY, DpSgd, PerSampleGradients
from murmur.learning.training.parameters import FlatModel
from murmur.learning.training.stack import stackable
from murmur.learning.training.trainer import Trainer
from murmur.learning.training.trial import require_separate_examples, try_out

SHAPE, CLASSES = (1, 4, 4), 3


class Net(nn.Module):
    """A frozen layer at 0.5, batch normalisation in evaluation mode, dropout and a head."""

    def __init__(self, drop=0.0, norm=None, classes=CLASSES):
        super().__init__()
        self.body = nn.Linear(16, 6)
        nn.init.constant_(self.body.weight, 0.5)
        self.body.requires_grad_(False)
        self.norm = nn.BatchNorm1d(6, affine=False).eval() if norm is None else norm
        self.drop = nn.Dropout(drop)
        self.head = nn.Linear(6, classes)

    def forward(self, images):
        return self.head(self.drop(torch.relu(self.norm(self.body(images.flatten(1))))))


class Plain(nn.Module):
    """Two linear layers, as ``murmur.learning.pretrained`` makes its models."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.body = nn.Linear(16, 6)
        self.head = nn.Linear(6, num_classes)

    def forward(self, images):
        return self.head(torch.tanh(self.body(images.flatten(1))))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4, 5, num_layers=2, dropout=0.5, batch_first=True)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, images):
        return self.head(self.rnn(images[:, 0])[0][:, -1])


def trainer(factory, shape=SHAPE):
    """``factory`` takes the settings of a model's own, not the shape and the classes."""
    result = Trainer(lambda input_shape, num_classes: factory(), shape, CLASSES)
    result.load(result.initial(np.random.default_rng(3)))
    return result


def data():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, 40)
    images = rng.normal(size=(40, *SHAPE)) + labels[:, None, None, None]
    return images.astype(np.float32), labels


def trained(subject):
    settings = {"epochs": 2, "batch_size": 16, "lr": 0.1}
    subject.train(*data(), rng=np.random.default_rng(1), **settings)
    return subject.parameters()


def test_only_what_requires_a_gradient_is_in_the_vector_and_the_rest_stays():
    subject = trainer(Net)
    before = subject.flat.state_dict()
    assert subject.num_parameters == 6 * CLASSES + CLASSES
    assert subject.flat.num_buffers == 0  # the normalisation rests
    assert not np.array_equal(trained(subject), subject.initial(np.random.default_rng(3)))
    after = subject.flat.state_dict()
    for name in ("body.weight", "body.bias", "norm.running_mean", "norm.running_var"):
        assert torch.equal(before[name], after[name]), name
    assert (after["body.weight"] == 0.5).all()


def test_a_file_with_other_frozen_weights_is_refused():
    flat = FlatModel(Net())
    state = flat.state_dict()
    assert np.array_equal(flat.flatten(state), flat.vector.numpy())
    state["body.weight"] = state["body.weight"] + 1
    with pytest.raises(ValueError, match=r"body\.weight.*frozen"):
        flat.flatten(state)


def test_a_model_begins_with_what_its_factory_gives_and_every_process_freezes_the_same():
    def given():
        net = Net()
        nn.init.constant_(net.head.weight, 0.25)
        return net

    subject = trainer(given)
    start = subject.flat.state_dict(subject.initial(np.random.default_rng(0)))
    assert (start["head.weight"] == 0.25).all()
    torch.manual_seed(1)
    first = trainer(Net).flat.state_dict()["body.bias"]
    torch.manual_seed(2)
    assert torch.equal(trainer(Net).flat.state_dict()["body.bias"], first)


@pytest.mark.parametrize("model", [partial(Net, drop=0.5), Recurrent])
def test_dropout_and_lstm_are_repeatable_and_touch_no_global_generator(model):
    torch.manual_seed(7)
    state = torch.get_rng_state()
    first = trained(trainer(model))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(8)
    assert np.array_equal(trained(trainer(model)), first)
    assert not stackable(model())


def test_dpsgd_leaves_frozen_weights_alone():
    subject = trainer(Net)
    start, frozen = subject.parameters(), subject.flat.state_dict()["body.weight"]
    DpSgd(lot_size=40, clipping_norm=1.0, learning_rate=0.1).train(
        subject,
        *data(),
        steps=2,
        sample=lambda count: np.ones(count, bool),
        perturb=lambda total: total,
    )
    assert not np.array_equal(subject.parameters(), start)
    assert torch.equal(subject.flat.state_dict()["body.weight"], frozen)


class Drawing(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, 0.5, self.training)


MIXING = {
    "statistics of the batch": partial(
        Net, norm=nn.BatchNorm1d(6, affine=False, track_running_stats=False)
    ),
    "dropout as a function": partial(Net, norm=Drawing()),
    "LSTM": Recurrent,
}


@pytest.mark.parametrize("name", MIXING)
def test_dpsgd_refuses_models_in_which_examples_mix_or_chance_plays(name):
    with pytest.raises(ValueError, match=r"^model="):
        require_separate_examples(trainer(MIXING[name]))
    require_separate_examples(trainer(partial(Net, drop=0.5)))


def test_a_trial_says_what_is_wrong_with_a_model():
    try_out(trainer(Net))
    with pytest.raises(ValueError, match=r"gives \(2, 5\).*must be \(2, 3\)"):
        try_out(trainer(partial(Net, classes=5)))
    with pytest.raises(ValueError, match=r"fails on images \(2, 1, 5, 5\) \(RuntimeError"):
        try_out(trainer(Net, (1, 5, 5)))


def test_a_frozen_backbone_trains_its_head_alone():
    settings = {"architecture": "resnet18", "weights": None, "size": 32}
    subject = Trainer(partial(torchvision_model, **settings), SHAPE, CLASSES)
    assert (subject.num_parameters, subject.flat.num_buffers) == (512 * CLASSES + CLASSES, 0)
    tuned = Trainer(partial(torchvision_model, **settings, frozen=False), SHAPE, CLASSES)
    assert tuned.num_parameters > 11_000_000
    assert tuned.flat.num_buffers == 0  # normalisation keeps the statistics of the file


def test_adapters_and_head_are_all_that_trains():
    from murmur.learning.pretrained import lora

    base = partial(torchvision_model, architecture="resnet18", weights=None, size=32)
    make = partial(lora, base=base, layers=r"body\.network\.layer4\.1\.conv\d", trained=["head"])
    subject = Trainer(partial(make, rank=1), SHAPE, CLASSES)
    adapters = 2 * (512 * 9 + 512)
    assert subject.num_parameters == adapters + 512 * CLASSES + CLASSES
    with pytest.raises(ValueError, match=r"^trained=tail"):
        make(SHAPE, CLASSES, trained=["tail"])
    with pytest.raises(ValueError, match=r"^layers=nothing"):
        make(SHAPE, CLASSES, layers="nothing")


def test_adapters_are_clipped_together_with_the_head():
    from murmur.learning.pretrained import lora

    make = partial(lora, SHAPE, CLASSES, base=Plain, layers="body", trained=["head"])
    subject = trainer(make)
    subject.load(np.random.default_rng(4).normal(size=subject.num_parameters).astype(np.float32))
    images, labels = data()
    gradients, largest = PerSampleGradients(subject.flat), 0.0
    for row, label in zip(torch.from_numpy(images[:8]), labels, strict=False):
        total = gradients.clipped_sum(row[None], torch.eye(CLASSES)[label][None], 1e-4).numpy()
        whole = torch.from_numpy(total).float()
        parts = subject.flat.views(whole).items()
        largest = max(largest, *(float(part.norm()) for name, part in parts if "lora" in name))
        assert 0.99 * SENSITIVITY < np.linalg.norm(total) <= SENSITIVITY
    assert largest > 0.1 * SENSITIVITY  # what is left out of the norm would show


def test_without_peft_adapters_say_what_to_install(monkeypatch):
    from murmur.learning.pretrained import lora

    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(ValueError, match="install it"):
        lora(SHAPE, CLASSES, base=Net, layers="x", trained=[])
