from typing import Any

import pytest
import torch

from murmur.learning.training.optimiser import Adam, Optimisation


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.9)])
def test_steps_agree_with_pytorchs_adam(betas: tuple[float, float]) -> None:
    how = Optimisation(0.1, "adam", betas)
    generator = torch.Generator().manual_seed(0)
    ours = torch.randn(20, generator=generator)
    reference = ours.clone().requires_grad_()
    optimiser, other = Adam(ours), torch.optim.Adam([reference], lr=0.1, betas=betas)
    for _ in range(5):
        gradient = torch.randn(20, generator=generator)
        reference.grad = gradient.clone()
        other.step()
        optimiser.step(ours, gradient, ours, how)
    torch.testing.assert_close(ours, reference.detach(), rtol=1e-5, atol=1e-6)


def test_the_proximal_term_pulls_towards_the_anchor() -> None:
    how = Optimisation(0.1, "adam", proximal_mu=2.0)
    w, anchor = torch.tensor([1.0, 5.0]), torch.tensor([3.0, 3.0])
    Adam(w).step(w, torch.zeros(2), anchor, how)
    # The first step of Adam has the length lr, whatever the gradient's.
    assert w.tolist() == pytest.approx([1.1, 4.9])


def test_a_step_of_sgd_splits_into_retention_and_pull() -> None:
    how = Optimisation(0.1, proximal_mu=2.0)
    assert how.weight_factor == pytest.approx(1 - 0.1 * 2.0)
    assert how.pull == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": 0.0}, "lr=0.0"),
        ({"lr": float("nan")}, "lr=nan"),
        ({"lr": 1.0, "optimizer": "lamb"}, "optimizer='lamb'"),
        ({"lr": 1.0, "betas": (0.9, 1.0)}, "betas="),
        ({"lr": 1.0, "proximal_mu": -1.0}, "proximal_mu=-1.0"),
        ({"lr": 1.0, "proximal_mu": float("inf")}, "proximal_mu=inf"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        Optimisation(**settings)
