"""Whatever model somebody brings: exact gradients, or a refusal before anybody is charged."""

import copy
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fl_app.config import plugins
from fl_app.config.errors import ConfigError
from fl_app.run.prepare import prepare, validated
from murmur.learning.pretrained import torchvision_model
from murmur.learning.training.dpsgd import DpSgd, PerSampleGradients, without_dropout
from murmur.learning.training.made_up import made_up
from murmur.learning.training.trainer import Trainer
from murmur.learning.training.trial import require_separate_examples, try_out
from murmur.privacy.ledger import Ledger
from murmur.round.task import REFUSED
from tests.fl_app.device_under_test import MINE, Device, model_size, question, report

IMAGES, TEXTS, CLASSES = (1, 6, 6), (1, 1, 6), 3


class Net(nn.Module):
    """Convolution, ``between`` and a head; ``change`` is applied to the convolution's output."""

    def __init__(self, between=None, change=None, **convolution):
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1, **convolution)
        self.between = nn.Identity() if between is None else between
        self.head = nn.Linear(144, CLASSES)
        self.change = change

    def forward(self, images):
        hidden = self.first(images)
        if self.change is not None:
            hidden = self.change(self, hidden)
        return self.head(torch.tanh(self.between(hidden)).flatten(1))


class Texts(nn.Module):
    """Token vectors, their mean over the text, a head."""

    def __init__(self, between=None, **embedding):
        super().__init__()
        self.tokens = nn.Embedding(9, 4, **embedding)
        self.between = nn.Identity() if between is None else between
        self.head = nn.Linear(4, CLASSES)

    def forward(self, texts):
        return self.head(self.between(self.tokens(texts.flatten(1).long())).mean(1))


class Places(nn.Module):
    """Positions, mean and deviation: constants in buffers, beside weights that train."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor(0.4))
        self.register_buffer("places", torch.linspace(0, 1, 144), persistent=False)
        self.scale = nn.Parameter(torch.ones(144))

    def forward(self, hidden):
        rows = (hidden.flatten(1) - self.mean) * self.scale
        return (rows + self.places).view_as(hidden)


class Counting(nn.Module):
    """A buffer that training changes, of whole numbers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, hidden):
        if self.training:
            self.seen += len(hidden)
        return hidden


class Remembering(nn.Module):
    """What it saw last stays in no buffer, but stays."""

    last = 0.0

    def forward(self, hidden):
        if self.training:
            self.last = hidden.detach().mean()
        return hidden + self.last


class Shift(nn.Module):
    """A frozen parameter or a buffer of a type of its own."""

    def __init__(self, dtype, buffer=False):
        super().__init__()
        value = torch.full((1,), 0.5).to(dtype)
        if buffer:
            self.register_buffer("value", value)
        else:
            self.value = nn.Parameter(value, requires_grad=False)

    def forward(self, hidden):
        return hidden + self.value.real.float()


class Always(nn.Module):
    """Dropout that knows no evaluation mode."""

    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def forward(self, hidden):
        return functional.dropout(hidden, self.rate)


class Noise(nn.Module):
    def forward(self, hidden):
        return hidden + float(np.random.default_rng().normal())


class Scaled(nn.Module):
    """A trained number without dimensions, which moves outputs or does not."""

    def __init__(self, used=True):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.used = used

    def forward(self, hidden):
        return hidden * self.scale if self.used else hidden


class Whole(Net):
    """The number belongs to the model itself."""

    def __init__(self):
        super().__init__(change=lambda net, hidden: hidden * net.scale)
        self.scale = nn.Parameter(torch.tensor(0.5))


class Bag(Texts):
    """Token vectors that are averaged where they are looked up."""

    def __init__(self, **bag):
        super().__init__()
        self.tokens = nn.EmbeddingBag(9, 4, **bag)

    def forward(self, texts):
        return self.head(self.tokens(texts.flatten(1).long()))


class Pairs(nn.Module):
    """Products of pairs of entries."""

    def __init__(self):
        super().__init__()
        self.pairs = nn.Bilinear(144, 144, 4)
        self.back = nn.Linear(4, 144)

    def forward(self, hidden):
        rows = hidden.flatten(1)
        return self.back(self.pairs(rows, rows)).view_as(hidden)


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.nowhere = nn.Linear(3, 2)

    def forward(self, hidden):
        return hidden


