"""Ctrl-C at any time: one sentence, no traceback."""

import subprocess
import sys

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
