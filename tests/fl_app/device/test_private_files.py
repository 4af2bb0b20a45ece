"""What a device or an export writes of somebody's data can be read by its owner only."""

import os

from fl_app.device.node_settings import NodeSettings, log_error
from fl_app.tools.export import export
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
