"""A whole secure sum in one process, for tests: who drops out when, and what the server sees."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

import numpy as np

from murmur.secure_sum.blame import Blame
from murmur.secure_sum.client import SecureClient
from murmur.secure_sum.identity import Peers
from murmur.secure_sum.server import SecureServer
from murmur.secure_sum.settings import SecureSumSettings
from murmur.secure_sum.store import restored, stored
from murmur.secure_sum.terms import SecureSumError, Stage, SumTerms

ASKED = b"what all of them are asked"
State = tuple[bytes, list[bytes]]
Tamper = Callable[[Stage, int, bytes], bytes]


def terms(n=5, length=8, bits=8, round=1, run="test", clients=None, **settings) -> SumTerms:
    """Terms of a cohort 0..n-1, with a majority as threshold unless ``settings`` say otherwise."""
    chosen = SecureSumSettings("on", **{"threshold": 0.5, **settings})
    return chosen.terms(run, round, clients or range(n), length, bits)


def vectors(agreed: SumTerms, seed=0) -> dict[int, np.ndarray]:
    """Vectors whose sum fits: each coordinate in [0, 2^bits / n)."""
    rng = np.random.default_rng(seed)
    top = 2**agreed.bits // len(agreed.clients)
    return {c: rng.integers(0, max(top, 1), agreed.length) for c in agreed.clients}


def written(party: SecureClient) -> State:
    """A client as it lies on disk: its own, and what it has in common with others."""
    shared: dict[bytes, int] = {}
    return stored(party, shared), list(shared)


@dataclass
class Outcome:
    """What came of a sum: ``total`` and ``survivors``, or the reason of the ``abort``.

    ``seen``: all that the server received, (phase, client, bytes). ``refused``: clients that
    refused to go on, by phase.
    """

    total: np.ndarray | None = None
    survivors: tuple[int, ...] = ()
    abort: str = ""
    seen: list[tuple[Stage, int, bytes]] = field(default_factory=list)
    refused: dict[int, tuple[Stage, str]] = field(default_factory=dict)
    clients: dict[int, SecureClient] = field(default_factory=dict)
    server: SecureServer | None = None


def secure_sum(
    agreed: SumTerms,
    vectors: Mapping[int, np.ndarray],
    drops: Mapping[int, Stage] | None = None,
    to_client: Tamper = lambda phase, client, message: message,
    to_server: Tamper = lambda phase, client, message: message,
    signed: bool = False,
    entropy: str | None = None,
    liars: int = 0,
    peers: Mapping[int, Peers] | None = None,
    blame: Blame | None = None,
    identity: Callable[[int], bytes] | None = None,
    pinned: Mapping[int, bytes] | None = None,
    dropouts: int = 0,
) -> Outcome:
    """Run all phases; client ``c`` says nothing from phase ``drops[c]`` on.

    Between two phases every client is written down and read again, as on a device.
    ``to_client``, ``to_server``: what an adversary makes of the messages on their way. ``peers``:
    of those clients that do not accept any key. ``blame``: what earlier sums have shown.
    ``identity``: clients' long-term keys; ``pinned``: those that the server knows. ``dropouts``: of
    a client's holders, as many as it reckons with.
    """
    blame = blame or Blame(0)
    it = Outcome(server=SecureServer(agreed, dropouts, liars, pinned, blame.contradictions))
    states: dict[int, State] = {}
    for client in agreed.clients:
        drawn = [Random(f"{entropy} {client}").randbytes] if entropy else []
        own = identity(client) if identity else None
        joined = SecureClient.join(agreed, client, own, *drawn)
        states[client] = written(joined)
    silent = {c: list(Stage).index(phase) for c, phase in (drops or {}).items()}

    def ask(phase: Stage, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        answers = {}
        for client, message in messages.items():
            if silent.get(client, 99) <= list(Stage).index(phase):
                continue
            party = restored(*states[client])
            it.clients[client] = party
            message = to_client(phase, client, message)
            try:
                if phase is Stage.MASK:
                    vector = np.asarray(vectors[client], np.int64)
                    answer = party.add_masks(vector, message, ASKED).tobytes()
                else:
                    answer = party.answer(phase, message, (peers or {}).get(client))
            except SecureSumError as error:
                it.refused[client] = (phase, str(error))
                silent[client] = 0
                continue
            finally:
                states[client] = written(party)
            answer = to_server(phase, client, answer)
            it.seen.append((phase, client, answer))
            answers[client] = answer
        return answers

    server = it.server
    try:
        keys = server.keys(ask(Stage.ADVERTISE, dict.fromkeys(agreed.clients, b"")))
        sealed = server.shares(ask(Stage.SHARE, keys))
        if Stage.CHECK in agreed.stages:
            server.checked(ask(Stage.CHECK, sealed))
        server.asked = ASKED
        blame.add(server.accused, server.conflicts)
        for client, packed in ask(Stage.MASK, server.lists(blame.accused)).items():
            server.add(client, packed)
        words = server.survivors_list()
        if Stage.CONFIRM in agreed.stages:
            words = server.confirmations(ask(Stage.CONFIRM, words))
        it.total = server.total(ask(Stage.REVEAL, words), signed)
        it.survivors = server.survivors
    except SecureSumError as error:
        it.abort = str(error)
    return it
