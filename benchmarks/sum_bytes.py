"""What one client sends in a secure sum of votes: ``python -m benchmarks.sum_bytes``.

Real clients and a real server, all messages counted. What a client sends depends on the number of
its neighbours and not on the cohort's size, so the cohort that is run here is just larger than a
neighbourhood. For the federation that is asked about the command says what the graph assumes: the
colluders are counted as if all of them were one client's neighbours; that enough of everybody's
neighbours stay is a matter of chance, which is computed.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping

import numpy as np
from scipy.stats import hypergeom

from privacy.budget import Budget
from privacy.secure_aggregation import Phase, SecureClient, SecureServer, SecureSumSettings, Terms
from rounds.secure_sum import modulus_bits
from schemes.privatekt.answers import LabelQuery, way_of


def least_threshold(neighbours: int, colluders: int) -> int:
    """How many shares must restore a secret: above half of the holders and all colluders."""
    return (neighbours + 1 + colluders) // 2 + 1


def failure(clients: int, neighbours: int, threshold: int, dropouts: int) -> float:
    """At most how likely somebody keeps fewer than ``threshold`` of its share holders."""
    # Of a survivor's or a dropout's neighbours at least so many stay: a bound over all clients.
    alone = hypergeom(clients - 1, clients - dropouts - 1, neighbours).cdf(threshold - 1)
    return min(1.0, clients * float(alone))


def sent(terms: Terms) -> dict[Phase, float]:
    """Bytes that a client sends in each phase, on average, in a whole sum of zeros."""
    clients = {c: SecureClient.join(terms, c) for c in terms.clients}
    server, total = SecureServer(terms), Counter[Phase]()
    vector = np.zeros(terms.length, np.int64)

    def ask(phase: Phase, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        answers = {
            c: clients[c].add_masks(vector, message)
            if phase is Phase.MASK
            else clients[c].answer(phase, message)
            for c, message in messages.items()
        }
        total[phase] += sum(map(len, answers.values()))
        return answers

    keys = server.keys(ask(Phase.ADVERTISE, dict.fromkeys(clients, b"")))
    lists = server.checked(ask(Phase.CHECK, server.shares(ask(Phase.SHARE, keys))))
    for client, packed in ask(Phase.MASK, lists).items():
        server.add(client, packed)
    words = server.confirmations(ask(Phase.CONFIRM, server.survivors_list()))
    if server.total(ask(Phase.REVEAL, words)).any():
        raise RuntimeError("the sum of zeros is not zero")
    return {phase: total[phase] / len(clients) for phase in Phase}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1000, help="of the federation asked about")
    parser.add_argument("--colluders", type=int, default=50)
    parser.add_argument("--dropouts", type=int, default=100)
    parser.add_argument("--rows", type=int, default=500, help="images voted on")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--epsilon", type=float, default=1.0, help="of the run, at delta 1e-5")
    parser.add_argument("--neighbours", type=int, nargs="*", default=[100, 108, 120])
    chosen = parser.parse_args()
    length = chosen.rows * chosen.classes + 1
    honest = chosen.clients - chosen.dropouts - chosen.colluders
    budget = Budget(chosen.epsilon, 1e-5, "run", threat="secure_aggregation", honest_clients=honest)
    votes = way_of("votes")(LabelQuery(budget, chosen.rows, chosen.classes, chosen.clients))
    bits, _ = modulus_bits(votes.codec, chosen.clients)
    print(
        f"{chosen.rows} rows of {chosen.classes} counts, {bits} bits each; {chosen.clients} "
        f"clients, {chosen.colluders} colluders, {chosen.dropouts} dropouts\n"
    )
    print(f"| neighbours | t | {' | '.join(Phase)} | bytes sent | too few holders stay |")
    print("|---|---|" + "---|" * (len(Phase) + 2))
    for neighbours in chosen.neighbours:
        threshold = least_threshold(neighbours, chosen.colluders)
        settings = SecureSumSettings(
            "on",
            threshold=(threshold - 0.5) / (neighbours + 1),
            minimum=0.5,
            neighbours=neighbours,
            colluders=chosen.colluders,
        )
        cohort = range(max(neighbours, 2 * chosen.colluders) + 10)
        terms = settings.terms("bytes", 1, cohort, length, bits)
        found = sent(terms)
        cells = [str(neighbours), str(terms.threshold)]
        cells += [f"{found[phase]:,.0f}" for phase in Phase]
        cells += [f"{sum(found.values()):,.0f}"]
        cells += [f"{failure(chosen.clients, neighbours, terms.threshold, chosen.dropouts):.1e}"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