def one_unit(input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 1))


def typed(dtype):
    net = Net()
    net.head.bias = nn.Parameter(torch.zeros(CLASSES).to(dtype))
    return net


def twice(net, hidden):
    return net.first(hidden[:, :1])


def add_in_place(net, hidden):
    hidden += 0.3 * hidden.detach()
    return hidden


def overwrite(net, hidden):
    kept = hidden.exp()
    kept += 1
    return kept


def resnet():
    return torchvision_model(IMAGES, CLASSES, architecture="resnet18", weights=None, size=32)


def tuned():
    settings = {"architecture": "resnet18", "weights": None, "size": 32, "frozen": False}
    return torchvision_model(IMAGES, CLASSES, **settings)


def normalised(training):
    return nn.BatchNorm2d(4).train(training)


EXACT = None
NO_RULE = r"no exact per-sample gradient for first\.weight of Conv2d"
AT_RANDOM = "drawn at random in evaluation mode"
# Kind: the model, what plain training says of it, what DP-SGD says. EXACT: it runs, and gradients
# example by example are autograd's.
MODELS = {
    "activation in place": (partial(Net, nn.ReLU(inplace=True)), EXACT, EXACT),
    "activation in place on a layer's output": (
        partial(Net, change=lambda net, hidden: functional.relu(hidden, inplace=True)),
        EXACT,
        EXACT,
    ),
    "sum in place on a layer's output": (partial(Net, change=add_in_place), EXACT, EXACT),
    "all of a ResNet": (tuned, EXACT, EXACT),
    "head of a ResNet": (resnet, EXACT, EXACT),
    "value overwritten that the gradient needs": (
        partial(Net, change=overwrite),
        "fails in a step of training",
        EXACT,  # not asked
    ),
    "padding by zeros": (partial(Net, padding_mode="zeros"), EXACT, EXACT),
    "padding by reflection": (partial(Net, padding_mode="reflect"), EXACT, NO_RULE),
    "padding in a circle": (partial(Net, padding_mode="circular"), EXACT, NO_RULE),
    "padding by replication": (partial(Net, padding_mode="replicate"), EXACT, NO_RULE),
    "padding token 0": (partial(Texts, padding_idx=0), EXACT, EXACT),
    "padding token 1": (partial(Texts, padding_idx=1), EXACT, EXACT),
    "no padding token": (Texts, EXACT, EXACT),
    "vectors scaled by frequency": (
        partial(Texts, scale_grad_by_freq=True),
        EXACT,
        r"no exact per-sample gradient for tokens\.weight of Embedding",
    ),
    "sparse vectors": (partial(Texts, sparse=True), EXACT, EXACT),
    "sparse vectors with a padding token": (
        partial(Texts, sparse=True, padding_idx=0),
        EXACT,
        EXACT,
    ),
    "a bag of vectors": (Bag, EXACT, r"gradients for tokens\.weight of EmbeddingBag; freeze it"),
    "a sparse bag of vectors": (
        partial(Bag, sparse=True),
        EXACT,
        r"gradients for tokens\.weight of EmbeddingBag; freeze it",
    ),
    "a number between layers": (partial(Net, Scaled()), EXACT, EXACT),
    "a number that nothing depends on": (partial(Net, Scaled(used=False)), EXACT, EXACT),
    "a number of the model's own": (Whole, EXACT, EXACT),
    "products of pairs": (
        partial(Net, Pairs()),
        EXACT,
        r"gradients for between\.pairs\.weight, between\.pairs\.bias of Bilinear; freeze it",
    ),
    "vectors of a largest norm": (partial(Texts, max_norm=0.1), r"evaluation changes tokens", ""),
    "a layer twice": (partial(Net, change=twice), EXACT, EXACT),
    "a parameter that nothing depends on": (partial(Net, Unused()), EXACT, EXACT),
    "constants in buffers": (partial(Net, Places()), EXACT, EXACT),
    "normalisation by groups": (partial(Net, nn.GroupNorm(2, 4)), EXACT, EXACT),
    "normalisation in evaluation mode": (partial(Net, normalised(False)), EXACT, EXACT),
    "normalisation over batches": (
        partial(Net, normalised(True)),
        EXACT,
        r"training changes its buffer between\.running_mean",
    ),
    "a buffer that counts": (
        partial(Net, Counting()),
        EXACT,
        r"training changes its buffer between\.seen",
    ),
    "memory beside buffers": (
        partial(Net, Remembering()),
        "a step of training changes what it says",
        "",
    ),
    "half precision": (partial(typed, torch.float16), r"head\.bias is torch\.float16, must be", ""),
    "bfloat16": (partial(typed, torch.bfloat16), r"head\.bias is torch\.bfloat16, must be", ""),
    "complex": (partial(typed, torch.complex64), r"head\.bias is torch\.complex64, must be", ""),
    "frozen, half": (partial(Net, Shift(torch.float16)), r"between\.value is torch\.float16", ""),
    "frozen, complex": (
        partial(Net, Shift(torch.complex64)),
        r"between\.value is torch\.complex64, must be",
        "",
    ),
    "frozen, float64": (partial(Net, Shift(torch.float64)), EXACT, EXACT),
    "a buffer that no file holds": (
        partial(Net, Shift(torch.bfloat16, buffer=True)),
        r"between\.value is torch\.bfloat16, which the run's model\.safetensors cannot hold",
        "",
    ),
    "dropout in evaluation": (partial(Net, Always(0.5)), AT_RANDOM, ""),
    "a little dropout in evaluation": (partial(Net, Always(0.001)), AT_RANDOM, ""),
    "NumPy's noise in evaluation": (partial(Net, Noise()), AT_RANDOM, ""),
    "dropout in training": (partial(Net, nn.Dropout(0.3)), EXACT, EXACT),
    "not a number": (
        partial(Net, change=lambda net, hidden: hidden * float("nan")),
        "gives NaN or infinite values for made-up images",
        "",
    ),
}


