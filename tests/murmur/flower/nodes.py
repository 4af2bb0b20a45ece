"""Nodes in this process, and plain apps that know nothing of Murmur."""

import contextlib
import copy
import importlib
import itertools
import os
import sys
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict

from fl_app.engines.inline import FIRST_NODE, InlineGrid, import_before_threads
from murmur.compat.flower_grid import empty_run
from murmur.compat.flower_messages import identify
from murmur.flower import ClientApp
from murmur.privacy.mechanisms.distributed_gaussian import DistributedGaussian

_runs = itertools.count(1)

POLICY = """
expires: 2099-01-01
servers: any
algorithms: [flower]
mechanisms: {discrete_gaussian: {min_noise_multiplier: 0.01}}
epsilon_per_release: 100
epsilon_per_lifetime: 1000
delta: 1.0e-5
threat: secure_aggregation
minimum_surviving_clients: 2
allow_seeded_noise: false
allow_non_private: false
assumptions: [no_invented_clients, honest_app]
"""

MODEL = {
    "weights": np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3),
    "half": np.full(3, 0.5, np.float16),
    "count": np.array(7, np.int64),
    "seen": np.array([True, False]),
    "encoder": np.full(5, 0.25, np.float64),
}


class Nodes(InlineGrid):
    """``count`` nodes of ``app``; ``spoil`` may change or drop what is on its way.

    ``spoil(message, node)`` gives the message that arrives, or None for none; ``back`` the same for
    replies. ``asked``: types of all messages that arrived.
    """

    def __init__(self, app, count=8, devices: Path | None = None, spoil=None, back=None):
        """``devices``: the owners' folders; None: trials."""
        identify()
        import_before_threads()
        super().__init__(self._arrive, {}, count, ThreadPoolExecutor(2).map)
        self.app, self.spoil, self.back = app, spoil, back
        self.asked: list[str] = []
        self.replies: list[Message] = []
        run = next(_runs)
        self.set_run(replace(empty_run(), run_id=run))
        for place, context in enumerate(self._contexts.values()):
            context.run_id = run
            context.node_config = {"partition-id": place, "num-partitions": count}
            if devices is not None:
                folder = devices / str(place)
                folder.mkdir(parents=True, exist_ok=True)
                if not (folder / "policy.yaml").exists():
                    (folder / "policy.yaml").write_text(POLICY)
                context.node_config["murmur"] = str(folder)

    def _arrive(self, message: Message, context: Context) -> Message:
        if self.spoil is not None:
            message = self.spoil(message, context.node_id - FIRST_NODE)
        if message is None:
            raise SilentError
        self.asked.append(message.metadata.message_type)
        reply = self.app(message, context)
        self.replies.append(copy.deepcopy(reply))  # a phase takes what it has read
        return reply

    def push_messages(self, messages):
        ids = list(super().push_messages(messages))
        for key, reply in list(self._replies.items()):
            if reply.has_error() and "SilentError" in reply.error.reason:
                del self._replies[key]
        return ids


class SilentError(Exception):
    pass


def changed(place: int, size: float = 0.01, seed: int = 0):
    """What client ``place`` makes of a model: a change of its own, and a counter one further."""

    def train(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        rng = np.random.default_rng([seed, place])
        new = {}
        for name, array in arrays.items():
            new[name] = array
            if array.dtype.kind == "f":
                step = rng.normal(size=array.shape) * size
                new[name] = (array + step).astype(array.dtype)
            elif array.dtype.kind == "i":
                new[name] = array + 1
        return new

    return train


def app_of(train: Callable | None = None, make=ClientApp, metrics=None, frozen=()):
    """An app as anybody's: ``train(place)`` gives the function of a client's arrays."""
    app = make()

    @app.train()
    def fit(message: Message, context: Context) -> Message:
        assert set(message.content) == {"arrays", "config"}
        place = context.node_config["partition-id"]
        base = {name: array.numpy() for name, array in message.content["arrays"].items()}
        new = (train or changed)(place)(base)
        for name in frozen:
            new[name] = base[name]
        found = {"num-examples": 10 * (place + 1), **(metrics or {})}
        return Message(
            RecordDict({"arrays": record(new), "metrics": MetricRecord(found)}), reply_to=message
        )

    @app.evaluate()
    def test(message: Message, context: Context) -> Message:
        found = {"num-examples": 10, "accuracy": 0.75}
        return Message(RecordDict({"metrics": MetricRecord(found)}), reply_to=message)

    return app


def record(arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(values)) for name, values in arrays.items()})


def without_noise(monkeypatch) -> None:
    """A test's hook: shares of the noise are 0."""
    monkeypatch.setattr(
        DistributedGaussian,
        "privatize_integers",
        lambda self, k, rng, out=None: np.asarray(k, np.int64),
    )


def run_app(folder: Path, count: int, devices: Path | None = None, **config):
    """A whole Flower app in this process, as ``flwr run`` would: its nodes, once its server ended.

    ``config``: its run-config, where it is to be another than that of its pyproject.toml. Files
    that the server writes are in ``folder``.
    """
    flower = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    given = {**flower["config"], **{name.replace("_", "-"): v for name, v in config.items()}}
    with imports_from(folder):
        client, server = (
            getattr(importlib.import_module(module), name)
            for module, _, name in (
                flower["components"][half].partition(":") for half in ("clientapp", "serverapp")
            )
        )
        nodes = Nodes(client, count, devices)
        for context in nodes._contexts.values():
            context.run_config = given
        server(nodes, Context(0, 0, {}, RecordDict(), given))
    return nodes


@contextlib.contextmanager
def imports_from(folder: Path) -> Iterator[None]:
    """The app's modules are found, and forgotten afterwards; the folder is the working one."""
    before = set(sys.modules)
    here = Path.cwd()
    sys.path.insert(0, str(folder))
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(here)
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if file.startswith(str(folder)):
                del sys.modules[name]
