"""Check an exported ledger of a Murmur device, and derive each client's ε from it.

    python verify_ledger.py EXPORT [--id HEX] [--delta 1e-5]

EXPORT comes from ``murmur ledger export``. This file stands alone: it needs neither Murmur nor a
secret, only Python 3.11, ``cryptography``, and for ε ``numpy`` and ``scipy``. It checks that each
entry follows the last, that the device's key signed them and the export, that time never runs back,
and that nothing was answered before it was charged. Without ``--id``, the ledger's id as known from
elsewhere, it does not check whose it is. ε assumes nothing, is that against somebody who sees every
release, and for the unit and neighbours that stand beside it. Prints JSON; exit status 1: wrong.
"""

import argparse
import csv
import hashlib
import json
import math
import sys
from collections import Counter, defaultdict

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

try:
    import numpy as np
    from scipy import fft, optimize, special
except ImportError:
    np = None

COLUMNS = ("position", "time", "kind", "client", "run", "round", "purpose", "request", "body")
FIELDS = {
    "RandomizedResponseEvent": ("epsilon", "categories"),
    "RandomizedBitsEvent": ("gamma", "sensitivity_bits", "bits"),
    "LaplaceEvent": ("noise_multiplier", "sensitivity_steps"),
    "GaussianEvent": ("noise_multiplier",),
    "DiscreteGaussianEvent": ("sigma", "sensitivity", "scalar"),
    "PureEvent": ("epsilon",),
    "NonPrivateEvent": (),
}

ONE, NULL, NONE = "replace_one", "replace_special", "add_remove"
KINDS = [(unit, adjacency) for unit in ("client", "record") for adjacency in (ONE, NULL, NONE)]
# By what is stated (True: a client that is nulled, in part too): steps to each of KINDS, 0: none
# lead there. murmur/privacy/neighbours.py has the proofs.
STEPS = {
    ("client", ONE, False): (1, 1, 0, 1, 1, 0),
    ("client", NULL, False): (2, 1, 0, 2, 2, 0),
    ("client", NULL, True): (2, 1, 0, 2, 1, 0),
    ("client", NONE, False): (2, 2, 1, 2, 2, 2),
    ("record", ONE, False): (0, 0, 0, 1, 1, 0),
    ("record", NULL, False): (0, 0, 0, 2, 1, 0),
    ("record", NONE, False): (0, 0, 0, 2, 2, 1),
}


class UnsupportedError(Exception):
    """No ε is derived here."""


def names(client):
    """The clients of a charge: one, or a simulation's block such as ``clients<TAB>0-99,105``."""
    if not client.startswith("clients\t"):
        return [client]
    spans = [part.partition("-") for part in client[8:].split(",")]
    if any(int(last or first) - int(first) > 1023 for first, _, last in spans):
        raise ValueError(f"{client[:40]}: is no block of clients")
    return [str(i) for first, _, last in spans for i in range(int(first), int(last or first) + 1)]


