"""Settings classes refuse what is out of range by one sentence that names the field."""

import dataclasses
import math
from typing import Literal

import pytest

from murmur.settings import Count, Positive, settings


@settings
class Knobs:
    K: Count
    rate: Positive
    target: Literal["hard", "soft"] = "hard"
    most: int | None = None

    def __post_init__(self):
        if self.K == 7:
            raise ValueError("K=7: must not be seven")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"K": 0}, "K=0: must be at least 1"),
        ({"K": 1.0}, "K=1.0: must be an integer of at least 1"),
        ({"K": True}, "K=True: must be an integer of at least 1"),
        ({"K": 7}, "K=7: must not be seven"),
        ({"rate": math.nan}, "rate=nan: must be finite and above 0"),
        ({"rate": "1"}, "rate='1': must be a finite number above 0"),
        ({"target": "medium"}, "target='medium': must be one of hard, soft"),
        ({"most": 2.5}, "most=2.5: must be an integer, or null"),
    ],
)
def test_a_field_out_of_range_is_named_with_its_value_and_what_is_allowed(changed, said):
    with pytest.raises(ValueError) as caught:
        Knobs(**{"K": 1, "rate": 1.0} | changed)
    assert str(caught.value) == said


@pytest.mark.parametrize("given", [{"K": 1}, {"K": 1, "rate": 1.0, "speed": 2}])
def test_missing_and_unknown_fields_are_type_errors_as_of_any_call(given):
    with pytest.raises(TypeError, match=r"rate|speed"):
        Knobs(**given)


def test_settings_are_frozen_values():
    one = Knobs(1, 2)
    assert one == Knobs(K=1, rate=2.0) and hash(one) == hash(Knobs(1, 2.0))
    assert dataclasses.replace(one, K=3).K == 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.K = 2
