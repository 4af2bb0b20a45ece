"""The planted bugs: each still fits the code, and the runner finds who notices."""

import pytest

from research.attacks import gauntlet


@pytest.mark.parametrize("bug", gauntlet.bugs(), ids=lambda bug: bug.bug)
def test_each_bug_can_still_be_planted(tmp_path, bug):
    path = tmp_path / bug.file
    path.parent.mkdir(parents=True)
    path.write_text((gauntlet.ROOT / bug.file).read_text(encoding="utf-8"), encoding="utf-8")
    before = bug.plant(tmp_path)
    after = path.read_text(encoding="utf-8")
    assert after != before
    compile(after, bug.file, "exec")
    assert any(bug.suites(gauntlet.ROOT))


def test_a_bug_is_noticed_and_taken_out_again_and_no_bug_is_not_noticed(tmp_path):
    root = tmp_path / "project"
    gauntlet.copy(root)
    file = "murmur/privacy/policy.py"
    before = (root / file).read_text(encoding="utf-8")
    (bug,) = gauntlet.bugs("a policy's lifetime forgets")
    found = gauntlet.caught_by(bug, root)
    assert found is not None and found.startswith("tests/murmur/privacy/policy/")
    assert (root / file).read_text(encoding="utf-8") == before
    with pytest.raises(ValueError, match="does not stand once"):
        gauntlet.Bug("none", file, "no such text", "").plant(root)


def test_what_fails_without_the_bug_as_well_or_only_once_is_no_witness(tmp_path):
    (tmp_path / "code_under_test.py").write_text("promise = True\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_code_under_test.py").write_text(
        "import pathlib\nfrom code_under_test import promise\n\n"
        "def test_always_fails():\n    assert False\n\n"
        "def test_fails_once():\n    mark = pathlib.Path('mark')\n"
        "    seen = mark.exists()\n    mark.touch()\n    assert seen\n\n"
        "def test_the_promise():\n    assert promise\n"
    )
    broken = gauntlet.Bug("broken", "code_under_test.py", "True", "False")
    assert gauntlet.caught_by(broken, tmp_path) == (
        "tests/test_code_under_test.py::test_the_promise"
    )


@pytest.mark.long
@pytest.mark.parametrize("bug", gauntlet.bugs(), ids=lambda bug: bug.bug)
def test_every_planted_bug_is_noticed(tmp_path, bug):
    gauntlet.copy(tmp_path / "project")
    assert gauntlet.caught_by(bug, tmp_path / "project") is not None
