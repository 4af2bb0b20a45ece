"""Sockets find room whatever TMPDIR is, and a cluster that is gone is said to be gone."""

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import grpc
import pytest

from fl_app.config.errors import ConfigError
from fl_app.engines import ray_head, ray_start
from fl_app.engines.ray import RayEngine
from tests.fl_app.running import command

JOB = ["strategy=local_only", "federation.num_clients=2", "federation.num_rounds=1"]
COMMANDS = {
    "Ray": [*JOB, "engine=ray", "engine.workers=1"],
    "workers of a sweep": ["-m", *JOB, "engine=inline", "engine.workers=1", "seed=1,2"],
}


@pytest.fixture
def long_folder(tmp_path, monkeypatch):
    folder = tmp_path / ("x" * 110)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_long_tmpdir_leaves_room_for_sockets(tmp_path, long_folder, kind):
    words = [*COMMANDS[kind], f"results_dir={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-m", "fl_app", *words],
        env={**os.environ, "TMPDIR": str(long_folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_sockets_stay_in_a_short_tmpdir(monkeypatch):
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="m") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        assert ray_head.socket_folder() == folder


def test_where_no_folder_will_do_the_variable_is_named(long_folder, monkeypatch):
    monkeypatch.setattr(ray_head, "_SHORT_FOLDER", "/tmp/none")
    with pytest.raises(ConfigError, match=r"^TMPDIR=.*xxx: leaves no room.*at most 16"):
        ray_head.socket_folder()
    assert tempfile.gettempdir() == str(long_folder)  # of everything else


GONE = "127.0.0.1:1"


def test_a_cluster_that_is_gone_is_said_to_be_gone(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", GONE)
    monkeypatch.setattr(ray_start, "ANSWER_SECONDS", 0.1)
    with pytest.raises(ConfigError, match=rf"^RAY_ADDRESS={GONE}: no Ray cluster there"):
        RayEngine().begin()


@pytest.mark.parametrize("more", [["engine=ray"], ["-m", "engine=inline", "seed=1,2"]])
def test_the_command_says_in_one_sentence_that_a_cluster_is_gone(tmp_path, monkeypatch, more):
    monkeypatch.setenv("RAY_ADDRESS", GONE)
    monkeypatch.setattr(ray_start, "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(sys, "argv", ["murmur"])
    status, said = command(*more, *JOB, f"results_dir={tmp_path}")
    assert status == 2
    assert "no Ray cluster there" in said and GONE in said
    assert len(said.strip().splitlines()) == 1


def test_nobody_waits_long_for_a_cluster():
    assert ray_start.ANSWER_SECONDS < 8  # with the seconds that a command takes to start


def test_a_cluster_that_answers_is_used():
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        ray_start.require_cluster(f"127.0.0.1:{port}")
        ray_start.require_cluster(f"ray://127.0.0.1:{port}")
    finally:
        server.stop(0)


def test_what_ray_says_of_a_cluster_becomes_one_sentence(monkeypatch):
    def init(**_):
        raise ConnectionError("found none\nhere")

    absent = SimpleNamespace(init=init, is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "ray", absent)
    with pytest.raises(ConfigError, match=r"^RAY_ADDRESS=auto: .*found none here"):
        ray_start.start_ray("auto", 1)
