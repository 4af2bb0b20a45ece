"""The walk: which functions of ours labels pass, from the host that trains on them to the model.

The same round is run twice, with the labels of one client changed. A function is on the walk where
what it returns differs between the two, or what it is given differs and it returns nothing but
keeps it. None is left out. What differs between two equal runs (times, keys of ledgers) is no trace
of a label. `python -m tests.test_walk` prints the lists, which docs/architecture.md shows.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message

from fl_app.config.compose import compose
from fl_app.run.hosts import SimulatedHost
from fl_app.run.validated import ValidatedRun
from fl_app.testing import Grid
from murmur.compat.flower_messages import identify
from murmur.round.site import SimulatedSite

PROJECT = Path(__file__).resolve().parents[1]
OURS = tuple(f"{PROJECT / folder}/" for folder in ("murmur", "clients", "strategies", "fl_app"))
SMALL = [
    *("engine=inline", "dataset=digits", "privacy.noise=seeded", "federation.num_clients=4"),
    "model=mlp",
    "model.hidden=[300]",  # too many weights for lockstep, which has a way of its own
]
WALKS = {
    "distributed": [
        *("strategy=fedavg", "federation.public=0", "protection=distributed"),
        *("privacy=local", "privacy.threat=local", "privacy.epsilon=8"),
    ],
    "privatekt": ["strategy=privatekt", "federation.public=200", "privacy.epsilon=8"],
}
# Functions and files of each walk; limits are only ever lowered, until AIM is reached.
MOST = {"distributed": (47, 25), "privatekt": (43, 22)}
AIM = (45, 18)  # of either


def bits_of(value: Any) -> Iterator[bytes]:
    """All that a value holds, as bytes; of objects with methods nothing."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        yield repr((value.dtype, value.shape)).encode() + np.ascontiguousarray(value).tobytes()
    elif isinstance(value, Array):
        yield value.data
    elif isinstance(value, Message):
        if value.has_content():
            yield from bits_of(value.content)
    elif isinstance(value, Mapping):
        for each in list(value.values()):
            yield from bits_of(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from bits_of(each)
    elif isinstance(value, bytes | bytearray | memoryview):
        yield bytes(value)
    elif isinstance(value, str | int | float | np.generic):
        yield repr(value).encode()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from bits_of(getattr(value, field.name, None))


def digest(value: Any) -> str:
    """Of all that ``value`` holds."""
    state = hashlib.sha256()
    for part in bits_of(value):
        state.update(part)
    return state.hexdigest()


def traced(words: list[str], changed: bool) -> Counter[tuple[CodeType, str]]:
    """Each call of a round, from ``Host.answer`` to ``Strategy.update``, and what it passed on."""
    seen: Counter[tuple[CodeType, str]] = Counter()
    given: dict[int, str] = {}

    def profile(frame: FrameType, event: str, value: Any) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(OURS) or code.co_name.startswith("<"):
            return
        if event == "call":
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            given[id(frame)] = digest([frame.f_locals[n] for n in names if n != "self"])
            if code is last:
                seen[code, given.pop(id(frame))] += 1
                sys.setprofile(None)
        elif event == "return" and id(frame) in given:
            kept = given.pop(id(frame))
            if value is not None:
                kept = digest(value)
            seen[code, kept] += 1

    with tempfile.TemporaryDirectory() as folder:
        config = compose(words)
        host = SimulatedHost(config, SimulatedSite.of(Path(folder), run="walk"))
        strategy = ValidatedRun(config).strategy
        last = type(strategy).update.__code__
        labels = host.population.dataset.train.labels
        rows = host.population.shards[0]
        own = labels[rows].copy()
        if changed:
            labels[rows] = (own + 1) % 10
        identify()
        model = ArrayRecord({"model": Array(strategy.setup.initial_parameters())})
        try:
            messages = list(strategy.configure_train(1, model, ConfigRecord(), Grid(1)))
            sys.setprofile(profile)
            replies = [
                Message(host.answer(m.content, m.metadata.message_type), reply_to=m)
                for m in messages
            ]
            strategy.aggregate_train(1, replies)
        finally:
            sys.setprofile(None)
            labels[rows] = own
    return seen


def walk(words: list[str]) -> list[CodeType]:
    """The functions on the walk, in the order in which they are done with the label."""
    one = traced(words, changed=False)
    same = traced(words, changed=False)
    other = traced(words, changed=True)
    restless = {code for code, _ in (one - same) + (same - one)}
    found: list[CodeType] = []
    for key in [*one, *other]:
        if one[key] != other[key] and key[0] not in restless and key[0] not in found:
            found.append(key[0])
    return found


def lines_of(code: CodeType) -> int:
    """How many lines a function has, with its docstring."""
    return len(inspect.getsourcelines(code)[0])


def listed(found: list[CodeType]) -> str:
    """A line for each function, and the sums."""
    files = {code.co_filename for code in found}
    rows = []
    for code in found:
        place = Path(code.co_filename).relative_to(PROJECT).as_posix()
        rows.append(f"{code.co_qualname:<34} {place}, {lines_of(code)}")
    total = sum(map(lines_of, found))
    return "\n".join([*rows, f"{len(found)} functions in {len(files)} files, {total} lines"])


@pytest.mark.parametrize("name", WALKS)
def test_a_label_s_walk_is_short_and_the_page_shows_it(name):
    # In a process of its own: what other tests have cached is on no walk.
    words = [sys.executable, "-m", "tests.test_walk", name]
    done = subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, check=True)
    text = done.stdout.strip()
    rows = re.findall(r"^(\S+) +(\S+\.py), \d+$", text, re.MULTILINE)
    names = [qualified for qualified, _ in rows]
    assert {"SimulatedData.of", "Trainer.train_single", "Host.answer", "Phase.take"} <= set(names)
    assert names[-1].endswith(".update")
    functions, files = len(rows), len({file for _, file in rows})
    assert functions <= MOST[name][0] and files <= MOST[name][1], f"{text}\nto be {AIM}"
    page = (PROJECT / "docs" / "architecture.md").read_text(encoding="utf-8")
    missing = [name for name in names if f"`{name}`" not in page]
    assert not missing, f"docs/architecture.md lacks {missing}; it should show\n{text}"


if __name__ == "__main__":
    for name in sys.argv[1:] or WALKS:
        print(f"{name}\n{listed(walk([*SMALL, *WALKS[name]]))}\n")
