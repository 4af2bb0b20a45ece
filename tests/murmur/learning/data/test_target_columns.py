"""Label columns of numbers and of 0 and 1: what is read, what is refused, what is blank."""

import numpy as np
import pytest

from murmur.learning.data.examples import DataError, Dataset, Examples
from murmur.learning.data.tables import table
from murmur.learning.objective import Objective

TABLE = "a,price,pain,cough\n1,2.5,1,True\n2,99,0,False\n3,-4,1,True\n4,7,0,False\n"


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "own.csv"
    file.write_text(TABLE)
    return str(file)


def read(path, **settings):
    return table(path=path, inputs=["a"], test_fraction=0.0, **settings)


def test_a_number_is_kept_in_its_unit(path):
    data = read(path, task="regression", label="price", label_range=[0, 10])
    assert data.objective == Objective("regression", 0.0, 10.0)
    assert data.train.labels.tolist() == [2.5, 99.0, -4.0, 7.0]
    assert (data.num_classes, data.num_strata, data.classes) == (1, 1, None)
    targets = data.objective.targets(data.train.labels, 1)[:, 0]
    assert np.allclose(targets, [-0.5, 1, -1, 0.4])  # beyond an end is the end
    assert data.train.strata.tolist() == [0, 0, 0, 0]


def test_several_columns_are_several_labels(path):
    data = read(path, task="multilabel", labels=["pain", "cough"])
    assert data.train.labels.tolist() == [[1, 1], [0, 0], [1, 1], [0, 0]]
    assert data.classes == ("pain", "cough")
    assert data.named


def test_without_inputs_no_label_is_an_input(path):
    data = table(path=path, task="multilabel", labels=["pain", "cough"], test_fraction=0.25)
    assert data.columns == ("a", "price")
    assert len(data.test) == 1


def test_a_missing_number_is_refused_or_blank(tmp_path):
    file = tmp_path / "own.csv"
    file.write_text("a,price\n1,2\n2,\n3,x\n")
    settings = {"task": "regression", "label": "price", "label_range": [0, 10]}
    with pytest.raises(DataError, match=r"column 'price'.*row 1"):
        read(str(file), **settings)
    data = read(str(file), blanks=True, channels=1, size=1, **settings)
    assert sorted(data.blanks) == [1, 2]
    assert data.train.labels.tolist() == [2, 0, 0]


REFUSED = {
    "no range": ({"task": "regression", "label": "price"}, "label_range=None"),
    "range of classes": ({"label": "pain", "label_range": [0, 1]}, "label_range="),
    "one end": ({"task": "regression", "label_range": [0]}, r"label_range=\[0\]"),
    "turned": ({"task": "regression", "label_range": [1, 0]}, r"label_range=\[1.0, 0.0\]"),
    "words": ({"task": "regression", "label_range": ["a", "b"]}, "label_range="),
    "one label": ({"task": "multilabel", "labels": ["pain"]}, "labels="),
    "twice": ({"task": "multilabel", "labels": ["pain", "cough", "pain"]}, "labels="),
    "no labels": ({"task": "multilabel"}, "labels=None"),
    "labels of classes": ({"labels": ["pain", "cough"]}, "labels="),
    "a label as input": ({"task": "multilabel", "labels": ["a", "pain"]}, "inputs="),
    "a label as owner": (
        {"task": "multilabel", "labels": ["cough", "pain"], "client": "pain"},
        "client=pain",
    ),
    "unknown": ({"task": "ranking"}, "task=ranking"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_settings_of_another_task_are_refused(path, case):
    settings, said = REFUSED[case]
    with pytest.raises(ValueError, match=said):
        read(path, **settings)


def test_a_measurement_as_class_is_refused_with_the_task_for_it(path):
    with pytest.raises(DataError, match="task=regression"):
        read(path, label="price")


def test_a_data_set_refuses_labels_of_another_task():
    images = np.zeros((2, 1, 1, 1), np.float32)
    numbers = Examples(images, np.zeros(2, np.float32))
    with pytest.raises(ValueError, match="task=multilabel"):
        Dataset("x", numbers, numbers, 2, (1, 1, 1), objective=Objective("multilabel"))
