"""What both halves agree on: what a round asks of each client, and how its answer is laid out.

An answer is one vector of float64. In training it is the change of all floats that are not frozen,
in the order of the model's arrays, and after it each named metric; in an evaluation the metrics
alone. The change is clipped to the L2 norm C = ``Ask.clip``; a metric in [low, high] becomes a
number in [-1, 1] times ``Ask.metric_scale``. Where the norm adapts (Andrew, Thakkar, McMahan,
Ramaswamy 2021, arXiv 1905.03871), one more number is (b - 1/2) beta C, with b = 1 for a change no
longer than C. So the norm of the whole is at most ``Ask.radius``, which is 2^20 steps of the grid
on which the noise is added (``mechanisms.clipping``): whatever C a server asks for, the charge is
the same.

Each client adds its share of a discrete Gaussian (Kairouz, Liu, Steinke 2021, arXiv 2102.06387;
``mechanisms.distributed_gaussian``), and the secure sum over at least h honest clients holds the
whole. Neighbours differ in all data of one client, whose vector may then point the other way, so
the sensitivity is twice the radius.

Everything in an ``Ask`` comes from the server, so a client checks all of it. Its digest is a part
of the codec, and so of the terms of the secure sum (``release_digest``): clients that were asked
different things do not sum.

Read ``Ask``, the terms of one round, then ``Layout``, the order of a model's numbers in the vector.
The functions at the end read arrays out of messages.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from flwr.app import ArrayRecord, RecordDict
from numpy.typing import NDArray
from pydantic import Field

from murmur.format import printable
from murmur.learning.array_bytes import MalformedError, array_from_bytes
from murmur.learning.codec import MAX_GRID_ENTRY, GridCodec
from murmur.privacy.events import MAX_VECTOR_ENTRIES, Assumption, Release
from murmur.privacy.mechanisms.clipping import CLIP_STEPS, MIN_NORM
from murmur.privacy.mechanisms.distributed_gaussian import DistributedGaussian
from murmur.secure_sum.terms import HONEST, LYING, Server
from murmur.settings import Count, Fraction, Positive, settings

ALGORITHM = "flower"  # as owners' policies name it
KIND = "query.murmur"  # Flower's type of the protocol's messages
OWNER = 0  # whose releases a device's ledger counts: it has one owner, whatever its place is
ASKED = "murmur"  # the record of a message that holds the ask
DEVICE = "device"  # in a reply to the first phase: what the client says of itself
# In that record, and in the one that holds the ask: digest of the run-config of its clients, which
# their app reads. A client that was started with another one is in no sum with them.
STARTED = "started"
# In the same record: whether the client's app may add noise of its own, as far as is known then.
OWN_NOISE = "own_noise"
NOT_COUNTED = (
    "the clients' app may add noise of its own (it has loaded Opacus or has Flower's LocalDpMod): "
    "this noise is not counted"
)

INVENTS_NOBODY = Assumption("no_invented_clients", "the server invents no clients")
HONEST_SERVER = Assumption("honest_server", "the server follows the protocol")
HONEST_APP = Assumption("honest_app", "the app's bundle is honest")

_MAX_BIT_WEIGHT = 2.0
_METRICS_NORM = 0.5  # of all metrics of a training together, in clipping norms
_MAX_MAGNITUDE = (
    1e300  # of a clipping norm and of a range's ends: no arithmetic with them overflows
)
_EXCHANGED = 2 * CLIP_STEPS  # how far one client's vector can move


@settings
class Ask:
    """Question of one round, the same for each client.

    The server makes one for each round (``murmur.flower.private_grid``) and sends it as JSON beside
    the strategy's own message; a client reads it with ``in_message``.

    Attributes:
        purpose: "train" or "evaluate".
        round, rounds: which one, from 1 on, and how many the noise was made for.
        epsilon, delta: what all of the run's releases of one client cost together, in the server's
            words. A client charges ``event``, whatever these say.
        noise_multiplier: sigma of the noise on a sum over how far one client moves it.
        clip: L2 norm to which a change is clipped.
        minimum: the fewest clients whose sum is revealed.
        colluders: how many of them may side with the server; their noise is not counted.
        frozen: names of arrays that nobody trains.
        metrics: (name, low, high) of each metric that is released.
        simulated: whether the server sees what it sums, as in a simulation of secure sums.
        bit_weight: beta, how far the bit of an adaptive norm moves, in clipping norms; 0: no bit.
        server: against whom the sum holds: one that is "lying", or "honest" (``SumTerms.server``).

    Raises:
        ValueError: a value is of another type or outside its range, ``minimum`` is not above
            ``colluders``, ``clip`` is below ``MIN_NORM``, it or an end of a metric's range is
            beyond 1e300, a range is empty, or an evaluation names no metric or has a bit.
    """

    purpose: Literal["train", "evaluate"]
    round: Count
    rounds: Count
    epsilon: Positive
    delta: Fraction
    noise_multiplier: Positive
    clip: Positive
    minimum: Count
    colluders: Annotated[int, Field(ge=0)]
    frozen: tuple[str, ...] = ()
    metrics: tuple[tuple[str, float, float], ...] = ()
    simulated: bool = False
    bit_weight: Annotated[float, Field(ge=0, le=_MAX_BIT_WEIGHT)] = 0.0
    server: Server = LYING

    def __post_init__(self) -> None:
        if self.minimum <= self.colluders:
            raise ValueError(f"minimum={self.minimum}: must be above colluders={self.colluders}")
        if not MIN_NORM <= self.clip <= _MAX_MAGNITUDE:
            raise ValueError(
                f"clip={self.clip:g}: must lie between {MIN_NORM:g} and {_MAX_MAGNITUDE:g}"
            )
        for name, low, high in self.metrics:
            if not -_MAX_MAGNITUDE <= low < high <= _MAX_MAGNITUDE:
                raise ValueError(
                    f"metrics={{{name!r}: ({low:g}, {high:g})}}: must be a finite range (at most "
                    f"{_MAX_MAGNITUDE:g}), the lower end first"
                )
        if self.purpose == "evaluate" and not self.metrics:
            raise ValueError("metrics=(): an evaluation releases at least one metric")
        if self.purpose == "evaluate" and self.bit_weight:
            raise ValueError(f"bit_weight={self.bit_weight:g}: an evaluation clips nothing")

    def to_json(self) -> str:
        """As it travels: all fields, with sorted keys, so that equal asks have equal text."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def in_message(cls, content: RecordDict) -> "Ask":
        """The ask in a message, which may be hostile.

        Read from the text ``ask`` of the record ``murmur``. All fields are checked as for one that
        is made here.

        Raises:
            ValueError: the record is missing or holds no ask, or one of its values is out of range.
        """
        try:
            plain = json.loads(str(content.config_records[ASKED]["ask"]))
            frozen = tuple(plain.pop("frozen"))
            metrics = tuple((name, low, high) for name, low, high in plain.pop("metrics"))
            return cls(**plain, frozen=frozen, metrics=metrics)
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{ASKED}: holds no ask of Murmur's: {error!s:.80}") from error

    def run_settings(self) -> dict[str, Any]:
        """Settings that all rounds of one run have in common, as a run header holds them.

        Names of what only this purpose's rounds have in common begin with it.
        """
        own = {
            "noise_multiplier": self.noise_multiplier,
            "metrics": [list(metric) for metric in self.metrics],
            "bit_weight": self.bit_weight,
        }
        if self.purpose == "train" and not self.bit_weight:
            own["clip"] = self.clip
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "rounds": self.rounds,
            "colluders": self.colluders,
            "frozen": list(self.frozen),
            "simulated": self.simulated,
            "server": self.server,
            **{f"{self.purpose}.{name}": value for name, value in own.items()},
        }

    @property
    def digest(self) -> str:
        """SHA-256 of all of it, in hexadecimal.

        Part of the codec, and through it of the secure sum's terms: a server that asks two clients
        for different things, of which each would be allowed, gets no sum of both.
        """
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @property
    def metric_scale(self) -> float:
        """Value in the vector of 1, the upper end of a metric's range.

        In training all m metrics together have at most half the clipping norm, C/2: they take a
        part of the noise's room, and the change keeps most of it. In an evaluation nothing is
        beside them, so it is 1.
        """
        if self.purpose == "evaluate":
            return 1.0
        return _METRICS_NORM * self.clip / math.sqrt(max(1, len(self.metrics)))

    @property
    def radius(self) -> float:
        """The L2 norm that no client's vector exceeds.

        √m in an evaluation of m metrics. In training C; named metrics add C²/4 under the root, and
        the bit of an adaptive norm β²C²/4.
        """
        metrics = math.sqrt(len(self.metrics)) * self.metric_scale
        if self.purpose == "evaluate":
            return metrics
        return math.hypot(self.clip, self.bit_weight * self.clip / 2, metrics)

    @property
    def num_extra_entries(self) -> int:
        """Entries of a vector beyond the model's: metrics, and the bit of an adaptive norm."""
        return len(self.metrics) + bool(self.bit_weight)

    @cached_property
    def mechanism(self) -> DistributedGaussian:
        """One client's share of the noise, in grid steps: z · 2 · 2^20 / sqrt(honest clients).

        The honest clients are ``minimum`` less ``colluders``: so many shares every revealed sum
        holds. Survivors beyond them only add noise.
        """
        sigma = self.noise_multiplier * _EXCHANGED
        return DistributedGaussian(sigma, _EXCHANGED, self.minimum - self.colluders)

    def event(self) -> Release:
        """Returns the event of one answer by itself, with its assumptions.

        Charged in the client's ledger before the answer leaves, as a part of a ``SummedEvent``
        where the answer is masked. Client-level, between neighbours of which one client's data are
        replaced. It assumes that the app's bundle is honest (it brings the code that protects), and
        unless the client's own noise is all of it, that the server invents no clients (else the
        noise of others is its own), or where the sum asks for that, that the server follows the
        whole protocol. An owner's policy must grant each, or the answer is refused; ``Device.of``
        grants what the device itself proves.
        """
        assumptions = [HONEST_APP]
        if self.server == HONEST:
            assumptions.insert(0, HONEST_SERVER)
        elif self.minimum - self.colluders > 1:
            assumptions.insert(0, INVENTS_NOBODY)
        return replace(self.mechanism.release(), assumptions=tuple(assumptions))

    def codec(self, size: int) -> "AskedCodec":
        """The form of answers (size,): integers of 32 bits, in steps of the radius over 2^20.

        Args:
            size: floats that are trained and metrics together.

        Raises:
            ValueError: 32 bits cannot hold the vector and 12 standard deviations of one client's
                noise, or the vector is longer than the noise is proven for.
        """
        if size > MAX_VECTOR_ENTRIES:
            raise ValueError(
                f"{size:,} numbers of a model: at most {MAX_VECTOR_ENTRIES:,} are released; name "
                "arrays that nobody needs to train in frozen=[...]"
            )
        step = self.radius / CLIP_STEPS
        bound = CLIP_STEPS + self.mechanism.max_abs
        if bound > MAX_GRID_ENTRY:
            raise ValueError(
                f"epsilon={self.epsilon:g}: needs more noise than entries of 32 bits hold; raise "
                "it, or ask for fewer rounds"
            )
        return AskedCodec(size, step, bound, ask=self.digest)

    def metric_vector(self, found: Mapping[str, object]) -> NDArray[np.float64]:
        """Each metric's number (m,), in [-1, 1] times ``metric_scale``, in the order of the ask.

        Args:
            found: the app's metrics by name. A value outside its range counts as the nearer end;
                one that is missing, no number, NaN or infinite as the middle. So an answer always
                has the same form, whatever the app returned.
        """
        vector = np.zeros(len(self.metrics))
        for place, (name, low, high) in enumerate(self.metrics):
            value = found.get(name)
            if isinstance(value, int | float) and math.isfinite(value):
                inside = min(max(float(value), low), high)
                share = (2 * inside - low - high) / (high - low)
                # Rounding leads out of [-1, 1] where the ends are few floats apart.
                vector[place] = min(max(share, -1.0), 1.0) * self.metric_scale
        return vector

    def bit_vector(self, is_short: bool) -> NDArray[np.float64]:
        """(b - 1/2) times beta C (1,), b = 1 for a change within the norm; (0,) without a bit."""
        if not self.bit_weight:
            return np.zeros(0)
        return np.array([(is_short - 0.5) * self.bit_weight * self.clip])

    def short_share(self, mean: float) -> float:
        """The inverse: share of changes within the norm, in [0, 1], from the noised mean."""
        return min(max(0.5 + mean / (self.bit_weight * self.clip), 0.0), 1.0)

    def metric_means(self, mean: NDArray[np.float64]) -> dict[str, float]:
        """The inverse of ``metric_vector``; noise may lead out of a metric's range.

        Args:
            mean: of the clients' metric vectors (m,), as the server decodes it from their sum.

        Returns:
            Each metric's mean over clients in its own units, by name; all clients count alike.
        """
        found = {}
        for (name, low, high), value in zip(self.metrics, mean.tolist(), strict=True):
            found[name] = (low + high + value / self.metric_scale * (high - low)) / 2
        return found


