"""A release for records hides one, whatever file, folder or table it is in, and in what order.

One client's records lie on a disk in each form that a device reads, sorted in different ways; a
neighbour lacks one of them, or has another one in its place, and is sorted anew. Local training
is replaced by one that ends on one side or the other by what it sees, the order included, so that
whatever a record moves besides itself shows. The rest is the client's own code.
``make test-thorough`` tries each algorithm and form, ``make test-long`` each of these with each
value that a server may set.
"""

import hashlib
import json
import os
from dataclasses import replace
from itertools import cycle
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fl_app.config.errors import ConfigError
from fl_app.config.settings import DeviceDataSpec
from fl_app.device.data import OwnData
from fl_app.device.node_settings import OwnerSettings
from murmur.algorithms.class_moments import CENTRE
from murmur.learning.training.trainer import Trainer
from murmur.privacy.events import Adjacency, Unit
from murmur.privacy.record_choice import RecordKey
from tests import charge_tape
from tests.asked_of_device import CLASSES, TINY, Asked, Case
from tests.charge_tape import charged

record = charge_tape.record
RECORDS, SIZES, PIXELS = 40, (40, 8, 8), 64
RECORD = "privacy.unit=record"
PATE = ("strategy=kd_dpfl", *TINY, RECORD, "strategy.labelling.mechanism=pate")
FEW = ("strategy.labelling.teachers=20", "strategy.labelling.allow_few=true")
COUNTS = ("strategy=fedavg", *TINY, "evaluation=protected_counts")
LINEAR = ("strategy=class_moments", "model=centred", RECORD)
CASES = {
    "dpsgd_fedavg": Case(("strategy=dpsgd_fedavg", *TINY, RECORD)),
    "nbafl": Case(("strategy=nbafl", *TINY, RECORD)),
    "kd_dpfl": Case(("strategy=kd_dpfl", *TINY, RECORD), "train"),
    "kd_dpfl dpsgd_teacher": Case(("strategy=kd_dpfl", *TINY, RECORD), "label"),
    "kd_dpfl pate": Case((*PATE, *FEW), "label"),
    "kd_dpfl pate laplace": Case((*PATE, *FEW, "strategy.labelling.noise=laplace"), "label"),
    "class_moments": Case(LINEAR, "train"),
    "class_moments centre": Case(LINEAR, CENTRE),
    "counts": Case((*COUNTS, "evaluation.counts.examples=20")),
    "counts gaussian": Case(
        (*COUNTS, "evaluation.counts.examples=20", "evaluation.counts.noise=gaussian")
    ),
}


# Records on a disk ------------------------------------------------------------------------------


def some_records(seed):
    """Grey pictures (n, 8, 8), their classes, names and dates."""
    rng = np.random.default_rng(seed)
    count = RECORDS + 1
    return SimpleNamespace(
        pixels=rng.integers(0, 256, (count, 8, 8), np.uint8),
        labels=rng.integers(0, CLASSES, count),
        names=rng.permutation(count),
        dates=rng.permutation(count),
    )


SORTED = {
    "by class": lambda r: np.lexsort((r.dates, r.labels)),
    "by class and name": lambda r: np.lexsort((r.names, r.labels)),
    "by name": lambda r: np.argsort(r.names),
    "by date": lambda r: np.argsort(r.dates),
    "reversed": lambda r: np.lexsort((r.names, r.labels))[::-1],
}


def image_folder(folder, pixels, labels):
    """Names follow the order, within a class."""
    for place, (picture, label) in enumerate(zip(pixels, labels, strict=True)):
        path = folder / str(label) / f"{place:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(path)
        os.utime(path, (place, place))
    return folder, {}


def npz(folder, pixels, labels):
    np.savez(folder / "data.npz", images=pixels, labels=labels)
    return folder / "data.npz", {}


def npz_with_one_key_more(folder, pixels, labels):
    more = {"names": np.arange(len(labels)), "images": pixels, "labels": labels}
    np.savez(folder / "data.npz", **more)
    return folder / "data.npz", {}


def csv(folder, pixels, labels):
    frame(pixels, labels).to_csv(folder / "data.csv", index=False)
    return folder / "data.csv", {}


def parquet(folder, pixels, labels):
    frame(pixels, labels).to_parquet(folder / "data.parquet")
    return folder / "data.parquet", {"inputs": COLUMNS}


def table_with_one_key_more(folder, pixels, labels):
    told = frame(pixels, labels).assign(name=np.arange(len(labels)))
    told.to_csv(folder / "table.csv", index=False)
    return folder / "table.csv", {"inputs": COLUMNS}


def datasets(folder, pixels, labels):
    from datasets import Dataset

    Dataset.from_pandas(frame(pixels, labels)).save_to_disk(folder / "saved")
    return folder / "saved", {"inputs": COLUMNS}


COLUMNS = tuple(f"p{number}" for number in range(PIXELS))


def frame(pixels, labels):
    numbers = pixels.reshape(len(pixels), PIXELS)
    return pd.DataFrame({"label": labels, **dict(zip(COLUMNS, numbers.T, strict=True))})


