"""What a device or an export writes of somebody's data can be read by its owner only."""

import errno
import io
import os

import numpy as np

from fl_app.device.node_settings import NodeSettings
from fl_app.run.results import RunFolder
from fl_app.sweep.sweep import SweepFolder
from fl_app.tools.export import export
from murmur.files import replace_file
from murmur.round.client_state import ClientState
from murmur.round.site import SimulatedSite
from murmur.round.task import log_error
from tests.fl_app.running import SMALL


def wider_than_owner(folder):
    return [p.name for p in folder.rglob("*") if p.stat().st_mode & 0o077]


def test_a_devices_files_are_its_owners_only(tmp_path):
    before = os.umask(0o022)
    try:
        settings = NodeSettings.device({"state": str(tmp_path / "state")}, "run")
        log_error(settings.folder, "its data", ValueError("label hiv"))
        (settings.folder / "cache").mkdir()
        (settings.folder / "cache" / "images.npy").write_bytes(b"decoded")
    finally:
        os.umask(before)
    assert wider_than_owner(tmp_path) == []


def test_exported_shares_are_their_owners_only(tmp_path):
    before = os.umask(0o022)
    try:
        export(tmp_path, SMALL, shards=True)
    finally:
        os.umask(before)
    assert "public.npz" in wider_than_owner(tmp_path)
    assert not [name for name in wider_than_owner(tmp_path) if name.startswith("client-")]


def test_a_runs_files_are_its_users_only_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        folder = RunFolder(tmp_path / "runs" / "run")
        folder.save_overrides(["engine=inline"])
        folder.append_row({"round": 1})
        folder.keep_rows(['{"round": 1}\n'])
        folder.append_row({"round": 2})
        state = ClientState(tmp_path / "runs" / "run" / "clients")
        state.save(3, 1, {"weights": np.zeros(2, np.float32)})
        log_error(tmp_path / "state", "about", ValueError("text"))
        SweepFolder(tmp_path / "sweep").add([])
    finally:
        os.umask(before)
    for name in ("runs/run", "state", "sweep"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o700
    assert wider_than_owner(tmp_path / "runs" / "run") == []
    assert wider_than_owner(tmp_path / "state") == []


def test_a_file_that_was_wider_is_narrowed_when_it_is_replaced(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(b"old")
    path.chmod(0o644)
    before = os.umask(0)
    try:
        replace_file(path, b"new")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600


def test_nothing_of_a_server_in_a_devices_log_moves_its_readers_cursor(tmp_path):
    log_error(tmp_path, "run \x1b[2J", ValueError("a\x1b]0;title\x07\nround 1, client 3: forged"))
    text = (tmp_path / "errors.log").read_text()
    assert text.replace("\n", "").isprintable()
    assert text.splitlines()[0].endswith("forged")


def test_a_log_that_cannot_be_written_changes_no_answer(tmp_path, capsys):
    (tmp_path / "errors.log").mkdir()  # as a full disk would
    log_error(tmp_path, "round 1", ValueError("text"))
    assert "round 1: ValueError: text" in capsys.readouterr().err


class WordlessError(Exception):
    def __str__(self):
        return 17


def test_an_error_without_words_is_written_down_by_its_type(tmp_path):
    """An app's own may have none for some records: whoever was charged answers all the same."""
    log_error(tmp_path, "round 1", WordlessError())
    assert (tmp_path / "errors.log").read_text().startswith("round 1: WordlessError\n")
    assert SimulatedSite.of(tmp_path).reason("round 1", WordlessError()) == "WordlessError"


class FullDisk(io.StringIO):
    def write(self, text):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_neither_does_an_output_on_the_same_disk(tmp_path, monkeypatch):
    (tmp_path / "errors.log").mkdir()
    monkeypatch.setattr("sys.stderr", FullDisk())
    log_error(tmp_path, "round 1", ValueError("text"))
