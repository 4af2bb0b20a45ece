"""Settings: frozen dataclasses whose fields carry their own ranges, and say so in one sentence.

Apart from ``murmur.common``, since pydantic takes a third of a second to import and a ledger, a
device's help and an error message do without.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any, TypeVar, dataclass_transform

import pydantic
from pydantic import Field

# Ranges of settings, for fields of ``settings`` classes.
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1)]  # neither none nor all

Settings = TypeVar("Settings")


@dataclass_transform(frozen_default=True)
def settings(cls: type[Settings]) -> type[Settings]:
    """Make ``cls`` a frozen dataclass that checks its fields' types and ranges when it is made.

    A range stands in the annotation: ``Count``, ``Literal["hard", "soft"]``,
    ``Annotated[float, Field(ge=0)]``. What fields must keep together is checked in
    ``__post_init__``, by ValueError. Integers pass for floats; nothing else is converted.

    The class raises ValueError ("name=value: must be ..."), and TypeError for a field that is
    missing or unknown.
    """
    rules: pydantic.ConfigDict = {
        "strict": True,
        "extra": "forbid",
        "arbitrary_types_allowed": True,
    }
    made: Any = pydantic.dataclasses.dataclass(cls, frozen=True, config=rules)
    checked = made.__init__

    @functools.wraps(checked)
    def init(self: Settings, *values: Any, **named: Any) -> None:
        try:
            checked(self, *values, **named)
        except pydantic.ValidationError as error:
            raise _plain_error(error, list(made.__dataclass_fields__)) from None

    made.__init__ = init
    return made


def _plain_error(error: pydantic.ValidationError, fields: list[str]) -> Exception:
    """The first fault of ``error`` in one sentence."""
    fault = error.errors()[0]
    if fault["type"] == "value_error":  # of ``__post_init__``
        return fault["ctx"]["error"]
    place = fault["loc"][0]
    name = fields[place] if isinstance(place, int) else place
    if fault["type"] in ("missing", "unexpected_keyword_argument"):
        return TypeError(f"{error.title}: {name}: {fault['msg'].lower()}")
    reason = fault["msg"].replace("Input should be", "must be")
    if fault["type"] == "greater_than":
        reason = reason.replace("greater than", "finite and above")
    return ValueError(f"{name}={fault['input']!r}: {reason}")