def trainer(factory):
    made = getattr(factory, "func", factory)
    shape = TEXTS if made in (Texts, Bag) else IMAGES
    return Trainer(lambda input_shape, num_classes: copy.deepcopy(factory()), shape, CLASSES)


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_trains_or_is_refused_by_a_trial_that_leaves_it_as_it_was(kind):
    factory, said, _ = MODELS[kind]
    if said is not EXACT:
        with pytest.raises(ValueError, match=rf"^model=\w+: .*{said}"):
            try_out(trainer(factory))
        return
    subject = trainer(factory)
    before = {name: tensor.clone() for name, tensor in subject.flat.state_dict().items()}
    try_out(subject)
    after = subject.flat.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("kind", [kind for kind in MODELS if MODELS[kind][1] is EXACT])
def test_dpsgd_has_autograds_gradients_or_refuses_the_model(kind):
    factory, _, said = MODELS[kind]
    subject = trainer(factory)
    if said is not EXACT:
        with pytest.raises(ValueError, match=said):
            require_separate_examples(subject)
        return
    start = subject.parameters()
    require_separate_examples(subject)
    assert np.array_equal(subject.parameters(), start)
    images, labels = map(torch.from_numpy, made_up(subject, 3))
    found = PerSampleGradients(subject.flat).samples(images, labels, torch.ones(3, 1))
    plain = without_dropout(subject.flat)
    named = {name: p for name, p in plain.named_parameters() if p.requires_grad}
    for row in range(3):
        loss = functional.cross_entropy(plain(images[row : row + 1]), labels[row : row + 1])
        right = torch.autograd.grad(loss, list(named.values()), materialize_grads=True)
        norm = torch.stack([gradient.norm() for gradient in right]).norm()
        for name, gradient in zip(named, right, strict=True):
            assert (found[name][row] - gradient.flatten()).norm() < 1e-4 * norm


def test_an_output_of_one_unit_is_no_answer_for_two_classes():
    subject = Trainer(one_unit, IMAGES, 2)
    with pytest.raises(ValueError, match=r"gives \(2, 1\) .* must be \(2, 2\), a logit for each"):
        try_out(subject)


def test_only_what_training_changes_counts_as_statistics():
    assert trainer(partial(Net, Places())).statistics == []
    assert trainer(partial(Net, Counting())).statistics == ["between.seen"]
    assert trainer(partial(Net, normalised(False))).statistics == []
    assert len(trainer(partial(Net, normalised(True))).statistics) == 3


