"""Reading a policy file: every key must be there, be known, and make sense.

Only what a guarantee is about (``unit``, ``adjacency``, ``assumptions``) may be left out: it is
then a whole client, as each release states, and no assumption; ``ledger``, whose id is known only
when it was begun; ``clip``, on Flower apps; ``guard``, without which no foreign app runs; ``model``
and ``model_mib``, on what a device keeps; and ``receipts``, of which it then gives none. Scalars
are read as text and converted here, because YAML's own rules surprise: ``1e-5`` is text to it,
``no`` is a truth value, and of a key given twice the last one counts.
"""

import math
import re
from collections.abc import Callable, Collection
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

import yaml

from murmur.privacy.events import Adjacency, Unit
from murmur.privacy.policy_terms import MECHANISMS, AloneRules, GuardRules
from murmur.privacy.signing import require_public_key

_MAX_FILE_BYTES = 64 * 1024
_NUMBER = re.compile(r"\d+(\.\d*)?([eE][-+]?\d+)?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_THREATS = ("local", "secure_aggregation")
_AS_STATED = "as_stated"
_ANY = "any"
_REFUSE = "refuse"
_LEDGER = re.compile(r"[0-9a-f]{32}")
_BUNDLE = re.compile(r"[0-9a-f]{64}")
_MIB = 1 << 20
_DEFAULTS: dict[str, Any] = {
    "unit": Unit.CLIENT.value,
    "adjacency": _AS_STATED,
    "assumptions": [],
    "ledger": _ANY,
    "clip": _ANY,
    "guard": None,
    "model": "finite",
    "model_mib": "256",
    "receipts": "none",
}


def read(path: Path) -> dict[str, Any]:
    """The fields of a ``Policy`` from the file ``path``, of at most 64 KiB.

    Raises ValueError, OSError or yaml.YAMLError, which say what is wrong: a key that is missing,
    unknown or given twice, or a value that is not allowed.
    """
    with open(path, "rb") as file:
        content = file.read(_MAX_FILE_BYTES + 1)
    if len(content) > _MAX_FILE_BYTES:
        raise ValueError(f"the file is longer than {_MAX_FILE_BYTES} bytes")
    return parse(content)


def parse(content: bytes) -> dict[str, Any]:
    """``read`` for a file's content: the arguments of ``Policy`` but its source.

    Every key must be there but for those that have a default, and none that is not known. Raises
    ValueError or yaml.YAMLError.
    """
    given = yaml.load(content, _StrictLoader)
    if isinstance(given, dict):
        given = {**_DEFAULTS, **given}
    plain = _mapping("the file", given, _CONVERSIONS)
    fields = {key: convert(key, plain[key]) for key, convert in _CONVERSIONS.items()}
    algorithms = fields.pop("algorithms")
    fields["model_bytes"] = fields.pop("model_mib") * _MIB
    fields["epsilon_per_release"] = _per_release(plain["epsilon_per_release"], algorithms)
    limits = [fields["epsilon_per_lifetime"], *fields["epsilon_per_release"].values()]
    if math.inf in limits and not fields["allow_non_private"]:
        raise ValueError(
            "allow_non_private=false: must be true where epsilon_per_release or "
            "epsilon_per_lifetime is inf; give a finite limit instead"
        )
    return fields


class _StrictLoader(yaml.BaseLoader):
    """Mappings, lists and text; nothing given twice, nothing by reference.

    With YAML's own loader the last of two equal keys would count, and an alias could make a short
    file a huge one.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError(f"an alias (*name) is not allowed{self.peek_event().start_mark}")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        mapping = super().construct_mapping(node, deep)
        if len(mapping) != len(node.value):
            raise yaml.YAMLError(f"a key is given twice in the mapping{node.start_mark}")
        return mapping


def _mapping(key: str, value: object, allowed: Collection[str]) -> dict[str, Any]:
    """``value`` if it is a mapping with all of the ``allowed`` keys and no other.

    ``key`` names it in the error, which says which key is missing or unknown.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{key}={value!r:.60}: must be a mapping with {_list(allowed)}")
    unknown = [name for name in value if name not in allowed]
    if unknown:
        raise ValueError(f"{unknown[0]!r:.60} in {key} is not known; known are {_list(allowed)}")
    missing = [name for name in allowed if name not in value]
    if missing:
        raise ValueError(f"{missing[0]!r} is missing in {key}")
    return value


def _list(names: Collection[str]) -> str:
    return ", ".join(names) or "none"


def _bounded(
    low: float, high: float, *, low_allowed: bool = False
) -> Callable[[str, object], float]:
    """A converter to a number between ``low`` and ``high``; ``high`` counts as allowed.

    Numbers are decimal digits, perhaps with a point and an exponent, or ``inf``: no sign, no
    underscore, no "nan".
    """

    def convert(key: str, value: object) -> float:
        number = math.nan
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            number = float(value)
        elif value in ("inf", ".inf"):
            number = math.inf
        if not (low < number <= high or (low_allowed and number == low)):
            least = "at least" if low_allowed else "above"
            raise ValueError(
                f"{key}={value!r:.60}: must be a number {least} {low:g} and at most {high:g}"
            )
        return number

    return convert


def _count(key: str, value: object) -> int:
    """A whole number of at least 1, of nine digits at most."""
    if not (isinstance(value, str) and re.fullmatch(r"[1-9]\d{0,8}", value)):
        raise ValueError(f"{key}={value!r:.60}: must be a whole number of at least 1")
    return int(value)


def _truth(key: str, value: object) -> bool:
    """A truth value, which only these two words say."""
    if value not in ("true", "false"):
        raise ValueError(f"{key}={value!r:.60}: must be true or false")
    return value == "true"


def _one_of(*words: str) -> Callable[[str, object], str]:
    """A converter to one of ``words``, as they stand: no other case, no abbreviation."""

    def convert(key: str, value: object) -> str:
        if not isinstance(value, str) or value not in words:
            raise ValueError(f"{key}={value!r:.60}: must be one of {_list(words)}")
        return value

    return convert


def _adjacency(key: str, value: object) -> Adjacency | None:
    """Between which neighbours the limits hold.

    None for ``as_stated``: each release is then counted for the neighbours that it states.
    """
    word = _one_of(_AS_STATED, *Adjacency)(key, value)
    if word == _AS_STATED:
        return None
    return Adjacency(word)


def _unit(key: str, value: object) -> Unit:
    return Unit(_one_of(*Unit)(key, value))


def _ledger(key: str, value: object) -> str | None:
    """The id of the only ledger that is believed, 32 hex digits.

    None for ``any``: a ledger that was removed is then begun again at zero.
    """
    if value == _ANY:
        return None
    if not (isinstance(value, str) and _LEDGER.fullmatch(value)):
        raise ValueError(
            f"{key}={value!r:.60}: must be any, or the id that `murmur ledger show` prints"
        )
    return value


def _last_instant(key: str, value: object) -> datetime:
    """The end of a day, in UTC: a policy holds on the day that it names."""
    if not (isinstance(value, str) and _DATE.fullmatch(value)):
        raise ValueError(f"{key}={value!r:.60}: must be a date such as 2027-12-31")
    try:
        return datetime.combine(date.fromisoformat(value), time.max, UTC)
    except ValueError as error:
        raise ValueError(f"{key}={value!r}: {error}") from error


def _texts(key: str, value: object) -> list[str]:
    """A list of names, none of them empty; it may be empty itself."""
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise ValueError(f"{key}={value!r:.60}: must be a list of names")
    return value


def _servers(key: str, value: object) -> tuple[str, ...] | None:
    """Public keys of the servers that may ask, in hex; None for ``any``."""
    if value == _ANY:
        return None
    if not isinstance(value, list) or not value:
        raise ValueError(
            f"{key}={value!r:.80}: must be any, or a list of the keys that `murmur server-key` "
            "prints"
        )
    try:
        return tuple(map(require_public_key, value))
    except ValueError as error:
        raise ValueError(f"{key}: {error}, as `murmur server-key` prints it") from error


def _per_release(value: object, algorithms: list[str]) -> dict[str, float]:
    """The largest ε of one release, by algorithm: one for all, or one for each.

    A mapping must name every one of ``algorithms`` and nothing else.
    """
    if not isinstance(value, dict):
        return dict.fromkeys(algorithms, _epsilon("epsilon_per_release", value))
    limits = _mapping("epsilon_per_release", value, algorithms)
    return {name: _epsilon(f"epsilon_per_release.{name}", limits[name]) for name in algorithms}


def _mechanisms(key: str, value: object) -> dict[str, float]:
    """The weakest allowed setting, by mechanism.

    Each mechanism has one key of its own (``Mechanism.limit``), whose value is above 0.
    """
    if not isinstance(value, dict) or not value.keys() <= MECHANISMS.keys():
        raise ValueError(
            f"{key}={value!r:.60}: must be a mapping whose keys are among {_list(MECHANISMS)}"
        )
    limits = {}
    for name, setting in value.items():
        limit = MECHANISMS[name].limit
        inner = _mapping(f"{key}.{name}", setting, [limit])
        limits[name] = _positive(f"{key}.{name}.{limit}", inner[limit])
    return limits


def _clip(key: str, value: object) -> tuple[float, float] | None:
    """The least and the largest clipping norm; None for ``any``."""
    if value == _ANY:
        return None
    if not isinstance(value, dict):
        raise ValueError(
            f"{key}={value!r:.60}: must be any, or norms such as {{min: 0.01, max: 10}}"
        )
    plain = _mapping(key, value, ("min", "max"))
    least, largest = (_positive(f"{key}.{name}", plain[name]) for name in ("min", "max"))
    if least > largest:
        raise ValueError(f"{key}.min={least:g}: must be at most {key}.max={largest:g}")
    return least, largest


def _guard(key: str, value: object) -> GuardRules | None:
    """Rules that lock a foreign app in; None where the key is not there."""
    if value is None:
        return None
    if isinstance(value, dict):
        value = {"unprotected": _REFUSE, "writes": [], **value}
        _require_whole(f"{key}.without", value.pop("without", []))
    plain = _mapping(key, value, _GUARD)
    found = {name: convert(f"{key}.{name}", plain[name]) for name, convert in _GUARD.items()}
    memory = found.pop("memory_mib") * _MIB
    rules = GuardRules(memory=memory, disk=found.pop("disk_mib") * _MIB, **found)
    for path in rules.writes:
        if not any(path.is_relative_to(read) for read in rules.data):
            raise ValueError(f"{key}.writes={str(path)!r}: must lie in one of {key}.data")
    if rules.answer_seconds <= rules.app_seconds:
        raise ValueError(
            f"{key}.answer_seconds={rules.answer_seconds:g}: must be above app_seconds="
            f"{rules.app_seconds:g}; between the two the answer is clipped, noised and masked"
        )
    return rules


def _unprotected(key: str, value: object) -> AloneRules | None:
    """``refuse``, or what an answer costs under a client's own noise alone."""
    if value == _REFUSE:
        return None
    plain = _mapping(key, value, ("epsilon", "clip"))
    found = {name: _positive(f"{key}.{name}", plain[name]) for name in plain}
    return AloneRules(found["epsilon"], found["clip"])


def _bundles(key: str, value: object) -> tuple[str, ...]:
    """Digests of bundles; empty for ``any``, since a list must name one."""
    if value == _ANY:
        return ()
    digests = []
    if isinstance(value, list):
        digests = [str(digest).lower() for digest in value]
    if not digests or not all(_BUNDLE.fullmatch(digest) for digest in digests):
        raise ValueError(
            f"{key}={value!r:.60}: must be any, or a list of SHA-256 of 64 hex digits, as `flwr "
            "build` and `sha256sum APP.fab` print them"
        )
    return tuple(digests)


def _paths(key: str, value: object) -> tuple[Path, ...]:
    """Absolute paths, of folders or files."""
    paths = tuple(Path(name) for name in _texts(key, value))
    if not all(path.is_absolute() for path in paths):
        raise ValueError(f"{key}={value!r:.60}: must be absolute paths")
    return paths


def _require_whole(key: str, value: object) -> None:
    """ValueError where an old policy does without parts of what locks an app in."""
    if value != []:
        raise ValueError(
            f"{key}={value!r:.60}: nothing is left out any more, bubblewrap locks an app in or "
            "`murmur guard` does not start; take the key out"
        )


_epsilon = _bounded(0, math.inf)
_seconds = _bounded(0, 86400)
_positive = _bounded(0, 1e12)

_GUARD: dict[str, Callable[[str, Any], Any]] = {
    "bundles": _bundles,
    "data": _paths,
    "writes": _paths,
    "app_seconds": _seconds,
    "answer_seconds": _seconds,
    "cpu_seconds": _count,
    "memory_mib": _count,
    "disk_mib": _count,
    "processes": _count,
    "unprotected": _unprotected,
}

_CONVERSIONS: dict[str, Callable[[str, Any], Any]] = {
    "expires": _last_instant,
    "servers": _servers,
    "algorithms": _texts,
    "mechanisms": _mechanisms,
    "epsilon_per_release": lambda key, value: value,
    "epsilon_per_lifetime": _epsilon,
    "delta": _bounded(0, 0.5, low_allowed=True),
    "threat": _one_of(*_THREATS),
    "unit": _unit,
    "adjacency": _adjacency,
    "assumptions": _texts,
    "ledger": _ledger,
    "minimum_surviving_clients": _count,
    "allow_seeded_noise": _truth,
    "allow_non_private": _truth,
    "clip": _clip,
    "guard": _guard,
    "model": _one_of(_REFUSE, "finite", _ANY),
    "model_mib": _count,
    "receipts": _one_of("none", "run", "run, sizes"),
}