@dataclass(frozen=True)
class AskedCodec(GridCodec):
    """Integers of one ask: the digest ``ask`` makes its sums those of that ask only.

    Attributes:
        ask: ``Ask.digest``. It is not used in packing; it goes into the digest of the release,
            which every client of a secure sum compares with the terms.
    """

    ask: str = ""


class Layout:
    """Which arrays of a model make the vector, and in which order.

    Both halves make one from the arrays that a round sends, so they agree without naming an order.

    Args:
        arrays: the model's, by name.
        frozen: names of those that nobody trains.

    Attributes:
        shapes: shape of every array, by name.
        trained: type of each float array that is trained, by name.
        fixed: names of all others: integers, truth values, and what is frozen.
        size: how many numbers the vector has, metrics not counted.
    """

    def __init__(self, arrays: Mapping[str, NDArray], frozen: Iterable[str]) -> None:
        left_out = set(frozen)
        self.shapes = {name: array.shape for name, array in arrays.items()}
        self.trained = {
            name: array.dtype
            for name, array in arrays.items()
            if array.dtype.kind == "f" and name not in left_out
        }
        self.fixed = [name for name in arrays if name not in self.trained]
        self.size = sum(arrays[name].size for name in self.trained)

    def require_same(self, arrays: Mapping[str, NDArray]) -> None:
        """ValueError unless ``arrays`` have the model's names and shapes.

        Types may differ: an app may train in another precision than it was sent.
        """
        found = {name: array.shape for name, array in arrays.items()}
        if found == self.shapes:
            return
        names = sorted(found.keys() | self.shapes.keys())
        other = [name for name in names if found.get(name) != self.shapes.get(name)]
        raise ValueError(
            f"the app's reply has other arrays than it was sent ({', '.join(other[:3])}): a mean "
            "needs the same names and shapes from every client"
        )

    def change(
        self, base: Mapping[str, NDArray], trained: Mapping[str, NDArray]
    ) -> NDArray[np.float64]:
        """Returns ``trained`` minus ``base`` (size,), float64, not yet clipped.

        Args:
            base: the arrays that the client was sent.
            trained: those of the app's reply. What is fixed is not looked at but for names and
                shapes.

        Raises:
            ValueError: other names or shapes than the model's, or NaN or infinity in a trained
                array.
        """
        self.require_same(trained)
        parts = [
            np.subtract(trained[name], base[name], dtype=np.float64).reshape(-1)
            for name in self.trained
        ]
        change = np.concatenate(parts)
        if not np.isfinite(change).all():
            raise ValueError("the app's reply holds NaN or infinities, which no clipping can bound")
        return change

    def moved(self, base: Mapping[str, NDArray], mean: NDArray[np.float64]) -> dict[str, NDArray]:
        """``base`` plus ``mean`` (size,) in base's types; what is fixed is left out.

        Running variances stay at 0 or above, where noise would lead below.

        Args:
            base: the arrays that the clients were sent.
            mean: of their noised changes, without metrics.

        Returns:
            Every trained array, in its shape, by name.
        """
        moved = {}
        start = 0
        for name, dtype in self.trained.items():
            end = start + base[name].size
            values = base[name].astype(np.float64) + mean[start:end].reshape(base[name].shape)
            moved[name] = np.asarray(non_negative(name, values), dtype)
            start = end
        return moved