def test_dpsgd_by_itself_refuses_statistics_too():
    subject = trainer(partial(Net, Counting()))
    images, labels = made_up(subject, 4)
    with pytest.raises(ValueError, match="keeps statistics over batches"):
        DpSgd(4, 1.0, 0.1).train(
            subject,
            images,
            labels,
            steps=1,
            sample=lambda count: np.ones(count, bool),
            perturb=lambda total: total,
            soft_targets=True,
        )


OWN = """
import torch
from torch import nn


class Reflected(nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.register_buffer("mean", torch.tensor(0.5))
        self.first = nn.Conv2d(1, 2, 3, padding=1, padding_mode=PADDING)
        self.head = nn.Linear(128, num_classes)

    def forward(self, images):
        return self.head(torch.relu_(self.first(images - self.mean)).flatten(1))
"""
SMALL = ["dataset=digits", "federation.num_clients=4", "federation.num_rounds=1", "engine=inline"]
PRIVATE = ["strategy=dpsgd_fedavg", "privacy.epsilon=8", "strategy.local.epochs=1"]


def own_model(folder: Path, monkeypatch, padding: str) -> list[str]:
    """Words for a model of the user's own, with constants in a buffer and this padding."""
    name = f"padded_{padding}"
    (folder / "conf" / "model").mkdir(parents=True)
    (folder / f"{name}.py").write_text(OWN.replace("PADDING", repr(padding)))
    text = f"# A model.\n_target_: .{name}.Reflected\n_partial_: true\n"
    (folder / "conf" / "model" / f"{name}.yaml").write_text(text)
    monkeypatch.setenv(plugins.VARIABLE, str(folder))
    return [*SMALL, *PRIVATE, f"model={name}"]


def test_a_run_that_fails_in_its_trial_leaves_no_ledger(tmp_path, monkeypatch):
    words = own_model(tmp_path / "mine", monkeypatch, "reflect")
    with pytest.raises(ConfigError, match="no exact per-sample gradient"):
        prepare([*words, f"run_dir={tmp_path / 'run'}"])
    assert not (tmp_path / "run").exists()


def test_a_model_with_constants_and_activations_in_place_runs_with_dpsgd(tmp_path, monkeypatch):
    words = own_model(tmp_path / "mine", monkeypatch, "zeros")
    ready = prepare([*words, f"run_dir={tmp_path / 'run'}"])
    ready.run()
    assert ready.folder.rows()[-1]["failed"] == {}
    with Ledger(ready.folder.ledger_path, create=False) as ledger:
        assert ledger.releases() == 4


def test_every_strategy_takes_constants_in_buffers(tmp_path, monkeypatch):
    words = own_model(tmp_path / "mine", monkeypatch, "zeros")
    for strategy in ("fedavg", "privatekt", "nbafl"):
        validated([word for word in words if word not in PRIVATE] + [f"strategy={strategy}"])


@pytest.mark.parametrize(
    ("broken", "said"),
    [(Always(0.5), AT_RANDOM), (nn.BatchNorm2d(1), "keeps statistics"), (None, "no exact")],
)
def test_a_device_tries_the_model_before_it_charges_whatever_the_server_has_tried(
    tmp_path, monkeypatch, broken, said
):
    device = Device(tmp_path)
    words = device.words("strategy=dpsgd_fedavg", "model=mlp", "model.hidden=[4]")
    sizes = model_size(words)

    def installed(input_shape, num_classes, **settings):
        first = nn.Identity() if broken is None else copy.deepcopy(broken)
        odd = nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect" if broken is None else "zeros")
        return nn.Sequential(first, odd, nn.Flatten(), nn.Linear(64, num_classes))

    answer = device.ask(words, question(np.zeros(sizes, np.float32)))
    assert report(answer)["clients"] == list(MINE)
    charged = device.charged()
    assert charged
    monkeypatch.setattr("murmur.learning.models.mlp", installed)
    odd = question(np.zeros(10 + 650, np.float32), round=2)
    answer = device.ask(words, odd)
    assert answer.error.reason == REFUSED and said in device.log()
    assert device.charged() == charged
