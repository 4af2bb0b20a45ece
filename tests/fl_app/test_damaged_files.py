"""Every file that a run, a device or a server writes or reads, damaged: one sentence, status not 0.

``resume`` goes on from a run's folder, so it gets each file of one that was interrupted; whoever
else reads a file gets it by the command that names it.
"""

import contextlib
import random
import shutil
import sqlite3
import struct
from pathlib import Path

import pytest

from tests.fl_app.running import command, interrupt

NOISE = random.Random(3).randbytes(3000)


def flipped(content):
    """One bit in the middle; of a ledger, which has unused pages, in an event."""
    is_ledger = content.startswith(b"SQLite")
    place = content.rfind(b"epsilon") if is_ledger else len(content) // 2
    return content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]


DAMAGES = {
    "garbage": lambda content: NOISE,
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "flipped": flipped,
    "list": lambda content: b"[1, 2]",
    "nan": lambda content: b'{"a": NaN, "rounds": "x"}',
    "deep": lambda content: b"[" * 100_000,
}
# A .npy header of 4 PiB of float64, and nothing behind it.
HEADER = b"{'descr': '<f8', 'fortran_order': False, 'shape': (2251799813685248,), }"
HUGE = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(HEADER) + 1) + HEADER + b"\n"


def refusal(*words):
    """What a command that must fail says."""
    status, error = command(*words)
    assert status not in (0, None), words
    return error


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """The folder of a run of three rounds that was interrupted after one."""
    path = tmp_path_factory.mktemp("half") / "run"
    interrupt(path, "federation.num_rounds=3", "tracking=none", before=2)
    with contextlib.closing(sqlite3.connect(path / "ledger.sqlite")) as ledger:
        ledger.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # else damage is in pages not in use
    return path


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    "name",
    ["checkpoint.safetensors", "overrides.json", "config.yaml", "rounds.jsonl", "ledger.sqlite"],
)
def test_resume_refuses_a_damaged_file_and_names_it(half, tmp_path, name, damage):
    run = shutil.copytree(half, tmp_path / "run")
    (run / name).write_bytes(DAMAGES[damage]((half / name).read_bytes()))
    if (name, damage) == ("rounds.jsonl", "half"):
        (run / "checkpoint.safetensors").unlink()  # which has the last row as well
    refusal("resume", run)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_ledger_is_told_by_every_command_that_reads_one(half, tmp_path, damage):
    run = shutil.copytree(half, tmp_path / "run")
    path = run / "ledger.sqlite"
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    for words in (["show", path], ["verify", path], ["export", path, "--out", tmp_path / "x"]):
        assert "ledger" in refusal("ledger", *words)


@pytest.mark.parametrize("damage", [name for name in DAMAGES if name != "flipped"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("policy.yaml", ["doctor", "run", "engine=inline", "--policy", "{file}"]),
        ("policy.yaml", ["doctor", "device", "--node-config", 'clients=1 policy="{file}"']),
        ("policy.yaml", ["engine=inline", "federation.num_clients=3", "privacy.policy={file}"]),
        ("peers.txt", ["doctor", "device", "--node-config", 'clients=1 peers="{file}"']),
        ("node.key.pub", ["enrol", "{file}", "--clients", "1", "--table", "{file}.table"]),
        ("table", ["engine=deploy", "federation.enrolled={file}"]),
        ("data.npz", ["engine=inline", "dataset=npz", "dataset.path={file}"]),
        ("data.csv", ["engine=inline", "dataset=csv", "dataset.path={file}"]),
        ("weights", ["engine=inline", "features=backbone", "features.weights={file}"]),
    ],
    ids=lambda value: value if isinstance(value, str) else value[-1][:40],
)
def test_a_damaged_file_of_an_owner_or_a_server_is_told(tmp_path, name, words, damage):
    file = tmp_path / name
    file.write_bytes(DAMAGES[damage](NOISE))
    file.chmod(0o600)
    refusal(*(word.format(file=file) for word in words), *_folder(words, tmp_path))


@pytest.mark.parametrize("content", [HUGE, HUGE[:40], b"PK\x03\x04" + NOISE])
def test_an_archive_whose_header_promises_petabytes_is_refused(tmp_path, content):
    import zipfile

    path = tmp_path / "data.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("images", "labels", "test_images", "test_labels"):
            archive.writestr(f"{name}.npy", content)
    assert "data.npz" in refusal("engine=inline", "dataset=npz", f"dataset.path={path}")
    node = f'clients=1 data="{path}" policy="{path}" state="{tmp_path}"'
    refusal("doctor", "device", "--node-config", node, "--shape", "1,8,8", "--classes", "10")


def test_what_cannot_be_written_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("x")
    for words in (
        ["export", "file", "engine=inline"],
        ["export", "/proc/nowhere", "engine=inline"],
        ["engine=inline", "run_dir=file"],
        ["engine=inline", "results_dir=/proc/nowhere"],
        ["report", ".", "--out=/proc/nowhere/x"],
    ):
        refusal(*words)


def _folder(words, tmp_path):
    """Where a run would go, for the commands that are one."""
    return [f"results_dir={tmp_path}/runs"] if words[0].startswith("engine=") else []
