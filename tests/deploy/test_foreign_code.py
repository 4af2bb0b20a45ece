"""An app of somebody else's, submitted to real devices over TLS, runs on none of them."""

import json
from pathlib import Path

import pytest

from murmur.privacy.ledger import Ledger
from tests.deploy.conftest import ENDS
from tests.federation.loopback import NAME, wait_for

pytestmark = pytest.mark.federation

HOSTILE = Path(__file__).parent / "hostile"
OPEN = 4  # a SuperNode as Flower starts it
WORDS = ("data", "public", "policy", "state")
KINDS = 3  # the hostile server asks as query, train and evaluate


@pytest.fixture
def open_node(federation):
    """A SuperNode that runs sent code, with an owner's files; the folder that they are in."""
    own, folder = federation.device(OPEN), federation.folder / "open"
    folder.mkdir()
    for word in WORDS:
        (folder / word).write_text(f"the {word} of a device that runs sent code")
        own[word] = str(folder / word)
    before = federation.online()
    federation.start_node(OPEN, federation.enrol(OPEN), own, runs_sent_code=True)
    wait_for(lambda: federation.online() == before + 1, 300, "the open node")
    yield folder
    federation.kill(f"node-{OPEN}")


def submit(federation, folder, name):
    """Run the hostile app under that name; what every node answered."""
    app, loot = folder / name, folder / f"{name}.json"
    (app / "thief").mkdir(parents=True)
    for file in ("thief/__init__.py", "thief/app.py", "pyproject.toml"):
        text = (HOSTILE / file).read_text().replace('name = "murmur-fl"', f'name = "{name}"')
        (app / file).write_text(text)
    federation.flwr("run", str(app), NAME, "--stream", "--run-config", f'loot="{loot}"')
    wait_for(loot.exists, ENDS, "the hostile server")
    return json.loads(loot.read_text())


def files(federation):
    """All that is there in the states of devices 0 to 3, but their own logs."""
    places = federation.folder.glob("state-*/**/*")
    return {(place, place.stat().st_mtime) for place in places if place.name != "errors.log"}


def test_hostile_app_gets_nothing_from_devices_and_every_file_from_an_open_node(
    federation, open_node, tmp_path
):
    before, devices = files(federation), federation.online() - 1
    for name in ("thief", "murmur-fl"):  # under its own name, and as if it were ours
        replies = submit(federation, tmp_path, name)
        assert len(replies) == KINDS * (devices + 1)
        robbed = [reply for reply in replies if reply["stolen"]]
        assert len(robbed) == KINDS and len({reply["node"] for reply in robbed}) == 1
        assert all(len(reply["stolen"]) == len(WORDS) for reply in robbed)  # it can be done
        errors = [reply["error"] for reply in replies if not reply["stolen"]]
        assert len(errors) == KINDS * devices and all(errors)
        assert not any(str(federation.folder) in error for error in errors)
    marks = federation.folder.rglob("thief-was-here")
    assert {mark.parent for mark in marks} == {open_node}
    # What the devices themselves wrote: counts for monitoring, and ledgers without a charge.
    written = {place for place, _ in files(federation) - before if place.is_file()}
    assert {place.name.partition(".")[0] for place in written} <= {"metrics", "ledger"}
    for path in (place for place in written if place.name == "ledger.sqlite"):
        with Ledger(path, create=False) as ledger:
            assert ledger.clients() == []
