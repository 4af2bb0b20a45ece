"""``.ci/run`` tries the newest Flower, and fails only for one that is promised."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[3]
PYTHON = """#!/bin/sh
case "$*" in
  *"index versions flwr"*) {pip} ;;
  *) echo 1.42 ;;
esac
"""
MAKE = """#!/bin/sh
echo "made $*"
case "$*" in *{failing}*) exit 2 ;; esac
"""


def ci(folder, pip, failing):
    """Runs a copy of ``.ci/run`` beside a ``make`` that fails for ``failing``."""
    programs = folder / "bin"
    for path, text in {
        folder / ".venv" / "bin" / "python": PYTHON.format(pip=pip),
        programs / "make": MAKE.format(failing=failing),
        programs / "apt-get": "#!/bin/sh\n",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    (folder / ".ci").mkdir()
    shutil.copy(PROJECT / ".ci" / "run", folder / ".ci")
    return subprocess.run(
        ["bash", ".ci/run"],
        cwd=folder,
        env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("pip", "failing", "rc", "tried"),
    [
        ("echo 'flwr (1.43.2)'", "FLOWER=1.43", 0, True),
        ("echo 'flwr (1.43.2)'", "nothing", 0, True),
        ("echo 'flwr (1.42.0)'", "FLOWER", 0, False),
        ("exit 1", "FLOWER", 0, False),  # no registry can be reached
        ("echo 'flwr (1.42.0)'", "test-flower", 2, False),
    ],
)
def test_the_newest_flower_is_tried_and_stops_nothing(tmp_path, pip, failing, rc, tried):
    done = ci(tmp_path, pip, failing)
    assert done.returncode == rc, done.stderr
    assert ("made test-flower FLOWER=1.43" in done.stdout) == tried
    warned = "warning: fails with Flower 1.43, which is not promised" in done.stdout
    assert warned == (failing == "FLOWER=1.43")


def test_make_takes_flowers_version():
    command = ["make", "--dry-run", "test-flower", "FLOWER=1.99"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    assert "flower-1.99/bin/python" in done.stdout
