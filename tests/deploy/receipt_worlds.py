"""Runs with statement, receipts and roster, made from Murmur's own classes, to be lied about."""

import base64
import hashlib
import importlib.util
import json
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from murmur.format import framed
from murmur.privacy.envelope import Envelope
from murmur.privacy.events import (
    Adjacency,
    DiscreteGaussianEvent,
    Event,
    GaussianEvent,
    Hiding,
    LaplaceEvent,
    PoissonSampledEvent,
    PureEvent,
    RandomizedBitsEvent,
    RandomizedResponseEvent,
    Release,
    RepeatedEvent,
    SummedEvent,
    Unit,
)
from murmur.privacy.exposure import SumFacts, by_messages, by_sums, with_evaluation
from murmur.privacy.ledger.chain import LedgerSigner
from murmur.privacy.run_header import (
    PlannedPhase,
    RunHeader,
    ServerKey,
    SignedHeader,
    sign_question,
)
from murmur.privacy.statement import Statement
from murmur.round.task import question
from murmur.secure_sum.identity import Party, new_identity, public_identity, sign, word_on
from murmur.secure_sum.terms import SumTerms, join_ids

VERIFIER = Path(__file__).parents[2] / "deploy" / "verify_statement.py"
LOADED = importlib.util.spec_from_file_location("verify_statement", VERIFIER)
verifier = importlib.util.module_from_spec(LOADED)
LOADED.loader.exec_module(verifier)

CLIENT, RECORD = Unit.CLIENT, Unit.RECORD
ANY, MORE, NULL = Adjacency.REPLACE_ONE, Adjacency.ADD_REMOVE, Adjacency.REPLACE_SPECIAL
LOTS = RepeatedEvent(PoissonSampledEvent(0.02, GaussianEvent(1.1)), 20)
RELEASES = {
    "noise": Release(GaussianEvent(4.0), CLIENT, ANY, hiding=Hiding.NOISE),
    "fine noise": Release(
        DiscreteGaussianEvent(2.0**18, 2.0**16), RECORD, NULL, hiding=Hiding.NOISE
    ),
    "coarse noise": Release(DiscreteGaussianEvent(40.0, 10.0), CLIENT, ANY, hiding=Hiding.NOISE),
    "labels": Release(RandomizedResponseEvent(1.5, 10), CLIENT, ANY, hiding=Hiding.REPORTS),
    "bits": Release(RandomizedBitsEvent(0.05, 400, 20), CLIENT, ANY, hiding=Hiding.REPORTS),
    "lots": Release(LOTS, RECORD, MORE),
    "a count": Release(LaplaceEvent(3.0, 0), CLIENT, ANY),
    "a choice": Release(PureEvent(0.5), CLIENT, ANY),
    "a vote": Release(DiscreteGaussianEvent(20.0, 2.0, scalar=True), CLIENT, ANY),
}
EVALUATION = Release(RandomizedResponseEvent(0.5, 2), CLIENT, ANY)


@dataclass
class Charged:
    """One entry of one client's receipt."""

    round: int
    purpose: str
    event: Event
    question: bytes
    sum: "Summed | None" = None
    confirmed: bool = False

    @property
    def digest(self) -> str:
        terms = self.sum.terms.terms_digest if self.sum else b""
        lists = hashlib.sha256(framed(*self.sum.lists)).digest() if self.confirmed else b""
        words = framed(self.question, terms, lists)
        return base64.urlsafe_b64encode(hashlib.sha256(words).digest()).decode().rstrip("=")


@dataclass
class Summed:
    """A sum: terms, who was included, who survived, who confirmed."""

    terms: SumTerms
    question: bytes
    included: list[int]
    survivors: list[int]
    advertised: dict[int, bytes]
    confirmations: dict[int, bytes]

    @property
    def lists(self) -> tuple[bytes, bytes]:
        among = self.terms.clients
        return join_ids(self.included, among), join_ids(self.survivors, among)


