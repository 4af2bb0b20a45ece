"""`murmur doctor guard` says what of the isolation a machine gives, and what is to be changed."""

import os
from pathlib import Path

import pytest

from fl_app.tools import doctor
from fl_app.tools.doctor import FAIL, OK, WARN
from murmur_guard import doctor as guard_doctor
from tests.guarded_devices import device, needs_lock
from tests.murmur.flower.nodes import POLICY


@pytest.fixture
def folder(tmp_path):
    own = device(tmp_path)
    os.chmod(own / "policy.yaml", 0o600)
    return own


def found(folder):
    return {check.name: check for check in guard_doctor.guard_checks(folder)}


@needs_lock
def test_a_machine_that_locks_a_process_in_is_told_by_which_bubblewrap(folder):
    lines = found(folder)
    assert {check.status for check in lines.values()} <= {OK, WARN}
    assert lines["isolation"].found.startswith("bubblewrap 0.")
    assert lines["policy"].status == OK and lines["apps' data"].status == OK


def test_what_is_missing_fails_in_one_sentence(folder, monkeypatch):
    monkeypatch.setattr(guard_doctor, "missing", lambda: "bubblewrap is not installed")
    line = found(folder)["isolation"]
    assert (line.status, line.found) == (FAIL, "bubblewrap is not installed")
    assert "packages/murmur-guard/README.md" in line.advice


@pytest.mark.parametrize(("user", "status"), [(0, WARN), (1000, OK)])
def test_who_counts_an_apps_processes_is_said(user, status):
    assert guard_doctor.limits(user, None).status == status
    assert guard_doctor.limits(user, Path("/sys/fs/cgroup/guard.service")).status == OK


def test_a_policy_without_rules_for_apps_fails(folder):
    (folder / "policy.yaml").write_text(POLICY)
    assert found(folder)["guard"].status == FAIL


def test_a_device_whose_folder_an_app_could_read_fails(tmp_path):
    own = device(tmp_path, data=f"[{tmp_path}]")
    assert found(own)["apps' data"].status == FAIL


@needs_lock
@pytest.mark.parametrize(("lacking", "status"), [("", 0), ("no bubblewrap", 1)])
def test_the_command_ends_with_1_where_something_fails(
    folder, monkeypatch, capsys, lacking, status
):
    monkeypatch.setattr(guard_doctor, "missing", lambda: lacking)
    secret = folder / "secret"
    secret.write_bytes(bytes(32))
    os.chmod(secret, 0o600)
    words = ["guard", "--device", str(folder), "--superexec-auth-secret-file", str(secret)]
    assert doctor.main(words) == status
    printed = capsys.readouterr().out
    assert "isolation" in printed
    assert doctor.main(words[:3]) == 1
    assert "every account here" in " ".join(capsys.readouterr().out.split())
