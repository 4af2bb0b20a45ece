"""Data in columns: numbers, texts, pictures and owners, from tables and from Hugging Face."""

import datasets
import numpy as np
import pandas
import pyarrow
import pytest
from PIL import Image

from murmur.learning.data import own_data
from murmur.learning.data.column_spec import ColumnSpec
from murmur.learning.data.datasets import medmnist
from murmur.learning.data.examples import DataError
from murmur.learning.data.frames import arrow_frame
from murmur.learning.data.partitions import FlowerPartitioner, Natural
from murmur.learning.data.tables import huggingface, table


def people(count=40):
    rng = np.random.default_rng(0)
    return pandas.DataFrame(
        {
            "age": rng.normal(50, 9, count),
            "dose": rng.random(count),
            "label": np.where(np.arange(count) % 4, "ill", "well"),
            "ward": [f"w{row % 5}" for row in range(count)],
        }
    )


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_table_of_real_numbers(tmp_path, suffix):
    frame, path = people(), tmp_path / f"x.{suffix}"
    frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path)
    data = table(path=str(path), client="ward", test_fraction=0.25)
    assert (len(data.train), len(data.test), data.input_shape) == (32, 8, (2, 1, 1))  # a ward
    both = np.concatenate([data.train.images, data.test.images])[:, :, 0, 0]
    assert np.allclose(np.sort(both[:, 0]), np.sort(frame["age"]), atol=1e-5)
    assert data.num_classes == 2
    assert np.bincount(data.owners).tolist() == [8, 8, 8, 8]
    again = table(path=str(path), client="ward", test_fraction=0.25)
    assert np.array_equal(again.train.images, data.train.images)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"label": "sick", "inputs": ["age"]}, "no column 'sick'; it has age, dose, label"),
        ({}, "column 'ward' holds more than numbers"),
        ({"client": "ward", "classes": ["ill"]}, "class 'well' is not among"),
        ({"path": "nowhere.csv"}, "cannot be read"),
        ({"path": None}, "null: set it"),
    ],
)
def test_a_wrong_table_is_named(tmp_path, settings, said):
    people().to_csv(tmp_path / "x.csv", index=False)
    with pytest.raises(DataError, match=said):
        table(**{"path": str(tmp_path / "x.csv"), **settings})


def test_texts_become_numbers_of_words_that_no_data_decided():
    texts = ["A dog, a cat", "", "a " * 9]
    frame = arrow_frame(pyarrow.table({"text": texts, "label": [0, 1, 1]}))
    (found,) = ColumnSpec(length=4, vocabulary=100).read([frame], ["x"])
    ids = found.examples.images[:, 0, 0]
    assert ids.shape == (3, 4)
    assert ids[0, 0] == ids[0, 2] == ids[2, 0] >= 2
    assert (ids[1] == 0).all() and ids.max() < 100


def test_a_tokenizer_of_ones_own(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    known = Tokenizer(models.WordLevel({"dog": 5, "[UNK]": 1}, unk_token="[UNK]"))
    known.pre_tokenizer = pre_tokenizers.Whitespace()
    known.save(str(tmp_path / "words.json"))
    reading = ColumnSpec(tokenizer=str(tmp_path / "words.json"), length=3)
    frame = arrow_frame(pyarrow.table({"text": ["dog cat"], "label": [0]}))
    (found,) = reading.read([frame], ["x"])
    assert found.examples.images.ravel().tolist() == [5, 1, 0]


def test_a_folder_of_hugging_face_with_pictures_and_named_classes(tmp_path):
    pictures = [Image.new("L", (6, 6), 10 * row) for row in range(6)]
    kinds = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["no", "yes"])}
    )
    rows = {"image": pictures, "label": [0, 1, 1, 0, 1, 1]}
    whole = datasets.Dataset.from_dict(rows, features=kinds)
    both = datasets.DatasetDict({"train": whole, "test": whole.select([0, 1])})
    both.save_to_disk(tmp_path / "saved")
    data = huggingface(path=str(tmp_path / "saved"), size=6)
    assert data.input_shape == (1, 6, 6)
    assert data.train.labels.tolist() == [0, 1, 1, 0, 1, 1]
    assert np.allclose(data.train.images[:, 0, 0, 0] * 255, [0, 10, 20, 30, 40, 50])
    with pytest.raises(DataError, match=r"no split 'held'; it has \['train', 'test'\]; name one"):
        huggingface(path=str(tmp_path / "saved"), test="held")


def test_a_data_set_with_a_training_split_only_says_what_to_do_and_splits_whole_owners(tmp_path):
    whose = [f"p{row // 4}" for row in range(40)]
    rows = {"a": list(range(40)), "label": [row % 2 for row in range(40)], "who": whose}
    whole = datasets.DatasetDict({"train": datasets.Dataset.from_dict(rows)})
    whole.save_to_disk(tmp_path / "saved")
    path = str(tmp_path / "saved")
    with pytest.raises(DataError, match=r"no split 'test'; .* whole owners .*dataset\.test=null"):
        huggingface(path=path, inputs=["a"])
    with pytest.raises(DataError, match=r"no split 'train2'; .*dataset\.train, dataset\.test\)$"):
        huggingface(path=path, inputs=["a"], train="train2")
    data = huggingface(path=path, inputs=["a"], test=None, client="who")
    assert (len(data.train), len(data.test)) == (32, 8)
    assert not set(data.owner_ids) & set(data.test_owner_ids)
    tested = data.test.images[:, 0, 0, 0].astype(int).tolist()
    assert {whose[row] for row in tested} == set(data.test_owner_ids)
    for number, owner in enumerate(data.owner_ids):
        own = data.train.images[data.owners == number, 0, 0, 0].astype(int).tolist()
        assert {whose[row] for row in own} == {owner}


