"""The run header: what a run asks of its clients in all, in one object that its server signs.

Its bytes are signed as they are, and its digest is the run's identity. A device whose owner has
pinned the server's key keeps it in the ledger before it charges anything, and then refuses what it
does not plan: another phase, more rounds, another event, other settings.

Who sets what, and the worst of it: the server sets everything here. It can plan whatever the
owner's policy lets out, and is then held to that: it cannot tell two clients of a run different
plans without signing both. It cannot make a client charge less, since events follow from what the
client composes itself.

``ServerKey`` is the server's key. A new one may be signed by the one before: owners who have pinned
the old one then accept the new one.
"""

import hashlib
import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from murmur.files import replace_file
from murmur.privacy.events import Adjacency, Event, SummedEvent, Unit, event_from_dict
from murmur.privacy.signing import Signer, is_signed, require_public_key
from murmur.privacy.strict_json import read_strictly

FORMAT = 1
MAX_SUCCESSIONS = 16
_ROLE = "server"
_HEADER = "header"
_QUESTION = "question"
_SUCCESSION = "succession"
_ALIKE = "alike"
_JSON = json.JSONEncoder(separators=(",", ":"), sort_keys=True, allow_nan=False)

Succession = tuple[str, str]
"""An earlier key of the server, and its signature of the key that came after it, both in hex."""


class ServerKey(Signer):
    """The key of a server, for the purposes "header", "question" and "succession".

    Attributes:
        successions: earlier keys, the last one first, each with its signature of the next one.
    """

    role = _ROLE
    successions: tuple[Succession, ...] = ()

    @classmethod
    def load(cls, path: Path | str) -> "ServerKey":
        """The key in the file ``path``, with what ``public_file`` says beside it.

        ValueError where the files do not hold a key of `murmur server-key`, OSError where they
        cannot be read.
        """
        path = Path(path).expanduser()
        try:
            key = cls.from_pem(path.read_bytes())
            words = public_file(path).read_text("ascii").split()
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: holds no key that `murmur server-key` made") from error
        earlier = tuple(zip(words[1::2], words[2::2], strict=True)) if len(words) % 2 else ()
        is_whole = len(words) % 2 == 1 and words[0] == key.public_key
        if not is_whole or not is_trusted(key.public_key, earlier, words[-2:-1] or words):
            raise ValueError(f"{public_file(path)}: is not of the key in {path}")
        key.successions = earlier
        return key

    def save(self, path: Path) -> None:
        """Write the key to ``path``, which only its owner can read, and what owners pin beside it.

        FileExistsError where there is one: a key that is lost closes no run any more.
        """
        if path.exists():
            raise FileExistsError(17, "is there already, and no key is overwritten", str(path))
        words = [self.public_key, *(word for pair in self.successions for word in pair)]
        replace_file(public_file(path), f"{' '.join(words)}\n".encode())
        replace_file(path, self.to_pem())  # last: where there is a key, there is its other half

    def successor(self) -> "ServerKey":
        """A new key, which this one has signed."""
        new = ServerKey.generate()
        signature = self.sign(_SUCCESSION, new.public_key).hex()
        new.successions = ((self.public_key, signature), *self.successions)[:MAX_SUCCESSIONS]
        return new


def public_file(path: Path) -> Path:
    """Where the public half of the key in ``path`` lies, with earlier keys and their signatures."""
    return path.with_name(f"{path.name}.pub")


def is_trusted(key: str, successions: Sequence[Succession], pinned: Collection[str]) -> bool:
    """True if ``key`` is pinned, or follows by signatures from one that is."""
    if key in pinned:
        return True
    for earlier, signature in successions:
        try:
            signed = is_signed(_ROLE, earlier, _SUCCESSION, key, bytes.fromhex(signature))
        except ValueError:
            return False
        if not signed:
            return False
        if earlier in pinned:
            return True
        key = earlier
    return False


