import numpy as np
import pytest
import torch
from torch import nn

from murmur.learning.models import Flatten, initialise
from murmur.learning.training.parameters import FlatModel


def small() -> nn.Sequential:
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), Flatten(), nn.Linear(12, 4))
    initialise(module, np.random.default_rng(0))
    return module


def test_parameters_are_views_of_the_vector_and_keep_their_values() -> None:
    module = small()
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    flat = FlatModel(module)
    assert flat.num_parameters == flat.vector.numel() == 3 * 2 * 9 + 3 + 12 * 4 + 4
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter, before[name])
    flat.vector.zero_()
    assert all(not p.any() for p in module.parameters())


def test_the_order_is_that_of_the_models_own_parameters() -> None:
    module = small()
    flat = FlatModel(module)
    assert torch.equal(flat.vector, nn.utils.parameters_to_vector(module.parameters()))
    state = flat.state_dict(np.arange(flat.num_parameters, dtype=np.float32))
    given = [state[name].flatten() for name, _ in module.named_parameters()]
    assert torch.cat(given).tolist() == list(range(flat.num_parameters))


def test_state_dict_and_flatten_are_inverse() -> None:
    flat = FlatModel(small())
    vector = np.random.default_rng(1).normal(size=flat.num_parameters).astype(np.float32)
    assert np.array_equal(flat.flatten(flat.state_dict(vector)), vector)


def test_state_dict_loads_into_an_ordinary_module() -> None:
    flat = FlatModel(small())
    other = small()
    vector = np.random.default_rng(2).normal(size=flat.num_parameters).astype(np.float32)
    flat.load(vector)
    other.load_state_dict(flat.state_dict())
    x = torch.linspace(-1, 1, 5 * 2 * 4 * 4).view(5, 2, 4, 4)
    torch.testing.assert_close(other(x), flat.module(x))
    assert all(tensor.is_contiguous() for tensor in flat.state_dict().values())


def test_autograd_accumulates_into_the_flat_gradient() -> None:
    flat = FlatModel(small())
    gradient = flat.gradient
    flat.module(torch.ones(1, 2, 4, 4)).sum().backward()
    assert gradient[-4:].tolist() == [1, 1, 1, 1]
    assert gradient[:54].any()


def test_buffers_are_kept_apart() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    flat = FlatModel(module)
    assert flat.num_buffers == 4
    assert flat.num_parameters == 2 * 9 + 2 + 4
    flat.load_buffers(np.array([1, 2, 3, 4], np.float32))
    assert module[1].running_mean.tolist() == [1, 2]
    assert module[1].running_var.tolist() == [3, 4]
    assert flat.buffers().tolist() == [1, 2, 3, 4]
    assert "1.running_mean" in flat.state_dict()
    assert FlatModel(small()).buffers().shape == (0,)


def test_bad_input_is_refused_by_name() -> None:
    flat = FlatModel(small())
    with pytest.raises(ValueError, match=r"^parameters=\(3,\): must have shape \(109,\)"):
        flat.load(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match=r"^buffers=\(1,\): "):
        flat.load_buffers(np.zeros(1, np.float32))
    state = flat.state_dict()
    with pytest.raises(ValueError, match=r"^state_dict=\['more'\]: "):
        flat.flatten({**state, "more": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"^state_dict\['0.bias'\]=\(2,\): must be \(3,\)"):
        flat.flatten({**state, "0.bias": torch.zeros(2)})
    del state["3.bias"]
    with pytest.raises(ValueError, match=r"^state_dict\['3.bias'\]=missing: "):
        flat.flatten(state)
    with pytest.raises(ValueError, match=r"^model=ReLU: has no parameters"):
        FlatModel(nn.ReLU())
    with pytest.raises(ValueError, match=r"^model=Linear: weight is torch.float64"):
        FlatModel(nn.Linear(2, 2).double())
