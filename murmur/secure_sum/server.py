"""The server in one secure sum: forwards, adds up masked vectors, removes the masks of the sum.

Replies are untrusted. A client that sends what no honest client can send is ``accused``, with the
reason; one that is left out without proven fault is ``dropped``. Where a dealer's shares did not
reach a holder, one of the two has lied, and nothing is disclosed that would say which:
``conflicts``. Of clients that contradict each other so few go that liars cost no more others their
place than they are themselves (``contradictions``). The server holds one running total of masked
vectors and never an unmasked vector.
"""

from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from murmur.secure_sum import identity as identities
from murmur.secure_sum import masks
from murmur.secure_sum.client import SEALED_BYTES
from murmur.secure_sum.contradictions import Contradiction, Contradictions
from murmur.secure_sum.keys import KEY_BYTES, agree, derive, private_key
from murmur.secure_sum.shares import KEY, SEED, Dealing, false_dealings, restore
from murmur.secure_sum.terms import SecureSumError, Stage, SumTerms, join, join_ids, part, part_ids

_MAX_NAMED_CLIENTS = 10  # clients in one reason, at most


class SecureServer:
    """One sum, phase by phase; each method takes the clients' replies and returns what to send on.

    A client that is missing from a phase's replies has dropped out. Every method raises
    SecureSumError when too few clients are left for the sum ever to be revealed.

    Args:
        terms: what the sum is over, and what it needs.
        dropouts: how many share holders of each client are expected to fall silent.
        liars: how many clients may lie: whether a dealer's accomplices are proven rests on it.
        pinned: clients' long-term keys, where these are known beforehand; else empty.
        contradictions: those of the run's earlier sums, to which this one's are added.

    Attributes:
        asked: digest of what clients are asked in phase MASK; set it before their replies come.
        conflicts: pairs (dealer, holder) of whom one has lied: these shares did not arrive.
        dropped: who was left out without proven fault, and why.
        accused: who sent what no honest client sends, and what that was.
        included: whose masks may be in the sum, from ``lists`` on.
        survivors: whose vectors are in the sum, from ``survivors_list`` on.
        confirmed: signatures of both lists by client, from ``confirmations`` on.
    """

    def __init__(
        self,
        terms: SumTerms,
        dropouts: int = 0,
        liars: int = 0,
        pinned: Mapping[int, bytes] | None = None,
        contradictions: Contradictions | None = None,
    ) -> None:
        self.terms = terms
        self.dropouts = dropouts
        self.liars = liars
        self.pinned = pinned or {}
        self.contradictions = contradictions or Contradictions()
        self.asked = b""
        self.conflicts: list[tuple[int, int]] = []
        self.dropped: dict[int, str] = {}
        self.accused: dict[int, str] = {}
        self.included: frozenset[int] = frozenset()
        self.survivors: tuple[int, ...] = ()
        self.confirmed: dict[int, bytes] = {}
        self._parties: dict[int, identities.Party] = {}  # who has advertised
        self._dealings: dict[int, Dealing] = {}
        self._sealed: dict[int, dict[int, bytes]] = {}
        self._held: dict[int, set[int]] = {}  # whose shares a client holds, its own among them
        self._masked: set[int] = set()  # ``survivors``, from then on
        self._total = np.zeros(terms.length, masks.word(terms.bits))

    def keys(self, replies: Mapping[int, bytes]) -> dict[int, bytes]:
        """After ADVERTISE: its neighbours' public keys for each client.

        ``replies``: by client, as they came. Who sent no valid advertisement, or a key that
        somebody else sent too, is accused and left out.
        """
        for client, sent in sorted(replies.items()):
            with self._blaming(client):
                party = identities.Party.of(client, sent)
                party.require_signed(self.terms)
                party.shown.require_valid()
                shown = party.shown.identity
                if self.pinned.get(client, shown) != shown:  # who has pinned another would refuse
                    raise SecureSumError("its long-term key is not the one that is pinned for it")
                self._parties[client] = party
        # Keys are fresh and not yet published, so clients that send the same key collude.
        keys = {client: party.shown.keys for client, party in self._parties.items()}
        seen = Counter(chain.from_iterable(keys.values()))
        for client, own in keys.items():
            if any(seen[key] > 1 for key in own):
                del self._parties[client]
                self.accused[client] = "it advertised a public key of another client's"
        self._require(len(self._parties), Stage.ADVERTISE)
        return {c: self._from_neighbours(c, self._parties, replies) for c in self._parties}

    def shares(self, replies: Mapping[int, bytes]) -> dict[int, bytes]:
        """After SHARE: what its neighbours sealed for each client, and how to test it.

        Nothing where the sum has no CHECK: it then comes with ``lists``. Who shares anything but
        the secrets behind its public keys is accused and left out. Who shares nothing with a
        neighbour has not accepted its long-term key.
        """
        terms = self.terms
        size = Dealing.size(terms.threshold, terms.holders)
        for client, sent in self._expected(replies, self._parties):
            with self._blaming(client):
                boxes = part(sent[size:], SEALED_BYTES, terms.neighbours_of(client))
                if not boxes.keys() <= self._parties.keys():
                    raise SecureSumError("it shares with a client whose keys it was not sent")
                party = self._parties[client]
                public = party.shown.seed, party.shown.mask
                about = identities.about_dealing(terms, party)
                self._dealings[client] = Dealing.read(
                    sent[:size], terms.threshold, terms.holders, about, public
                )
                self._sealed[client] = boxes
        for client in false_dealings(self._dealings):
            self.accused[client] = "what it shares are not the secrets behind its public keys"
            del self._dealings[client], self._sealed[client]
        self._part_strangers()
        self._require(len(self._sealed), Stage.SHARE)
        if Stage.CHECK not in terms.stages:  # what does not open shows in REVEAL
            self._held = {c: {c, *self._among(c, self._sealed)} for c in self._sealed}
            return {}
        return {client: self._for_holder(client) for client in self._sealed}

    def _part_strangers(self) -> None:
        """Leave out so many that nobody is left of whom another has not accepted the key.

        Masks of such a pair would not cancel. Nobody is accused: a device that was set up anew has
        another key. Where keys are pinned all have shown theirs, and it is who does not accept one.
        """
        pairs = [
            (client, v)
            for client, boxes in self._sealed.items()
            for v in self._among(client, self._sealed)
            if v not in boxes
        ]
        if self.pinned:
            gone = {client for client, _ in pairs}
        else:
            gone = self.contradictions.left_out(pairs, self.accused)
        for one in sorted(gone):
            del self._sealed[one]
            client, other = next(pair for pair in pairs if one in pair)
            self.dropped[one] = (
                f"client {client} does not accept client {other}'s long-term key: it has pinned or "
                f"first seen another{_others(one, pairs)}"
            )

    def _for_holder(self, client: int) -> bytes:
        """Each neighbour's box for ``client``, and the test of what is in it."""
        found = {}
        for v in self._among(client, self._sealed):
            test = self._dealings[v].tests[self.terms.place_of(v, client)]
            found[v] = self._sealed[v][client] + test
        return join(found, self.terms.neighbours_of(client))

    def checked(self, replies: Mapping[int, bytes]) -> None:
        """After CHECK: who holds whose shares, and between whom there are ``conflicts``.

        Who says that it holds what nobody dealt is accused. SecureSumError where too few have
        answered.
        """
        for client, sent in self._expected(replies, self._sealed):
            with self._blaming(client):
                near = self.terms.neighbours_of(client)
                held = set(part_ids(sent, near))
                dealt = self._among(client, self._sealed)
                if not held <= set(dealt):
                    raise SecureSumError("it says that it holds shares that nobody dealt")
                self._held[client] = held | {client}
                self.conflicts += [(v, client) for v in dealt if v not in held]
        self._require(len(self._held), Stage.CHECK)

    def lists(self, without: Collection[int] = ()) -> dict[int, bytes]:
        """Then: who is to be in the sum, for each of them.

        ``without``: those who were named in earlier rounds. Where a dealer keeps too few holders
        after the expected dropouts, what it masks could not be unmasked: it is left out, unaccused,
        or those are who say that they hold nothing of it. Behind the list are the client's sealed
        shares, where the sum has no CHECK.
        """
        included = {c for c in self._held if c not in self.accused and c not in without}
        gone = self._short(included, without)
        while gone:
            included.difference_update(gone)
            self.dropped |= gone
            gone = self._short(included, without)
        self.included = frozenset(included)
        self._require(len(included), Stage.CHECK)
        joined = join_ids(included, self.terms.clients)
        if Stage.CHECK not in self.terms.stages:
            return {client: joined + self._for_holder(client) for client in sorted(included)}
        return dict.fromkeys(sorted(included), joined)

    def add(self, client: int, packed: bytes | NDArray[np.uint8]) -> None:
        """During MASK: add one client's masked vector, as it was packed, to the total.

        SecureSumError for a client that was not asked or has sent one before; one whose bytes are
        no vector of the terms' length is accused.
        """
        if client not in self.included or client in self._masked:
            raise SecureSumError(f"client {client} was not asked for a vector, or sent two")
        with self._blaming(client):
            masks.add_packed(self._total, packed, self.terms.bits)
            self._masked.add(client)

    @property
    def masked(self) -> tuple[list[int], NDArray]:
        """Clients whose vectors are in the total, and the total (length,), still masked.

        What ``take_up`` needs, and what an interrupted server may keep: it tells nobody's vector.
        """
        return sorted(self._masked), self._total

    def take_up(self, clients: Iterable[int], total: NDArray, asked: bytes) -> None:
        """Go on after MASK where an interrupted server was, with its ``masked`` and ``asked``."""
        self.asked = asked
        self._masked = set(clients)
        self._total = total.copy()

    def survivors_list(self) -> dict[int, bytes]:
        """After MASK: the list of survivors, which each of them confirms if the sum has a CONFIRM.

        From here on only these are in the sum. SecureSumError where they are too few, or somebody's
        masks could not be removed by the shares that they hold.
        """
        self.survivors = tuple(sorted(self._masked))
        self._require(len(self.survivors), Stage.MASK)
        self._require_holders(set(self.survivors), Stage.MASK)
        return dict.fromkeys(self.survivors, join_ids(self.survivors, self.terms.clients))

    def confirmations(self, replies: Mapping[int, bytes]) -> dict[int, bytes]:
        """After CONFIRM: its neighbours' signatures for each client that gave its own.

        Who has signed anything else than these lists is accused. SecureSumError where too few have
        signed.
        """
        words = self.confirmed
        included = join_ids(self.included, self.terms.clients)
        survivors = join_ids(self.survivors, self.terms.clients)
        for client, word in self._expected(replies, self._masked):
            with self._blaming(client):
                party = self._parties[client]
                about = identities.word_on(included, survivors, self.asked, self.terms, party)
                if len(word) != identities.SIGNATURE_BYTES or not identities.is_signed(
                    party.shown.identity, word, about
                ):
                    raise SecureSumError("its word on the list of survivors is not signed by it")
                words[client] = word
        self._require_holders(words.keys(), Stage.CONFIRM)
        return {c: self._from_neighbours(c, words, words) for c in words}

    def advertised(self, client: int) -> bytes:
        """The advertisement of ``client`` as it travelled; KeyError where there is none."""
        return self._parties[client].advertised

    def total(self, replies: Mapping[int, bytes], signed: bool = False) -> NDArray[np.int64]:
        """After REVEAL: the exact sum (length,) of the survivors' vectors modulo 2^bits.

        In [0, 2^bits), or in two's complement where ``signed``.
        """
        held: dict[int, dict[int, bytes]] = {client: {} for client in self.included}
        for holder, sent in self._expected(replies, self._masked):
            with self._blaming(holder):
                for owner, share in self._revealed(holder, sent).items():
                    held[owner][self.terms.place_of(owner, holder)] = share
        joined = join_ids(self.included, self.terms.clients)
        for owner in sorted(self.included):
            if self._needs_removal(owner):
                self._remove(owner, held[owner], joined)
        return masks.from_words(self._total, self.terms.bits, signed)

    # Helpers --------------------------------------------------------------------------------

    def _short(self, included: Container[int], named: Collection[int]) -> dict[int, str]:
        """Without whom fewer of ``included`` have too few holders, and why; empty: nobody has.

        ``named``: known liars.
        """
        denied = [
            (holder, dealer)
            for dealer, holder in self.conflicts
            if dealer in included and holder in included
        ]
        often = Counter(dealer for _, dealer in denied)
        few = {c for c in self._held if c in included and self._too_few(c, included)}
        spare = self.terms.holders - self.dropouts - self.terms.threshold
        short = {dealer for dealer, count in often.items() if count > spare or dealer in few}
        pairs = [pair for pair in denied if pair[1] in short]
        if not pairs:
            return dict.fromkeys(sorted(few), "too few hold shares of its secrets")
        gone = self.contradictions.left_out(pairs, {*self.accused, *named})
        found = {}
        for one in sorted(gone):
            holder, dealer = next(pair for pair in pairs if one in pair)
            found[one] = (
                f"too few hold shares of client {dealer}'s secrets, and client {holder} says that "
                f"it does not{_others(one, pairs)}"
            )
        return found

    def _too_few(self, owner: int, included: Container[int]) -> bool:
        """True if fewer of ``included`` hold shares of ``owner``'s secrets than restore one."""
        return self._holders(owner, included) < self.terms.threshold

    def _revealed(self, holder: int, sent: bytes) -> dict[int, bytes]:
        """Shares by owner; SecureSumError unless they are those that ``holder`` had accepted.

        In a sum without CHECK it has accepted what it reveals; with each other dealer there is a
        conflict.
        """
        revealed = part(sent, KEY_BYTES, self.terms.holders_of(holder))
        due = self._held[holder] & self.included
        complete = revealed.keys() == due
        if Stage.CHECK not in self.terms.stages:
            complete = revealed.keys() <= due
            self.conflicts += [(v, holder) for v in sorted(due - revealed.keys() - {holder})]
        if not complete or not all(
            self._dealings[owner].is_share(
                self.terms.place_of(owner, holder), self._due(owner), share
            )
            for owner, share in revealed.items()
        ):
            raise SecureSumError("it did not reveal the shares that it had accepted")
        return revealed

    def _remove(self, owner: int, held: Mapping[int, bytes], included: bytes) -> None:
        """Take out of the total what stays in it of ``owner``'s masks.

        Of a survivor that is its own mask, of another its masks with the survivors. ``held``:
        shares by holder's place. ``included``: joined. SecureSumError where the shares restore no
        secret.
        """
        secret = self._restored(owner, held)
        if self._due(owner) == SEED:
            own = identities.self_mask_key(secret, self.terms, self._parties[owner])
            masks.add_mask(self._total, own, -1)
            return
        private = private_key(secret)
        for v in self._among(owner, self._masked):
            agreed = agree(private, self._parties[v].shown.mask)
            parties = (self._parties[owner], self._parties[v])
            about = identities.about_mask(self.terms, *parties, self.asked, included)
            # Where v < owner, v has added it, and owner would have taken it off.
            masks.add_mask(self._total, derive(agreed, about), -1 if v < owner else 1)

    def _restored(self, owner: int, held: Mapping[int, bytes]) -> bytes:
        """``owner``'s secret that is due; whoever dealt a wrong share is accused.

        And whoever held one, where that is proven: honest holders' shares lie on one polynomial,
        and this is it if ``threshold`` honest ones must be among those whose shares do.
        """
        if len(held) < self.terms.threshold:
            raise SecureSumError(
                f"aborted in phase {Stage.REVEAL}: {len(held)} holders revealed shares of client "
                f"{owner}'s secrets, {self.terms.threshold} are needed"
            )
        shown = self._parties[owner].shown
        public = shown.mask
        if self._due(owner) == SEED:
            public = shown.seed
        try:
            secret, wrong = restore(held, self.terms.threshold, public)
        except SecureSumError as error:
            self.accused[owner] = "it and others have shared what restores no secret"
            raise SecureSumError(
                f"aborted in phase {Stage.REVEAL}: client {owner}: {error}"
            ) from error
        if wrong:
            proven = [owner]
            if len(wrong) < self.liars <= len(held) - len(wrong) - self.terms.threshold:
                proven += [self.terms.holders_of(owner)[place] for place in wrong]
            self.accused |= dict.fromkeys(proven, f"a share of client {owner}'s that was wrong")
        return secret

    def _due(self, owner: int) -> int:
        """Which of its two secrets may be revealed: a survivor's seed, another's mask key."""
        if owner in self._masked:
            return SEED
        return KEY

    def _needs_removal(self, owner: int) -> bool:
        """True if any mask of ``owner``'s is in the total."""
        return owner in self._masked or bool(self._among(owner, self._masked))

    def _among(self, client: int, group: Container[int]) -> list[int]:
        """The neighbours of ``client`` that are in ``group``, in order."""
        return [v for v in self.terms.neighbours_of(client) if v in group]

    def _from_neighbours(
        self, client: int, group: Container[int], messages: Mapping[int, bytes]
    ) -> bytes:
        """Messages for ``client`` from those of its neighbours that are in ``group``."""
        near = {v: messages[v] for v in self._among(client, group)}
        return join(near, self.terms.neighbours_of(client))

    @contextmanager
    def _blaming(self, client: int) -> Iterator[None]:
        """Accuse ``client`` of what a SecureSumError in the block says, and go on without it."""
        try:
            yield
        except SecureSumError as error:
            self.accused[client] = str(error)

    def _expected(
        self, replies: Mapping[int, bytes], expected: Container[int]
    ) -> Iterator[tuple[int, bytes]]:
        """The replies of those who were asked, in the order of their ids."""
        return ((client, sent) for client, sent in sorted(replies.items()) if client in expected)

    def _require(self, count: int, phase: Stage) -> None:
        """SecureSumError where fewer clients are left than a sum needs."""
        if count < self.terms.minimum:
            raise SecureSumError(
                f"aborted after phase {phase}: {count} of {len(self.terms.clients)} clients are "
                f"left, a sum needs {self.terms.minimum}"
            )

    def _holders(self, owner: int, left: Container[int]) -> int:
        """How many of ``left`` hold shares of ``owner``'s secrets."""
        holders = self.terms.holders_of(owner)
        return sum(v in left and owner in self._held[v] for v in holders)

    def _require_holders(self, left: Container[int], phase: Stage) -> None:
        """SecureSumError where somebody's masks could not be removed any more."""
        for owner in sorted(self.included):
            holders = self._holders(owner, left)
            if self._needs_removal(owner) and holders < self.terms.threshold:
                raise SecureSumError(
                    f"aborted after phase {phase}: {holders} clients are left that hold shares "
                    f"of client {owner}'s secrets, {self.terms.threshold} are needed"
                )


def _others(one: int, pairs: Iterable[Contradiction]) -> str:
    """With whom else ``one`` contradicts, by the sum's ``pairs``: the end of a reason."""
    others = sorted({other for pair in pairs if one in pair for other in pair} - {one})
    if len(others) < 2:
        return ""
    first = ", ".join(map(str, others[:_MAX_NAMED_CLIENTS]))
    more = ""
    if len(others) > _MAX_NAMED_CLIENTS:
        more = f" and {len(others) - _MAX_NAMED_CLIENTS} more"
    return f"; it contradicts clients {first}{more} so"
