import numpy as np
import pytest

from murmur.learning.metrics import evaluate_logits


def test_accuracy_and_cross_entropy() -> None:
    logits = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]], np.float32))
    result = evaluate_logits(logits, np.array([0, 1]))
    assert type(result.accuracy) is float and result.accuracy == 0.5
    assert result.loss == pytest.approx(-(np.log(0.5) + np.log(0.2)) / 2, rel=1e-6)


def test_large_logits_do_not_overflow() -> None:
    result = evaluate_logits(np.array([[1e30, 0.0]], np.float32), np.array([1]))
    assert result.loss == pytest.approx(1e30)


def test_unusable_labels_are_refused() -> None:
    logits = np.zeros((2, 3), np.float32)
    for labels in (np.array([0]), np.array([0, 3]), np.array([-1, 0])):
        with pytest.raises(ValueError, match=r"^labels="):
            evaluate_logits(logits, labels)
    with pytest.raises(ValueError, match=r"^labels="):
        evaluate_logits(logits[:0], np.array([], np.int64))
