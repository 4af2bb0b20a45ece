"""Murmur inside somebody's program: nothing outside it ends, and nothing global stays changed."""

import json
import os
import subprocess
import sys

import pytest

from murmur.learning import process


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The accuracy of the same run by itself."""
    from fl_app.api import run
    from tests.fl_app.program import WORDS

    folder = tmp_path_factory.mktemp("alone") / "run"
    return run([*WORDS, f"run_dir={folder}"], progress=False).metrics["accuracy"]


@pytest.mark.parametrize("engine", ["inline", "ray"])
def test_a_program_is_as_before_however_it_calls_murmur(tmp_path, alone, engine):
    command = [sys.executable, "-m", "tests.fl_app.program", engine, str(tmp_path)]
    environment = {**os.environ, "TMPDIR": "/tmp"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["changed"] == {}
    assert found["accuracies"] == dict.fromkeys(("thread", "main", "loop", "pool", "beside"), alone)


def test_the_allocator_is_left_alone_outside_of_the_command(monkeypatch):
    monkeypatch.setitem(process._state, "ours", False)
    monkeypatch.setattr(process, "_accepts", lambda *_: pytest.fail("the allocator was set"))
    process.tune_heap(10)
    process.tune_heap(process.MIN_LARGE_PARAMETERS)


def test_the_command_takes_its_process_over():
    script = (
        "import atexit, os, sys; sys.argv = ['murmur', '--version']\n"
        "from fl_app.__main__ import main\nfrom murmur.learning.process import is_ours\n"
        "assert not is_ours() and 'THP_MEM_ALLOC_ENABLE' not in os.environ\n"
        "main(); assert is_ours() and os.environ['THP_MEM_ALLOC_ENABLE'] == '1'; print('taken')"
    )
    environment = {key: value for key, value in os.environ.items() if "THP_MEM" not in key}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment
    )
    assert done.stdout.splitlines()[-1] == "taken", done.stderr
