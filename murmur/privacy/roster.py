"""The roster: who takes part in a run, by the word of the owners and of nobody else.

A text file with a line for each client, ``NAME SUM_KEY LEDGER_KEY OWNER``: its id in the run; its
public key for secure sums, or ``-``; the public key of the ledger on its device; whose it is. What
follows ``#`` at the beginning of a line is a remark. The first two words are a peers file.

Who sets what, and the worst of it: whoever the owners have agreed on writes it, a contract's
partner and not the server. A server that writes it invents clients, which agree with whatever it
states; so the run's header has its digest, and whoever verifies names the file.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from murmur.privacy.signing import require_public_key

NO_KEY = "-"  # in place of a key for sums
MAX_ROSTER_BYTES = 32 * 2**20


@dataclass(frozen=True)
class Member:
    """One client of a roster.

    Attributes:
        name: its id in the run.
        sum_key: its public key in secure sums, in hex; None where there are none.
        ledger_key: the public key of its device's ledger, in hex.
        owner: whose client it is.
    """

    name: str
    sum_key: str | None
    ledger_key: str
    owner: str

    @property
    def line(self) -> str:
        """The line as it is hashed, without its end."""
        return " ".join((self.name, self.sum_key or NO_KEY, self.ledger_key, self.owner))


@dataclass(frozen=True)
class Roster:
    """The clients of a run, in the order of their names: numbers first, by size.

    Raises:
        ValueError: nobody is in it, or two clients share what one alone can have.
    """

    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        if not self.members:
            raise ValueError("roster: names nobody")
        _require_once("name", [member.name for member in self.members])
        _require_once("key for sums", [m.sum_key for m in self.members if m.sum_key is not None])
        owners: dict[str, str] = {}
        for member in self.members:
            owner = owners.setdefault(member.ledger_key, member.owner)
            if owner != member.owner:
                raise ValueError(
                    f"roster: {owner} and {member.owner} have one ledger, {member.ledger_key}; "
                    "each owner has a device of its own"
                )

    @classmethod
    def load(cls, path: Path | str) -> "Roster":
        """The roster in the file ``path``; ValueError for anything else, OSError of the disk."""
        with open(Path(path).expanduser(), "rb") as file:
            content = file.read(MAX_ROSTER_BYTES + 1)
        try:
            return cls.read(content)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    @classmethod
    def read(cls, content: bytes) -> "Roster":
        """The roster in a file's ``content``; ValueError names the line that is wrong."""
        if len(content) > MAX_ROSTER_BYTES:
            raise ValueError(f"roster: longer than {MAX_ROSTER_BYTES} bytes")
        members = []
        for number, line in enumerate(content.decode("utf-8").split("\n"), 1):
            words = line.split()
            if words and not words[0].startswith("#"):
                try:
                    members.append(_member(words))
                except ValueError as error:
                    raise ValueError(f"roster, line {number}: {error}") from error
        return cls(tuple(sorted(members, key=lambda member: _by_size(member.name))))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all lines in order, in hex: what a run header names."""
        text = "".join(f"{member.line}\n" for member in self.members)
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def by_name(self) -> dict[str, Member]:
        """Its members by their names."""
        return {member.name: member for member in self.members}


def _by_size(name: str) -> tuple[bool, int, str]:
    """Sorts numbers before other names, and by their size."""
    if name.isascii() and name.isdecimal():
        return False, int(name), name
    return True, 0, name


def _member(words: list[str]) -> Member:
    """The client of a line's ``words``; ValueError for a line that is anything else."""
    if len(words) < 4:
        raise ValueError("must have a name, a key for sums or -, a ledger's key and an owner")
    name, sum_key, ledger_key, *owner = words
    if not " ".join(words).isprintable():
        raise ValueError("must be printable text")
    if name.isdecimal() and (not name.isascii() or name != str(int(name))):
        raise ValueError(f"{name:.40}: must be written without leading zeros")
    key = None if sum_key == NO_KEY else require_public_key(sum_key)
    return Member(name, key, require_public_key(ledger_key), " ".join(owner))


def _require_once(what: str, values: list[str]) -> None:
    """ValueError where a value is there twice."""
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise ValueError(f"roster: two clients have one {what}, {value:.80}")
        seen.add(value)
