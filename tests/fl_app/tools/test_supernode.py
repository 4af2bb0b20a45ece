"""`murmur supernode` ends where Flower's own would stay and do nothing, and wants a secret."""

import subprocess
import sys

from fl_app.cli import main


def test_supernode_that_ends_with_an_error_leaves_no_process_behind():
    # The thread that serves its runtime API would keep it.
    code = """
import sys
import threading
import flwr.supernode.cli.flower_supernode
from fl_app.cli import main

def fails():
    threading.Thread(target=threading.Event().wait).start()
    raise OSError("gone")

sys.modules["flwr.supernode.cli.flower_supernode"].flower_supernode = fails
main(["supernode", "--superexec-auth-secret-file", "FILE"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "OSError: gone" in done.stderr


def test_supernode_without_a_secret_is_not_started(capsys):
    assert main(["supernode", "--insecure"]) == 2
    assert "--superexec-auth-secret-file FILE: must be given" in capsys.readouterr().err