def non_negative(name: str, values: NDArray) -> NDArray:
    """``values`` of the array ``name``; running variances at 0 or above, where noise led below.

    They are known by the name that PyTorch gives to those of a normalisation.
    """
    if name.endswith("running_var"):
        return np.maximum(values, 0)
    return values


def arrays_of(record: ArrayRecord) -> dict[str, NDArray]:
    """Copies of the arrays of a record, which may be hostile, by name; nothing is unpickled.

    Raises:
        MalformedError: an array's bytes are none of NumPy's format, or of a type that is not its
            own, as bfloat16.
    """
    arrays = {}
    for name, array in record.items():
        try:
            arrays[name] = array_from_bytes(array.data).copy()
        except MalformedError as error:
            raise MalformedError(
                f"{printable(name)} ({printable(array.dtype)}): {error}; send float32"
            ) from error
    return arrays


def array_record(content: RecordDict) -> tuple[str, ArrayRecord]:
    """The one record of arrays in a message, with its name.

    The strategy chooses that name ("arrays" in Flower's own); a reply is given back under it.

    Raises:
        ValueError: the message has none, or more than one.
    """
    records = list(content.array_records.items())
    if len(records) != 1:
        raise ValueError(
            f"{len(records)} ArrayRecords in a message: must be one, which holds the model"
        )
    return records[0]