@dataclass(frozen=True)
class PlannedPhase:
    """A purpose for which each client may be asked, and when.

    Attributes:
        purpose: of its questions.
        first, last, every: the rounds: ``first``, ``first + every``, ... up to ``last``.
        event: of one client's own message; None where it differs by client (by its number of
            records, say) and follows from the settings.
    """

    purpose: str
    first: int
    last: int
    every: int = 1
    event: Event | None = None

    def includes(self, number: int) -> bool:
        """True if round ``number`` is planned."""
        return self.first <= number <= self.last and (number - self.first) % self.every == 0

    def to_dict(self) -> dict[str, Any]:
        """As the header has it, the event in the form of ``Event.to_dict``."""
        event = None if self.event is None else self.event.to_dict()
        return {**self.__dict__, "event": event}

    @classmethod
    def from_dict(cls, plain: Any) -> "PlannedPhase":
        """The inverse of ``to_dict``; ValueError for anything else."""
        _require_names("phases", plain, [each.name for each in fields(cls)])
        for name in ("first", "last", "every"):
            if type(plain[name]) is not int or plain[name] < 1:
                raise ValueError(f"phases: {name} must be an integer of at least 1")
        if type(plain["purpose"]) is not str:
            raise ValueError("phases: purpose must be text")
        event = plain["event"]
        return cls(**{**plain, "event": event if event is None else event_from_dict(event)})


@dataclass(frozen=True, kw_only=True)
class RunHeader:
    """A run's plan: all that it asks of its clients.

    Attributes:
        name: of the run, for people.
        server: the server's public key, in hex.
        algorithm: as policies name it.
        unit, adjacency: what the run's statement protects.
        delta: of the run's statement.
        threat: against whom its budget is meant.
        schedule: who is asked when: ``kind``, ``clients``, ``cohort`` and ``rounds``.
        secret: whether nobody but the server knows who is asked.
        phases: all that a client can be asked for.
        settings: as devices compose them, by name.
        questions: "alike": all clients of a phase are asked the same.
        roster: digest of the list of clients that their owners have agreed on; None: there is none.
        successions: earlier keys of the server (``ServerKey``).
        bits: 128 random bits in hex, so that no two runs have one header. Nothing is drawn from
            them.
    """

    name: str
    server: str
    algorithm: str
    unit: Unit
    adjacency: Adjacency
    delta: float
    threat: str
    schedule: Mapping[str, Any]
    secret: bool
    phases: tuple[PlannedPhase, ...]
    settings: Mapping[str, Any]
    questions: str = _ALIKE
    roster: str | None = None
    successions: tuple[Succession, ...] = ()
    bits: str = field(default_factory=lambda: secrets.token_hex(16))

    def to_bytes(self) -> bytes:
        """As it is signed, in ASCII."""
        phases = [phase.to_dict() for phase in self.phases]
        return _JSON.encode({"format": FORMAT, **self.__dict__, "phases": phases}).encode()

    @classmethod
    def read(cls, content: bytes) -> "RunHeader":
        """The inverse of ``to_bytes``; ValueError for anything else."""
        plain = read_strictly(content)
        _require_names("header", plain, ["format", *(each.name for each in fields(cls))])
        if plain.pop("format") != FORMAT:
            raise ValueError("header: is of another format")
        for name in ("name", "server", "algorithm", "threat", "questions", "bits"):
            if type(plain[name]) is not str:
                raise ValueError(f"{name}: must be text")
        for name, kind in (("schedule", dict), ("settings", dict), ("secret", bool)):
            if type(plain[name]) is not kind:
                raise ValueError(f"{name}: must be of another type")
        if not (type(plain["delta"]) is float and 0 <= plain["delta"] < 1):
            raise ValueError("delta: must lie in [0, 1)")
        phases, earlier = plain["phases"], plain["successions"]
        if not isinstance(phases, list) or not isinstance(earlier, list):
            raise ValueError("phases, successions: must be lists")
        if len(earlier) > MAX_SUCCESSIONS or not all(_is_succession(pair) for pair in earlier):
            raise ValueError(f"successions: at most {MAX_SUCCESSIONS} keys with their signatures")
        plain |= {
            "unit": Unit(plain["unit"]),
            "adjacency": Adjacency(plain["adjacency"]),
            "phases": tuple(map(PlannedPhase.from_dict, phases)),
            "successions": tuple(map(tuple, earlier)),
        }
        return cls(**plain)

    def is_same_plan(self, other: "RunHeader") -> bool:
        """True if the two differ in their random bits at most."""
        return {**self.__dict__, "bits": ""} == {**other.__dict__, "bits": ""}

    def require_run(
        self, algorithm: str, delta: float, settings: Mapping[str, Any], purpose: str
    ) -> None:
        """ValueError unless a run of ``algorithm`` with ``settings`` is what the header is for.

        ``purpose``: what is asked for. Settings that the header has for another phase (their names
        begin with its purpose and a dot) are not known to who answers, and not compared.
        """
        others = tuple(f"{each.purpose}." for each in self.phases if each.purpose != purpose)
        if (self.algorithm, self.delta) != (algorithm, delta):
            raise ValueError(
                f"the run header is for {self.algorithm} at delta={self.delta:g}, not for "
                f"{algorithm} at delta={delta:g}"
            )
        here_or_there = {*settings, *self.settings}
        for name in sorted(name for name in here_or_there if not name.startswith(others)):
            here, there = settings.get(name), self.settings.get(name)
            if here != there:
                raise ValueError(
                    f"{name}={here!s:.80}: the run header says {there!s:.80}; the server asks for "
                    "another run than it has signed"
                )

    def require_planned(self, purpose: str, number: int, event: Event) -> None:
        """ValueError unless ``event`` is planned in round ``number`` of phase ``purpose``."""
        phases = [phase for phase in self.phases if phase.purpose == purpose]
        if not any(phase.includes(number) for phase in phases):
            raise ValueError(
                f"{purpose}, round {number}: the run header does not plan it; the server may ask "
                "only for what it has signed"
            )
        if not any(phase.event in (None, event) for phase in phases if phase.includes(number)):
            raise ValueError(f"{purpose}, round {number}: the run header plans another event")

    def names_event(self, number: int, purpose: str, event: Event) -> bool:
        """True if the plan names ``event``, or what secure sums hide of it, for every client.

        An event that it leaves open follows from a client's number of examples: DP-SGD's rate,
        KD-DPFL's noise. So does the weight of a client in a sum whose weights differ.
        """
        while isinstance(event, SummedEvent):
            if event.least_weight != event.greatest_weight:
                return False
            event = event.event
        phases = [phase for phase in self.phases if phase.purpose == purpose]
        return any(phase.event == event for phase in phases if phase.includes(number))