@dataclass
class World:
    """A run that is over. Tests change it; ``write`` signs what it then says."""

    folder: Path
    key: ServerKey
    header: RunHeader
    ledgers: dict[int, LedgerSigner]
    identities: dict[int, bytes]
    asked: dict[tuple[int, str], RecordDict]
    charged: dict[int, list[Charged]]
    sums: list[tuple[int, str, Summed]]
    privacy: dict
    model: np.ndarray
    owners: dict[int, str] = field(default_factory=dict)
    peers: dict[int, str] = field(default_factory=dict)
    beside: dict[int, list] = field(default_factory=dict)
    chain: dict[int, tuple[int, str | None]] = field(default_factory=dict)
    statement: Envelope | None = None

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.header.to_bytes()).hexdigest()

    @property
    def clients(self) -> list[int]:
        return sorted(self.ledgers)

    @property
    def pinned(self) -> str:
        lines = [f"{c} {public_identity(self.identities[c]).hex()}\n" for c in self.clients]
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def predicate(self) -> dict:
        """The statement's, as it now stands."""
        signed = SignedHeader.of(self.header, self.key)
        return {
            "format": 1,
            "header": signed.text.decode(),
            "signature": signed.signature.hex(),
            "privacy": self.privacy,
            "questions": [
                {
                    "round": number,
                    "purpose": purpose,
                    "question": question(content, "train", "").hex(),
                    "opened": opened(content),
                }
                for (number, purpose), content in self.asked.items()
            ],
            "sums": [
                {
                    "round": number,
                    "purpose": purpose,
                    "question": one.question.hex(),
                    "terms": one.terms.terms_digest.hex(),
                    "opened": one.terms.to_dict(),
                    "included": one.lists[0].hex(),
                    "survivors": one.lists[1].hex(),
                    "keys": {str(c): one.advertised[c].hex() for c in one.included},
                    "confirmations": {str(c): s.hex() for c, s in one.confirmations.items()},
                }
                for number, purpose, one in self.sums
            ],
        }

    def sign_statement(self, predicate: dict | None = None) -> Envelope:
        """The statement, signed."""
        model = hashlib.sha256(self.model.tobytes()).hexdigest()
        about = {"header": self.digest, "model": model}
        return Envelope.of("urn:murmur:statement:1", about, predicate or self.predicate(), self.key)

    def receipt(self, client: int, changed: dict | None = None) -> Envelope:
        """One client's receipt, signed by its ledger."""
        entries = sorted(self.charged[client], key=lambda e: (e.round, e.purpose))
        events = list(dict.fromkeys(e.event for e in entries))
        purposes = list(dict.fromkeys(e.purpose for e in entries))
        number, previous = self.chain.get(client, (1, None))
        first = next(iter(events), EVALUATION)
        release = first.event if isinstance(first, SummedEvent) else first
        rows = []
        for e in entries:
            row = [e.round, purposes.index(e.purpose), events.index(e.event), e.digest]
            if e.sum is not None:
                survivors = len(e.sum.survivors) if e.confirmed else 0
                terms = e.sum.terms
                place = terms.clients.index(client)
                row += [place, survivors, terms.minimum, terms.colluders]
            rows.append(row)
        masked = any(e.sum is not None for e in entries)
        predicate = {
            "format": 1,
            "header": self.digest,
            "client": str(client),
            "number": number,
            "previous": previous,
            "statement": self.statement.digest if self.statement else None,
            "unit": release.unit.value,
            "adjacency": release.adjacency.value,
            "peers": self.peers.get(client, self.pinned) if masked else None,
            "events": [event.to_dict() for event in events],
            "purposes": purposes,
            "entries": rows,
            "beside": self.beside.get(client, []),
            **(changed or {}),
        }
        about = {"header": predicate["header"]}
        if predicate["statement"] is not None:
            about["statement"] = predicate["statement"]
        return Envelope.of("urn:murmur:receipt:1", about, predicate, self.ledgers[client])

    def roster(self) -> str:
        """A line for each client."""
        lines = ["# name, key for sums, ledger, owner"]
        for c in self.clients:
            key = public_identity(self.identities[c]).hex()
            owner = self.owners.get(c, f"clinic {c}")
            lines.append(f"{c} {key} {self.ledgers[c].public_key} {owner}")
        return "\n".join(lines) + "\n"

    def write(self, without=(), predicate: dict | None = None) -> Path:
        """Statement, roster and receipts of all clients but ``without``."""
        self.statement = self.sign_statement(predicate)
        (self.folder / "receipts").mkdir(parents=True, exist_ok=True)
        (self.folder / "statement.json").write_bytes(self.statement.to_bytes())
        (self.folder / "roster.txt").write_text(self.roster())
        for client in self.clients:
            if client not in without:
                self.put(client, self.receipt(client))
        return self.folder

    def put(self, client: int | str, receipt: Envelope) -> None:
        (self.folder / "receipts" / f"{client}.json").write_bytes(receipt.to_bytes())

    def show(self, client: int, entry: Charged) -> None:
        """Publish the server's signature of what ``entry`` was charged for."""
        terms = entry.sum.terms.terms_digest if entry.sum else b""
        words = (bytes.fromhex(self.digest), entry.round.to_bytes(8, "big"), entry.purpose.encode())
        signature = sign_question(self.key, framed(*words, entry.question, terms))
        line = [self.digest, entry.round, entry.purpose, entry.question.hex(), terms.hex()]
        path = self.folder / "receipts" / f"{client}.evidence"
        path.write_text(json.dumps([[*line, signature.hex()]]))

    def another_question(self, number: int, purpose: str) -> bytes:
        """Digest of a question that nobody else was asked."""
        content = asked_for(number, purpose, self.model + 1)
        return question(content, "train", "")


