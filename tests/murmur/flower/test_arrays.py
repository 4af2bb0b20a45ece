"""Every kind of array that a model may have, and every way in which a strategy may be started."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg
from numpy.testing import assert_allclose, assert_array_equal

from murmur.flower import private
from murmur.learning.array_bytes import MalformedError
from murmur.round.task import RunError
from tests.murmur.flower.nodes import Nodes, app_of, record, without_noise

BUDGET = {"epsilon": 8.0, "delta": 1e-5, "clip": 1000.0}
NODES = 4
SINGLE = np.float32
SHARED = np.ones(4, SINGLE)
MODELS = {
    "float64": {"w": np.linspace(0, 1, 3)},
    "float16": {"w": np.full(3, 0.5, np.float16)},
    "scalars": {"w": np.ones(2, SINGLE), "scale": np.array(0.5, SINGLE)},
    "one scalar": {"scale": np.array(0.5)},
    "empty": {"w": np.ones(2, SINGLE), "none": np.zeros((0, 4), SINGLE)},
    "columns first": {"w": np.asfortranarray(np.arange(6.0).reshape(2, 3))},
    "one storage": {"a": SHARED, "b": SHARED, "half": SHARED[::2]},
    "integers": {"w": np.ones(2, SINGLE), "i": np.array([1, -2]), "u": np.array(3, np.uint8)},
    "truth values": {"w": np.ones(2, SINGLE), "mask": np.array([True, False])},
}


def stepped(place):
    """A change that averages to 4 over four clients; counters stay."""

    def train(arrays):
        return {
            name: (array + 2 * place + 1).astype(array.dtype) if array.dtype.kind == "f" else array
            for name, array in arrays.items()
        }

    return train


def started(arrays, train=stepped):
    initial = arrays if isinstance(arrays, ArrayRecord) else record(arrays)
    own = private(FedAvg(), **BUDGET)
    return own.start(Nodes(app_of(train), NODES), initial, num_rounds=1, timeout=5.0).arrays


@pytest.mark.parametrize("kind", MODELS)
def test_every_kind_of_array_comes_back_as_it_was_sent(monkeypatch, caplog, kind):
    without_noise(monkeypatch)
    arrays = MODELS[kind]
    found = started(arrays)
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        new = found[name].numpy()
        assert (new.dtype, new.shape) == (array.dtype, array.shape)
        if array.dtype.kind == "f":
            assert_allclose(new, array + 4, atol=0.01)
        else:
            assert_array_equal(new, array)
    assert "training has not changed" not in caplog.text


def test_arrays_without_names_are_those_of_a_list(monkeypatch):
    without_noise(monkeypatch)
    model = [np.ones((2, 3)), np.zeros(3, SINGLE)]
    found = started(ArrayRecord(model)).to_numpy_ndarrays()
    for new, old in zip(found, model, strict=True):
        assert (new.dtype, new.shape) == (old.dtype, old.shape)
        assert_allclose(new, old + 4, atol=0.01)


def test_tied_weights_of_a_state_dict_stay_tied(monkeypatch):
    without_noise(monkeypatch)
    net = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2), "b": torch.nn.Linear(2, 2)})
    net["b"].weight = net["a"].weight
    found = started(ArrayRecord(net.state_dict())).to_torch_state_dict()
    assert torch.equal(found["a.weight"], found["b.weight"])
    net.load_state_dict(found)


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (Array("bfloat16", (2,), "numpy.ndarray", Array(np.zeros(2, "V2")).data), "bfloat16"),
        (Array(np.array([1j])), "complex128"),
        (Array(np.ones(2, ">f4")), ">f4"),
        (Array(np.array(["word"])), "<U4"),
    ],
)
def test_numbers_that_numpy_does_not_average_are_named(array, kind):
    model = ArrayRecord({"w": Array(np.ones(2, SINGLE)), "other": array})
    with pytest.raises(MalformedError) as refused:
        started(model, train=lambda place: pytest.fail("trained"))
    assert str(refused.value) == (
        f"other ({kind}): not an array of plain numbers in NumPy's format; send float32"
    )


@pytest.mark.parametrize("arrays", [{"none": np.zeros(0, SINGLE)}, {"i": np.array([1, 2])}])
def test_a_model_without_floats_has_nothing_to_train(arrays):
    with pytest.raises(ValueError, match="frozen: leaves no floats to train"):
        started(arrays)


@pytest.mark.thorough
def test_ten_million_numbers(monkeypatch):
    without_noise(monkeypatch)
    found = started({"w": np.zeros(10**7, SINGLE)}, train=lambda place: lambda arrays: dict(arrays))
    assert found["w"].numpy().shape == (10**7,)


class _Same(FedAvg):
    def start(self, grid, initial_arrays, num_rounds=3, timeout=3600, **others):
        return super().start(grid, initial_arrays, num_rounds, timeout, **others)


class _HandsOn(FedAvg):
    def start(self, *args, **kwargs):
        return super().start(*args, **kwargs)


class _HandsOnNamed(FedAvg):
    def start(self, driver, **kwargs):
        return super().start(driver, **kwargs)


class _Reordered(FedAvg):
    def start(self, link, num_rounds, folder=None, *, initial_arrays, **others):
        return super().start(link, initial_arrays, num_rounds, **others)


@pytest.mark.parametrize("kind", [_Same, _HandsOn, _Reordered])
def test_a_start_of_ones_own_asks_within_the_sum(monkeypatch, kind):
    without_noise(monkeypatch)
    nodes = Nodes(app_of(stepped), NODES)
    own = private(kind(), **BUDGET)
    seen = []
    result = own.start(
        nodes,
        initial_arrays=record(MODELS["float64"]),
        num_rounds=2,
        timeout=5.0,
        evaluate_fn=lambda number, arrays: seen.append(number),
    )
    assert_allclose(result.arrays["w"].numpy(), MODELS["float64"]["w"] + 8, atol=0.02)
    assert seen == [0, 1, 2]
    assert {kind.partition(".")[0] for kind in nodes.asked} == {"train", "query"}


class _Hides(FedAvg):
    def start(self, folder, grid):
        return super().start(grid, record(MODELS["float64"]))


@pytest.mark.parametrize("kind", [_Hides, _HandsOnNamed])
def test_a_start_that_hides_its_model_is_refused(kind):
    nodes = Nodes(app_of(stepped), NODES)
    with pytest.raises(RunError, match=rf"{kind.__name__}.start: "):
        private(kind(), **BUDGET).start(nodes, "folder")
    assert nodes.asked == []
