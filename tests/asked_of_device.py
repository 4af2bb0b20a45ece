"""Questions that a server may ask a device, by the keys that conf/ lets it set, and its data.

The keys and their ranges are read from ``server_may_set``, so that a key which is added to a file
of conf/ is tried without a change.
"""

import functools
import math
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path

import numpy as np
from hydra.utils import get_object
from omegaconf import OmegaConf

from clients.base import LocalData, Task
from clients.dpfl_bnn import DPFLBNNClient
from fl_app.config.compose import SERVER_MAY_SET, installed
from fl_app.config.groups import groups
from fl_app.config.overrides import to_run_config
from fl_app.device.agreement import CHOICES, device_config
from fl_app.device.node_settings import OwnerSettings
from fl_app.run.hosts import build_client, build_evaluator, build_trainer
from fl_app.run.population import Population, build_features
from murmur.algorithms.class_moments import CENTRE
from murmur.learning.data.datasets import Dataset, Examples
from murmur.learning.features.components import with_components
from murmur.learning.training.trainer import Trainer
from murmur.privacy.events import Adjacency, Unit, releases
from tests.charge_tape import charged, losses

SHAPE, CLASSES, SIZES, POOL, VICTIM = (1, 8, 8), 3, (12, 2, 2), 8, 1
FAR = ((-1e6, 0), (1e6, 0), (1.0, 2))  # pixel and label of a record that is far from all others
CLIENTS = Path(__file__).resolve().parents[1] / "clients"
RESULTS = (1.0, 1e30)  # how far out the results of training lie
TINY = ("model=mlp", "model.hidden=[4]")
SMALL = {
    "class_statistics": ("features=pca", "features.components=4"),
    "class_moments": ("model=centred",),
    "clustering": ("model.hidden=[4]",),
    "dpfl_bnn": ("model.channels=[]", "model.hidden=4"),
    "gradient_rounds": ("model=centred",),
    "votes": (*TINY, "features=none", "strategy.learner=sgd", "privacy.threat=local"),
}


def values_of(limit):
    """Values that ``limit`` allows: both ends and the middle of a range, or each of its words."""
    if isinstance(limit, str):
        return []  # a digest
    if isinstance(limit, dict):
        (low, high), (short, longest) = limit["each"], limit["length"]
        return [[low] * short, [low] * longest, [high, *[low] * (longest - 1)]]
    plain = [value for value in limit if value is not None]
    if len(plain) == 2 and all(type(value) in (int, float) for value in plain):
        low, high = plain
        middle = (max(low, 1e-6) * min(high, 1e6)) ** 0.5
        plain = [low, round(middle) if type(low) is type(high) is int else middle, high]
    return [*([None] if None in limit else []), *plain]


def offered(group):
    """The files of ``group`` that a server may choose on a device."""
    files = {name: installed((f"{group}={name}",))[group] for name in groups()[group]}
    return [name for name, file in files.items() if file.get(SERVER_MAY_SET) is not None]


@dataclass(frozen=True)
class Case:
    """``words`` choose what is asked; ``values``: what else a server may set, by key.

    ``purpose``: what for; None: the last that the client knows.
    """

    words: tuple[str, ...]
    purpose: str | None = None

    @functools.cached_property
    def values(self):
        base = installed(tuple(w for w in self.words if w.partition("=")[0] in CHOICES))
        limits = {}
        for node in (base, *(base[group] for group in CHOICES)):
            limits |= OmegaConf.to_container(node[SERVER_MAY_SET])
        return {key: found for key, limit in limits.items() if (found := values_of(limit))}

    def one_by_one(self, keys=None):
        keys = self.values if keys is None else keys
        return [{}, *({key: value} for key in keys for value in self.values[key])]

    def together(self, count, rng):
        for _ in range(count):
            keys = rng.choice(list(self.values), int(rng.integers(2, 6)), replace=False)
            yield {key: self.values[key][rng.integers(len(self.values[key]))] for key in keys}


# Those whose noise comes from the clients; elsewhere what leaves has no protection of its own.
PROTECTIONS = [
    name
    for name in offered("protection")
    if "local" in get_object(installed((f"protection={name}",)).protection._target_).threats
]


def cases():
    """Each strategy that differs from others in its client's code or keys, and each evaluation."""
    seen, found = set(), {}
    for name in sorted(offered("strategy"), key=lambda name: not (CLIENTS / f"{name}.py").exists()):
        config = installed((f"strategy={name}",))
        client = OmegaConf.to_container(config.strategy.client)
        words = [f"strategy={name}", *SMALL.get(name, TINY)]
        for protection in PROTECTIONS if "protection" in client else [None]:
            chosen = [] if protection is None else [f"protection={protection}", "privacy=local"]
            case = Case((*words, *chosen))
            kind = (client["_target_"], protection, frozenset(case.values))
            if kind not in seen:
                seen.add(kind)
                found[" ".join([name, *chosen[:1]])] = case
                if CENTRE in get_object(client["_target_"]).purposes:
                    found[f"{name} {CENTRE}"] = Case(case.words, CENTRE)
    for name in offered("evaluation"):
        if name != "none":
            found[f"evaluation={name}"] = Case(("strategy=clustering", f"evaluation={name}"))
    return found


CASES = cases()
# What every run has is tried by one, but for what noise is calibrated from.
MATTERS = (
    "strategy",
    "protection",
    "evaluation",
    "privacy.epsilon",
    "privacy.unit",
    "privacy.threat",
)
FIRST = {key: name for name in reversed(CASES) for key in CASES[name].values}


