"""One client in one secure sum: six phases, each done once and in order.

Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning", CCS 2017;
the neighbour graph is that of Bell et al., "Secure single-server aggregation with
(poly)logarithmic overhead", CCS 2020. Client u of cohort U, all modulo 2^b:

    y_u = x_u + PRG(b_u) + Σ_{v > u} PRG(s_uv) − Σ_{v < u} PRG(s_uv)     over its neighbours v

Symbols: x_u = ``vector``, b_u = ``seed``, s_uv = agreement of the ``mask`` key pairs. b_u and the
private ``mask`` key are shared among the neighbours, verifiably (``shares``). For a client that
survived, holders reveal their share of b_u; for one that dropped out, of its mask key; never both.

Stage CHECK is added to the paper's: each client says whose shares it holds. Shares that do not
open, or do not fit, have no holder, and nothing is said of why: any proof would open what two
honest clients have sealed for each other. Pairwise masks are derived in MASK only, from all that
the clients were told by then: masks of clients that were told different things do not cancel.

Where the terms are for a server that follows the protocol there is no CHECK and no CONFIRM. MASK
then brings the shares behind the list of those included, and REVEAL the list of survivors, which
nobody has signed.
"""

import os
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from murmur.secure_sum import identity as identities
from murmur.secure_sum import keys, masks
from murmur.secure_sum.keys import Entropy
from murmur.secure_sum.shares import KEY, SEED, SHARE_BYTES, TEST_BYTES, Dealing, passes, piece
from murmur.secure_sum.terms import (
    SecureSumError,
    Stage,
    SumTerms,
    join,
    join_ids,
    list_size,
    part,
)

SEALED_BYTES = keys.OVERHEAD_BYTES + SHARE_BYTES
_ORDER = tuple(Stage)
_Method = TypeVar("_Method", bound=Callable[..., bytes | NDArray[np.uint8]])


def _once(phase: Stage) -> Callable[[_Method], _Method]:
    """Decorates the method of a phase.

    A phase is answered once and in order, and one that fails is this client's last: a second
    attempt with other input would reveal more than one sum.
    """
    place = _ORDER.index(phase)

    def decorate(method: _Method) -> _Method:
        @wraps(method)
        def guarded(self: "SecureClient", *arguments: Any) -> bytes | NDArray[np.uint8]:
            self.require_due(phase)
            self.done = len(_ORDER)
            answer = method(self, *arguments)
            self.done = place + 1
            return answer

        return cast(_Method, guarded)

    return decorate


