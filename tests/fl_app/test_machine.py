"""What a machine may lack: a run ends as usual, or in one sentence that says what to do."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fl_app.config.errors import ConfigError
from fl_app.config.overrides import parsed
from murmur.files import replace_durably

ROOT = Path(__file__).parents[2]
RUN = [
    *("engine=inline", "strategy=fedavg", "model=mlp"),
    *("federation.num_rounds=2", "federation.num_clients=4"),
]


def murmur(tmp_path, *words, before="", after="", **environment):
    """Runs the command in a shell, with ``before`` and ``after`` around it."""
    command = f"{before} {sys.executable} -m fl_app {' '.join(words)} {after}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done


@pytest.mark.parametrize("after", [">&-", ">&- 2>&- <&-", "| true; exit ${PIPESTATUS[0]}"])
def test_without_standard_output_a_run_ends_as_usual(tmp_path, after):
    done = murmur(tmp_path, *RUN, "run_dir=run", after=after)
    assert done.returncode == 0
    assert done.stderr == ""
    assert (tmp_path / "run" / "privacy.json").exists()
    assert (tmp_path / "run" / "ledger.sqlite").read_bytes().startswith(b"SQLite format 3")


def test_output_on_a_full_disk_is_lost_and_the_run_is_not(tmp_path):
    done = murmur(tmp_path, *RUN, "run_dir=run", after="> /dev/full")
    assert done.returncode == 0
    [line] = done.stderr.splitlines()
    assert line.startswith("murmur: standard output cannot be written (No space left on device)")
    assert (tmp_path / "run" / "privacy.json").exists()


@pytest.mark.parametrize("size", ["60k", "200k"])
def test_a_full_disk_ends_a_run_in_one_sentence_and_it_goes_on_later(tmp_path, size):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk takes the right to mount")
    try:
        words = [*RUN, "federation.num_rounds=20", f"run_dir={disk}/run"]
        done = murmur(tmp_path, *words)
        assert done.returncode == 1
        [line] = [line for line in done.stderr.splitlines() if line.startswith("murmur: ")]
        assert "No space left on device; make room on that disk, then `murmur resume" in line
        assert "Traceback" not in done.stderr
        subprocess.run(["mount", "-o", "remount,size=50m", str(disk)], check=True)
        assert murmur(tmp_path, "resume", f"{disk}/run").returncode == 0
        assert (disk / "run" / "privacy.json").exists()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_draft_that_does_not_fit_leaves_the_old_file_and_no_half(tmp_path, monkeypatch):
    path = tmp_path / "file"
    replace_durably(path, b"old")

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: .*file"):
        replace_durably(path, b"new")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


def test_a_working_directory_that_is_gone_is_named(tmp_path):
    done = murmur(tmp_path, "--version", before="mkdir gone; cd gone; rmdir ../gone;")
    assert done.returncode == 2
    assert done.stderr == (
        "murmur: the working directory is no more; change to a folder that exists (cd)\n"
    )


def test_where_assertions_are_off_what_hydra_would_misread_is_refused(tmp_path):
    done = murmur(tmp_path, "-m", *RUN, "'seed=range(1,3)'", PYTHONOPTIMIZE="1")
    assert done.returncode == 2
    assert done.stderr.startswith("murmur: seed=range(1,3): cannot be read where PYTHONOPTIMIZE")
    assert murmur(tmp_path, *RUN, "run_dir=run", PYTHONOPTIMIZE="1").returncode == 0


@pytest.mark.parametrize("rest", ["", "/a", "/a b/c", "/it's"])
def test_a_tilde_after_the_sign_is_the_home_folder(monkeypatch, rest):
    monkeypatch.setenv("HOME", "/home/her")
    [override] = parsed([f"results_dir=~{rest}"])
    assert override.value() == f"/home/her{rest}"


def test_a_tilde_elsewhere_is_no_home_folder():
    assert parsed(["about='~x'"])[0].value() == "~x"
    with pytest.raises(ConfigError):
        parsed(["about=a~x"])


def test_two_commands_that_do_one_sweep_both_end_with_its_table(tmp_path):
    words = [*RUN, "federation.num_rounds=30", "seed=1,2", "results_dir=results"]
    command = [sys.executable, "-m", "fl_app", "-m", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": "/tmp"}
    started = [
        subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    printed = [process.communicate(timeout=300)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert all("2 seeds" in text and "failed" not in text for text in printed)
