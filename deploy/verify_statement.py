"""Check a Murmur run's signed statement against a roster and the receipts of those who were asked.

    python verify_statement.py RUN|STATEMENT --roster FILE [--receipts FOLDER] [--model FILE]
        [--colluders C] [--against sums,local] [--arithmetic] [--json]

This file stands alone: Python 3.11, ``cryptography`` and ``dp-accounting`` 0.6, nothing of Murmur.
The roster names each client, its keys and its owner, and comes from elsewhere than the server.
Exit status, the worst of what was asked for:

    0  shown: follows from receipts of every client of the roster
    3  not contradicted: receipts of some clients agree; for the others it is the server's word
    4  not checkable: receipts say nothing of it, or it has no exact figure here
    1  contradicted: a receipt or a signature says otherwise; the sentence names whose, and what
    2  the input cannot be read: one sentence

``--arithmetic`` is for simulations, where server and clients are one: 0 or 1, and shows no more
than that the figures follow from the charges. ε has no tolerance but the rounding of the stated
figure. It is computed twice: what receipts prove at most (``shown`` needs it), and what is certain
at least, by exact arithmetic and the server's own facts (only that contradicts).
"""

import argparse
import base64
import hashlib
import json
import math
import re
import statistics
import sys
from collections import Counter, defaultdict
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

SHOWN, CONTRADICTED, INPUT, AGREES, UNCHECKABLE = 0, 1, 2, 3, 4
WORDS = {0: "shown", 1: "CONTRADICTED", 3: "not contradicted", 4: "not checkable"}
BEST_FIRST = (SHOWN, AGREES, UNCHECKABLE, CONTRADICTED)
MEGABYTE, MAX_DEPTH, MAX_INTEGER, MAX_ITEMS = 2**20, 20, 2**53, 200_000
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
FLOWER = "flower"  # a run header's algorithm where any Flower app ran
SIGNED = "The server has signed that question."
UNSIGNED = "So it says; no signature of the server is shown (`murmur verify --mine` there has it)."


class BadInputError(Exception):
    """What was given cannot be read; its text is one sentence."""


# Reading ----------------------------------------------------------------------------------------


def content_of(path, limit=MEGABYTE):
    """The bytes of a file of at most ``limit`` bytes."""
    try:
        if path.stat().st_size > limit:
            raise BadInputError(f"{path}: is longer than the {limit} bytes that are read")
        return path.read_bytes()
    except OSError as error:
        raise BadInputError(f"{path}: {error.strerror or error}") from error


def strictly(content, what):
    """JSON of which two readers think the same: no key twice, no NaN, no integer beyond 2^53."""

    def pairs(found):
        if len(dict(found)) != len(found):
            raise BadInputError(f"{what}: a key is given twice")
        return dict(found)

    def number(text):
        value = float(text) if re.search("[.eENI]", text) else int(text[:20])
        if not math.isfinite(value) or (type(value) is int and abs(value) > MAX_INTEGER):
            raise BadInputError(f"{what}: {text:.20} is no number that all readers hold alike")
        return value

    depth = 0
    for bracket in re.findall(rb"[\[\]{}]", re.sub(rb'"(?:[^"\\]|\\.)*"', b"", content)):
        depth += 1 if bracket in b"[{" else -1
        if depth > MAX_DEPTH:
            raise BadInputError(f"{what}: is nested more than {MAX_DEPTH} deep")
    hooks = {"object_pairs_hook": pairs, "parse_constant": number}
    try:
        return json.loads(content.decode(), parse_int=number, parse_float=number, **hooks)
    except ValueError as error:
        raise BadInputError(f"{what}: is no JSON, or is cut off ({error})") from error


KINDS = {
    "1": lambda v: type(v) is int and v == 1,
    "i": lambda v: type(v) is int,
    "c": lambda v: type(v) is int and v >= 1,
    "s": lambda v: type(v) is str,
    "h": lambda v: type(v) is str and re.fullmatch("[0-9a-f]{64}", v),
    "x": lambda v: type(v) is str and re.fullmatch("([0-9a-f]{2})*", v),
    "b": lambda v: type(v) is bool,
    "f": lambda v: type(v) in (int, float) and v >= 0,
    "p": lambda v: type(v) in (int, float) and v > 0,
    "q": lambda v: type(v) in (int, float) and 0 <= v <= 1,
    "l": lambda v: type(v) is list and len(v) <= MAX_ITEMS,
    "o": lambda v: type(v) is dict and len(v) <= MAX_ITEMS,
    "e": lambda v: type(v) is dict,
    "a": lambda v: KINDS["l"](v) and all(map(KINDS["i"], v)) and v == sorted({*v}) and v[:1] >= [0],
    "g": lambda v: v == "infinity" or KINDS["f"](v),
    "F": lambda v: KINDS["o"](v) and all(map(KINDS["g"], v.values())),
    "X": lambda v: KINDS["o"](v) and all(map(KINDS["x"], v.values())),
}


def need(plain, what, spec):
    """``plain`` if it is an object of exactly these fields, or a list of values of these ``KINDS``.

    ``spec``: such as "name:s event:e?" for an object, "? may be null", or "sil" for a list.
    """
    fields = dict(word.split(":") for word in spec.split()) if ":" in spec else None
    if fields is None:
        fields, plain = dict(enumerate(spec)), dict(enumerate(plain)) if type(plain) is list else 0
    if type(plain) is not dict or plain.keys() != fields.keys():
        raise BadInputError(f"{what}: must have {' '.join(map(str, fields))} and nothing else")
    for name, kind in fields.items():
        if not (plain[name] is None and kind[1:]) and not KINDS[kind[0]](plain[name]):
            raise BadInputError(f"{what}: {name} is not of its type, or out of range")
    return SimpleNamespace(**plain) if ":" in spec else list(plain.values())


def base64_bytes(text, what):
    """The bytes of ``text`` in base64, with the one alphabet or the other."""
    try:
        padded = text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4)
        return base64.b64decode(padded, validate=True)
    except (AttributeError, ValueError) as error:
        raise BadInputError(f"{what}: must be base64") from error


def clean(text):
    """Text from outside, short, with nothing that a terminal may obey."""
    return "".join(c if c.isprintable() else "?" for c in str(text)[:200])


def framed(*fields):
    """``fields``, each after its length in 8 bytes."""
    return b"".join(len(field).to_bytes(8, "big") + field for field in fields)


def sha256(*fields):
    """SHA-256 of one text, or of several that are framed."""
    return hashlib.sha256(framed(*fields) if len(fields) > 1 else fields[0]).digest()


def phase_text(number, purpose):
    """A round and its purpose in words."""
    return f"round {number} ({clean(purpose)[:40]})"


