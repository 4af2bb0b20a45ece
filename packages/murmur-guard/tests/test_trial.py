"""An app that writes beside its data, and what `murmur doctor guard --run` finds."""

import os

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from fl_app.device.node_settings import DeviceError
from fl_app.tools.doctor import FAIL, OK
from murmur.compat.flower_messages import identify
from murmur.privacy.policy import Policy
from murmur_guard import guard as guarding
from murmur_guard import sandbox
from murmur_guard.doctor import guard_checks
from murmur_guard.guard import AppError, LockedApp
from tests.fl_app.device.bundles import HARMFUL, NUMPY, bundle
from tests.guarded_devices import SUPERLINK, charges, device, guard_of, needs_lock
from tests.murmur.flower.nodes import record

pytestmark = [needs_lock, pytest.mark.usefixtures("own_folders")]

HAS_OVERLAYS = not sandbox.missing() and sandbox.bubblewrap_version() >= sandbox.OVERLAY_VERSION
needs_overlays = pytest.mark.skipif(not HAS_OVERLAYS, reason="bubblewrap below 0.11")
no_overlays = pytest.mark.skipif(HAS_OVERLAYS, reason="bubblewrap 0.11 lets apps write anywhere")

BESIDE = NUMPY.replace(
    "    model = ",
    """    from pathlib import Path
    own = Path(context.node_config["data"])
    for folder in (own, own / "deep"):
        (folder / "index.part").write_text("of this message")
        (folder / "index.part").rename(folder / "index")
        assert sorted(path.name for path in folder.iterdir())[-2:] != ["index", "index.part"]
    model = """,
)


def asked(own, app, config=None):
    """What an app answers on a device, and its device's Guard."""
    (own.parent / "data" / "deep").mkdir(exist_ok=True)
    (own.parent / "data" / "deep" / "more.csv").write_text("4,5,6\n")
    guard = guard_of(own)
    own_config = {"data": str(own.parent / "data")}
    locked = LockedApp(guard.rules, own, bundle(app), own_config, SUPERLINK)
    identify(1, 101)
    arrays = record({"0": np.zeros(3, np.float32)})
    content = RecordDict({"arrays": arrays, "config": ConfigRecord(config or {})})
    message = Message(content, dst_node_id=101, message_type="train")
    return locked(message, Context(1, 101, {}, RecordDict(), {}), "")


def seen(folder):
    return {path: path.stat().st_mtime_ns for path in (folder, *folder.rglob("*"))}


def tried(own):
    return {check.name: check for check in guard_checks(own, run=True)}["app"]


def test_an_app_writes_where_the_policy_lets_it_and_leaves_nothing(tmp_path):
    data = tmp_path / "data"
    own = device(tmp_path, writes=f"[{data}, {data / 'deep'}]")
    (data / "deep").mkdir()
    for _ in range(2):
        reply = asked(own, BESIDE)
        assert reply.content["arrays"]["0"].numpy() == pytest.approx([2, 2, 2])
    found = {str(path.relative_to(data)) for path in data.rglob("*")}
    assert found == {"table.csv", "deep", "deep/more.csv"}


@no_overlays
def test_its_owner_is_told_where_it_would_write_and_nothing_is_charged(tmp_path):
    own = device(tmp_path)
    data = tmp_path / "data"
    with pytest.raises(AppError, match="`murmur doctor guard --run` says where"):
        asked(own, BESIDE)
    before = seen(tmp_path)
    check = tried(own)
    assert check.status == FAIL
    assert check.advice == f"in the policy's guard: writes: [{data}, {data / 'deep'}]"
    assert seen(tmp_path) == before
    policy = own / "policy.yaml"
    policy.write_text(
        policy.read_text().replace("writes: []", f"writes: [{data}, {data / 'deep'}]")
    )
    assert tried(own).status == OK
    asked(own, BESIDE)
    assert charges(guard_of(own)) == 0


@needs_overlays
def test_an_app_writes_anywhere_in_its_data_and_changes_nothing(tmp_path):
    own = device(tmp_path)
    changes = BESIDE.replace('"index.part")', '"table.csv")').replace("(folder", "(own")
    before = seen(tmp_path / "data")
    for app in (BESIDE, changes):
        asked(own, app)
    assert seen(tmp_path / "data").keys() - before.keys() == {
        tmp_path / "data" / "deep",
        tmp_path / "data" / "deep" / "more.csv",
    }
    assert (tmp_path / "data" / "table.csv").read_text() == "1,2,3\n3,2,1\n"
    assert tried(own).status == OK


def test_what_is_written_over_the_data_counts_as_its_files(tmp_path):
    data = tmp_path / "data"
    own = device(tmp_path, writes=f"[{data}]", disk_mib=4)
    filling = BESIDE.replace('"of this message"', '"x" * (6 << 20)')
    with pytest.raises(
        AppError, match=r"File too large|No space left|MiB of files|without a reply"
    ):
        asked(own, filling)


def test_an_app_that_fails_otherwise_is_no_matter_of_folders(tmp_path):
    own = device(tmp_path)
    with pytest.raises(AppError):
        asked(own, HARMFUL, {"does": "raises"})
    check = tried(own)
    assert check.status == FAIL and "ended without a reply" in check.found


def test_a_device_that_was_asked_nothing_has_nothing_to_try(tmp_path):
    assert tried(device(tmp_path)).found == "no app was asked here yet"


def test_a_folder_of_too_many_files_is_refused(tmp_path, monkeypatch):
    data = tmp_path / "data"
    own = device(tmp_path, writes=f"[{data}]")
    monkeypatch.setattr(guarding, "MAX_ENTRIES", 0)
    monkeypatch.setattr(guarding, "bubblewrap_version", lambda: (0, 8, 0))
    with pytest.raises(DeviceError, match=r"writes holds 1 files, .* install 0.11 or newer"):
        guard_of(own)


def test_only_folders_of_the_data_are_written(tmp_path):
    own = device(tmp_path, writes=f"[{tmp_path}]")
    assert "guard.writes=" in Policy.load(own / "policy.yaml").defect
    assert os.listdir(tmp_path / "data") == ["table.csv"]