def own_keys(name):
    return [k for k in CASES[name].values if FIRST[k] == name or k.startswith(MATTERS)]


class Asked:
    """One question to a client of a device, and its data; an error where it is refused."""

    def __init__(self, words, folder, sizes=SIZES, purpose=None, shape=SHAPE):
        self.sizes = SIZES if sizes is None else sizes
        self.purpose = purpose
        self.shape = shape
        self.role = self._built(words, folder, sizes)
        self.task, self.event = self._question()
        (self.release,) = releases(self.event)
        rng, count = np.random.default_rng(5), self.sizes[self.task.client]
        self.images = rng.random((count, *shape), np.float32)
        self.labels = rng.integers(0, CLASSES, count)
        self.data = self._held(self.images, self.labels)

    def _built(self, words, folder, sizes):
        own = OwnerSettings(
            tuple(range(len(self.sizes))),
            None,
            None,
            shape=self.shape,
            classes=CLASSES,
            sizes=sizes,
        )
        config = device_config(to_run_config(words), own)
        public = np.random.default_rng(0).random((POOL, *self.shape), np.float32)
        nothing = Examples(np.zeros((0, *self.shape), np.float32), np.zeros(0, np.int64))
        dataset = Dataset("own", nothing, nothing, CLASSES, self.shape)
        features, self.seen = build_features(config.features), np.asarray
        if features is not None:
            fitted = features.fit(public)
            dataset = with_components(dataset, features, fitted)
            self.seen = functools.partial(features.apply, fitted)
        people = Population(dataset, self.seen(public), (), sizes, np.zeros(0, np.int64))
        trainer = build_trainer(config, dataset)
        evaluator = build_evaluator(config, people, trainer, folder)
        return evaluator or build_client(config, people, trainer, folder)

    def _question(self):
        """The first question of an honest server that this client answers."""
        trainer, refusals = self.role.trainer, []
        model = trainer.initial(np.random.default_rng(0))
        people = len(self.sizes)
        for count, rows in ((n, r) for n in range(POOL, 0, -1) for r in (None, people)):
            indices = np.arange(count) if rows is None else np.tile(np.arange(count), (rows, 1))
            arrays = {
                "indices": indices,
                "clients": np.arange(people),
                "clip": np.ones(1),
                "control": np.zeros_like(model),
                "frequencies": np.ones(trainer.num_classes),
                "coordinates": self.role.setup.public.reshape(POOL, -1),
            }
            for purpose in [self.purpose] if self.purpose else reversed(self.role.purposes):
                for client in range(2):
                    task = Task(1, client, model, arrays, {}, purpose)
                    try:
                        event = self.role.event(task)
                    except ValueError as error:
                        refusals.append(error)
                        continue
                    if event is not None:
                        return task, event
        raise refusals[-1]

    def _held(self, images, labels):
        return LocalData(self.seen(images), labels, np.arange(len(labels)))

    def neighbours(self):
        """The data with a record far away, or all of them, as the release's unit has it."""
        whole = self.release.unit is Unit.CLIENT
        victim = min(VICTIM, len(self.labels) - 1)  # a client may have one record
        for pixel, label in FAR:
            images, labels = self.images.copy(), self.labels.copy()
            images[slice(None) if whole else victim] = pixel
            labels[slice(None) if whole else victim] = label
            yield self._held(images, labels)

    def train_badly(self, patch, far):
        """Let training end ``far`` out on the one side, and on the other where data differ."""
        known = {row.tobytes() for row in self.data.images}
        direction = np.random.default_rng(1).normal(size=self.role.trainer.num_parameters)
        direction = (direction / np.linalg.norm(direction)).astype(np.float32)
        bound = 1.0 if isinstance(self.role, DPFLBNNClient) else math.inf  # its own training's

        def train(trainer, images, labels, *, indices=None, **_):
            rows = images if indices is None else images[indices]
            strange = any(row.tobytes() not in known for row in rows)
            trainer.load((np.float32(-far if strange else far) * direction).clip(-bound, bound))
            return trainer.parameters()

        patch.setattr(Trainer, "train", train)

    def worst(self, patch, record):
        """The largest share of what was charged that neighbours use up; None: no protection."""
        paid = charged(self.release)
        if paid is None:
            return None
        shares = []
        nulled = self.release.adjacency is Adjacency.REPLACE_SPECIAL  # noise is in the training
        for far in RESULTS[:1] if nulled else RESULTS:
            self.train_badly(patch, far)
            for one, other in self.pairs(record):
                assert np.array_equal(one.release, other.release), "something passed by the noise"
                lost = losses(one, other)
                for kind, terms in lost.items():
                    assert len(terms) <= len(paid[kind])
                    shares.append(sum(terms) / sum(paid[kind]))
        return max(shares)

    def pairs(self, record):
        """Tapes of neighbours; in the second the mechanism answers as it did in the first."""
        if self.release.adjacency is Adjacency.REPLACE_SPECIAL:  # a record is there, or is not
            for data in self.neighbours():
                one = record(self.role, self.task, data)
                yield one, record(self.role, self.task, data, one, VICTIM)
            return
        base = record(self.role, self.task, self.data)
        others = [record(self.role, self.task, data, base) for data in self.neighbours()]
        whole = self.release.unit is Unit.CLIENT  # then any two data sets are neighbours
        yield from combinations([base, *others], 2) if whole else product([base], others)