@dataclass(frozen=True)
class SignedHeader:
    """A header's bytes with the server's signature, which was verified.

    Attributes:
        text: the header, as it was signed.
        signature: 64 bytes.
    """

    text: bytes
    signature: bytes

    @classmethod
    def of(cls, header: RunHeader, key: ServerKey) -> "SignedHeader":
        """``header``, signed by ``key``, whose public half it names."""
        text = header.to_bytes()
        return cls(text, key.sign(_HEADER, text))

    @staticmethod
    def verified(text: bytes, key: str, signature: bytes) -> "SignedHeader":
        """The header in ``text`` once its signature by the public ``key`` was verified.

        ValueError for a wrong signature, and for what is no header of that key.
        """
        return _verified(text, key, signature)

    @cached_property
    def header(self) -> RunHeader:
        """The header, parsed."""
        return RunHeader.read(self.text)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of its bytes, in hex: the run's identity."""
        return hashlib.sha256(self.text).hexdigest()

    def to_text(self) -> str:
        """For a ledger: JSON with the header's own text, the key and the signature."""
        plain = {"header": self.text.decode(), "key": self.header.server}
        return _JSON.encode({**plain, "signature": self.signature.hex()})

    @classmethod
    def from_text(cls, text: str) -> "SignedHeader":
        """The inverse of ``to_text``; ValueError for anything else."""
        try:
            plain = json.loads(text)
            signature = bytes.fromhex(plain["signature"])
            return cls.verified(plain["header"].encode(), plain["key"], signature)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError("holds no signed header") from error


@lru_cache(maxsize=64)
def _verified(text: bytes, key: str, signature: bytes) -> SignedHeader:
    """``SignedHeader.verified``: once for all messages of a run that one process answers."""
    require_public_key(key)
    if not is_signed(_ROLE, key, _HEADER, text, signature):
        raise ValueError("the run header's signature does not match")
    found = SignedHeader(text, signature)
    if found.header.server != key:
        raise ValueError("the run header names another key than the one that signed it")
    return found


def require_signed_question(header: SignedHeader, text: bytes, signature: bytes) -> None:
    """ValueError unless the server of ``header`` has signed the question with ``text``."""
    if not is_signed(_ROLE, header.header.server, _QUESTION, text, signature):
        raise ValueError("the question's signature does not match")


def sign_question(key: ServerKey, text: bytes) -> bytes:
    """The signature that ``require_signed_question`` verifies."""
    return key.sign(_QUESTION, text)


def _require_names(what: str, plain: Any, names: Collection[str]) -> None:
    """ValueError unless ``plain`` is a mapping with exactly these ``names``."""
    if not isinstance(plain, dict) or set(plain) != set(names):
        raise ValueError(f"{what}: must have {', '.join(names)} and nothing else")


def _is_succession(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(type(word) is str for word in pair)
