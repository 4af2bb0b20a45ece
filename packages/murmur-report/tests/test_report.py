"""`murmur report`: one file for any run or sweep, and one clear message where there is none."""

import re

import pytest

from fl_app.cli import main
from murmur.privacy.audit import CanaryAudit
from tests.fl_app.run.test_canaries import AUDIT, CENTRAL, guarantee
from tests.fl_app.running import command, run_inline
from tests.run_folders import write_run


def test_a_real_run_has_its_report_in_its_folder(tmp_path, capsys):
    run_inline(tmp_path / "run", "strategy=privatekt")
    assert main(["report", str(tmp_path / "run")]) == 0
    html = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "report.html" in capsys.readouterr().out
    assert "privacy void" in html and "PrivateKT" in html and 'data-figure="partition-0"' in html
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", html)


@pytest.mark.parametrize("done", [0, 2])
def test_an_unfinished_run_has_a_report(tmp_path, done):
    write_run(tmp_path / "run", done=done)
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "out.html")]) == 0
    assert "unfinished" in (tmp_path / "out.html").read_text(encoding="utf-8")


def test_no_run_and_no_place_are_refused_in_one_line(tmp_path, capsys):
    write_run(tmp_path / "run", done=1)
    for words in (
        [str(tmp_path / "none")],
        [str(tmp_path / "run"), "--out", str(tmp_path / "a/b")],
    ):
        assert main(["report", *words]) == 2
        assert re.fullmatch(r"murmur report: .*; name (?:one|a) .*\n", capsys.readouterr().err)


def test_a_large_sweep_stays_below_two_megabytes(tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    for budget in range(1, 21):
        for seed in (1, 2, 3):
            words = [f"privacy.epsilon={budget / 10}", f"seed={seed}"]
            write_run(tmp_path / f"{budget}-{seed}", *words, rounds=60, clients=100)
    assert main(["report", str(tmp_path)]) == 0
    assert (tmp_path / "report.html").stat().st_size < 2e6


def test_the_report_shows_what_canaries_measured(tmp_path):
    audit = guarantee(run_inline(tmp_path / "run", *CENTRAL, *AUDIT)).canaries
    assert isinstance(audit, CanaryAudit)
    command("report", tmp_path / "run", "--out", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "measured by canaries" in page
    assert "Small discs: what canary clients measured" in page
