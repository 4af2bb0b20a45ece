"""`murmur doctor guard` says what of the isolation a machine gives, and what is to be changed."""

import os

import pytest

from fl_app.tools import doctor
from fl_app.tools.doctor import FAIL, OK, WARN
from murmur_guard import doctor as guard_doctor
from murmur_guard.sandbox import PARTS
from tests.guarded_devices import device
from tests.murmur.flower.nodes import POLICY


@pytest.fixture
def folder(tmp_path):
    own = device(tmp_path, without=["namespaces"])
    os.chmod(own / "policy.yaml", 0o600)
    return own


def found(folder):
    return {check.name: check for check in guard_doctor.guard_checks(folder)}


def test_each_part_has_a_line_and_fails_where_the_policy_wants_what_is_lacking(folder, monkeypatch):
    monkeypatch.setattr(guard_doctor, "missing", lambda: ["landlock", "namespaces"])
    lines = found(folder)
    assert [lines[part].status for part in PARTS] == [FAIL, OK, WARN]
    assert "guard.without: [landlock]" in lines["landlock"].advice
    assert "does without" in lines["namespaces"].found


def test_a_part_that_is_here_and_not_used_is_said(folder, monkeypatch):
    monkeypatch.setattr(guard_doctor, "missing", list)
    lines = found(folder)
    assert [lines[part].status for part in PARTS] == [OK, OK, WARN]
    assert lines["namespaces"].advice == "take namespaces out of guard.without"
    assert lines["policy"].status == OK and lines["apps' data"].status == OK


@pytest.mark.parametrize(("user", "status"), [(0, WARN), (1000, OK)])
def test_who_counts_an_apps_processes_is_said(user, status):
    assert guard_doctor.limits(user).status == status


def test_a_policy_without_rules_for_apps_fails(folder):
    (folder / "policy.yaml").write_text(POLICY)
    assert found(folder)["guard"].status == FAIL


def test_a_device_whose_folder_an_app_could_read_fails(tmp_path):
    own = device(tmp_path, data=f"[{tmp_path}]")
    assert found(own)["apps' data"].status == FAIL


@pytest.mark.parametrize(("lacking", "status"), [(["namespaces"], 0), (["seccomp"], 1)])
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
    assert all(part in printed for part in PARTS)
    assert doctor.main(words[:3]) == 1
    assert "every account here" in " ".join(capsys.readouterr().out.split())