def check(path, expected):
    """The charges in the export, by client: [(time, event text)]; and the header."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = json.load(file) if path.endswith(".json") else list(csv.DictReader(file))
    if not path.endswith(".json"):  # an apostrophe keeps spreadsheets from computing what follows
        rows = [{name: v[v[:1] == "'" :] for name, v in row.items()} for row in rows]
    if len(rows) < 2 or rows[0]["kind"] != "ledger" or rows[-1]["kind"] != "export":
        raise ValueError("the header at its beginning or the signature at its end is missing")
    header, seal = json.loads(rows[0]["body"]), hashlib.sha256(rows[0]["body"].encode()).digest()
    if rows[0]["seal"] != seal.hex() or expected not in (None, seal.hex()[:32]):
        raise ValueError(f"it is of ledger {seal.hex()[:32]}")
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(header["key"]))

    def verify(purpose, text, row):
        key.verify(bytes.fromhex(row["signature"]), f"murmur ledger {purpose}\0{text}".encode())

    clients, charged, answered, asked, closed, time = defaultdict(list), *map(set, [()] * 4), ""
    for number, row in enumerate(rows[1:-1], 1):
        values = [row[name] or None for name in COLUMNS]
        values[0], values[5] = int(row["position"]), int(row["round"])
        text = json.dumps([*values, seal.hex()], separators=(",", ":")).encode()
        seal = hashlib.sha256(text).digest()
        if values[0] != number or row["seal"] != seal.hex():
            raise ValueError(f"entry {number}: was altered, or does not follow entry {number - 1}")
        if row["signature"]:
            verify("commit", f"{number} {seal.hex()}", row)
        if row["time"] < time:
            raise ValueError(f"entry {number}: time runs backwards")
        time, request = max(time, row["time"]), row["request"]
        if row["kind"] == "charge":
            for client in names(values[3]):
                asked_for = (client, *values[4:7])
                if asked_for in asked or request in answered or row["run"] in closed:
                    raise ValueError(f"entry {number}: charges what was charged or closed before")
                asked.add(asked_for)
                clients[client].append((row["time"], row["body"]))
            charged.add(request)
        elif row["kind"] == "answer" and request in charged and request not in answered:
            answered.add(request)
        elif row["kind"] not in ("run", "question", "confirmed", "closed"):
            raise ValueError(f"entry {number}: is no answer to a request charged before")
        closed |= {row["run"]} if row["kind"] == "closed" else set()
    verify("export", f"{len(rows) - 2} {seal.hex()} {rows[-1]['time']}", rows[-1])
    return clients, {**header, "id": rows[0]["seal"][:32], "exported": rows[-1]["time"]}


def stated(event):
    """Unit and adjacency of each release in ``event``; what it says nothing of meant these."""
    kind, inner = event.get("kind"), event.get("event")
    if kind == "ComposedEvent":
        return set().union(*map(stated, event["events"]))
    if kind in ("RepeatedEvent", "SummedEvent", "SecurelySummedEvent", "ShuffledEvent"):
        return stated(inner)
    if kind == "Release":
        return {(event["unit"], event["adjacency"], event.get("in_part", False))}
    if kind in ("RandomizedResponseEvent", "RandomizedBitsEvent", "NonPrivateEvent"):
        return {("client", ONE, False)}
    return {("record", NULL if kind == "PoissonSampledEvent" else ONE, False)}


def steps(own, asked):
    """How many steps between neighbours of ``own`` kind lead to those of ``asked``; 0: none do."""
    if own not in STEPS:
        raise UnsupportedError(f"neighbours {own} are not known here")
    return STEPS[own][KINDS.index(asked)]


def covered(found):
    """The neighbours that all ``found`` cover in the fewest steps, the strongest of equal ones."""
    kinds = KINDS[3:] if any(own[0] == "record" for own in found) else KINDS[:3]
    return min(kinds, key=lambda asked: sum(steps(own, asked) or math.inf for own in found))


def over_two(leaf):
    """``leaf`` of two data sets that are two of its steps apart: distances add up, or ε does."""
    if leaf[0] == "Gaussian":
        return leaf[0], leaf[1] / 2
    if leaf[0] == "DiscreteGaussian":
        return leaf[0], leaf[1], 2 * leaf[2], leaf[3]
    if leaf[0] == "Laplace":
        return leaf[0], leaf[1] / 2, leaf[2] and 2 * leaf[2]
    if leaf[0] == "RandomizedBits":
        return leaf[0], leaf[1], min(2 * leaf[2], leaf[3]), leaf[3]
    return leaf if leaf[0] == "NonPrivate" else ("Pure", 2 * pure_epsilon(leaf))


def released(event, count, asked):
    """``elementary`` of one release, under what it states and without its assumptions."""
    far = steps(*stated(event), asked)
    adjacency = ONE if far == 2 else event["adjacency"]  # two steps in a sample exchange in it
    leaves, without = elementary(event["event"], count, adjacency, asked), event["otherwise"]
    if not far or (event["assumptions"] and not without):
        return Counter({("NonPrivate",): count})
    if event["assumptions"]:
        leaves = elementary(without, count, adjacency, asked)
        far = 1 if without["kind"] == "Release" else far  # which has counted steps of its own
    if far == 2:
        leaves = sum((Counter({over_two(leaf): n}) for leaf, n in leaves.items()), Counter())
    return leaves


def elementary(event, count=1, adjacency=NONE, asked=None):
    """How often each elementary release is in ``event``, as seen beside its sender.

    ``adjacency``: of events that state none. ``asked``: for which neighbours; the ``covered`` ones.
    """
    kind, inner = event.get("kind"), event.get("event")
    asked = asked or covered(stated(event))
    if kind == "ComposedEvent":
        return sum((elementary(e, count, adjacency, asked) for e in event["events"]), Counter())
    if kind == "RepeatedEvent":
        return elementary(inner, count * event["count"], adjacency, asked)
    if kind in ("SummedEvent", "SecurelySummedEvent", "ShuffledEvent"):  # hide it from others
        return elementary(inner, count, adjacency, asked)
    if kind == "Release":
        return released(event, count, asked)
    if kind == "PoissonSampledEvent":
        leaves = elementary(inner, 1, adjacency, asked)
        if sum(leaves.values()) == 1 and event["rate"] < 1 and adjacency != "replace_one":
            (leaf,), pure = leaves, pure_epsilon(*leaves)
            if leaf[0] == "Gaussian":
                raise UnsupportedError("a sampled continuous Gaussian")
            if pure is not None:
                pure += math.log(event["rate"] + (1 - event["rate"]) * math.exp(-pure))
                leaves = Counter([("Pure", pure)])
            elif leaf[0] == "DiscreteGaussian":
                leaves = Counter([("Sampled", event["rate"], leaf[1] / leaf[2])])
        return Counter({leaf: count * copies for leaf, copies in leaves.items()})
    if kind not in FIELDS or set(event) != {"kind", *FIELDS[kind]}:
        raise UnsupportedError(f"{kind} is not known here")
    return Counter({(kind.removesuffix("Event"), *(event[name] for name in FIELDS[kind])): count})


def pure_epsilon(leaf):
    """ε of a release with δ = 0, or None."""
    if leaf[0] == "RandomizedBits":
        return leaf[2] * (math.log1p(2 * leaf[1]) - math.log1p(-2 * leaf[1]))
    if leaf[0] == "Laplace":
        return 1 / leaf[1]
    return leaf[1] if leaf[0] in ("RandomizedResponse", "Pure") else None


def lattice(leaf):
    """The worst privacy loss of ``leaf``, on equally spaced values; None for Gaussians."""
    if leaf[0] in ("RandomizedResponse", "Pure", "RandomizedBits"):
        copies = leaf[2] if leaf[0] == "RandomizedBits" else 1
        others = leaf[2] - 1 if leaf[0] == "RandomizedResponse" else 1
        step = pure_epsilon(leaf) / copies
        true = 1 / (1 + others * math.exp(-step))
        other = true * math.exp(-step)
        return step, -1, np.array([other, (others - 1) * other, true]), copies
    if leaf[0] != "Laplace":
        return None
    points = 1 if leaf[2] is None else leaf[2] or 256  # continuous: between 256 points, rounded up
    if points > 512:
        raise UnsupportedError("discrete Laplace noise with a sensitivity above 512 steps")
    decay = 1 / leaf[1] / points
    mass = math.tanh(decay / 2) * np.exp(-decay * np.arange(points + 1.0))
    mass[0] = 1 / (1 + math.exp(-decay))
    mass[-1] = mass[0] * math.exp(-decay * points)
    spread = np.zeros(2 * points + 1)
    spread[::2] = mass[::-1]
    return decay, -points, spread, 1


def moments(part):
    """The values of one copy's loss, their mean and their variance."""
    losses = part[0] * (part[1] + np.arange(part[2].size, dtype=float))
    mean = float(part[2] @ losses)
    return losses, mean, float(part[2] @ (losses - mean) ** 2)


