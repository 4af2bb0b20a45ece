"""Whatever is typed and whatever has happened to a file: one sentence, and a status that is not 0.

A fixed seed draws the cases. The suite checks a part; `make test-long` the 2,000 of them all.
"""

import contextlib
import io
import os
import random
import warnings

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from fl_app.cli import TOOLS, main
from fl_app.config.compose import compose
from fl_app.config.errors import ConfigError
from fl_app.config.groups import groups
from fl_app.config.instantiate import build
from fl_app.run.prepare import validated
from fl_app.run.results import RunFolder
from tests.fl_app.running import command

VALUES = (
    *("-1", "0", "null", "nan", "inf", "-inf", "1e-300", "1e300", "true", "abc", "''", "[]", "{}"),
    *("[1,2]", "0.5", "99999999999999999999", "-0.0", "1e-5", "'a b'", '"\\x00"', "${x}", "1.."),
)
BESIDE = {
    "class_moments": ["model=centred"],
    "class_statistics": ["features=none"],
    "clustering": ["model=clustering", "evaluation=protected_clustering"],
    "dpfl_bnn": ["model=bnn"],
    "kd_dpfl": ["partition=quantity_skew"],
}
ALGORITHMS = list(groups()["strategy"])


def _keys(node, prefix=""):
    if isinstance(node, dict) and node:
        for key, value in node.items():
            if key != "_target_":
                yield from _keys(value, f"{prefix}{key}.")
    else:
        yield prefix[:-1]


def _base(strategy):
    return [f"strategy={strategy}", "engine=inline", *BESIDE.get(strategy, [])]


KEYS = {
    name: [*_keys(OmegaConf.to_container(compose(_base(name)))), *groups()] for name in ALGORITHMS
}


@pytest.mark.parametrize("epsilon", ["1e-9", "1e-5", "1e300"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_budget_that_no_noise_keeps_is_refused_in_one_sentence(name, epsilon):
    _validated([*_base(name), f"privacy.epsilon={epsilon}"])


@st.composite
def typed(draw):
    """A command line with one odd value, for any algorithm."""
    name = draw(st.sampled_from(ALGORITHMS))
    key = draw(st.sampled_from(KEYS[name]))
    return [*_base(name), f"{key}={draw(st.sampled_from(VALUES))}"]


def _validated(words):
    """Everything that a run checks before it starts; ConfigError is the one way to refuse."""
    try:
        build(compose(words).engine, "engine")
        validated(words)
    except ConfigError as error:
        assert str(error) and "\n" not in str(error)


def _check_values(count):
    @seed(20)
    @settings(
        max_examples=count,
        database=None,
        derandomize=False,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(typed())
    def check(words):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _validated(words)

    check()


def test_odd_values_are_refused_in_one_sentence_or_are_valid():
    _check_values(60)


@pytest.mark.long
def test_two_thousand_odd_values_are_refused_in_one_sentence_or_are_valid():
    _check_values(2_000)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run's folder and a folder with files of nonsense."""
    folder = tmp_path_factory.mktemp("fuzz") / "run"
    words = [
        "engine=inline",
        "strategy=privatekt",
        "federation.num_clients=3",
        "federation.num_rounds=1",
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        assert main([*words, "tracking=none", "federation.public=60", f"run_dir={folder}"]) == 0
    return folder


NOISE = random.Random(3).randbytes(3000)
DAMAGES = {
    "garbage": lambda content: NOISE,
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "list": lambda content: b"[1, 2]",
    "nan": lambda content: b'{"a": NaN}',
}


@pytest.mark.parametrize(
    "tool", [tool for tool in TOOLS if tool not in ("audit", "advise", "export")]
)
def test_tools_refuse_nonsense_in_one_sentence(tmp_path, tool, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "noise").write_bytes(NOISE)
    (tmp_path / "empty").mkdir()
    nonsense = [["--nonsense"], ["nowhere/x"], ["noise"]]
    if tool != "server-key":  # which makes a file of whatever name is free
        nonsense += [["seed=abc"], ["strategy=null"]]
    for words in nonsense:
        status, error = command(tool, *words)
        assert status not in (0, None) and error.strip(), (tool, words)


@pytest.mark.parametrize(
    "words",
    [
        ["doctor", "device", "--node-config=clients=x y"],
        ["doctor", "device", "--shape=1,2"],
        ["doctor", "device", "--classes="],
        ["export", "noise", "engine=inline"],
        ["export", "/proc/nowhere", "engine=inline"],
        ["report", ".", "--out=/proc/nowhere/x"],
        ["--resolve"],
        ["--config-dir=/nowhere"],
        ["--config-name=x"],
        ["seed="],
        ["~seed"],
        ["run_dir=[1]"],
        ["privacy.epsilon=1e-300"],
        ["dataset=npz", "dataset.path=noise"],
        ["dataset=csv", "dataset.path=noise"],
        ["strategy=fedavg", "strategy.local.epochs=-1"],
        ["strategy=fedavg", "strategy.local.batch_size=0"],
    ],
    ids=" ".join,
)
def test_what_once_ended_in_a_traceback_is_refused(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "noise").write_bytes(NOISE)
    status, _ = command(*words)
    assert status not in (0, None)


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    read, write = os.pipe()
    os.close(read)
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "fl_app.cli", "experiments"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    os.close(write)
    assert "Traceback" not in done.stderr, done.stderr


def test_a_bug_in_an_algorithm_shows_its_own_traceback(tmp_path, monkeypatch):
    from strategies.privatekt import PrivateKT

    def update(self, *_):
        raise TypeError("a bug of somebody's own")

    monkeypatch.setattr(PrivateKT, "update", update)
    words = ["engine=inline", "federation.num_clients=3", "federation.num_rounds=1"]
    words.append("strategy=privatekt")
    with pytest.raises(TypeError, match="a bug of somebody's own"):
        command(*words, f"run_dir={tmp_path / 'run'}")
    # What engines whose ServerApp is in another process show.
    assert f'{__file__}", line' in RunFolder(tmp_path / "run").error()


def test_a_bug_in_an_algorithms_constructor_is_no_bad_setting(monkeypatch):
    from strategies.privatekt import PrivateKT

    def claimed(*_, **__):
        raise ValueError("operands could not be broadcast together with shapes (3,) (4,)")

    monkeypatch.setattr(PrivateKT, "__init__", claimed)
    with pytest.raises(ValueError, match="broadcast"):
        validated(["engine=inline", "strategy=privatekt"])
