"""What holds for the splits of a data set, whoever has read it.

Splits of one data set may number, order or spell their classes each for itself. Readers number them
by name; here is refused what no training row can teach: a class that only the test set has. Most
often it is another spelling (``>50K.`` for ``>50K``), and a model would never be right on it.
"""

from collections import Counter
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from murmur.learning.data.cells import listed, nearest, nfc
from murmur.learning.data.examples import DataError, Dataset

_MAX_SHOWN_CLASSES = 5  # classes in an error
Unseen = Literal["refuse", "drop"]


def require_taught(data: Dataset, unseen: Unseen = "refuse") -> Dataset:
    """``data`` whose test rows are all of classes that training rows have.

    Args:
        data: as it was read.
        unseen: what becomes of test rows of other classes: an error, or they are left out, which
            a note says. Classes that nobody has named and that then have no row are none.

    Raises:
        DataError: there are such rows, or no others; or two classes have the same name.
    """
    names = data.classes or tuple(map(str, range(data.num_classes)))
    _require_distinct(names)
    if not data.objective.has_classes:
        return data
    taught = np.unique(data.train.labels)
    known = np.isin(data.test.labels, taught)
    if known.all() or not len(taught):
        return data
    strange = np.unique(data.test.labels[~known])
    if unseen == "refuse" or not known.any():
        raise _untaught([names[n] for n in taught], [names[n] for n in strange])
    owners = data.test_owners
    if owners is not None:
        owners = np.unique(owners[known], return_inverse=True)[1]
    lost = listed(names[number] for number in strange)
    note = f"{np.sum(~known)} test rows of classes that no training row has are dropped ({lost})"
    rest = replace(
        data,
        test=data.test.take(np.flatnonzero(known)),
        test_owners=owners,
        notes=(*data.notes, note),
    )
    if data.named:
        return rest
    return _without(rest, strange, names)


def _require_distinct(names: tuple[str, ...]) -> None:
    """DataError where two classes have one name, in whichever of Unicode's forms."""
    twice = [name for name, count in Counter(map(nfc, names)).items() if count > 1]
    if twice:
        raise DataError(f"the classes {listed(twice)} stand twice; name each class once")


def _untaught(taught: list[str], strange: list[str]) -> DataError:
    """The refusal of test rows of classes that no training row has."""
    said = []
    for name in strange[:_MAX_SHOWN_CLASSES]:
        near = nearest(name, taught)
        said.append(f"{name!r}" + (f" (nearest: {near!r})" if near else ""))
    return DataError(
        f"test rows have classes that no training row has: {', '.join(said)}; "
        f"training rows have {listed(map(repr, taught))}, and only the test set has "
        f"{listed(map(repr, strange))}; write them alike, or leave such rows out "
        "(dataset.unseen=drop)"
    )


def _without(data: Dataset, strange: NDArray[np.int64], names: tuple[str, ...]) -> Dataset:
    """``data`` without the classes ``strange``, which no row has."""
    kept = np.setdiff1d(np.arange(len(names)), strange)
    count = max(2, len(kept))
    train = replace(data.train, labels=np.searchsorted(kept, data.train.labels))
    test = replace(data.test, labels=np.searchsorted(kept, data.test.labels))
    classes = tuple(names[number] for number in kept)
    return replace(data, train=train, test=test, num_classes=count, classes=classes)
