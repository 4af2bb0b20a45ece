"""Components of plain knobs, as conf/ makes them: their settings classes are filled by name."""

import dataclasses
import typing

from pydantic.dataclasses import is_pydantic_dataclass


def made(kind, *args, **knobs):
    """``kind(*args, **knobs)`` with a value of its class for each parameter that is of settings."""
    of_settings = is_pydantic_dataclass(kind)
    hints = typing.get_type_hints(kind if of_settings else kind.__init__)
    for name, hint in hints.items():
        if not is_pydantic_dataclass(hint):
            continue
        if name in knobs:
            values = knobs.pop(name)
        else:
            fields = {field.name for field in dataclasses.fields(hint)}
            values = {key: knobs.pop(key) for key in fields & knobs.keys()}
        knobs[name] = values if is_pydantic_dataclass(type(values)) else made(hint, **values)
    return kind(*args, **knobs)