def test_clients_are_the_owners():
    owners = np.array([3, 0, 3, 1, 0, 0])
    shares = Natural()(owners, 3, 2, np.random.default_rng(0))
    assert [share.tolist() for share in shares] == [[1, 4, 5], [3], [0, 2]]
    with pytest.raises(ValueError, match="the data have 3 owners"):
        Natural()(owners, 4, 2, np.random.default_rng(0))


def test_a_partitioner_of_flower():
    labels = np.random.default_rng(1).integers(0, 3, 90)
    settings = {"alpha": 0.5, "min_partition_size": 2}
    split = FlowerPartitioner("DirichletPartitioner", settings)
    shares = split(labels, 4, 3, np.random.default_rng(5))
    assert np.array_equal(np.sort(np.concatenate(shares)), np.arange(90))
    again = split(labels, 4, 3, np.random.default_rng(5))
    assert all(np.array_equal(a, b) for a, b in zip(shares, again, strict=True))
    with pytest.raises(ValueError, match=r"^settings="):
        FlowerPartitioner("DirichletPartitioner", {"alfa": 1})(
            labels, 4, 3, np.random.default_rng(5)
        )
    with pytest.raises(ValueError, match=r"^name=Nobody: must be one of"):
        FlowerPartitioner("Nobody", {})


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((5, 7), (7, 1, 1)),
        ((5, 2, 3), (1, 2, 3)),
        ((5, 4, 2, 6), (4, 2, 6)),
        ((5, 4, 2, 3, 2), (4, 2, 6)),
    ],
)
def test_float_arrays_of_any_shape(tmp_path, shape, expected):
    images = np.random.default_rng(0).normal(size=shape)
    np.savez(tmp_path / "x.npz", images=images, labels=np.array([0, 1, 0, 1, 1]))
    data = own_data.npz(path=tmp_path / "x.npz", test_fraction=0, cache=tmp_path / "cache")
    assert data.input_shape == expected
    assert np.allclose(np.sort(data.train.images.ravel()), np.sort(images.ravel()), atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_none_are_refused(tmp_path, bad):
    np.savez(tmp_path / "x.npz", images=np.array([[1.0], [bad]]), labels=np.array([0, 1]))
    with pytest.raises(DataError, match="NaN or infinite"):
        own_data.npz(path=tmp_path / "x.npz", cache=tmp_path / "cache")


def test_medmnist_by_name(tmp_path):
    parts = {"train": 6, "val": 2, "test": 3}
    arrays = {f"{p}_images": np.zeros((n, 28, 28, 3), np.uint8) for p, n in parts.items()}
    arrays |= {f"{p}_labels": np.arange(n)[:, None] % 4 for p, n in parts.items()}
    np.savez(tmp_path / "bloodmnist.npz", **arrays)
    data = medmnist(name="BloodMNIST", root=tmp_path, cache=tmp_path / "cache")
    assert (data.input_shape, data.num_classes, len(data.train)) == ((3, 28, 28), 4, 6)
    with pytest.raises(DataError, match=r"pathmnist\.npz"):
        medmnist(name="PathMNIST", root=tmp_path, cache=tmp_path / "cache")


SCHEMA = {
    "carrier": {"list": ["AA", "UA"]},
    "month": {"list": [1, 2]},
    "hour": {"range": [0, 24], "bins": 4},
}


def read_by_schema(tmp_path, text):
    file = tmp_path / "table.csv"
    file.write_text(text)
    return table(path=str(file), label="late", schema=SCHEMA, test_fraction=0.0)


def test_what_a_schema_does_not_know_has_a_number_of_its_own(tmp_path):
    rows = "AA,1,5,0\nXX,7,30,1\n,,,0\nUA,2,odd,1\n"
    data = read_by_schema(tmp_path, "carrier,month,hour,late\n" + rows).train.images
    assert data[:, :, 0, 0].tolist() == [[0, 0, 5], [-1, -1, 30], [-1, -1, -24], [1, 1, -24]]


def test_whole_numbers_of_a_typed_column_are_those_of_the_list(tmp_path):
    frame = pandas.DataFrame(
        {"carrier": ["AA", "UA"], "month": [2.0, 1.0], "hour": [1, 2], "late": [0, 1]}
    )
    frame.to_parquet(tmp_path / "table.parquet")
    data = table(
        path=str(tmp_path / "table.parquet"), label="late", schema=SCHEMA, test_fraction=0.0
    )
    assert data.train.images[:, 1, 0, 0].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        ("carrier,month,late", "AA,1", "has no column 'hour'"),
        ("carrier,month,hour,late", "AA,1,noon", "'hour': the schema says numbers.*'noon'"),
        ("carrier,month,hour,late", "AA,May,3", "'month': the schema says numbers.*'May'"),
        ("carrier,month,hour,late", "17,1,3", r"'carrier': the schema lists words.*\(17\)"),
    ],
)
def test_a_column_that_breaks_the_schema_is_refused(tmp_path, header, row, message):
    with pytest.raises(DataError, match=message):
        read_by_schema(tmp_path, f"{header}\n{row},0\n{row},1\n")
