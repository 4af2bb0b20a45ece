"""Ctrl-C at any time: one sentence, no traceback."""

import subprocess
import sys

from fl_app.engines.inline import InlineEngine
from fl_app.run.experiment import Experiment
from fl_app.run.results import RunFolder
from tests.fl_app.running import command

# Ctrl-C at the first import of the command's own, as a person would press it.
PRESSED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from fl_app.__main__ import main

class Presses:
    def find_spec(name, *_):
        if name == {name!r}:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Presses)
sys.argv = ["murmur", "engine=inline"]
sys.exit(main())
"""


def pressed(name):
    done = subprocess.run(
        [sys.executable, "-c", PRESSED.format(name=name)], capture_output=True, text=True
    )
    return done.returncode, done.stderr


def test_while_the_command_imports():
    assert pressed("fl_app.cli") == (130, "murmur: interrupted\n")


def test_while_a_run_is_validated():
    assert pressed("fl_app.run.prepare") == (130, "murmur: interrupted\n")


def pressed_in(monkeypatch, *words):
    """What `murmur WORDS` says where Ctrl-C comes while the engine runs."""

    def press(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(InlineEngine, "run", press)
    return command("engine=inline", "strategy=privatekt", *words)


def test_while_a_run_goes_on_the_command_that_takes_it_up_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = "murmur: interrupted; `murmur resume run` goes on from here\n"
    assert pressed_in(monkeypatch, "run_dir=run") == (130, said)


def test_a_run_that_kept_no_checkpoints_is_not_said_to_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(RunFolder, "has_ledger", lambda _: True)
    words = ["keep_checkpoints=false", f"run_dir={tmp_path / 'run'}"]
    monkeypatch.setattr(Experiment, "checkpoint", lambda *_: None)
    status, said = pressed_in(monkeypatch, *words)
    assert status == 130 and "kept no checkpoints" in said and "resume" not in said
