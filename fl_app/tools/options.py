"""What each tool of `murmur` takes (``options.yaml``), and what reads an option's value."""

import argparse
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("options.yaml")
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def parser_of(tool: str, page: Path = PAGE) -> argparse.ArgumentParser:
    """Returns the parser of the words after ``murmur TOOL``, as the YAML file ``page`` has it."""
    import yaml  # which `murmur --help` does without

    listed = yaml.safe_load(page.read_text(encoding="utf-8"))[tool]
    parser = argparse.ArgumentParser(prog=f"murmur {tool}", description=listed["description"])
    _add(parser, listed)
    if "kinds" in listed:
        kinds = parser.add_subparsers(dest="kind", required=True)
        for kind, own in listed["kinds"].items():
            _add(kinds.add_parser(kind, help=own["help"]), own)
    return parser


def _add(parser: argparse._ActionsContainer, listed: Mapping[str, Any]) -> None:
    """Let ``parser`` take the arguments that are ``listed``, by themselves or in groups."""
    for name, how in listed.get("arguments", {}).items():
        if "type" in how:
            how = {**how, "type": _READS[how["type"]]}
        parser.add_argument(name, **how)
    for title, group in listed.get("groups", {}).items():
        _add(parser.add_argument_group(title), group)


def count(text: str) -> int:
    """An integer of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be at least 1")
    return number


def minutes(text: str) -> float:
    """A time above 0."""
    found = float(text)
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"{text} must be above 0")
    return found


def delta(text: str) -> float:
    """A δ in [0, 1)."""
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} must lie in [0, 1)")
    return value


def table(text: str) -> Path:
    """A file whose suffix says how a table is written."""
    if Path(text).suffix not in (".csv", ".json"):
        raise argparse.ArgumentTypeError(f"{text} must end in .csv or .json")
    return Path(text)


def loopback(text: str) -> str:
    """An address that leaves this machine nowhere."""
    host, _, port = text.rpartition(":")
    if host not in LOOPBACK or not port.isdecimal():
        raise argparse.ArgumentTypeError(
            f"{text}: must be HOST:PORT with a host of {', '.join(LOOPBACK)}: what passes there "
            "is not encrypted"
        )
    return text


def sha256_digits(text: str) -> str:
    """SHA-256 in hexadecimal, in small letters."""
    if re.fullmatch(r"[0-9a-fA-F]{64}", text) is None:
        raise argparse.ArgumentTypeError(f"{text}: must be 64 hexadecimal digits")
    return text.lower()


_READS: dict[str, Callable[[str], Any]] = {
    read.__name__: read
    for read in (int, float, Path, count, minutes, delta, table, loopback, sha256_digits)
}
