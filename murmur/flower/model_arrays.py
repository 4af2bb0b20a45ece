"""The arrays of a model under ``private``: which are trained, and which stay as they were."""

from collections.abc import Sequence

import numpy as np
from flwr.app import Array, ArrayRecord

from murmur.flower import ask as protocol
from murmur.flower.ask import Layout
from murmur.round.task import RunError


class ModelArrays:
    """The arrays that a run begins with, of which some stay.

    Args:
        initial: The strategy's ``initial_arrays``.
        frozen: Names of arrays that nobody trains. ValueError for one that is not there, or where
            no floats are left to train.

    Attributes:
        layout: Which numbers the clients release, and in which order.
        fixed: The arrays that stay as they were, as Flower holds them.
    """

    def __init__(self, initial: ArrayRecord, frozen: Sequence[str]) -> None:
        arrays = protocol.arrays_of(initial)
        missing = [name for name in frozen if name not in arrays]
        if missing:
            known = ", ".join(list(arrays)[:8])
            raise ValueError(f"frozen={missing[0]!r}: must be an array of the model ({known}, ...)")
        self.layout = Layout(arrays, frozen)
        if not self.layout.size:
            raise ValueError("frozen: leaves no floats to train")
        self.fixed = {name: initial[name] for name in self.layout.fixed}

    def restored(self, arrays: ArrayRecord) -> ArrayRecord:
        """Returns ``arrays`` as the run began: in its types, and with what is fixed as it was.

        A strategy that averages turns integers into floats, and an adaptive one may move what
        nobody trained by a rounding error, or a variance below 0. RunError for an array that the
        model did not begin with.
        """
        found = {}
        for name, array in arrays.items():
            if name in self.fixed:
                found[name] = self.fixed[name]
                continue
            dtype = self.layout.trained.get(name)
            if dtype is None:
                raise RunError(f"{name}: an array that the model did not begin with")
            values = protocol.non_negative(name, array.numpy())
            found[name] = Array(np.asarray(values, dtype))
        return ArrayRecord(found)