@lru_cache(maxsize=2**16)
def require_point(text, what):
    """The bytes of a key in hex; BadInputError for no point of the curve, or of small order."""
    p, eighth = 2**255 - 19, 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
    if not KINDS["h"](text):
        raise BadInputError(f"{what}: must be a public key of 64 small hex digits")
    y = int.from_bytes(bytes.fromhex(text), "little") % 2**255
    square = (y * y - 1) * pow(-121665 * pow(121666, -1, p) * y * y + 1, -1, p) % p
    if y >= p or pow(square, (p - 1) // 2, p) == p - 1:
        raise BadInputError(f"{what}: is no point of the curve")
    if y in (0, 1, p - 1, eighth, p - eighth):
        raise BadInputError(f"{what}: is a key of small order, under which anybody can sign")
    return bytes.fromhex(text)


def is_signed(key, signature, text):
    """Whether ``key``, 32 bytes, has signed ``text``."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True


class Envelope:
    """A DSSE envelope: its ``payload``, and in ``keys`` whose signatures of it are valid."""

    def __init__(self, content, what):
        plain = need(strictly(content, what), what, "payloadType:s payload:s signatures:l")
        if plain.payloadType != PAYLOAD_TYPE or len(plain.signatures) > 16:
            raise BadInputError(f"{what}: is of another format, or has more than 16 signatures")
        self.what, self.payload = what, base64_bytes(plain.payload, what)
        self.digest, self.keys, self.is_altered = sha256(self.payload).hex(), [], False
        text = b"DSSEv1 %d %b %d " % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(self.payload))
        for each in plain.signatures:
            one = need(each, what, "keyid:s sig:s")
            key = require_point(one.keyid, f"{what}, keyid")
            if is_signed(key, base64_bytes(one.sig, what), text + self.payload):
                self.keys.append(one.keyid)
            else:
                self.is_altered = True

    def predicate(self, kind):
        """Subjects' digests by name, and the predicate; its signatures were verified before."""
        spec = "_type:s subject:l predicateType:s predicate:o"
        plain = need(strictly(self.payload, self.what), self.what, spec)
        if (plain._type, plain.predicateType) != (STATEMENT_TYPE, f"urn:murmur:{kind}:1"):
            raise BadInputError(f"{self.what}: is no {kind} of this format")
        listed = [need(each, self.what, "name:s digest:o") for each in plain.subject]
        found = {one.name: need(one.digest, self.what, "sha256:h").sha256 for one in listed}
        if len(found) != len(listed):
            raise BadInputError(f"{self.what}: a subject is there twice")
        return found, plain.predicate


def read_roster(path):
    """Lines by client, each with ``sum_key``, ``ledger`` and ``owner``; and the roster's digest."""
    text = content_of(path, 32 * MEGABYTE).decode(errors="surrogateescape")  # is not printable
    lines, owners, sorted_lines = {}, {}, []
    for words in map(str.split, text.split("\n")):
        if not words or words[0].startswith("#"):
            continue
        if len(words) < 4 or not all(word.isprintable() for word in words):
            raise BadInputError(f"{path}: a line is NAME SUM_KEY LEDGER_ID OWNER")
        name, sum_key, ledger, owner = *words[:3], " ".join(words[3:])
        if name in lines or (name.isdecimal() and str(int(name)) != name):
            raise BadInputError(f"{path}: client {name} is there twice, or has leading zeros")
        for what, key, whose in (("sum key", sum_key, name), ("ledger", ledger, owner)):
            if (what, key) != ("sum key", "-"):
                require_point(key, f"{path}: the {what} of client {name}")
                if owners.setdefault(key, (what, whose)) != (what, whose):
                    raise BadInputError(f"{path}: the {what} of client {name} is another's too")
        lines[name] = SimpleNamespace(sum_key=sum_key, ledger=ledger, owner=owner)
        place = (0, int(name), "") if name.isdecimal() else (1, 0, name)
        sorted_lines.append((place, f"{name} {sum_key} {ledger} {owner}\n"))
    if not lines:
        raise BadInputError(f"{path}: names nobody")
    return lines, sha256("".join(line for _, line in sorted(sorted_lines)).encode()).hex()


@lru_cache(maxsize=4096)
def names_in(blocks):
    """The names of a simulation's blocks such as "0-99,105", or the one name that it is."""
    if not re.fullmatch(r"[0-9]{1,9}(-[0-9]{1,9})?(,[0-9]{1,9}(-[0-9]{1,9})?)*", blocks):
        return frozenset([blocks])
    found = []
    for first, _, last in (part.partition("-") for part in blocks.split(",")):
        if int(last or first) - int(first) > MAX_ITEMS - len(found):
            raise BadInputError(f"{blocks:.40}: names too many clients")
        found += map(str, range(int(first), int(last or first) + 1))
    return frozenset(found)


# Events -----------------------------------------------------------------------------------------

EVENTS = {
    "RandomizedResponseEvent": "epsilon:p categories:c",
    "RandomizedBitsEvent": "gamma:p bits:c sensitivity_bits:c",
    "LaplaceEvent": "noise_multiplier:p sensitivity_steps:f?",
    "GaussianEvent": "noise_multiplier:p",
    "DiscreteGaussianEvent": "sigma:p sensitivity:p scalar:b",
    "PureEvent": "epsilon:p",
    "NonPrivateEvent": "",
    "PoissonSampledEvent": "rate:q event:e",
    "SecurelySummedEvent": "event:e honest_clients:c",
    "ShuffledEvent": "event:e honest_clients:c",
    "RepeatedEvent": "event:e count:c",
    "ComposedEvent": "events:l",
    "SummedEvent": "event:e honest_clients:c weight:c least_weight:c greatest_weight:c terms:s "
    "failure:q",
    "Release": "event:e unit:s adjacency:s assumptions:l otherwise:e? hiding:s",
}
ONE, NULL, NONE = "replace_one", "replace_special", "add_remove"
NEIGHBOURS = [(unit, adjacency) for unit in ("client", "record") for adjacency in (ONE, NULL, NONE)]
# By what is stated (True: a client that is nulled, in part too): steps to each of NEIGHBOURS, 0:
# none lead there. murmur/privacy/neighbours.py has the proofs.
STEPS = {
    ("client", ONE, False): (1, 1, 0, 1, 1, 0),
    ("client", NULL, False): (2, 1, 0, 2, 2, 0),
    ("client", NULL, True): (2, 1, 0, 2, 1, 0),
    ("client", NONE, False): (2, 2, 1, 2, 2, 2),
    ("record", ONE, False): (0, 0, 0, 1, 1, 0),
    ("record", NULL, False): (0, 0, 0, 2, 1, 0),
    ("record", NONE, False): (0, 0, 0, 2, 2, 1),
}
FINE, WIDE, LEAST_SUMMED = 2.0**16, 20_000, 4.0  # grid steps
UNPROTECTED = ("NonPrivate",)


def require_event(event, what):
    """BadInputError unless ``event`` is one of Murmur's in its public form."""
    plain = dict(event) if type(event) is dict else {}
    kind = plain.pop("kind", None)
    if type(kind) is not str or kind not in EVENTS:
        raise BadInputError(f"{what}: an event {clean(kind)[:40]} is not known here")
    if kind != "NonPrivateEvent" or plain:
        in_part = " in_part:b" if "in_part" in plain else ""
        need(plain, what, EVENTS[kind] + in_part if kind == "Release" else EVENTS[kind] or "-:i")
    stated = plain.get("unit"), plain.get("adjacency"), plain.get("in_part", False)
    if plain.get("gamma", 0) >= 0.5 or plain.get("categories", 2) < 2 or plain.get("rate", 1) == 0:
        raise BadInputError(f"{what}: a parameter of {kind} is out of range")
    if kind == "Release" and stated not in STEPS:
        raise BadInputError(f"{what}: neighbours {stated} are not known here")
    for inner in (*plain.get("events", ()), plain.get("event"), plain.get("otherwise")):
        if inner is not None:
            require_event(inner, what)


class View(SimpleNamespace):
    """How an event is read.

    ``asked``: unit and adjacency. ``summed``: whether only sums are seen, beside the noise of
    ``honest`` clients. ``granted``: whether assumptions are.
    """


def leaves(event, view, count=1, around=None, stated=None):
    """(leaf, count, whether it is exact) of each elementary release, as ``view`` sees it.

    Exact is what has an exact loss here, for the very neighbours that the release states. All else
    is an upper bound, which may be shown, and contradicts nothing. ``around``: the sum that it is
    in; ``stated``: adjacency of the release that it is in, and steps from there.
    """
    kind = event["kind"]
    if kind == "ComposedEvent":
        for each in event["events"]:
            yield from leaves(each, view, count, around, stated)
    elif kind == "RepeatedEvent":
        yield from leaves(event["event"], view, count * event["count"], around, stated)
    elif kind == "SummedEvent":
        yield from leaves(event["event"], view, count, event, stated)
    elif kind in ("SecurelySummedEvent", "ShuffledEvent"):  # no relief
        for leaf, n, exact in leaves(event["event"], view, count, around, stated):
            yield leaf, n, exact and not view.summed
    elif kind == "Release":
        yield from released(event, view, count, around)
    elif stated is None:  # no release says whom it protects
        yield UNPROTECTED, count, kind == "NonPrivateEvent"
    elif kind == "PoissonSampledEvent":
        yield from sampled(event, view, count, stated)
    else:
        names = [word.split(":")[0] for word in EVENTS[kind].split()]
        yield (kind.removesuffix("Event"), *(event[name] for name in names)), count, True


def released(event, view, count, around):
    """``leaves`` of one ``Release``, under what it states."""
    own = event["unit"], event["adjacency"], event.get("in_part", False)
    steps, inner = STEPS[own][NEIGHBOURS.index(view.asked)], event["event"]
    if event["assumptions"] and not view.granted:
        inner = event["otherwise"]
    if not steps or inner is None:
        yield UNPROTECTED, count, not steps
    elif inner["kind"] == "Release":
        yield from released(inner, view, count, around)
    else:
        for leaf, n, exact in leaves(inner, view, count, None, (event["adjacency"], steps)):
            exact = exact and own[:2] == view.asked
            leaf = leaf if steps == 1 else over_two(leaf)
            if view.summed and around is not None and inner is event["event"]:
                leaf, exact = hidden(leaf, event["hiding"], around, view.honest, exact)
            yield leaf, n, exact


def sampled(event, view, count, stated):
    """``leaves`` on a Poisson sample; one release of Gaussian noise gains, all else nothing."""
    inner, rate = list(leaves(event["event"], view, 1, None, stated)), event["rate"]
    gains = sum(n for _, n, _ in inner) == 1 and rate < 1 and stated[0] != ONE and stated[1] == 1
    for leaf, n, exact in inner:
        if gains and leaf[0] == "Gaussian":
            yield ("Sampled", rate, leaf[1], 0.0), count * n, exact
        elif gains and leaf[0] == "DiscreteGaussian" and leaf[1] >= FINE:
            yield ("Sampled", rate, leaf[1] / leaf[2], log_ratio(leaf[1])), count * n, exact
        else:
            yield leaf, count * n, exact and rate == 1


def over_two(leaf):
    """``leaf`` of two data sets that are two of its steps apart: distances add up, or ε does."""
    if leaf[0] == "Gaussian":
        return leaf[0], leaf[1] / 2
    if leaf[0] == "DiscreteGaussian":
        return leaf[0], leaf[1], 2 * leaf[2], leaf[3]
    return UNPROTECTED if pure_epsilon(leaf) is None else ("Pure", 2 * pure_epsilon(leaf))


def hidden(leaf, hiding, around, honest, exact):
    """``leaf`` in a sum beside noise of ``honest`` clients.

    Fine Gaussian noise of equal weights is hidden exactly; nothing else gets relief.
    """
    if hiding == "not at all" or honest == 1:
        return leaf, exact
    gain = math.sqrt(honest) if around["least_weight"] == around["greatest_weight"] else 0
    if hiding == "additive noise in every cell" and gain:
        if leaf[0] == "Gaussian":
            return (leaf[0], leaf[1] * gain), exact
        if leaf[0] == "DiscreteGaussian" and leaf[1] >= LEAST_SUMMED and leaf[1] * gain >= FINE:
            return (leaf[0], leaf[1] * gain, *leaf[2:]), exact
    return leaf, False


def pure_epsilon(leaf):
    """ε of a release with δ = 0, or None."""
    if leaf[0] == "RandomizedBits":
        return leaf[3] * (math.log1p(2 * leaf[1]) - math.log1p(-2 * leaf[1]))
    if leaf[0] == "Laplace":
        return 1 / leaf[1]
    return leaf[1] if leaf[0] in ("RandomizedResponse", "Pure") else None


def log_ratio(sigma):
    """By how much the logarithm of fine discrete noise, 2^26 long, differs from the continuous.

    murmur/privacy/accounting/gaussian.py has the proof.
    """
    wide = 2 * math.sqrt(2**26 * 20_000) + 40_000
    return wide / 24 / sigma**2 + (2**26 / 512 + (2**26 + wide) ** 2 / 960) / sigma**4


# ε ----------------------------------------------------------------------------------------------


def epsilon(found, delta, is_upper):
    """At most, or at least, the ε at ``delta`` of leaves with their counts.

    dp-accounting's accountants are not asked: that of loss distributions ignores how often a
    randomised response is repeated, and doubles Gaussians under REPLACE_ONE; Rényi's is loose. Each
    leaf is composed as often as it was released, here.
    """
    counts = Counter()
    for leaf, count, exact in found:
        if exact or is_upper:
            counts[leaf] += count
    return _epsilon(frozenset(counts.items()), delta, is_upper)


@lru_cache(maxsize=2**15)
def _epsilon(counts, delta, is_upper):
    squared, slack, pure, others = 0.0, 0.0, 0.0, {}
    for leaf, count in counts:
        one = pure_epsilon(leaf)
        pure += math.inf if one is None else count * one
        if leaf == UNPROTECTED:
            return math.inf
        if leaf[0] == "Gaussian":
            squared += count / leaf[1] ** 2
        elif leaf[0] == "DiscreteGaussian" and leaf[1] >= FINE:
            squared += count * (leaf[2] / leaf[1]) ** 2
            slack += count * log_ratio(leaf[1])
        elif leaf[0] != "DiscreteGaussian" or (leaf[3] and leaf[1] <= WIDE and leaf[2] % 1 == 0):
            others[leaf] = count
            slack += count * leaf[3] if leaf[0] == "Sampled" else 0.0
        elif is_upper:
            return math.inf  # vectors of coarse noise have no exact figure here
    sign = 1 if is_upper else -1
    if delta == 0:
        return pure if is_upper or pure < math.inf else 0.0
    if others and delta < 1e-9:  # finer than loss distributions are
        return pure if is_upper else 0.0
    delta = min(1.0, delta * math.exp(-sign * slack))
    mu = math.sqrt(squared)
    if others and mu:
        others["Sampled", 1.0, 1 / mu, 0.0] = 1  # all of a sample
    value = by_losses(others, delta, is_upper) if others else by_gaussian(mu, delta)
    return max(0.0, min(value + sign * 2 * slack, pure if counts else 0.0))


def by_gaussian(mu, delta):
    """ε of one continuous Gaussian with sensitivity/σ = ``mu``, in closed form."""
    from dp_accounting import gaussian_mechanism

    return float(gaussian_mechanism.get_epsilon_gaussian(1 / mu, delta)) if mu else 0.0


def by_losses(counts, delta, is_upper):
    """ε of what has no closed form, as one loss distribution of dp-accounting on one lattice."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    found = [(leaf, count, *randomised(leaf)) for leaf, count in counts.items()]
    spread = math.sqrt(sum(n * loss_variance(leaf) for leaf, n, *_ in found))
    losses = [loss for *_, loss, _, _ in found if loss]
    step = lattice_step(losses, spread, len(losses) == len(found), is_upper)
    grid = {"value_discretization_interval": step, "pessimistic_estimate": is_upper}
    dots, whole = {**grid, "use_connect_dots": is_upper}, None
    for leaf, count, loss, many, copies in found:
        if loss:
            make = pld.PrivacyLossDistribution.create_from_rounded_probability
            part = make(atoms(loss, many, step, is_upper), 0, step, is_upper)
        elif leaf[0] == "Sampled":
            part = pld.from_gaussian_mechanism(leaf[2], sampling_prob=leaf[1], **dots)
        elif leaf[0] == "DiscreteGaussian":
            part = pld.from_discrete_gaussian_mechanism(leaf[1], int(leaf[2]), **dots)
        elif leaf[2] == 0:
            part = pld.from_laplace_mechanism(leaf[1], **dots)
        else:
            part = pld.from_discrete_laplace_mechanism(1 / leaf[1] / leaf[2], int(leaf[2]), **dots)
        part = part.self_compose(count * copies) if count * copies > 1 else part
        whole = part if whole is None else whole.compose(part)
    return float(whole.get_epsilon_for_delta(delta))


def randomised(leaf):
    """ε of a label, a bit or a pure release, among how many answers, and copies; or None, 0, 1."""
    pure = pure_epsilon(leaf)
    if pure is None or (leaf[0] == "Laplace" and leaf[2] is not None):
        return None, 0, 1
    if leaf[0] == "RandomizedBits":
        return pure / leaf[3], 2, leaf[3]
    return pure, leaf[2] if leaf[0] == "RandomizedResponse" else 2, 1


def loss_variance(leaf):
    """About the variance of a release's loss: the lattice follows it."""
    if leaf[0] == "Sampled":
        return min(1 / leaf[2] ** 2, leaf[1] ** 2 * math.expm1(min(1 / leaf[2] ** 2, 20)) + 1e-12)
    if leaf[0] == "DiscreteGaussian":
        return (leaf[2] / leaf[1]) ** 2
    return pure_epsilon(leaf) ** 2 / (leaf[3] if leaf[0] == "RandomizedBits" else 1)


def lattice_step(losses, spread, is_alone, is_upper):
    """A step that all labels' losses are multiples of, if there is one; else a fine one."""
    fine = spread / (1_500 if is_upper else 500)
    for divisor in range(1, 65) if losses else ():
        step = min(losses) / divisor
        if all(abs(x / step - round(x / step)) < 1e-9 for x in losses):
            return step if is_alone or step < fine else step / math.ceil(step / fine)
    return fine


def atoms(loss, many, step, is_upper):
    """Masses of one label's loss on the lattice; between its points each keeps P's and Q's mass."""
    true, masses = 1 / (1 + (many - 1) * math.exp(-loss)), Counter()
    other = true * math.exp(-loss)
    for value, mass in ((loss, true), (0.0, (many - 2) * other), (-loss, other)):
        below = round(value / step)
        if abs(value / step - below) > 1e-9:
            below = math.floor(value / step)
        above = mass * max(0.0, math.expm1(below * step - value) / math.expm1(-step))
        masses[below] += mass - above * is_upper
        masses[below + 1] += above * is_upper
    return {place: mass for place, mass in masses.items() if mass > 0}


# The statement ----------------------------------------------------------------------------------


class Report:
    """Findings: (status, the figure that it is about, a sentence), and of which clients."""

    def __init__(self):
        self.lines, self.counts = {}, ((), ())

    def say(self, status, about, sentence, client=None):
        """Add a finding; ``client``: what the sentence begins with."""
        clients = self.lines.setdefault((status, about, sentence), [])
        clients += [clean(client)] if client is not None else []

    def wrong(self, about, sentence, client=None):
        """Add what contradicts."""
        self.say(CONTRADICTED, about, sentence, client)

    def sorted(self):
        """(status, about, text), the worst first; a sentence of many clients once."""
        for line in sorted(self.lines, key=lambda line: -BEST_FIRST.index(line[0])):
            who = [f"client {each} " for each in self.lines[line]]
            more = f"(and {len(who) - 1} more) " if len(who) > 1 else ""
            yield *line[:2], "".join(who[:1]) + more + line[2]


def rounding(value):
    """Half a unit of the last digit that is written, and at least what floats lose."""
    digits, _, exponent = repr(float(value)).partition("e")
    places = len(digits.partition(".")[2]) - int(exponent or 0)
    return max(0.5 * 10.0**-places, 1e-9 * value)


def question_digest(opened, what):
    """The digest of a question from its opened parts."""
    plain = need(opened, what, "kind:s started:s arrays:l settings:l metrics:l")
    words = framed(b"question to a sum", plain.kind.encode(), plain.started.encode())
    state = hashlib.sha256(words)
    for kind in ("arrays", "settings", "metrics"):
        for record in opened[kind]:
            name, entries = need(record, what, "sl")
            state.update(framed(kind.encode(), name.encode()))
            for entry in entries:
                key, *rest = need(entry, what, "sslh" if kind == "arrays" else "ss")
                words = [kind[:-1].encode(), key.encode(), rest[0].encode()]
                if kind == "arrays":
                    words += [repr(tuple(rest[1])).encode(), bytes.fromhex(rest[2])]
                state.update(framed(*words))
    return state.digest()


TERMS = (
    "run:s round:i clients:a length:c bits:c threshold:c minimum:c neighbours:c? colluders:i "
    "server:s purpose:s group:i release:s least_weight:c greatest_weight:c keys:s"
)
HEADER = (
    "format:1 name:s server:s algorithm:s unit:s adjacency:s delta:q threat:s schedule:o secret:b "
    "phases:l settings:o questions:s roster:h? successions:l bits:s"
)


GUARANTEE = (
    "threat:s adversary:s claimed_per_round:g? claimed_total:g? proven_per_round:g proven_total:g "
    "proven_median:g proven_least:g most_exposed:s method:s bounds:F clients:F sizes:o measured:g? "
    "canaries:e? assumptions:l assumed_per_round:g? assumed_total:g? notes:l"
)
RANKS = {"proven_total": max, "proven_median": statistics.median_high, "proven_least": min}


class Statement:
    """A signed statement with its header; what does not fit in it is said to ``report``."""

    def __init__(self, envelope, path, report):
        self.report, self.digest = report, envelope.digest
        self.subjects, predicate = envelope.predicate("statement")
        spec = "format:1 header:s signature:x privacy:o questions:l sums:l"
        self.plain = need(predicate, path.name, spec)
        text = self.plain.header.encode()
        self.header = need(strictly(text, "header"), "header", HEADER)
        self.run, self.server = sha256(text).hex(), require_point(self.header.server, "server")
        if self.header.server not in envelope.keys:
            report.wrong("signatures", "the run's server has not signed the statement as it is.")
        signature = bytes.fromhex(self.plain.signature)
        if not is_signed(self.server, signature, b"murmur server header\0" + text):
            report.wrong("signatures", "the run's server has not signed the header as it is.")
        if self.subjects.get("header") != self.run:
            report.wrong("signatures", "the statement names another header than it holds.")
        spec = "purpose:s first:c last:c every:c event:e?"
        self.phases = [need(phase, "phases", spec) for phase in self.header.phases]
        self.questions, self.sums = defaultdict(list), defaultdict(list)
        self.read_privacy(self.plain.privacy)
        self.read_questions()

    def read_privacy(self, plain):
        """Unit, adjacency and δ, which must be the header's, and each adversary's figures."""
        for name in ("unit", "adjacency", "delta"):
            if plain.get(name) != (planned := getattr(self.header, name)):
                said = f"the statement says {name}={clean(plain.get(name))}"
                self.report.wrong("unit, adjacency, delta", f"{said}, the header {planned}.")
        self.asked, self.delta = (plain.get("unit"), plain.get("adjacency")), plain.get("delta")
        listed, self.guarantees = plain.get("guarantees"), []
        if self.asked not in NEIGHBOURS or not KINDS["q"](self.delta) or not KINDS["l"](listed):
            raise BadInputError("privacy: is no statement of Murmur")
        for each in listed:
            one = need(each, "guarantees", GUARANTEE)
            main = "proven_total" if one.assumed_total is None else "assumed_total"
            setattr(one, main, min([getattr(one, main), *one.bounds.values()], key=float))
            if one.canaries or one.measured:
                self.report.say(UNCHECKABLE, "attacks", "what they measured is the server's word.")
            self.guarantees.append(one)

    def planned(self, number, purpose):
        """Events that the header plans in a round of a purpose; empty: it plans nothing."""
        found = [phase for phase in self.phases if phase.purpose == purpose]
        return [p.event for p in found if number in range(p.first, p.last + 1, p.every)]

    def read_questions(self):
        """What was asked, opened; and the sums."""
        for each in self.plain.questions:
            one = need(each, "questions", "round:i purpose:s question:h opened:o")
            about = phase_text(one.round, one.purpose)
            one.digest = bytes.fromhex(one.question)
            if question_digest(one.opened, f"the question of {about}") != one.digest:
                self.report.wrong("questions", f"{about}: what is opened is not what was asked.")
            if not self.planned(one.round, one.purpose):
                self.report.wrong("questions", f"{about}: was asked, and the header plans it not.")
            self.questions[one.round, one.purpose].append(one)
        if self.header.questions == "alike" and any(len(q) > 1 for q in self.questions.values()):
            self.report.wrong("questions", "a round has two questions, and the header says alike.")
        spec = "round:i purpose:s question:h terms:h opened:o included:x survivors:x keys:X "
        for each in self.plain.sums:
            one = need(each, "sums", spec + "confirmations:X")
            self.sums[one.round, one.purpose].append(self.read_sum(one))

    def read_sum(self, one):
        """A sum: its terms, members, who survived and who confirmed it."""
        one.about = phase_text(one.round, one.purpose)
        terms = need(one.opened, f"terms of {one.about}", TERMS)
        ids, n = terms.clients, len(terms.clients)

        def wrong(sentence):
            self.report.wrong("sums", f"{one.about}: {sentence}.")

        text = json.dumps(one.opened, sort_keys=True, separators=(",", ":")).encode()
        digest = sha256(b"murmur secure sum, version 4", text)
        question = bytes.fromhex(one.question)
        if digest.hex() != one.terms or (terms.round, terms.purpose) != (one.round, one.purpose):
            wrong("the sum's terms are not those of its digest and round")
        if question not in [each.digest for each in self.questions[one.round, one.purpose]]:
            wrong("the sum is of another question than was asked")
        lists = bytes.fromhex(one.included), bytes.fromhex(one.survivors)
        if {len(bits) for bits in lists} != {(n + 7) // 8}:
            raise BadInputError(f"{one.about}: a list of members is of another length")
        there = [{i for k, i in enumerate(ids) if b[k // 8] >> (7 - k % 8) & 1} for b in lists]
        members = {i: bytes.fromhex(one.keys[str(i)]) for i in ids if one.keys.get(str(i))}
        if not there[1] <= there[0] or len(there[1]) < terms.minimum:
            counts = f"{len(there[1])} survivors of {len(there[0])}"
            wrong(f"{counts} are not what terms with a minimum of {terms.minimum} let out")
        valid = 0
        for name, signature in one.confirmations.items():
            key = members.get(int(name) if re.fullmatch("[0-9]{1,16}", name) else -1, b"")
            who = framed(int(name).to_bytes(8, "big"), key) if key else b""
            word = framed(digest, b"survivors") + who + framed(question, *lists)
            if is_signed(key[:32], bytes.fromhex(signature), word):
                valid += 1
            else:
                wrong(f"client {clean(name)} has not confirmed these lists: its signature is wrong")
        if valid < terms.threshold:
            wrong(f"{valid} clients have confirmed the sum, and it takes {terms.threshold}")
        if terms.neighbours is None and 2 * terms.threshold <= n + terms.colluders:
            wrong(f"a threshold of {terms.threshold} of {n} fails with {terms.colluders} colluders")
        ring = 2.0 ** (-40 if terms.server == "honest" else -104)
        one.failure = 0.0 if terms.neighbours is None else ring
        one.terms, one.digest, one.question, one.lists = terms, digest, question, sha256(*lists)
        one.is_whole = there[0] <= members.keys()
        one.members, one.survivors, one.names, one.wrong = members, sorted(there[1]), {}, wrong
        return one

    def check_roster(self, lines, digest):
        """The members of each sum are clients of the roster, by their keys, each once."""
        if self.header.roster not in (None, digest):
            self.report.wrong("roster", "the header was signed for another roster than this.")
        owners = {line.sum_key: name for name, line in lines.items()}
        for one in (one for sums in self.sums.values() for one in sums):
            for i, key in one.members.items() if "-" not in owners else ():
                name = owners.get(key[:32].hex())
                if name is None:
                    one.wrong(f"member {i} of the sum has a key that no line of the roster has")
                elif name in one.names.values():
                    one.wrong(f"two members of the sum have the key of client {name}")
                one.names[i] = name


# Receipts ---------------------------------------------------------------------------------------

RECEIPT = (
    "format:i header:h client:s number:c previous:h? statement:h? unit:s adjacency:s peers:s? "
    "events:l purposes:l entries:l beside:l"
)


def read_receipt(envelope):
    """A receipt's predicate, its entries as objects."""
    subjects, predicate = envelope.predicate("receipt")
    what, plain = envelope.what, need(predicate, envelope.what, RECEIPT)
    if plain.format != 1 or subjects.get("header") != plain.header:
        raise BadInputError(f"{what}: is of another format, or about another header")
    for event in plain.events:
        require_event(event, what)
    need(plain.purposes, what, "s" * len(plain.purposes))
    found, last = [], ()
    for each in plain.entries:
        if not KINDS["l"](each) or len(each) not in (4, 5, 8):
            raise BadInputError(f"{what}: an entry has 4, 5 or 8 values")
        block = len(each) > 4 and type(each[4]) is str
        kinds = ("iiissiii" if block else "iiisiiii")[: len(each)]
        number, purpose, which, digest, *rest = need(each, what, kinds)
        if purpose >= len(plain.purposes) or which >= len(plain.events) or min(purpose, which) < 0:
            raise BadInputError(f"{what}: an entry names no purpose or event of the receipt")
        place = number, plain.purposes[purpose], rest[0] if block else ""
        if place <= last:
            raise BadInputError(f"{what}: its entries are not in their order, or one is twice")
        last, (minimum, colluders) = place, rest[2:] or (0, 0)
        one = SimpleNamespace(which=which, event=plain.events[which], masked=len(each) == 8)
        one.round, one.purpose, one.block = place
        one.digest, one.place = base64_bytes(digest, what), rest[0] if rest else None
        one.survivors, one.minimum, one.colluders = rest[1] if one.masked else 0, minimum, colluders
        one.sum = None
        found.append(one)
    plain.beside = [need(each, what, "header:h closed:b entries:l") for each in plain.beside]
    for which, _ in (need(pair, what, "ic") for each in plain.beside for pair in each.entries):
        if not 0 <= which < len(plain.events):
            raise BadInputError(f"{what}: beside names no event of the receipt")
    plain.digest, plain.entries, plain.what = envelope.digest, found, what
    return plain


def read_receipts(folder, lines, algorithm, report):
    """All receipts of ``folder`` that a ledger of the roster has signed; without one, any."""
    found, large = [], 2 if lines is not None else 128  # a payload of half as much, in base64
    names = {line.ledger: name for name, line in (lines or {}).items()}
    for path in sorted(folder.glob("*.json")):
        envelope = Envelope(content_of(path, large * MEGABYTE), path.name)
        if envelope.is_altered or not envelope.keys:
            report.wrong("receipts", f"{path.name}: was altered, or nobody signed it; not counted.")
            continue
        receipt = read_receipt(envelope)
        if algorithm == FLOWER:  # every device there calls its one client "0"
            named = [names[key] for key in envelope.keys if key in names]
            receipt.client = [*named, receipt.client][0]
        line = lines.get(receipt.client) if lines is not None else None
        if lines is not None and (line is None or line.ledger not in envelope.keys):
            said = f"{path.name}: says that it is of client {clean(receipt.client)}"
            report.wrong("receipts", f"{said}, and no ledger in the roster signed that.")
            continue
        receipt.key = line.ledger if line else envelope.keys[0]
        found.append(receipt)
    return found


def read_evidence(folder, statement):
    """The server's signatures of questions that owners publish: (question, terms) by phase."""
    found = defaultdict(set)
    for path in sorted(folder.glob("*.evidence")):
        for each in strictly(content_of(path), path.name):
            run, number, purpose, *rest = need(each, path.name, "hcsxxx")
            question, terms, signature = map(bytes.fromhex, rest)
            word = bytes.fromhex(run), number.to_bytes(8, "big"), purpose.encode(), question, terms
            text = b"murmur server question\0" + framed(*word)
            if run == statement.run and is_signed(statement.server, signature, text):
                found[number, purpose].add((question, terms))
    return found


def pinned_peers(lines, algorithm):
    """The digest that a receipt has of its owner's peers, where those are the roster's."""
    if algorithm == FLOWER:
        pinned = sorted(f"{line.sum_key}\n" for line in lines.values())
    else:
        numbers = sorted(int(name) for name in lines if name.isdecimal())
        pinned = [f"{n} {lines[str(n)].sum_key}\n" for n in numbers]
    return sha256("".join(pinned).encode()).hex()


class Comparison:
    """A statement against receipts: what follows, what contradicts it, what nobody can say."""

    def __init__(self, statement, found, lines, evidence, options, report):
        self.statement, self.lines, self.report = statement, lines, report
        self.evidence, self.options, self.receipts = evidence, options, {}
        for one in self.chained(found):
            names = names_in(one.client) if lines is None else [one.client]
            self.receipts |= dict.fromkeys(names, one)
        self.is_simulation = any(name != one.client for name, one in self.receipts.items())
        self.missing = [name for name in lines or () if name not in self.receipts]
        self.owners = defaultdict(list)
        for name in self.receipts:
            self.owners[lines[name].owner if lines else name].append(name)
        self.pinned = pinned_peers(lines or {}, statement.header.algorithm)

    def chained(self, receipts):
        """Receipts of the run; those of others show who has signed two after the same one."""
        found, chain = {}, {}
        for one in receipts:
            other = chain.setdefault((one.key, one.client, one.previous), one)
            is_chain = one.previous is not None or one.header == other.header
            if other.digest != one.digest and is_chain:
                said = "has signed two after the same one: its ledger was put back, or is there"
                said += f" twice ({other.what}, {one.what})."
                self.report.wrong("receipts", said, one.client)
            if one.header != self.statement.run:
                self.report.say(AGREES, "receipts", f"{one.what}: is of another run; not counted.")
                continue
            found[one.client] = one
            if one.statement not in (None, self.statement.digest):
                said = f"was shown another statement of this run, {one.statement[:16]}: the server "
                self.report.wrong("signatures", said + "signed two, or it was altered.", one.client)
        return found.values()

    def conclude(self, about, said, status=SHOWN):
        """The line of a figure that nothing contradicts."""
        if any(line[:2] == (CONTRADICTED, about) for line in self.report.lines):
            return
        rest = ", ".join(clean(name) for name in self.missing[:10])
        rest += f" and {len(self.missing) - 10} more" if len(self.missing) > 10 else ""
        base, why = SHOWN, f"receipts of all {len(self.receipts)} clients agree."
        if self.options.arithmetic:
            why = "by arithmetic alone."
        elif self.is_simulation:
            base, why = UNCHECKABLE, "a simulation's server is its clients; see --arithmetic."
        elif self.lines is None:
            base, why = UNCHECKABLE, "no roster says who was asked."
        elif self.missing:
            count, base = f"{len(self.receipts)} of {len(self.lines)}", AGREES
            why = f"receipts of {count} agree; {rest}: the server's word."
        self.report.say(max(base, status, key=BEST_FIRST.index), about, f"{said} {why}")

    # What was asked

    def check_entries(self):
        """Each charge was stated: its round, its event, its question and its sum."""
        for one in {one.digest: one for one in self.receipts.values()}.values():
            for entry in one.entries:
                self.check_entry(entry.block or one.client, entry)
        self.conclude("questions", f"{sum(map(len, self.statement.questions.values()))} asked:")
        if self.statement.header.questions != "alike":
            self.report.say(AGREES, "questions", "each client has its own: they are not compared.")
        known = (None, "any" if self.options.arithmetic else None, self.pinned)
        loose = [name for name, one in self.receipts.items() if one.peers not in known]
        sums = [one for found in self.statement.sums.values() for one in found]
        said, partial = f"{len(sums)};", [one for one in sums if not one.is_whole]
        if partial:
            said += f" {len(partial)} do not name all their members' keys;"
        if loose:
            said += f" owners of {len(loose)} clients have not pinned these keys;"
        if sums:
            self.conclude("sums", said, UNCHECKABLE if loose or partial else SHOWN)

    def check_entry(self, name, entry):
        """One entry of one receipt."""
        phase, secret = (entry.round, entry.purpose), self.statement.header.secret
        about, questions = phase_text(*phase), self.statement.questions.get(phase, [])
        planned = self.statement.planned(*phase)
        event = entry.event["event"] if entry.event["kind"] == "SummedEvent" else entry.event
        if not planned or not (questions or secret):
            why = "the statement has no such round" if planned else "the header does not plan it"
            return self.blame(entry, "questions", name, f"was asked in {about}, and {why}.")
        if None not in planned and event not in planned:
            said = json.dumps(event, sort_keys=True)[:160]
            said = f"was charged another event in {about} than is planned: {said}."
            self.blame(entry, "questions", name, said)
        if secret or entry.masked:
            return None if secret else self.check_masked(name, entry, about)
        digests = [sha256(one.digest, b"", b"") for one in questions]
        if entry.digest not in digests and self.statement.header.questions == "alike":
            self.blame(entry, "questions", name, f"was asked something else in {about}.")
        return None

    def check_masked(self, name, entry, about):
        """The sum of a masked release: its terms, its members, and who survived."""
        sums, wrong = self.statement.sums.get((entry.round, entry.purpose), []), []
        for one in sums:
            for lists in (one.lists, b""):
                if sha256(one.question, one.digest, lists) == entry.digest:
                    entry.sum, confirmed = one, len(one.survivors) if lists else 0
        if entry.sum is None:
            named = [i for one in sums for i in (one.names.values() or map(str, one.terms.clients))]
            if name in named or entry.survivors:
                said = f"joined another sum in {about} than is opened: other terms, members, "
                self.blame(entry, "sums", name, f"{said}survivors or question.")
            return
        terms, ids = entry.sum.terms, entry.sum.terms.clients
        if entry.survivors != confirmed:
            wrong.append(f"confirmed {entry.survivors} survivors, and {confirmed} are stated")
        if entry.minimum != terms.minimum or entry.colluders < terms.colluders:
            wrong.append(f"was told a minimum of {entry.minimum}, {entry.colluders} colluders")
        if not entry.block:
            place = entry.place if 0 <= entry.place < len(ids) else None
            if place is None or (entry.sum.names.get(ids[place]) or name) != name:
                wrong.append("has no such place in the sum")
        if entry.event.get("failure", 0.0) != entry.sum.failure:
            wrong.append("was charged another probability that the sum fails")
        for each in wrong:
            self.blame(entry, "sums", name, f"{each}, in {about}.")

    def blame(self, entry, about, name, sentence):
        """A contradiction, with the server's signature where an owner shows it."""
        phase = entry.round, entry.purpose
        known = [b"", *(one.lists for one in self.statement.sums.get(phase, ()))]
        shown = {sha256(*pair, lists) for pair in self.evidence[phase] for lists in known}
        word = SIGNED if entry.digest in shown else UNSIGNED
        self.report.wrong(about, f"{sentence} {word}", name)

    # ε

    @lru_cache(maxsize=2**15)  # noqa: B019
    def charges(self, name):
        """[event, {honest clients by whose word}, count] of one client; None: nobody can say."""
        receipt, counts = self.receipts[name], Counter()
        trusted = self.options.arithmetic or receipt.peers == self.pinned
        for entry in receipt.entries:
            if entry.block and name not in names_in(entry.block):
                continue
            # A sum without masks may be forgotten, or not.
            honest = {"shown": 1, "certain": None, "given": 1, "trained": entry.purpose == "train"}
            own = entry.sum.terms.colluders if entry.sum else 0
            if entry.masked and trusted:
                colluders = max(entry.colluders, own, self.options.colluders)
                honest["shown"] = max(1, (entry.survivors or entry.minimum) - colluders)
            if entry.sum:
                honest["certain"] = len(entry.sum.survivors) - own
            if entry.sum and entry.survivors and trusted:
                names = [entry.sum.names.get(i) for i in entry.sum.survivors]
                honest["given"] = max(1, len(self.receipts.keys() & names))
            counts[entry.which, tuple(honest.items())] += 1
        return [(receipt.events[which], dict(h), count) for (which, h), count in counts.items()]

    def cost(self, charges, threat, granted, whose):
        """ε of all ``charges`` together: at least for "certain", else at most."""
        found, failure, asked = [], 0.0, self.statement.asked
        summed, delta = threat == "secure_aggregation", self.statement.delta
        for event, honest, count in charges:
            view = View(asked=asked, summed=summed, granted=granted, honest=honest[whose] or 1)
            is_known = honest[whose] is not None or not summed
            found += [(leaf, n, e and is_known) for leaf, n, e in leaves(event, view, count)]
            failure += count * event.get("failure", 0.0) if summed else 0.0
        if whose == "certain":
            return 0.0 if self.statement.header.secret else epsilon(found, delta, False)
        bare = self.cost(charges, "local", granted, whose) if summed else math.inf
        return min(bare, epsilon(found, max(0.0, delta - failure), True))  # at 0 no sum gains

    def check_epsilon(self):
        """Each figure against each adversary that was asked for."""
        for each in self.statement.guarantees:
            short = {"secure_aggregation": "sums"}.get(each.threat, each.threat)
            if self.options.against and short not in self.options.against.split(","):
                continue
            kinds = ("proven", "assumed", *(() if self.options.against else ("claimed",)))
            for name, stated in vars(each).items():
                kind, words = name.partition("_")[0], name.removesuffix("_total").replace("_", " ")
                if kind not in kinds or stated in (None, "infinity"):
                    continue
                about = f"epsilon {words} against {clean(each.adversary)}"
                if kind != "claimed" and short in ("sums", "local"):
                    self.check_figure(about, name, each, stated)
                elif not self.options.arithmetic:
                    why = "rests on what the server does by itself: noise, samples, theorems."
                    self.report.say(UNCHECKABLE, about, f"{stated:.4g} {why}")

    def check_figure(self, about, name, guarantee, stated):
        """One figure: certain costs may not exceed it; those of receipts must not, to be shown."""
        granted, once = name.startswith("assumed"), name.endswith("round")
        threat, rank = guarantee.threat if granted else "local", RANKS.get(name, max)
        if once and None in self.statement.planned(1, "train"):
            return self.report.say(UNCHECKABLE, about, f"{stated:.4g}: the header leaves it open.")

        def cost(clients, whose):
            charges = [charge for client in clients for charge in self.charges(client)]
            if once:  # the training that is hidden least
                charges = [(event, honest, 1) for event, honest, _ in charges if honest["trained"]]
                charges = sorted(charges, key=lambda charge: charge[1]["shown"])[:1]
            return self.cost(charges, threat, granted, whose)

        own = guarantee.clients if name in RANKS and not guarantee.sizes else {}
        groups = self.owners.values()
        rows = []  # of whom, at least, at most, what is stated
        for client in self.receipts:
            limit = min(stated, float(own.get(client, stated)))
            rows.append((client, cost([client], "certain"), cost([client], "shown"), limit))
        if rank is max:  # those of one owner are composed
            rows += [(None, 0.0, cost(clients, "shown"), stated) for clients in groups]
        else:  # who gave no receipt: at least nothing, at most what is stated
            lows = [low for _, low, _, _ in rows] + [0.0] * len(self.missing)
            low = rank(lows) if self.lines or self.is_simulation else 0.0
            ups = [up for _, _, up, _ in rows if up]
            ups += [float(own[client]) for client in self.missing if client in own]
            rows = [(None, low, rank(ups or [0.0]), stated)]
        rows.append((None, rank([*map(float, own.values())] or [0.0]), 0.0, stated))
        worst, said, status = 0.0, f"{stated:.4g};", SHOWN
        for client, low, up, limit in rows:
            worst = max(worst, up if up > limit + rounding(limit) else 0.0)
            if low > limit + rounding(limit):
                was = f"protect nothing with {self.statement.asked}"
                if low < math.inf:
                    was = f"cost at least {low:.6g}"
                who = "was charged releases that" if client else "the releases of clients"
                self.report.wrong(about, f"{who} {was}, and {limit:.6g} is stated.", client)
        if worst:
            said, status = f"{stated:.6g}, and receipts prove {worst:.6g};", UNCHECKABLE
            said = f"{stated:.6g}, of noise without exact figure;" if worst == math.inf else said
        if threat == "secure_aggregation" and self.receipts and not self.options.arithmetic:
            value = max(cost(clients, "given") for clients in groups)
            said += f" {value:.4g} if only who gave a receipt is honest;"
        return self.conclude(about, said, status)

    def check_beside(self):
        """Other runs under the same key that charged a client."""
        for name, one in self.receipts.items():
            for other in one.beside:
                more = [(one.events[which], {"shown": 1}, n) for which, n in other.entries]
                value = self.cost([*self.charges(name), *more], "local", False, "shown")
                count, run = sum(n for _, n in other.entries), other.header[:16]
                said = f"was charged {count} times in run {run} of this server; both prove "
                self.report.say(AGREES, "other runs", f"{said}{value:.4g} together.", name)

    def check_model(self, path):
        """The final model: the file's digest, and whether it was sent in a phase."""
        values = model_values(path)
        if sha256(values).hex() != self.statement.subjects.get("model"):
            self.report.wrong("model", f"{path.name}: is another model than the statement's.")
        opened = [one.opened for asked in self.statement.questions.values() for one in asked]
        sent = {entry[3] for one in opened for record in one["arrays"] for entry in record[1]}
        if sha256(as_sent(values)).hex() in sent:
            return self.conclude("model", "it was sent in a phase;")
        return self.conclude("model", "it was in no question: the server's word;", UNCHECKABLE)


def as_sent(values):
    """Flat float32 values as a question has them: in NumPy's format, version 1.0."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({len(values) // 4},), }}"
    return b"\x93NUMPY\x01\x00\x76\x00" + text.ljust(117).encode() + b"\n" + values


def model_values(path):
    """Flat float32 values of .npy, or of a run's .safetensors in the order that it states."""
    content = content_of(path, 8192 * MEGABYTE)
    if content[:6] == b"\x93NUMPY":
        return content[10 + int.from_bytes(content[8:10], "little") :]
    size = 8 + int.from_bytes(content[:8], "little")
    head, values = strictly(content[8 : min(size, 100 * MEGABYTE)], path.name), content[size:]
    try:
        about = json.loads(head.pop("__metadata__", {}).get("murmur", "{}"))
        order = about.get("order", list(head))
        return b"".join(values[slice(*head[name]["data_offsets"])] for name in order)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadInputError(f"{path.name}: is no model of a run") from error


def verify(options, report):
    """Read and compare everything."""
    path = Path(options.statement)
    path = path / "statement.json" if path.is_dir() else path
    envelope = Envelope(content_of(path, 128 * MEGABYTE), path.name)
    if envelope.is_altered:  # what nobody has signed is not parsed
        report.wrong("signatures", "the run's server has not signed the statement as it is.")
        return
    if not envelope.keys:
        raise BadInputError(f"{path}: is a draft, which nobody has signed")
    statement = Statement(envelope, path, report)
    receipts, lines = Path(options.receipts or path.parent / "receipts"), None
    if (options.receipts or options.arithmetic) and not any(receipts.glob("*.json")):
        raise BadInputError(f"{receipts}: holds no receipt, without which nothing is compared")
    if options.roster:
        lines, digest = read_roster(Path(options.roster))
        statement.check_roster(lines, digest)
    found = read_receipts(receipts, lines, statement.header.algorithm, report)
    evidence = read_evidence(receipts, statement)
    comparison = Comparison(statement, found, lines, evidence, options, report)
    report.counts = comparison.receipts, lines or ()
    comparison.check_entries()
    comparison.conclude("unit, adjacency, delta", f"{statement.asked}, {statement.delta:g};")
    comparison.check_epsilon()
    comparison.check_beside()
    if options.model:
        comparison.check_model(Path(options.model))


def main(arguments=None):
    """Check and print; the exit status."""
    parser = argparse.ArgumentParser(prog="verify_statement", description=__doc__.splitlines()[0])
    parser.add_argument("statement", metavar="RUN|STATEMENT")
    parser.add_argument("--roster", metavar="FILE", help="who was asked, by whose word")
    parser.add_argument("--receipts", metavar="FOLDER", help="default: beside the statement")
    parser.add_argument("--model", metavar="FILE", help="the final model")
    parser.add_argument("--colluders", type=int, default=0, help="who may side with the server")
    parser.add_argument("--against", help="adversaries, as in sums,local; default: all stated")
    parser.add_argument("--arithmetic", action="store_true", help="of a simulation: figures alone")
    parser.add_argument("--json", action="store_true", help="findings as JSON")
    options, report = parser.parse_args(arguments), Report()
    try:
        verify(options, report)
    except BadInputError as error:
        print(clean(error), file=sys.stderr)
        return INPUT
    lines = list(report.sorted())
    status = SHOWN if options.arithmetic and lines[0][0] != CONTRADICTED else lines[0][0]
    if options.json:
        found = [{"status": s, "about": about, "finding": said} for s, about, said in lines]
        counts = {"receipts": len(report.counts[0]), "clients": len(report.counts[1])}
        whole = {"status": status, "word": WORDS[status], **counts, "findings": found}
        print(json.dumps(whole, indent=1))
        return status
    for each, about, said in lines:
        print(f"{WORDS[each]:>16}  {about}: {said}")
    if options.arithmetic:
        print("Only arithmetic was checked: whoever made a simulation has signed all of it.")
    return status


if __name__ == "__main__":
    sys.exit(main())
