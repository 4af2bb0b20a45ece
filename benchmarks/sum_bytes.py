"""What one client sends in a secure sum of votes: ``python -m benchmarks.sum_bytes``.

A real client, all of its messages counted, for two adversaries: a server that follows the protocol,
against whom a ring of neighbours is enough, and one that lies, against whom all of the cohort share
their secrets with each other. All clients send as many bytes.
"""

from __future__ import annotations

import argparse
import math
from typing import get_args

import numpy as np

from murmur.algorithms.privatekt.answers import LabelQuery, Votes
from murmur.privacy.budget import Budget
from murmur.round.secure_summation import modulus_bits
from murmur.secure_sum.client import SecureClient
from murmur.secure_sum.identity import Party, sign, word_on
from murmur.secure_sum.keys import public_key, seal
from murmur.secure_sum.settings import SecureSumSettings
from murmur.secure_sum.shares import Dealing
from murmur.secure_sum.terms import Server, Stage, SumTerms, join, join_ids


def sent_by_one(terms: SumTerms) -> dict[Stage, int]:
    """Bytes that client 0 sends in each phase of a whole sum of zeros, in which nobody is silent.

    Only what its neighbours must say for it to go on is made: their keys, and sealed shares.
    """
    near, asked = terms.neighbours_of(0), b"asked"
    parties = {c: SecureClient.join(terms, c) for c in (0, *near)}
    ads = {c: party.advertise() for c, party in parties.items()}
    own = parties[0]
    found = {Stage.ADVERTISE: len(ads[0])}
    found[Stage.SHARE] = len(own.share(join({v: ads[v] for v in near}, near)))
    # One sharing stands for all: its size is what matters.
    public = public_key(own.seed), public_key(own.mask)
    dealing, parts = Dealing.of(
        own.seed, own.mask, terms.threshold, terms.holders, b"a sharing", public
    )
    boxes = {v: seal(own.boxes[v], parts[0]) + dealing.tests[0] for v in near}
    sealed = join(boxes, near)
    everybody = join_ids(terms.clients, terms.clients)
    if Stage.CHECK in terms.stages:
        found[Stage.CHECK] = len(own.check(sealed))
        sealed = b""  # else they come with the list of those included
    zeros = np.zeros(terms.length, np.int64)
    found[Stage.MASK] = len(own.add_masks(zeros, everybody + sealed, asked))
    words = everybody
    if Stage.CONFIRM in terms.stages:
        found[Stage.CONFIRM] = len(own.confirm(everybody))
        words = join({v: _word(parties[v], own) for v in near}, near)
    found[Stage.REVEAL] = len(own.reveal(words))
    return found


def _word(signer: SecureClient, own: SecureClient) -> bytes:
    party = Party(signer.me, signer.advertised)
    return sign(signer.identity, word_on(own.included, own.survivors, own.asked, own.terms, party))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--colluders", type=int, default=50)
    parser.add_argument("--dropouts", type=float, default=0.1, help="share of the clients")
    parser.add_argument("--rows", type=int, default=500, help="images voted on")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--epsilon", type=float, default=1.0, help="of the run, at delta 1e-5")
    chosen = parser.parse_args()
    length = chosen.rows * chosen.classes + 1
    silent = math.floor(chosen.dropouts * chosen.clients)
    honest = chosen.clients - silent - chosen.colluders
    query = LabelQuery(
        Budget(chosen.epsilon, 1e-5, threat="secure_aggregation", honest_clients=honest),
        chosen.rows,
        chosen.classes,
        chosen.clients,
    )
    bits = modulus_bits(Votes(query).codec, chosen.clients)
    print(
        f"{chosen.rows} rows of {chosen.classes} counts, {bits} bits each; {chosen.clients} "
        f"clients, {chosen.colluders} colluders, {silent} dropouts\n"
    )
    print(f"| server | neighbours | t | {' | '.join(Stage)} | bytes sent | fails, a round |")
    print("|---|---|---|" + "---|" * (len(Stage) + 2))
    for server in get_args(Server):
        settings = SecureSumSettings(
            "on",
            threshold=(chosen.clients + chosen.colluders) / (2 * chosen.clients),
            minimum=0.5,
            colluders=chosen.colluders,
            dropouts=chosen.dropouts,
            server=server,
        )
        terms = settings.terms("bytes", 1, range(chosen.clients), length, bits)
        found = sent_by_one(terms)
        cells = [server, str(terms.neighbours or "all"), str(terms.threshold)]
        cells += [f"{found.get(phase, 0):,}" for phase in Stage]  # 0: there is no such phase
        cells += [f"{sum(found.values()):,}"]
        cells += [f"{settings.failure_probability(chosen.clients):.1e}"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
