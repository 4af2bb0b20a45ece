import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from murmur.learning.training import batches
from murmur.learning.training.batches import (
    BatchLoader,
    as_tensor,
    count_steps,
    index_tensor,
    target_rows,
)

SHAPE = (2, 2, 3)


def images(count: int) -> torch.Tensor:
    return torch.arange(count * 12, dtype=torch.float32).view(count, *SHAPE)


def targets(count: int) -> torch.Tensor:
    # The first column names the example, so that a batch can be traced.
    return torch.stack([torch.arange(count, dtype=torch.float32), torch.ones(count)], dim=1)


def room(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.empty(count, *SHAPE)
    return images, images


def serve(count: int, size: int, steps: int) -> list[tuple[torch.Tensor, ...]]:
    loader = BatchLoader(room, torch.device("cpu"))
    served = loader.batches(
        images(count), targets(count), None, size=size, steps=steps, rng=np.random.default_rng(3)
    )
    return [(x.clone(), y.clone()) for x, y in served]


def test_a_pass_visits_every_example_once_and_keeps_the_last_partial_batch() -> None:
    served = serve(10, 4, 6)
    assert [len(x) for x, _ in served] == [4, 4, 2, 4, 4, 2]
    first, second = (torch.cat([y[:, 0] for _, y in served[i : i + 3]]) for i in (0, 3))
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(10))
    assert first.tolist() != second.tolist()


def test_images_match_their_targets() -> None:
    for x, y in serve(7, 3, 3):
        assert torch.equal(x, images(7)[y[:, 0].long()])


def test_batches_are_slices_of_the_memory_that_was_made_for_them() -> None:
    def rows_with_ones(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.ones(count, 13)
        return rows, rows[:, :12].view(count, 2, 3, 2).permute(0, 3, 1, 2)

    loader = BatchLoader(rows_with_ones, torch.device("cpu"))
    served = loader.batches(
        images(7), targets(7), None, size=3, steps=3, rng=np.random.default_rng(0)
    )
    for x, y in served:
        expected = images(7)[y[:, 0].long()].permute(0, 2, 3, 1).flatten(1)
        assert torch.equal(x[:, :12], expected) and x[:, 12].eq(1).all()


def test_the_steps_may_end_within_a_pass() -> None:
    assert len(serve(10, 4, 2)) == 2
    assert serve(10, 4, 0) == []


@pytest.mark.parametrize("gathered", [1, 4, 7, 25])
def test_how_many_are_gathered_at_a_time_changes_nothing(
    gathered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = serve(10, 4, 8)
    monkeypatch.setattr(batches, "MAX_GATHERED_EXAMPLES", gathered)
    for (x, y), (other_x, other_y) in zip(expected, serve(10, 4, 8), strict=True):
        assert torch.equal(x, other_x)
        assert torch.equal(y, other_y)


def test_indices_select_the_examples() -> None:
    loader = BatchLoader(room, torch.device("cpu"))
    chosen = torch.tensor([5, 2, 8])
    served = loader.batches(
        images(9), targets(9)[chosen], chosen, size=2, steps=2, rng=np.random.default_rng(0)
    )
    for x, y in served:
        assert torch.equal(x[:, 0, 0, 0], 12 * y[:, 0])


def test_targets_are_distributions() -> None:
    hard = target_rows(np.array([2, 0, 1]), torch.tensor([0, 1]), (3, 3), False)
    assert hard.tolist() == [[0, 0, 1], [1, 0, 0]]
    soft = np.array([[0.25, 0.75], [1, 0]], np.float32)
    assert target_rows(soft, None, (2, 2), True).tolist() == soft.tolist()


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
        (lambda: target_rows(np.array([0]), None, (2, 3), False), "labels="),
        (lambda: target_rows(np.array([0.0, 1.0]), None, (2, 3), False), "labels=float64"),
        (lambda: target_rows(np.array([0, 3]), None, (2, 3), False), r"labels=0\.\.3: "),
        (lambda: target_rows(np.array([0, -1]), None, (2, 3), False), r"labels=-1\.\.0: "),
        (lambda: target_rows(np.full((2, 3), 0.5), None, (2, 3), True), "labels=soft"),
        (lambda: target_rows(np.full((2, 3), np.nan), None, (2, 3), True), "labels=soft"),
        (lambda: target_rows(np.array([[2.0, -1.0]]), None, (1, 2), True), "labels=soft"),
    ],
)
def test_bad_requests_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        call()


def test_a_read_only_array_is_seen_without_copy_or_warning(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(12, dtype=np.float32).reshape(3, 4))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor = as_tensor(mapped)
    assert tensor.data_ptr() == mapped.ctypes.data
    assert tensor.tolist() == mapped.tolist()
    assert not mapped.flags.writeable


def test_the_tensor_keeps_the_array_alive() -> None:
    array = np.arange(100_000.0)
    array.flags.writeable = False
    tensor = as_tensor(array)
    del array
    filler = [np.zeros(100_000) for _ in range(5)]
    assert tensor.sum() == 100_000 * 99_999 / 2
    assert len(filler) == 5
