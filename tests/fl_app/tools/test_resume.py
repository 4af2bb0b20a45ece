"""`murmur resume`: a run killed at any instant ends as if nothing had happened."""

import signal
import subprocess
import sys
import time
from pathlib import Path

from safetensors.numpy import load_file

from fl_app.run.results import RunFolder
from fl_app.tools.resume import main
from privacy.ledger import Ledger
from tests.fl_app.running import SMALL

MURMUR = str(Path(sys.executable).parent / "murmur")
WORDS = [*SMALL, "federation.num_rounds=12", "strategy.local.epochs=20"]


def test_killed_run_resumes_to_the_same_result_and_pays_once(tmp_path):
    whole, cut = tmp_path / "whole", RunFolder(tmp_path / "cut")
    subprocess.run([MURMUR, *WORDS, f"run_dir={whole}"], check=True, capture_output=True)
    running = subprocess.Popen(
        [MURMUR, *WORDS, f"run_dir={cut.path}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while len(cut.rows()) < 4 and running.poll() is None:
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert cut.metrics() is None, "the run ended before it could be killed"
    assert main([str(cut.path)]) == 0
    a, b = load_file(whole / "model.safetensors"), load_file(cut.path / "model.safetensors")
    assert {k: v.tobytes() for k, v in a.items()} == {k: v.tobytes() for k, v in b.items()}
    assert [row["round"] for row in cut.rows()] == list(range(13))
    with Ledger(cut.path / "ledger.sqlite") as ledger:
        ledger.verify()
        assert all(len(ledger.events(client)) == 12 for client in ledger.clients())


def test_nothing_to_resume_is_said_in_one_line(tmp_path, capsys):
    assert main([str(tmp_path / "none")]) == 2
    assert main([str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err


def test_run_that_another_process_is_doing_is_left_alone(tmp_path, capsys):
    folder = RunFolder(tmp_path)
    folder.save_overrides([*WORDS, f"run_dir={tmp_path}"])
    with folder.claim():
        assert main([str(tmp_path)]) == 2
    assert "another process is doing this run" in capsys.readouterr().err
    assert folder.rows() == []