def asked_for(number: int, purpose: str, model: np.ndarray) -> RecordDict:
    """A question with a model and settings."""
    task = {"round": number, "clients": [1, 2], "purpose": purpose}
    return RecordDict(
        {
            "model": ArrayRecord({"model": Array(model)}),
            "task": ConfigRecord(task),
            "fit": ConfigRecord({"rate": 0.1, "names": ["a", "b"], "on": True}),
        }
    )


def opened(content: RecordDict) -> dict:
    """The parts of ``murmur.round.task.question``'s hash, written out by hand."""
    arrays = [
        [
            name,
            [
                [k, a.dtype, list(a.shape), hashlib.sha256(a.data).hexdigest()]
                for k, a in record.items()
            ],
        ]
        for name, record in sorted(content.array_records.items())
    ]
    settings = []
    for name, record in sorted(content.config_records.items()):
        texts = []
        for key, value in sorted(record.items()):
            if (name, key) == ("task", "clients"):
                continue
            text = f"[{', '.join(map(repr, value))}]" if isinstance(value, list) else repr(value)
            texts.append([key, text])
        settings.append([name, texts])
    return {"kind": "train", "started": "", "arrays": arrays, "settings": settings, "metrics": []}


def make(
    folder: Path,
    seed: int = 0,
    name: str = "noise",
    clients: int = 5,
    rounds: int = 4,
    summed: bool = False,
    dropouts: float = 0.0,
    refusals: float = 0.0,
    evaluated: bool = False,
    colluders: int = 1,
    delta: float = 1e-5,
) -> World:
    """An honest run: ``name`` of ``RELEASES`` in each round, in sums or not."""
    random = Random(seed)
    release = RELEASES[name]
    ids = list(range(1, clients + 1))
    ledgers = {c: LedgerSigner.generate() for c in ids}
    identities = {c: new_identity(random.randbytes) for c in ids}
    advertised = {c: public_identity(i) + random.randbytes(163) for c, i in identities.items()}
    key = ServerKey.generate()
    phases = [PlannedPhase("train", 1, rounds, event=release)]
    if evaluated:
        phases.append(PlannedPhase("evaluate", 2, rounds, 2, EVALUATION))
    header = RunHeader(
        name=f"run {seed}",
        server=key.public_key,
        algorithm=name,
        unit=release.unit,
        adjacency=release.adjacency,
        delta=delta,
        threat="secure_aggregation" if summed else "local",
        schedule={"kind": "all", "clients": clients, "cohort": clients, "rounds": rounds},
        secret=False,
        phases=tuple(phases),
        settings={"lr": 0.1},
        bits=random.randbytes(16).hex(),
    )
    model = np.arange(6, dtype=np.float32)
    asked, charged, sums = {}, {c: [] for c in ids}, []
    counts, evaluations = Counter(), Counter()
    for number in range(1, rounds + 1):
        model = model * np.float32(0.5) + 1
        content = asked_for(number, "train", model)
        asked[number, "train"] = content
        digest = question(content, "train", "")
        here = [c for c in ids if random.random() >= refusals] if number > 1 else ids
        counts.update(here)
        if summed:
            one = _sum(random, number, digest, here, identities, advertised, dropouts, colluders)
            if one is None:
                continue
            sums.append((number, "train", one))
            event = SummedEvent(release, one.terms.honest, terms=one.terms.release)
            for c in here:
                confirmed = c in one.confirmations
                charged[c].append(Charged(number, "train", event, digest, one, confirmed))
        else:
            for c in here:
                charged[c].append(Charged(number, "train", release, digest))
        if evaluated and number % 2 == 0:
            content = asked_for(number, "evaluate", model)
            asked[number, "evaluate"] = content
            for c in here:
                digest = question(content, "train", "")
                charged[c].append(Charged(number, "evaluate", EVALUATION, digest))
                evaluations[c] += 1
    privacy = privacy_of(header, release, counts, evaluations, sums, colluders)
    model = model * np.float32(0.5)
    return World(*(folder, key, header, ledgers, identities, asked, charged, sums, privacy, model))


