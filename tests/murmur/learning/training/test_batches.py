from collections.abc import Callable

import numpy as np
import pytest
import torch

from murmur.learning.training import batches
from murmur.learning.training.batches import BatchLoader, count_steps, index_tensor, target_matrix

SHAPE = (2, 2, 3)


def images(count: int) -> torch.Tensor:
    return torch.arange(count * 12, dtype=torch.float32).view(count, *SHAPE)


def labels(count: int) -> torch.Tensor:
    # Row 0 names the example, so that a batch can be traced.
    return torch.stack([torch.arange(count, dtype=torch.float32), torch.ones(count)])


def serve(count: int, size: int, steps: int, ones: bool = False) -> list[tuple[torch.Tensor, ...]]:
    loader = BatchLoader(SHAPE, ones, torch.device("cpu"))
    served = loader.batches(
        images(count), labels(count), None, size=size, steps=steps, rng=np.random.default_rng(3)
    )
    return [(rows.clone(), y.clone()) for rows, y in served]


def test_a_pass_visits_every_example_once_and_keeps_the_last_partial_batch() -> None:
    served = serve(10, 4, 6)
    assert [len(rows) for rows, _ in served] == [4, 4, 2, 4, 4, 2]
    first, second = (torch.cat([y[0] for _, y in served[i : i + 3]]) for i in (0, 3))
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(10))
    assert first.tolist() != second.tolist()


def test_rows_are_channels_last_and_match_their_targets() -> None:
    for rows, y in serve(7, 3, 3):
        expected = images(7)[y[0].long()].permute(0, 2, 3, 1).reshape(-1, 12)
        assert torch.equal(rows, expected)


def test_rows_end_in_a_one_if_asked() -> None:
    for rows, _ in serve(7, 3, 3, ones=True):
        assert rows.shape[1] == 13
        assert rows[:, 12].eq(1).all()


def test_the_steps_may_end_within_a_pass() -> None:
    assert len(serve(10, 4, 2)) == 2
    assert serve(10, 4, 0) == []


@pytest.mark.parametrize("gathered", [1, 4, 7, 25])
def test_how_many_are_gathered_at_a_time_changes_nothing(
    gathered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = serve(10, 4, 8)
    monkeypatch.setattr(batches, "_GATHERED", gathered)
    for (rows, y), (other_rows, other_y) in zip(expected, serve(10, 4, 8), strict=True):
        assert torch.equal(rows, other_rows)
        assert torch.equal(y, other_y)


def test_indices_select_the_examples() -> None:
    loader = BatchLoader(SHAPE, False, torch.device("cpu"))
    chosen = torch.tensor([5, 2, 8])
    served = loader.batches(
        images(9), labels(9)[:, chosen], chosen, size=2, steps=2, rng=np.random.default_rng(0)
    )
    for rows, y in served:
        assert torch.equal(rows[:, 0], 12 * y[0])


def test_targets_are_distributions_with_classes_first() -> None:
    hard = target_matrix(np.array([2, 0, 1]), torch.tensor([0, 1]), (3, 3), False)
    assert hard.tolist() == [[0, 1], [0, 0], [1, 0]]
    soft = np.array([[0.25, 0.75], [1, 0]], np.float32)
    assert target_matrix(soft, None, (2, 2), True).tolist() == [[0.25, 1], [0.75, 0]]


def test_epochs_and_steps_count_the_same_batches() -> None:
    assert count_steps(2, None, 10, 4) == 6
    assert count_steps(None, 5, 10, 4) == 5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: count_steps(1, 1, 10, 4), "epochs=1: set either"),
        (lambda: count_steps(None, None, 10, 4), "epochs=None: set either"),
        (lambda: count_steps(-1, None, 10, 4), "epochs=-1: "),
        (lambda: count_steps(None, -1, 10, 4), "steps=-1: "),
        (lambda: count_steps(1, None, 10, 0), "batch_size=0: "),
        (lambda: index_tensor(None, 0), "images="),
        (lambda: index_tensor(np.array([], int), 5), "images="),
        (lambda: index_tensor(np.array([5]), 5), r"indices=5\.\.5: "),
        (lambda: index_tensor(np.array([-1]), 5), r"indices=-1\.\.-1: "),
        (lambda: target_matrix(np.array([0]), None, (2, 3), False), "labels="),
        (lambda: target_matrix(np.array([0.0, 1.0]), None, (2, 3), False), "labels=float64"),
        (lambda: target_matrix(np.array([0, 3]), None, (2, 3), False), r"labels=0\.\.3: "),
        (lambda: target_matrix(np.array([0, -1]), None, (2, 3), False), r"labels=-1\.\.0: "),
        (lambda: target_matrix(np.full((2, 3), 0.5), None, (2, 3), True), "labels=soft"),
        (lambda: target_matrix(np.full((2, 3), np.nan), None, (2, 3), True), "labels=soft"),
        (lambda: target_matrix(np.array([[2.0, -1.0]]), None, (1, 2), True), "labels=soft"),
    ],
)
def test_bad_requests_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        call()