@dataclass
class SecureClient:
    """One client's state between two phases.

    Every method raises SecureSumError where going on would be unsafe; the client then takes no
    further part. A state whose secrets were used must never be used again: whoever stores it
    stores the new one before the answer leaves (``store.SumStates``).

    Attributes:
        terms: what the sum is over, and what it needs.
        me: this client's id.
        identity: the device's long-term private key.
        channel: private key of this sum, for boxes; never leaves the client.
        mask: private key of this sum, for pairwise masks; shared among the holders.
        seed: b_u of this client's own mask; shared among the holders.
        done: how many phases are behind it; all of them, too, once one has failed.
        advertised: what this client has advertised, as it travelled.
        public: what neighbours have advertised.
        boxes: the keys of the boxes that neighbours seal for it, from SHARE to CHECK.
        shares: of the secrets of the clients by which it is keyed, this one's own among them.
        asked: digest of what phase MASK came with, the same for all.
        included: whose masks may be in the sum, as the list was sent (``join_ids``).
        survivors: whose vectors are in the sum, likewise.
        derived: the keys that other clients which answer the same message have derived for
            themselves and one that has not answered yet, by what they are about; never stored.
    """

    terms: SumTerms
    me: int
    identity: bytes = field(repr=False)
    channel: bytes = field(repr=False)
    mask: bytes = field(repr=False)
    seed: bytes = field(repr=False)
    done: int = 0
    advertised: bytes = b""
    public: dict[int, bytes] = field(default_factory=dict)
    boxes: dict[int, bytes] = field(default_factory=dict, repr=False)
    shares: dict[int, bytes] = field(default_factory=dict, repr=False)
    asked: bytes = b""
    included: bytes = b""
    survivors: bytes = b""
    derived: dict[bytes, bytes] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def join(
        cls,
        terms: SumTerms,
        me: int,
        identity: bytes | None = None,
        entropy: Entropy = os.urandom,
    ) -> "SecureClient":
        """Take part in a new sum with fresh secrets.

        ``identity``: None for a key of this sum's only. ``entropy`` differs in tests only.
        SecureSumError where ``me`` is not in the cohort.
        """
        if not terms.names(me):
            raise SecureSumError(f"client {me} is not in the cohort that the server names")
        if identity is None:
            identity = identities.new_identity(entropy)
        return cls(
            terms, me, identity, keys.scalar(entropy), keys.scalar(entropy), keys.scalar(entropy)
        )

    @_once(Stage.ADVERTISE)
    def advertise(self) -> bytes:
        """Stage 1: the public halves of all four keys, signed; ``ADVERTISED_BYTES``."""
        public = map(keys.public_key, (self.channel, self.mask, self.seed))
        self.advertised = identities.Advertisement.sign(self.identity, self.terms, self.me, *public)
        return self.advertised

    @_once(Stage.SHARE)
    def share(self, message: bytes, peers: identities.Peers | None = None) -> bytes:
        """Stage 2: from neighbours' public keys to a sharing, and one sealed share for each.

        Fewer than ``threshold`` neighbours, or a key that two clients have or that is no point, and
        the client gives up. Whose key ``peers`` does not accept (None: any is) it leaves out, as if
        that key had not come: all that a server gets by another's key it gets by none.
        """
        terms = self.terms
        self.public = self._from_neighbours(message, identities.ADVERTISED_BYTES)
        me = self._own
        parties = self._parties(self.public)
        for party in parties.values():
            party.require_signed(terms)
            keys.decoded(party.shown.mask)  # needed in MASK only, when all is charged
        shown = [key for party in (me, *parties.values()) for key in party.shown.keys]
        if len(set(shown)) < len(shown):
            raise SecureSumError("two clients have one key; no device may be two clients")
        if peers is not None:
            parties = {v: p for v, p in parties.items() if peers.accepts(v, p.shown.identity)}
            self.public = {v: self.public[v] for v in parties}
        self._require_holders(len(parties) + 1)
        holders = terms.holders_of(self.me)
        public = me.shown.seed, me.shown.mask
        bound = identities.about_dealing(terms, me)
        dealing, dealt = Dealing.of(
            self.seed, self.mask, terms.threshold, len(holders), bound, public
        )
        parts = dict(zip(holders, dealt, strict=True))
        self.shares = {self.me: parts[self.me]}
        about = {v: identities.about_boxes(terms, me, party) for v, party in parties.items()}
        channels = {v: party.shown.channel for v, party in parties.items()}
        sealed = {}
        for v, both in self._derive(self.channel, channels, about, 2 * keys.KEY_BYTES).items():
            key, self.boxes[v] = both[: keys.KEY_BYTES], both[keys.KEY_BYTES :]
            if v < self.me:
                key, self.boxes[v] = self.boxes[v], key
            sealed[v] = keys.seal(key, parts[v])
        return dealing.to_bytes() + join(sealed, self._neighbours)

    @_once(Stage.CHECK)
    def check(self, message: bytes) -> bytes:
        """Stage 3: from neighbours' sealed shares to a bit for each whose shares this one holds.

        A box that does not open, or does not fit, only means that this client is no holder; why is
        not said, since any proof would open what two honest clients have sealed for each other.
        """
        self._open(message)
        return join_ids(self.shares.keys() - {self.me}, self._neighbours)

    def included_in(self, message: bytes) -> frozenset[int]:
        """Clients whose masks are to be in the sum, by stage 4's message; nothing is done yet.

        With it a caller decides and charges before anything is masked.
        """
        self.require_due(Stage.MASK)
        included, _ = self._listed(message)
        return self._included(included)

    @_once(Stage.MASK)
    def add_masks(self, vector: masks.Vector, message: bytes, asked: bytes) -> NDArray[np.uint8]:
        """Stage 4: from ``vector`` (length,) and the list of those included to y_u, packed.

        ``message``: the list; behind it the sealed shares, where the sum has no CHECK. ``asked``:
        digest of what all clients are asked with this phase. ValueError for a vector of another
        form, before which nothing was masked; the client has then given up nonetheless.
        """
        terms = self.terms
        if vector.dtype != np.int64 or vector.shape != (terms.length,):
            raise ValueError(
                f"vector={vector.dtype}{list(vector.shape)}: must be int64[{terms.length}]"
            )
        self.included, sealed = self._listed(message)
        included = self._included(self.included)
        if sealed:
            self._open(sealed)
        self.asked = asked
        me = self._own
        parties = self._parties(self._known(included))
        about = {
            v: identities.about_mask(terms, me, party, asked, self.included)
            for v, party in parties.items()
        }
        public = {v: party.shown.mask for v, party in parties.items()}
        added: list[tuple[bytes, masks.Sign]] = [
            (identities.self_mask_key(self.seed, terms, me), 1)
        ]
        for v, key in self._derive(self.mask, public, about).items():
            added.append((key, 1 if v > self.me else -1))
        return masks.pack(vector, terms.bits, added)

    @_once(Stage.CONFIRM)
    def confirm(self, message: bytes) -> bytes:
        """Stage 5: from the list of survivors to this client's signature of both lists."""
        self._take_survivors(message)
        return identities.sign(self.identity, self._word_of(self._own))

    @_once(Stage.REVEAL)
    def reveal(self, message: bytes) -> bytes:
        """Stage 6: from neighbours' signatures to a share of each included client's, if held.

        Of b_v for a survivor v, of the mask key for another; never of both. Only where as many
        share holders have signed the same lists as restore a secret. Where the sum has no CONFIRM,
        ``message`` is the list of survivors, on the server's word.
        """
        if Stage.CONFIRM in self.terms.stages:
            self._require_confirmed(message)
        else:
            self._take_survivors(message)
        included = self.terms.parted(self.included)
        survivors = self.terms.parted(self.survivors)
        revealed = {}
        for v, share in self.shares.items():
            if v in survivors:
                revealed[v] = piece(share, SEED)
            elif v in included:
                revealed[v] = piece(share, KEY)
        return join(revealed, self.terms.holders_of(self.me))

    def require_due(self, phase: Stage) -> None:
        """SecureSumError unless ``phase`` is the next one."""
        left = [stage for stage in _ORDER[self.done :] if stage in self.terms.stages]
        if left[:1] != [phase]:
            due = "nothing more"
            if left:
                due = f"phase {left[0]}"
            raise SecureSumError(
                f"phase {phase} was asked for, {due} is due: each is answered once"
            )

    def mask_again(self, message: bytes, asked: bytes) -> None:
        """Stage MASK is due again, if it was the last and came with the very same list.

        Only for who knows that what it was answered with has not left: two masked vectors of one
        sum would show what they differ in. The ledger does, if the request is charged in it: it
        lets a release be computed again only where no answer to the request was ever stored.
        """
        after = _ORDER.index(Stage.MASK) + 1
        included, _ = self._listed(message)
        if self.done == after and (self.included, self.asked) == (included, asked):
            self.done -= 1

    def answer(self, phase: Stage, message: bytes, peers: identities.Peers | None = None) -> bytes:
        """The answer in any phase that needs no data of the client's; ValueError in MASK.

        ``message``: what the server sent with the phase. ``peers``: see ``share``.
        """
        match phase:
            case Stage.ADVERTISE:
                return self.advertise()
            case Stage.SHARE:
                return self.share(message, peers)
            case Stage.CHECK:
                return self.check(message)
            case Stage.CONFIRM:
                return self.confirm(message)
            case Stage.REVEAL:
                return self.reveal(message)
        raise ValueError(f"phase={phase}: needs the vector; call add_masks")

    @property
    def is_finished(self) -> bool:
        """True if it takes no further part: all stages are behind it, or one of them failed."""
        return self.done == len(_ORDER)

    # Helpers --------------------------------------------------------------------------------

    @property
    def _neighbours(self) -> tuple[int, ...]:
        return self.terms.neighbours_of(self.me)

    def _from_neighbours(self, message: bytes, size: int) -> dict[int, bytes]:
        return part(message, size, self._neighbours)

    @property
    def _own(self) -> identities.Party:
        return identities.Party.of(self.me, self.advertised)

    def _parties(self, clients: Iterable[int]) -> dict[int, identities.Party]:
        """Neighbours whose keys have come, by id."""
        return {v: identities.Party.of(v, self.public[v]) for v in clients}

    def _derive(
        self,
        private: bytes,
        public: Mapping[int, bytes],
        about: Mapping[int, bytes],
        size: int = keys.KEY_BYTES,
    ) -> dict[int, bytes]:
        """A key, of ``size`` bytes, that this client and each other have for what they agree on.

        Args:
            private: the private half of the key pair that it is for.
            public: each other's public half.
            about: what each key is about, both clients' public keys and all that they were told. So
                two clients of one place, who derive the same if these are the same, do it once.
            size: bytes of a key.
        """
        found = {v: self.derived.pop(use, b"") for v, use in about.items()}
        own = keys.private_key(private)
        agreed = {v: keys.agree(own, public[v]) for v, key in found.items() if not key}
        for v, secret in agreed.items():
            found[v] = self.derived[about[v]] = keys.derive(secret, about[v], size)
        return found

    def _open(self, message: bytes) -> None:
        """Take the shares that neighbours have sealed, as far as they open and fit."""
        sent = self._from_neighbours(message, SEALED_BYTES + TEST_BYTES)
        if not sent.keys() <= self.public.keys():
            raise SecureSumError("shares arrived from a client whose keys did not")
        for v in sent.keys() & self.boxes.keys():  # none, once they were opened
            try:
                share = keys.open_sealed(self.boxes[v], sent[v][:SEALED_BYTES])
            except SecureSumError:
                continue
            if passes(share, sent[v][SEALED_BYTES:]):
                self.shares[v] = share
        self.boxes = {}

    def _listed(self, message: bytes) -> tuple[bytes, bytes]:
        """Stage 4's message: the list of those included, and the sealed shares behind it.

        Where the sum has a CHECK these came there, and all of the message is the list.
        """
        if Stage.CHECK in self.terms.stages:
            return message, b""
        head = list_size(self.terms.clients)
        return message[:head], message[head:]

    def _take_survivors(self, message: bytes) -> None:
        """Take the list of survivors, of whom this client must be one.

        They must be among those included, and as many as the terms ask for.
        """
        survivors = self.terms.parted(message)
        others = int.from_bytes(message, "big") & ~int.from_bytes(self.included, "big")
        if self.me not in survivors or others:
            raise SecureSumError("the list of survivors is not one of this sum's")
        self._require_listed(survivors)
        self.survivors = message

    def _require_confirmed(self, message: bytes) -> None:
        """SecureSumError unless enough neighbours have signed the lists that this client was told.

        ``message``: their signatures. Enough: as many share holders as restore a secret.
        """
        words = self._from_neighbours(message, identities.SIGNATURE_BYTES)
        survivors = self.terms.parted(self.survivors)
        signers = self._parties(v for v in self._known(survivors) if v in words)
        confirmed = sum(
            identities.is_signed(party.shown.identity, words[v], self._word_of(party))
            for v, party in signers.items()
        )
        self._require_holders(confirmed + 1)

    def _word_of(self, signer: identities.Party) -> bytes:
        """Text that ``signer`` signs in CONFIRM if it was sent the same as this one."""
        return identities.word_on(self.included, self.survivors, self.asked, self.terms, signer)

    def _included(self, message: bytes) -> frozenset[int]:
        """The list of those included, if a sum of theirs could be revealed."""
        included = self.terms.parted(message)
        if self.me not in included:
            raise SecureSumError("this client is to mask for a sum that it is not in")
        self._require_listed(included)
        return included

    def _known(self, clients: Container[int]) -> list[int]:
        """Those neighbours among ``clients`` whose keys have come: with them it masks."""
        return [v for v in self._neighbours if v in clients and v in self.public]

    def _require_holders(self, count: int) -> None:
        """SecureSumError where ``count`` holders could not restore a secret."""
        if count < self.terms.threshold:
            raise SecureSumError(
                f"{count} clients hold shares of this one's secrets, those whose keys it accepts; "
                f"{self.terms.threshold} are needed to remove its masks"
            )

    def _require_listed(self, listed: frozenset[int]) -> None:
        """SecureSumError where a sum of the clients ``listed`` could not, or must not, be revealed.

        In a complete graph a client whose key has not come does not count: nobody masks with it, so
        that nothing shows whether its vector is in the sum.
        """
        known = self._known(listed)
        self._require_minimum(len(listed))
        self._require_holders(len(known) + 1)
        if self.terms.neighbours is None:
            self._require_minimum(len(known) + 1)

    def _require_minimum(self, count: int) -> None:
        """SecureSumError where ``count`` clients are too few for their sum to be revealed."""
        least = self.terms.minimum
        if count < least:
            raise SecureSumError(
                f"{count} clients are left; the sum of fewer than {least} stays masked"
            )
