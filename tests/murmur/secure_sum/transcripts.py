"""Generated secure sums against a coalition of the server and some clients, and what it holds then.

The coalition alters, drops, repeats, delays and swaps messages, tells clients different lists and
models, and its clients advertise keys that are functions of an honest one's. Peers are pinned.
Afterwards it holds the shares that its own clients were dealt and all that honest clients said;
from that follows which secrets it can restore, and which sums of honest vectors it can unmask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from unittest import mock

import numpy as np

from murmur.secure_sum.client import SEALED_BYTES, SecureClient
from murmur.secure_sum.identity import (
    Advertisement,
    PinnedPeers,
    about_dealing,
    public_identity,
    sign,
    word_on,
)
from murmur.secure_sum.keys import (
    KEY_BYTES,
    POINT_BYTES,
    agree,
    encoded,
    point,
    private_key,
    public_key,
)
from murmur.secure_sum.settings import SecureSumSettings
from murmur.secure_sum.shares import KEY, SEED, Dealing, piece
from murmur.secure_sum.terms import SecureSumError, Stage, SumTerms, join, join_ids, part

TAMPERING = ("alter", "drop", "repeat", "delay", "swap")
FORGERIES = ("none", "multiple", "copy", "one identity", "stranger")
LENGTH = 2


@dataclass
class Told:
    """What one honest client has masked for."""

    asked: bytes
    included: frozenset[int]
    keys: frozenset[int]  # of whom it had keys


@dataclass
class Coalition:
    """What the server and its clients hold at the end."""

    terms: SumTerms
    colluders: frozenset[int]
    shares: dict[int, dict[int, set[int]]] = field(default_factory=dict)  # by owner and secret
    masked: dict[int, Told] = field(default_factory=dict)
    confirmed: set[frozenset[int]] = field(default_factory=set)  # lists with t words behind them
    leaked: list[str] = field(default_factory=list)

    def restores(self, owner: int, secret: int) -> bool:
        """Whether it has enough shares."""
        return len(self.shares[owner][secret]) >= self.terms.threshold

    def sums(self) -> list[set[int]]:
        """Which sets of honest clients' vectors it can unmask the sum of.

        y_u is x_u, u's own mask, and one mask for each pair. The masks that are unknown cancel in
        a combination of the y only where all ends of them are in it, with equal keys.
        """
        known_key = {u for u in self.masked if self.restores(u, KEY)}
        edges: dict[int, set[int]] = {u: set() for u in self.masked}
        open_ends = {u for u in self.masked if not self.restores(u, SEED)}
        for u, told in self.masked.items():
            for v in self.terms.neighbours_of(u):
                if v not in told.included or v not in told.keys or v in self.colluders:
                    continue
                if u in known_key or self.restores(v, KEY):
                    continue
                other = self.masked.get(v)
                same = other is not None and (other.asked, other.included) == (
                    told.asked,
                    told.included,
                )
                if same and u in other.keys:
                    edges[u].add(v)
                else:
                    open_ends.add(u)
        found, seen = [], set()
        for start in self.masked:
            if start in seen:
                continue
            component, waiting = set(), [start]
            while waiting:
                u = waiting.pop()
                if u not in component:
                    component.add(u)
                    waiting.extend(edges[u])
            seen |= component
            if not component & open_ends:
                found.append(component)
        return found

    def violations(self) -> list[str]:
        """What it should not have got."""
        wrong = list(self.leaked)
        for owner in self.shares:
            if self.restores(owner, SEED) and self.restores(owner, KEY):
                wrong.append(f"both secrets of client {owner}")
        sums = self.sums()
        if len(sums) > 1:
            wrong.append(f"{len(sums)} sums: {sums}")
        for clients in sums:
            if len(clients) < self.terms.honest:
                wrong.append(f"a sum over {len(clients)} honest clients, less than said")
            if not any(clients == s - self.colluders for s in self.confirmed):
                wrong.append(f"the sum of {sorted(clients)}, which is no confirmed list")
        return wrong


class Transcript:
    """One sum of ``n`` clients; all choices follow from ``seed``."""

    def __init__(
        self, n: int, seed: int, terms: SumTerms | None = None, calm: bool = False
    ) -> None:
        self.rng = np.random.default_rng([n, seed])
        self.terms = terms or self._terms(n)
        self.rate = 0.0 if calm else self.rng.choice([0.0, 0.02, 0.2])
        chosen = self.rng.choice(n, self.terms.colluders, replace=False)
        self.colluders = frozenset(map(int, chosen))
        self.coalition = Coalition(self.terms, self.colluders)
        self.said: list[bytes] = []
        self.dealt: dict[bytes, list[bytes]] = {}

    def run(self) -> Coalition:
        """The whole sum, and what the coalition holds."""
        plainly = Dealing.of.__func__

        def noting(cls, seed, *rest):
            dealing, parts = plainly(cls, seed, *rest)
            self.dealt[seed] = parts
            return dealing, parts

        with mock.patch.object(Dealing, "of", classmethod(noting)):
            self._run()
        self._count()
        return self.coalition

    # The phases ---------------------------------------------------------------------------------

    def _run(self) -> None:
        terms = self.terms
        keys = {c: self.rng.bytes(32) for c in terms.clients}
        self.peers = PinnedPeers({c: public_identity(key) for c, key in keys.items()})
        self.parties = {c: SecureClient.join(terms, c, keys[c]) for c in terms.clients}
        self.honest = [c for c in terms.clients if c not in self.colluders]
        ads = {c: party.advertise() for c, party in self.parties.items()}
        self._forge(ads)
        dealt = self._phase(Stage.SHARE, {c: self._near(c, ads) for c in terms.clients})
        sent = self._phase(Stage.CHECK, self._boxes(dealt, ads))
        self._mask([c for c in terms.clients if c in sent])
        self._confirm_and_reveal()

    def _phase(self, phase: Stage, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        answers = {}
        for client, message in messages.items():
            found = self._ask(client, phase, message, messages)
            if found is not None:
                answers[client] = found
        return answers

    def _ask(
        self, client: int, phase: Stage, message: bytes, others: Mapping[int, bytes], **more: bytes
    ) -> bytes | None:
        """What ``client`` answers; None where it says nothing, or no longer."""
        party = self.parties[client]
        how = ""
        if client not in self.colluders and self.rng.random() < self.rate:
            how = str(self.rng.choice(TAMPERING))
        if how == "drop":
            return None
        if how == "alter" and message:
            changed = bytearray(message)
            changed[self.rng.integers(len(changed))] ^= 1 << int(self.rng.integers(8))
            message = bytes(changed)
        if how == "swap":
            message = others[int(self.rng.choice(list(others)))]
        if how == "delay":
            self._try(party, Stage.REVEAL, message)
            self._try(party, Stage.ADVERTISE, message)
        answer = self._try(party, phase, message, **more)
        if how == "repeat":
            again = self._try(party, phase, message, **more)
            assert again is None, "a phase was answered twice"
        return answer

    def _try(
        self, party: SecureClient, phase: Stage, message: bytes, asked: bytes = b""
    ) -> bytes | None:
        try:
            if phase is Stage.MASK:
                ones = np.ones(self.terms.length, np.int64)
                answer = party.add_masks(ones, message, asked).tobytes()
            else:
                answer = party.answer(phase, message, self.peers)
        except SecureSumError:
            return None
        if party.me not in self.colluders and phase in (Stage.CHECK, Stage.CONFIRM, Stage.REVEAL):
            self.said.append(answer)
        return answer

    def _forge(self, ads: dict[int, bytes]) -> None:
        """A colluder's keys as functions of an honest client's, or signed by another device."""
        how = str(self.rng.choice(FORGERIES))
        if how == "none" or not self.colluders:
            return
        forger = min(self.colluders)
        party = self.parties[forger]
        victim = Advertisement.of(ads[int(self.rng.choice(self.honest))])
        identity = party.identity
        keys = [public_key(party.channel), public_key(party.mask), public_key(party.seed)]
        if how == "multiple":
            keys[0] = encoded(point(victim.channel) * int(self.rng.integers(2, 2**31)))
        elif how == "copy":
            keys[1] = victim.mask
        elif how == "one identity":
            identity = self.parties[max(self.colluders)].identity
        else:
            identity = self.rng.bytes(32)  # not the pinned one: honest clients go on without it
        party.advertised = Advertisement.sign(identity, self.terms, forger, *keys)
        ads[forger] = party.advertised

    def _boxes(self, dealt: Mapping[int, bytes], ads: Mapping[int, bytes]) -> dict[int, bytes]:
        terms, size = self.terms, Dealing.size(self.terms.threshold, self.terms.holders)
        dealings, sealed = {}, {}
        for c, sent in dealt.items():
            middle = POINT_BYTES + KEY_BYTES * terms.threshold
            answer = [sent[i : i + KEY_BYTES] for i in range(POINT_BYTES, middle, KEY_BYTES)]
            hashes = tuple(sent[i : i + 48] for i in range(middle, size, 48))
            about = about_dealing(terms, self.parties[c]._own)
            numbers = tuple(int.from_bytes(number, "big") for number in answer)
            sealed[c] = part(sent[size:], SEALED_BYTES, terms.neighbours_of(c))
            ad = Advertisement.of(ads[c])
            public = ad.seed, ad.mask
            dealings[c] = Dealing(about, public, sent[:POINT_BYTES], numbers, hashes)
        messages = {}
        for c in dealt:
            near = [v for v in sealed[c] if v in sealed and c in sealed[v]]
            boxes = {
                v: sealed[v][c] + dealings[v].tests[terms.holders_of(v).index(c)] for v in near
            }
            messages[c] = join(boxes, terms.neighbours_of(c))
        return messages

    def _mask(self, there: Sequence[int]) -> None:
        lists = [tuple(there), tuple(there)]
        if self.rng.random() < 0.5:
            lists[1] = self._with_a_gap(there)
        messages = {
            c: join_ids(lists[int(self.rng.random() < 0.3)], self.terms.clients) for c in there
        }
        other_model = self.rng.random() < 0.3
        for c in there:
            other = other_model and self.rng.random() < 0.2
            asked = b"another model" if other else b"a model"
            answer = self._ask(c, Stage.MASK, messages[c], messages, asked=asked)
            party = self.parties[c]
            if answer is not None and c not in self.colluders:
                known = frozenset(party.public)
                included = self.terms.parted(party.included)
                self.coalition.masked[c] = Told(asked, included, known)

    def _confirm_and_reveal(self) -> None:
        terms, masked = self.terms, self.coalition.masked
        everybody = sorted({*masked, *self.colluders})
        lists = [tuple(everybody), self._with_a_gap(everybody), self._with_a_gap(everybody)]
        told = {c: lists[int(self.rng.choice(3, p=[0.6, 0.2, 0.2]))] for c in masked}
        if self.rng.random() < 0.3:
            told = {c: s if c in s else lists[0] for c, s in told.items()}
        messages = {c: join_ids(s, terms.clients) for c, s in told.items()}
        words = {}
        for c in masked:
            word = self._ask(c, Stage.CONFIRM, messages[c], messages)
            if word is not None:
                words[c] = word
        asked = {}
        for c in words:
            party = self.parties[c]
            lent = {v: self._word_for(v, party) for v in self.colluders}
            same = {v: words[v] for v in words if v != c and self._agree(party, self.parties[v])}
            shown = {v: w for v, w in {**same, **lent}.items() if v in terms.neighbours_of(c)}
            asked[c] = join(shown, terms.neighbours_of(c))
        for c in asked:
            if self._ask(c, Stage.REVEAL, asked[c], asked) is not None:
                self.coalition.confirmed.add(terms.parted(self.parties[c].survivors))

    def _word_for(self, colluder: int, party: SecureClient) -> bytes:
        """A colluder signs whatever ``party`` wants to read."""
        own = self.parties[colluder]
        told = party.included, party.survivors, party.asked
        return sign(own.identity, word_on(*told, self.terms, own._own))

    @staticmethod
    def _agree(one: SecureClient, other: SecureClient) -> bool:
        told = [(p.included, p.survivors, p.asked) for p in (one, other)]
        return told[0] == told[1]

    def _with_a_gap(self, clients: Sequence[int]) -> tuple[int, ...]:
        """Without a run of the ring, or of the ids, as long as the minimum allows."""
        order = self.terms.ring if self.terms.neighbours else self.terms.clients
        start = int(self.rng.integers(len(order)))
        most = max(1, len(clients) - self.terms.minimum + 1)
        length = int(self.rng.integers(0, most + 1))
        gap = {order[(start + step) % len(order)] for step in range(length)}
        if self.terms.neighbours and self.rng.random() < 0.5:  # and the same on the other side
            half = len(order) // 2
            gap = {order[(start + step) % len(order)] for step in range(length // 2)}
            gap |= {order[(start + half + step) % len(order)] for step in range(length // 2)}
        return tuple(c for c in clients if c not in gap)

    def _near(self, client: int, messages: Mapping[int, bytes]) -> bytes:
        near = self.terms.neighbours_of(client)
        return join({v: messages[v] for v in near}, near)

    # What it holds ------------------------------------------------------------------------------

    def _count(self) -> None:
        everything = b"".join(self.said)
        for c in self.honest:
            parts = self.dealt.get(self.parties[c].seed, [])
            holders = self.terms.holders_of(c)
            self.coalition.shares[c] = {
                secret: {
                    holder
                    for holder, share in zip(holders, parts, strict=bool(parts))
                    if (self.parties[holder].shares.get(c) == share and holder in self.colluders)
                    or piece(share, secret) in everything
                }
                for secret in (SEED, KEY)
            }
            party = self.parties[c]
            for name in ("identity", "channel", "mask", "seed"):
                if getattr(party, name) in everything:
                    self.coalition.leaked.append(f"the {name} of client {c}")
        for c in self.honest if len(self.honest) < 20 else []:
            for v in self.honest:
                key = public_key(self.parties[v].channel)
                if c < v and agree(private_key(self.parties[c].channel), key) in everything:
                    self.coalition.leaked.append(f"what clients {c} and {v} agree on")

    def _terms(self, n: int) -> SumTerms:
        """A complete graph or a ring, with as many colluders as it can stand."""
        rng = self.rng
        for _ in range(100):
            settings = {
                "threshold": float(rng.uniform(0.5, 0.95)),
                "minimum": float(rng.uniform(0.4, 1.0)),
                "colluders": int(rng.integers(0, 1 + n // 4)),
            }
            if rng.random() < 0.5:
                settings["neighbours"] = 2 * int(rng.integers(1, (n - 1) // 2 + 1))
            try:
                return SecureSumSettings("on", **settings).terms("r", 1, range(n), LENGTH, 8)
            except ValueError:
                continue
        raise AssertionError("no terms")
