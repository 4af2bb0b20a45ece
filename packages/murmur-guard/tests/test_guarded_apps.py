"""Nine plain apps that know nothing of Murmur, locked in: each learns what it learns unlocked."""

import importlib
import io
import tomllib
import zipfile

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from numpy.testing import assert_allclose

from tests.federation.loopback import PROJECT
from tests.fl_app.device.bundles import (
    HUGGING_FACE,
    NUMPY,
    OPACUS,
    SCIKIT_LEARN,
    TORCH,
    archived,
    bundle,
)
from tests.guarded_devices import Federation, charges, needs_lock, started
from tests.murmur.flower.example_apps import ADVANCED, SKLEARN
from tests.murmur.flower.nodes import imports_from, record, without_noise

pytestmark = [needs_lock, pytest.mark.usefixtures("own_folders"), pytest.mark.federation]

EXAMPLE = PROJECT / "examples" / "plain_flower_app"


def _batch_norm():
    layers = torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)
    return torch.nn.Sequential(*layers)


def _hugging_face():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=30, intermediate_size=8, num_labels=2, **sizes)
    return transformers.BertForSequenceClassification(config)


def _opacus():
    pytest.importorskip("opacus")
    return torch.nn.Linear(3, 2)


def _example():
    paths = [EXAMPLE / "pyproject.toml", *(EXAMPLE / "plain_app").glob("*.py")]
    return archived({str(path.relative_to(EXAMPLE)): path.read_text() for path in paths})


def _example_model():
    return torch.nn.ModuleDict({"layer": torch.nn.Linear(64, 10)})


def _advanced_model():
    layers = {"fc1": torch.nn.Linear(64, 16), "fc2": torch.nn.Linear(16, 10)}
    return torch.nn.ModuleDict(layers)


APPS = {
    "numpy": (lambda: bundle(NUMPY), lambda: [np.zeros(3, np.float32)]),
    "torch, the example": (_example, _example_model),
    "batch normalisation": (lambda: bundle(TORCH.replace("WORKERS", "0")), _batch_norm),
    "DataLoader workers": (lambda: bundle(TORCH.replace("WORKERS", "2")), _batch_norm),
    "scikit-learn": (lambda: bundle(SCIKIT_LEARN), lambda: [np.zeros((3, 4)), np.zeros(3)]),
    "Hugging Face": (lambda: bundle(HUGGING_FACE), _hugging_face),
    "opacus": (lambda: bundle(OPACUS), _opacus),
    "Flower's quickstart-sklearn": (
        lambda: archived(SKLEARN),
        lambda: [np.zeros((10, 64), np.float32), np.zeros(10, np.float32)],
    ),
    "Flower's advanced-pytorch": (lambda: archived(ADVANCED), _advanced_model),
}


def _arrays(model):
    if isinstance(model, list):
        return {str(place): values for place, values in enumerate(model)}
    return {name: values.numpy() for name, values in model.state_dict().items()}


def _alone(archive, folder, base, node, run, config):
    """The arrays that the app answers with where nothing is locked: it is called here."""
    zipfile.ZipFile(io.BytesIO(archive)).extractall(folder)
    flower = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    module, _, name = flower["components"]["clientapp"].partition(":")
    content = RecordDict({"arrays": record(base), "config": config})
    message = Message(content, dst_node_id=101, message_type="train")
    with imports_from(folder):
        app = getattr(importlib.import_module(module), name)
        reply = app(message, Context(1, 101, node, RecordDict(), run))
    return {name: array.numpy() for name, array in reply.content["arrays"].items()}


@pytest.mark.parametrize("name", APPS)
def test_an_unmodified_app_learns_what_it_learns_unlocked(tmp_path, monkeypatch, name):
    """Two other nodes change nothing: the model moves by a third of the app's own change."""
    without_noise(monkeypatch)
    torch.manual_seed(0)
    archive, model = (make() for make in APPS[name])
    base = _arrays(model)
    frozen = [each for each in base if each.startswith("bert.")]
    grid = Federation(tmp_path, [archive])
    # All digits in one batch: in which order the example draws them changes nothing.
    run = {"local-epochs": 5, "batch-size": 10_000}
    for context in grid._contexts.values():
        context.run_config = run
    config = ConfigRecord({"lr": 0.1})
    result = started(grid, base, config=config, clip=20.0, frozen=frozen)
    assert not (grid.guards[0].folder / "errors.log").exists()
    assert charges(grid.guards[0]) == 1
    node = grid.guards[0].node_config
    alone = _alone(archive, tmp_path / "alone", base, node, run, config)
    moved = 0.0
    for each, before in base.items():
        after = result.arrays[each].numpy()
        if before.dtype.kind != "f" or each in frozen:
            assert np.array_equal(after, before)
            continue
        change = alone[each].astype(np.float64) - before
        assert_allclose(after, before + change / 3, rtol=0, atol=1e-4)
        moved += float(np.abs(change).sum())
    assert moved > 0.01
