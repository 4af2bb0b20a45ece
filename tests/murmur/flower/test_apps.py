"""Apps of the kinds that Flower's users write: plain, and with the three lines.

Each is a function of the class that stands in for ClientApp, so that only that line differs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp as PlainApp
from flwr.serverapp.strategy import FedAvg
from numpy.testing import assert_allclose
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from murmur.flower import ClientApp, private
from murmur.privacy.ledger import Ledger
from tests.murmur.flower.nodes import Nodes, without_noise

BUDGET = {"epsilon": 8.0, "delta": 1e-5}
NODES = 3
WIDE = 10.0  # no update here is longer


@dataclass(frozen=True)
class App:
    """``make``: the app, of a ClientApp class. ``arrays``: the model with which it begins."""

    make: Callable
    arrays: ArrayRecord
    frozen: tuple[str, ...] = ()


def _reply(message, arrays, **metrics):
    found = MetricRecord({"num-examples": 20, **metrics})
    return Message(RecordDict({"arrays": arrays, "metrics": found}), reply_to=message)


def _data(context, shape, classes=2, examples=20):
    """Examples of one client, the same at each call."""
    rng = torch.Generator().manual_seed(context.node_config["partition-id"])
    images = torch.randn(examples, *shape, generator=rng)
    return TensorDataset(images, torch.randint(classes, (examples,), generator=rng))


def _fit(net, loader, **options):
    optimizer = torch.optim.SGD((p for p in net.parameters() if p.requires_grad), lr=0.1, **options)
    net.train()
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
    return loss.item()


def _torch_app(net_of, shape, workers=0):
    torch.manual_seed(0)
    arrays = ArrayRecord(net_of().state_dict())

    def make(cls):
        app = cls()

        @app.train()
        def train(message: Message, context: Context) -> Message:
            net = net_of()
            net.load_state_dict(message.content["arrays"].to_torch_state_dict())
            loader = DataLoader(_data(context, shape), batch_size=10, num_workers=workers)
            loss = _fit(net, loader, momentum=0.9)
            return _reply(message, ArrayRecord(net.state_dict()), train_loss=loss)

        return app

    return App(make, arrays)


def torch_app():
    return _torch_app(lambda: nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)), (6,))


def batch_norm_app():
    def net():
        return nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)
        )

    return _torch_app(net, (1, 4, 4))


def data_loader_workers_app():
    return _torch_app(lambda: nn.Linear(6, 2), (6,), workers=2)


def numpy_app():
    """A model is a list of arrays, as in Flower's quickstart-numpy."""

    def make(cls):
        app = cls()

        @app.train()
        def train(message: Message, context: Context) -> Message:
            rng = np.random.default_rng(context.node_config["partition-id"])
            model = [m + rng.random(m.shape) for m in message.content["arrays"].to_numpy_ndarrays()]
            return _reply(message, ArrayRecord(model), random_metric=float(rng.random()))

        return app

    return App(make, ArrayRecord([np.ones((2, 3)), np.zeros(3, np.float32)]))


def scikit_learn_app():
    images, labels = load_iris(return_X_y=True)

    def make(cls):
        app = cls()

        @app.train()
        def train(message: Message, context: Context) -> Message:
            place = context.node_config["partition-id"]
            model = LogisticRegression(max_iter=3, warm_start=True, solver="saga", random_state=0)
            model.classes_ = np.arange(3)
            model.coef_, model.intercept_ = message.content["arrays"].to_numpy_ndarrays()
            model.fit(images[place::NODES], labels[place::NODES])
            return _reply(message, ArrayRecord([model.coef_, model.intercept_]))

        return app

    return App(make, ArrayRecord([np.zeros((3, 4)), np.zeros(3)]))


def hugging_face_app():
    """A head on a frozen encoder, which the third line names: frozen=[...]."""
    transformers = pytest.importorskip("transformers")
    size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=30, intermediate_size=8, num_labels=2, **size)

    def net_of():
        torch.manual_seed(0)
        net = transformers.BertForSequenceClassification(config)
        net.bert.requires_grad_(False)
        return net.eval()

    arrays = ArrayRecord(net_of().state_dict())

    def make(cls):
        app = cls()

        @app.train()
        def train(message: Message, context: Context) -> Message:
            net = net_of()
            net.load_state_dict(message.content["arrays"].to_torch_state_dict(), strict=True)
            optimizer = torch.optim.AdamW(net.classifier.parameters(), lr=0.01)
            rng = torch.Generator().manual_seed(context.node_config["partition-id"])
            tokens = torch.randint(30, (8, 5), generator=rng)
            net(input_ids=tokens, labels=tokens[:, 0] % 2).loss.backward()
            optimizer.step()
            return _reply(message, ArrayRecord(net.state_dict()))

        return app

    return App(make, arrays, tuple(n for n in arrays if not n.startswith("classifier")))


KINDS = [
    torch_app,
    batch_norm_app,
    data_loader_workers_app,
    numpy_app,
    scikit_learn_app,
    hugging_face_app,
]


def values(arrays):
    return {name: array.numpy() for name, array in arrays.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_without_noise_it_is_the_plain_apps_model(monkeypatch, kind):
    one = kind()
    plain = FedAvg().start(Nodes(one.make(PlainApp), NODES), one.arrays, num_rounds=1, timeout=60)
    without_noise(monkeypatch)
    own = private(FedAvg(), **BUDGET, clip=WIDE, frozen=one.frozen)
    found = own.start(Nodes(one.make(ClientApp), NODES), one.arrays, num_rounds=1, timeout=60)
    expected = values(plain.arrays)
    moved = 0.0
    for name, base in values(one.arrays).items():
        array = found.arrays[name]
        assert array.dtype == base.dtype.name
        if base.dtype.kind == "f":
            assert_allclose(array.numpy(), expected[name], rtol=0, atol=1e-4)
            moved += float(np.abs(array.numpy() - base).max())
        else:
            assert array.data == one.arrays[name].data
    assert moved > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_on_devices_it_runs_and_each_pays(tmp_path, kind, caplog):
    one = kind()
    own = private(FedAvg(), **BUDGET, clip=1.0, frozen=one.frozen)
    grid = Nodes(one.make(ClientApp), NODES, devices=tmp_path / "devices")
    found = own.start(grid, one.arrays, num_rounds=1, timeout=60)
    assert "was lost" not in caplog.text
    for name, base in values(one.arrays).items():
        array = found.arrays[name].numpy()
        assert array.shape == base.shape and np.isfinite(array).all()
        trained = base.dtype.kind == "f" and name not in one.frozen
        assert trained == (found.arrays[name].data != one.arrays[name].data)
        if name.endswith("running_var"):
            assert array.min() >= 0
    for folder in (tmp_path / "devices").iterdir():
        with Ledger(folder / "ledger.sqlite", create=False) as ledger:
            assert ledger.releases() == 1
        log = folder / "errors.log"
        assert not log.exists(), log.read_text()