def privacy_of(header, release, counts, evaluations, sums, colluders) -> dict:
    """The statement that Murmur makes of these participations."""
    exposures = [by_messages(release, counts)]
    if sums:
        least = min(len(one.survivors) for _, _, one in sums)
        facts = SumFacts(least, colluders, 0.0, lambda client: 1)
        exposures.append(by_sums(release, counts, facts, ()))
    if evaluations:
        exposures = [with_evaluation(each, EVALUATION, evaluations) for each in exposures]
    made = Statement.of(header.algorithm, header.unit, header.adjacency, header.delta, exposures)
    return made.to_dict()


def _sum(random, number, digest, here, identities, advertised, dropouts, colluders):
    """One sum of a round; None where too few are there."""
    n = len(here)
    threshold = (n + colluders) // 2 + 1
    minimum = max(threshold, colluders + 2)
    if minimum > n:
        return None
    terms = SumTerms(
        *("a run", number, tuple(here), 7, 40, threshold, minimum),
        colluders=colluders,
        release="ab" * 32,
    )
    survivors = [c for c in here if random.random() >= dropouts]
    if len(survivors) < minimum:
        survivors = here[:minimum]
    one = Summed(terms, digest, list(here), survivors, advertised, {})
    for c in survivors:
        word = word_on(*one.lists, digest, terms, Party(c, advertised[c]))
        one.confirmations[c] = sign(identities[c], word)
    return one


def confirmed_again(world: World, one: Summed, **changed) -> Summed:
    """``one`` with changes, confirmed under them by the same clients."""
    other = replace(one, **changed)
    other.confirmations = {}
    for client in one.confirmations:
        who = Party(client, other.advertised[client])
        word = word_on(*other.lists, other.question, other.terms, who)
        other.confirmations[client] = sign(world.identities[client], word)
    return other
