"""Settings: frozen dataclasses whose fields carry their own ranges, and say so in one sentence.

Apart from ``murmur.checks``, since pydantic takes a third of a second to import and a ledger, a
device's help and an error message do without.
"""

import functools
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeVar, dataclass_transform

import pydantic
from pydantic import Field

# Ranges of settings, for fields of ``settings`` classes.
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# Floats lie too far apart below it, and squares of what noise it needs overflow above.
Norm = Annotated[float, Field(ge=1e-300, le=1e100)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, lt=1)]  # neither none nor all
Decay = Annotated[float, Field(ge=0, lt=1)]

# What types are called, and pydantic's names for what is of the right type and out of its range.
_WORDS = {int: "an integer", float: "a number", str: "text", bool: "true or false", list: "a list"}
_OUT_OF_RANGE = {
    "greater_than",
    "greater_than_equal",
    "less_than",
    "less_than_equal",
    "finite_number",
}
_FINITE = "finite and "

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
            raise _plain_error(error, made, {**dict(enumerate(values)), **named}) from None

    made.__init__ = init
    return made


def _plain_error(error: pydantic.ValidationError, made: Any, given: Mapping[Any, Any]) -> Exception:
    """The first fault of ``error`` in one sentence; ``given``: values by place or by name."""
    fault = error.errors()[0]
    if fault["type"] == "value_error":  # of ``__post_init__``
        return fault["ctx"]["error"]
    place = fault["loc"][0]
    name = str(place)
    if isinstance(place, int):
        name = list(made.__dataclass_fields__)[place]
    if fault["type"] in ("missing", "unexpected_keyword_argument"):
        return TypeError(f"{error.title}: {name}: {fault['msg'].lower()}")
    faults = [other["type"] for other in error.errors() if other["loc"][0] == place]
    allowed = allowed_by(field_hints(made)[name], faults)
    return ValueError(f"{name}={given[place]!r}: must {allowed}")


def field_hints(kind: Any) -> dict[str, Any]:
    """The annotation of each field of a ``settings`` class, with its range, by name."""
    found: dict[str, Any] = {}
    for name, field in kind.__pydantic_fields__.items():
        found[name] = field.annotation
        if field.metadata:
            found[name] = Annotated[(field.annotation, *field.metadata)]
    return found


def allowed_by(hint: Any, faults: Iterable[str]) -> str:
    """Values that ``hint`` allows, in words behind "must": "be an integer of at least 1, or null".

    Args:
        hint: a type, with ``Annotated`` and pydantic's ``Field`` for a range.
        faults: pydantic's names of what was wrong. Of a union each member has its fault; one about
            a range says that the type was right, so that its name would mislead: "lie in (0, 1]".
    """
    only_range = bool(_OUT_OF_RANGE & set(faults))
    members = [hint]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        members = list(typing.get_args(hint))
    nothing = type(None) in members
    members = [member for member in members if member is not type(None)]
    if float in members and int in members:
        members.remove(int)
    if only_range:
        text = " or ".join(_range(member) for member in members if _range(member))
    else:
        text = " or ".join(map(_named, members))
    if not text.startswith("lie "):
        text = f"be {text}"
    if nothing:
        text += ", or null"
    return text


def _named(hint: Any) -> str:
    """One type, with its range: "an integer of at least 1", "one of os, seeded"."""
    if typing.get_origin(hint) is Annotated:
        kind = _named(typing.get_args(hint)[0])
        words = _range(hint).removeprefix("lie ")
        if words.startswith(_FINITE):
            kind = kind.replace("a number", "a finite number")
            words = words.removeprefix(_FINITE)
        if words.startswith("at "):
            return f"{kind} of {words}"
        return f"{kind} {words}"
    if typing.get_origin(hint) is typing.Literal:
        return f"one of {', '.join(map(str, typing.get_args(hint)))}"
    if typing.get_origin(hint) is None and hasattr(hint, "__name__"):
        return _WORDS.get(hint, hint.__name__)
    return str(hint).replace("collections.abc.", "").replace("typing.", "")


def _range(hint: Any) -> str:
    """The range in an ``Annotated``: "finite and above 0", "at least 1", "lie in (0, 1]"; or ""."""
    bounds: dict[str, Any] = {}
    for note in typing.get_args(hint)[1:]:
        for part in (note, *getattr(note, "metadata", ())):
            names = ("gt", "ge", "lt", "le", "allow_inf_nan")
            bounds |= {name: getattr(part, name) for name in names if hasattr(part, name)}
    low = bounds.get("gt", bounds.get("ge"))
    high = bounds.get("lt", bounds.get("le"))
    if low is not None and high is not None:
        opening = "["
        closing = "]"
        if "gt" in bounds:
            opening = "("
        if "lt" in bounds:
            closing = ")"
        return f"lie in {opening}{low}, {high}{closing}"
    words = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
    for name, sign in words.items():
        if name in bounds:
            finite = ""
            if bounds.get("allow_inf_nan") is False:
                finite = _FINITE
            return f"{finite}{sign} {bounds[name]}"
    return ""