FORMS = (
    *(image_folder, npz, npz_with_one_key_more, csv),
    *(parquet, table_with_one_key_more, datasets),
)


class OnDisk(Asked):
    """A question to a client whose records are read as a device reads them."""

    def __init__(self, words, folder, form, purpose):
        self.form = form
        self.folder = folder
        shape = (1, 8, 8) if form in (image_folder, npz, npz_with_one_key_more, csv) else (64, 1, 1)
        super().__init__(words, folder, SIZES, purpose, shape)
        key = RecordKey(folder / "records.key", seed=1)
        self.role.setup = replace(self.role.setup, record_key=key)
        self.count = SIZES[self.task.client]
        self.records = some_records(seed=3)

    def read(self, rows, order):
        """The records ``rows``, as a device finds them where they lie sorted."""
        own = SimpleNamespace(**{key: found[rows] for key, found in vars(self.records).items()})
        order = SORTED[order](own)
        number = hashlib.sha256(repr((rows.tolist(), order.tolist())).encode()).hexdigest()[:12]
        place = self.folder / number
        place.mkdir(exist_ok=True)
        path, more = self.form(place, own.pixels[order], own.labels[order])
        owner = OwnerSettings((0,), str(path), None, shape=self.shape, classes=CLASSES, **more)
        terms = DeviceDataSpec(list(self.shape), CLASSES)
        return OwnData(owner, terms, self.folder).of(0)

    def pairs(self, record):
        """Tapes of neighbours, sorted in all ways in turn."""
        rows = np.arange(self.count)
        base = self.read(rows, "by class")
        tape = record(self.role, self.task, base)
        known = {content: place for place, content in enumerate(base.contents())}
        orders = cycle(SORTED)
        for victim in range(0, self.count, self.count // 8):
            rest = np.delete(rows, victim)
            if self.release.adjacency is Adjacency.REPLACE_ONE:
                rest = np.append(rest, RECORDS)
            other = self.read(rest, next(orders))
            places = np.array([known.get(content, -1) for content in other.contents()])
            assert np.count_nonzero(places >= 0) == self.count - 1
            yield tape, record(self.role, self.task, other, tape, places=places)

    def train_badly(self, patch, far):
        """Let training end on a side by all that it is given: rows, their order and the stream."""
        size = self.role.trainer.num_parameters
        direction = np.random.default_rng(1).normal(size=size).astype(np.float32)

        def train(trainer, images, labels, *, indices, rng, **_):
            told = [images[indices].tobytes(), labels[indices].tobytes(), rng.bytes(8)]
            side = hashlib.sha256(b"".join(told)).digest()[0] % 2
            trainer.load(np.float32(far if side else -far) * direction)
            return trainer.parameters()

        patch.setattr(Trainer, "train", train)


def share_of_charge(words, folder, form, purpose, monkeypatch, record):
    """The most of its charge that neighbours use up; None: refused, open, or for a client."""
    try:
        asked = OnDisk(words, folder, form, purpose)
    except (ConfigError, ValueError):
        return None
    if asked.release.unit is Unit.CLIENT or charged(asked.release) is None:
        return None
    with monkeypatch.context() as patch:
        return asked.worst(patch, record)


def sampled(names, *chosen):
    """All of ``names``, of which those that are not ``chosen`` are for ``make test-thorough``."""
    marks = {name: () if name in chosen else pytest.mark.thorough for name in names}
    return [pytest.param(name, marks=mark) for name, mark in marks.items()]


@pytest.mark.parametrize("name", sampled(CASES, "kd_dpfl pate", "counts"))
def test_one_record_uses_up_its_charge_at_most_in_whatever_order_a_folder_is(
    tmp_path, monkeypatch, record, name
):
    words = ["federation.num_clients=3", *CASES[name].words]
    share = share_of_charge(words, tmp_path, image_folder, CASES[name].purpose, monkeypatch, record)
    assert 0 < share <= 1 + 1e-9


@pytest.mark.parametrize("form", sampled(FORMS, npz))
@pytest.mark.parametrize("name", ["kd_dpfl pate", "counts"])
def test_nor_does_it_in_any_other_form(tmp_path, monkeypatch, record, name, form):
    words = ["federation.num_clients=3", *CASES[name].words]
    share = share_of_charge(words, tmp_path, form, CASES[name].purpose, monkeypatch, record)
    assert 0 < share <= 1 + 1e-9


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_nor_with_any_value_that_a_server_may_set(tmp_path, monkeypatch, record, name, form):
    case, shares = CASES[name], []
    for number, chosen in enumerate(case.one_by_one()):
        said = [f"{key}={json.dumps(v).replace('Infinity', 'inf')}" for key, v in chosen.items()]
        folder = tmp_path / str(number)
        folder.mkdir()
        words = ["federation.num_clients=3", *case.words, *said]
        share = share_of_charge(words, folder, form, case.purpose, monkeypatch, record)
        assert share is None or share <= 1 + 1e-9, said
        shares.append(share)
    assert any(share is not None for share in shares)
