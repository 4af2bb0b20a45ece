"""Reports and audits of runs whose files are damaged: one sentence, and a status that is not 0."""

import shutil

import pytest

from tests.fl_app.running import command
from tests.fl_app.test_fuzz import DAMAGES, finished

__all__ = ["finished"]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    "name", ["config.yaml", "metrics.json", "privacy.json", "rounds.jsonl", "error.json"]
)
def test_report_of_a_damaged_run_names_the_file_and_does_not_end_with_0(
    finished, tmp_path, name, damage
):
    run = shutil.copytree(finished, tmp_path / "run")
    content = (finished / name).read_bytes() if (finished / name).exists() else b'{"error": "x"}'
    (run / name).write_bytes(DAMAGES[damage](content))
    status, error = command("report", run)
    assert (status, name in error) == (1, True), error


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["config.yaml", "privacy.json"])
def test_audit_of_a_damaged_run_says_so_in_one_sentence(finished, tmp_path, name, damage):
    run = shutil.copytree(finished, tmp_path / "run")
    (run / name).write_bytes(DAMAGES[damage]((finished / name).read_bytes()))
    status, error = command("audit", run, "--runs=50")
    assert status == 2
    assert name in error
