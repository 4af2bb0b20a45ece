from typing import Any

import pytest
import torch

from murmur.learning.training.optimiser import Optimisation, Optimiser


@pytest.mark.parametrize(
    ("settings", "theirs"),
    [
        ({"momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
        (
            {"momentum": 0.5, "weight_decay": 0.1},
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5, weight_decay=0.1),
        ),
        ({"optimizer": "adam"}, lambda p: torch.optim.Adam(p, lr=0.1)),
        (
            {"optimizer": "adam", "betas": (0.5, 0.9), "weight_decay": 0.1},
            lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.5, 0.9), weight_decay=0.1),
        ),
    ],
)
def test_steps_agree_with_pytorchs_optimisers(settings: dict[str, Any], theirs: Any) -> None:
    how = Optimisation(0.1, **settings)
    generator = torch.Generator().manual_seed(0)
    ours = torch.randn(20, generator=generator)
    reference = ours.clone().requires_grad_()
    optimiser, other = Optimiser(ours), theirs([reference])
    for _ in range(5):
        gradient = torch.randn(20, generator=generator)
        reference.grad = gradient.clone()
        other.step()
        optimiser.step(ours, gradient, ours, how)
    torch.testing.assert_close(ours, reference.detach(), rtol=1e-5, atol=1e-6)


def test_the_proximal_term_pulls_towards_the_anchor() -> None:
    how = Optimisation(0.1, momentum=0.9, proximal_mu=2.0)
    w, anchor = torch.tensor([1.0, 5.0]), torch.tensor([3.0, 3.0])
    Optimiser(w).step(w, torch.zeros(2), anchor, how)
    # w - lr · mu · (w - anchor)
    assert w.tolist() == pytest.approx([1.4, 4.6])


def test_a_plain_step_splits_into_retention_and_pull() -> None:
    how = Optimisation(0.1, weight_decay=0.5, proximal_mu=2.0)
    assert how.is_plain
    assert how.retention == pytest.approx(1 - 0.1 * 2.5)
    assert how.pull == pytest.approx(0.2)
    assert not Optimisation(0.1, momentum=0.1).is_plain
    assert not Optimisation(0.1, "adam").is_plain


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": 0.0}, "lr=0.0"),
        ({"lr": float("nan")}, "lr=nan"),
        ({"lr": 1.0, "optimizer": "lamb"}, "optimizer='lamb'"),
        ({"lr": 1.0, "momentum": 1.0}, "momentum=1.0"),
        ({"lr": 1.0, "optimizer": "adam", "momentum": 0.5}, "momentum=0.5"),
        ({"lr": 1.0, "betas": (0.9, 1.0)}, "betas="),
        ({"lr": 1.0, "weight_decay": -1.0}, "weight_decay=-1.0"),
        ({"lr": 1.0, "proximal_mu": float("inf")}, "proximal_mu=inf"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        Optimisation(**settings)
