"""Bugs planted on purpose, one at a time, and the test that notices each.

``python -m research.attacks.gauntlet`` copies the project into a temporary folder, breaks a
promise there (``planted_bugs.yaml``), and runs tests until one fails: those of the file that was
broken, those that name it, those of its folder, then all that watch over privacy. That test runs
once more with the bug, and once without it as a control. Prints a table for ``docs/audit.md``; the
exit status is 1 where a bug went unnoticed. ``--only WORDS ...``: bugs whose name holds one of
them.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
BUGS = Path(__file__).parent / "planted_bugs.yaml"
WATCHERS = (
    "tests/murmur/privacy",
    "tests/clients",
    "tests/strategies",
    "tests/fl_app/device",
    "packages/murmur-report/tests/test_audit.py",
)
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Bug:
    """``was``, which stands once in ``file``, ``becomes`` something that breaks a promise."""

    bug: str
    file: str
    was: str
    becomes: str

    def plant(self, root: Path) -> str:
        """Break ``file`` under ``root``; its text before. ValueError where the text is another."""
        text = (root / self.file).read_text(encoding="utf-8")
        if text.count(self.was) != 1:
            raise ValueError(f"{self.bug}: {self.was!r} does not stand once in {self.file}")
        (root / self.file).write_text(text.replace(self.was, self.becomes), encoding="utf-8")
        return text

    def suites(self, root: Path) -> Iterator[list[str]]:
        """Tests that may notice it, the nearest first."""
        path = Path("tests") / self.file
        near = sorted(root.glob(str(path.with_name(f"test_{path.stem}*.py"))))
        yield [str(one.relative_to(root)) for one in near]
        named = sorted(set(root.glob(f"tests/**/test_*{path.stem}.py")) - set(near))
        yield [str(one.relative_to(root)) for one in named]
        words = (self.file.removesuffix(".py").replace("/", "."), Path(self.file).name)
        tests = sorted(set(root.glob("tests/**/test_*.py")) - {*near, *named})
        naming = [one for one in tests if any(word in one.read_text("utf-8") for word in words)]
        yield [str(one.relative_to(root)) for one in naming]
        yield [str(path.parent)] if (root / path.parent).is_dir() else []
        yield list(WATCHERS)


def bugs(*only: str) -> list[Bug]:
    """Those of ``planted_bugs.yaml`` whose name holds one of ``only``; all, where none is given."""
    plain = yaml.safe_load(BUGS.read_text(encoding="utf-8"))
    return [Bug(**one) for one in plain if not only or any(words in one["bug"] for words in only)]


def copy(to: Path) -> None:
    """The project's files, as they are now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, to / name)


def caught_by(bug: Bug, root: Path) -> str | None:
    """The first test in ``root`` that fails because of ``bug``; None: there is none.

    A failure counts where the test by itself fails again with the bug and passes without it, so
    that a test which fails on any code, or now and then, is no witness.
    """
    for suite in filter(None, bug.suites(root)):
        discounted: list[str] = []
        while (found := _with(bug, root, [*suite, *discounted])) is not None:
            if _with(bug, root, [found]) is not None and first_failure(root, [found]) is None:
                return found
            discounted.append(f"--deselect={found}")
    return None


def _with(bug: Bug, root: Path, words: list[str]) -> str | None:
    """``first_failure`` with ``bug`` planted."""
    before = bug.plant(root)
    try:
        return first_failure(root, words)
    finally:
        (root / bug.file).write_text(before, encoding="utf-8")


def first_failure(root: Path, words: list[str]) -> str | None:
    """The test in ``root`` that fails first of those that pytest takes by ``words``; None: none."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, f"--basetemp={root}/../basetemp", *words],
        cwd=root,
        env=os.environ | {"PYTEST_ADDOPTS": ""},  # those that this process was given are its own
        capture_output=True,
        text=True,
    )
    if found := _FAILED.search(done.stdout):
        return found[1]
    if done.returncode not in (0, 5):  # 5: no tests there
        raise RuntimeError(f"{words}: the tests do not run\n{(done.stdout + done.stderr)[-2000:]}")
    return None


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="WORDS", help="bugs whose name holds them"
    )
    chosen = bugs(*parser.parse_args().only)
    print("| planted bug | noticed by | seconds |\n|---|---|---|")
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "project"
        copy(root)
        for bug in chosen:
            started = time.perf_counter()
            found = caught_by(bug, root)
            missed += found is None
            test = "**nothing**" if found is None else f"`{found}`"
            print(f"| {bug.bug} | {test} | {time.perf_counter() - started:.0f} |", flush=True)
    print(f"\n{len(chosen) - missed} of {len(chosen)} planted bugs were noticed.")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