def common(parts):
    """``parts`` on one lattice: an exact one if their steps have a simple common measure."""
    steps = [part[0] for part in parts]
    if len(set(steps)) <= 1:
        return parts
    spread = math.sqrt(sum(part[3] * moments(part)[2] for part in parts))
    fine, simple = 60 * spread / min(2**19, 2**24 // len(parts)), None
    for step in (min(steps) / divisor for divisor in range(64, 0, -1)):
        if all(abs(s / step - round(s / step)) < 1e-12 * s / step for s in steps):
            simple = step
    if simple is None or simple < fine / 8:
        main = max(parts, key=lambda part: part[3])[0]
        simple = main / math.ceil(main / fine) if main > fine / 8 else fine
    moved = []
    for part in parts:  # each atom is split so that its masses under P and under Q are kept
        position = moments(part)[0] / simple
        below = np.floor(position + 1e-9)
        up = part[2] * np.clip(np.expm1((below - position) * simple) / math.expm1(-simple), 0, 1)
        index = (below - below.min()).astype(int)
        fitted = np.bincount(index, part[2] - up, index.max() + 2)
        fitted += np.bincount(index + 1, up, index.max() + 2)
        moved.append((simple, int(below.min()), np.trim_zeros(fitted, "b"), part[3]))
    return moved


def exact(parts, mu, delta, upper):
    """The least ε with δ(ε) ≤ ``delta`` of ``parts`` and one Gaussian of sensitivity/σ = ``mu``."""
    losses, weights = np.zeros(1), np.ones(1)
    if parts := common(parts):
        step, span = parts[0][0], max(part[2].size for part in parts)
        variance = sum(part[3] * moments(part)[2] for part in parts) / step**2
        reach = 14 * span + math.sqrt((14 * span) ** 2 + 84 * variance)  # Bernstein: e^-42 outside
        size = fft.next_fast_len(2 * math.ceil(reach) + 2 * span, real=True)
        transform, shift = np.ones(size // 2 + 1, dtype=complex), 0
        for part in parts:
            transform *= fft.rfft(part[2], size) ** part[3]
            shift += part[3] * part[1]
        first = round(sum(part[3] * moments(part)[1] for part in parts) / step) - size // 2
        weights = np.roll(fft.irfft(transform, size), shift - first)
        losses = step * (first + np.arange(size))
        losses, weights = losses[weights > 1e-17], weights[weights > 1e-17]

    def excess(epsilon):
        gap = epsilon - losses
        if not mu:
            return float(weights @ -np.expm1(np.minimum(gap, 0))) - delta
        above = special.log_ndtr(mu / 2 - gap / mu)
        below = np.minimum(gap + special.log_ndtr(-mu / 2 - gap / mu), above)
        return float(weights @ -(np.exp(above) * np.expm1(below - above))) - delta

    return 0.0 if excess(0) <= 0 else optimize.brentq(excess, 0, upper * 1.01 + 1e-9, xtol=1e-12)


def divergence(leaf, order):
    """The Rényi divergence of one release."""
    if leaf[0].endswith("Gaussian"):
        return order / 2 * ((leaf[2] if leaf[3:] else 1) / leaf[1]) ** 2
    if leaf[0] == "Sampled":  # at integer orders (Mironov, Talwar, Zhang 2019, equation 5)
        if order > 10_000:
            return math.inf
        i, n = np.arange(math.ceil(order) + 1.0), math.ceil(order)
        choose = special.gammaln(n + 1) - special.gammaln(i + 1) - special.gammaln(n - i + 1)
        chance = choose + i * math.log(leaf[1]) + (n - i) * math.log1p(-leaf[1])
        return float(special.logsumexp(chance + (i * i - i) / 2 / leaf[2] ** 2)) / (n - 1)
    part = lattice(leaf)
    exponent = (order - 1) * moments(part)[0]
    return part[3] * float(special.logsumexp(exponent, b=part[2])) / (order - 1)


def renyi(leaves, delta):
    """ε by Rényi divergence (Canonne, Kamath, Steinke 2020, proposition 12), best order."""

    def value(order):
        total = sum(count * divergence(leaf, order) for leaf, count in leaves.items())
        slack = (math.log(delta) + math.log(order)) / (order - 1)
        return total - math.log1p(1 / (order - 1)) - slack

    low, high = -4000, 2800
    for stride in (125, 25, 5, 1):
        best = min(range(low, high + 1, stride), key=lambda i: value(1 + math.exp(i / 200)))
        low, high = max(-4000, best - stride), min(2800, best + stride)
    whole = range(2, 65) if any(leaf[0] == "Sampled" for leaf in leaves) else ()
    return max(0.0, min(map(value, (1 + math.exp(best / 200), *whole))))


def epsilon(leaves, delta):
    """The ε that is proven for elementary releases with their counts."""
    if any(leaf[0] == "NonPrivate" for leaf in leaves):
        return math.inf
    if np is None or not 1e-8 <= delta < 1:
        raise UnsupportedError("needs numpy, scipy, and a delta of at least 1e-8")
    bound = renyi(leaves, delta) if leaves else 0.0
    parts, squared, slack, coarse = [], 0.0, 0.0, False
    for leaf, count in leaves.items():
        if leaf[0] == "Gaussian":
            squared += count / leaf[1] ** 2
        elif leaf[0] == "DiscreteGaussian" and leaf[1] >= 2**16:
            # All but a Gaussian: murmur/privacy/accounting/gaussian.py has the proof.
            squared += count * (leaf[2] / leaf[1]) ** 2
            wide, fourth = 2 * math.sqrt(2**26 * 20_000) + 40_000, leaf[1] ** 4
            slack += count * (wide / 24 / leaf[1] ** 2 + 2**26 / 512 / fourth)
            slack += count * (2**26 + wide) ** 2 / 960 / fourth
        elif leaf[0] == "DiscreteGaussian" and leaf[3] and leaf[1] <= 20_000 and leaf[2] % 1 == 0:
            raise UnsupportedError("one number with coarse discrete Gaussian noise")
        elif (part := lattice(leaf)) is None:
            coarse = True
        else:
            parts.append((*part[:3], part[3] * count))
    if not coarse:
        fine = exact(parts, math.sqrt(squared), delta * math.exp(-slack), bound)
        return min(bound, fine + 2 * slack)
    sharing = sum(count for leaf, count in leaves.items() if pure_epsilon(leaf) is None)
    alone = {leaf: pure_epsilon(leaf) or renyi({leaf: 1}, delta / sharing) for leaf in leaves}
    return min(bound, sum(count * alone[leaf] for leaf, count in leaves.items()))


def main():
    """Check, derive and print; the exit status."""
    parser = argparse.ArgumentParser(description="Check an exported ledger; derive each ε from it.")
    parser.add_argument("export")
    parser.add_argument("--id", help="the ledger's id, as known from elsewhere")
    parser.add_argument("--delta", type=float, default=1e-5)
    options = parser.parse_args()
    try:
        clients, header = check(options.export, options.id)
    except (InvalidSignature, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        print(f"WRONG: {str(error) or 'a signature does not match'!a}", file=sys.stderr)
        return 1
    found = {}
    for client, charges in clients.items():
        life = {"kind": "ComposedEvent", "events": [json.loads(body) for _, body in charges]}
        about = {"releases": len(charges), "first": charges[0][0], "last": charges[-1][0]}
        try:
            about["unit"], about["adjacency"] = covered(stated(life))
            spent = epsilon(elementary(life), options.delta)
        except UnsupportedError as error:
            spent = f"unsupported: {error}"
        found[client] = {**about, "epsilon": "infinite" if spent == math.inf else spent}
    print(json.dumps({"ledger": header, "delta": options.delta, "clients": found}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
