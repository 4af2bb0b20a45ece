"""Wheels of the project's distributions, and fresh environments that share this one's libraries."""

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import uv

CORE = Path(__file__).resolve().parents[1]
PACKAGES = CORE / "packages"
NAMES = ("murmur-guard", "murmur-kernels", "murmur-report")
_OURS = re.compile(r"murmur|fl_app|strategies|clients|conf$|_editable|.*\.pth$")
_WRITTEN = re.compile(r"\.\./|.*dist-info/(INSTALLER|REQUESTED|direct_url|uv_)")  # by an installer


def folder_of(name: str) -> Path:
    """The folder of a distribution."""
    return CORE if name == "murmur-fl" else PACKAGES / name


def built(project: Path, folder: Path, kind: str = "wheel") -> Path:
    """Builds the ``kind`` ("wheel" or "sdist") of ``project`` by its own build system.

    Args:
        project: a folder with a pyproject.toml; of a checkout, the files that git knows count.
        folder: where the file is written.
        kind: of the two.
    """
    build = f"from hatchling.build import build_{kind} as b; print(b({str(folder)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=project, capture_output=True, text=True, check=True
    )
    return folder / done.stdout.splitlines()[-1]


def unpacked(sdist: Path, folder: Path) -> Path:
    """The folder of the project that ``sdist`` holds, below ``folder``."""
    with tarfile.open(sdist) as packed:
        packed.extractall(folder, filter="data")
    return folder / sdist.name.removesuffix(".tar.gz")


def link_libraries(folder: Path, places: list[Path]) -> Path:
    """Fills ``folder`` with links to all that is installed in ``places`` but Murmur."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in (path for place in places for path in place.iterdir()):
        link = folder / path.name
        if not _OURS.match(path.name) and not link.exists():
            link.symlink_to(path)
    return folder


def own_libraries() -> list[Path]:
    """The folders in which this Python finds libraries."""
    return [place for place in map(Path, sys.path) if place.name == "site-packages"]


class Environment:
    """A fresh environment with these libraries and nothing of Murmur.

    Args:
        home: its folder, made here.
        libraries: that of ``link_libraries``.
        python: the interpreter.
    """

    def __init__(self, home: Path, libraries: Path, python: str = sys.executable) -> None:
        subprocess.run([python, "-m", "venv", "--without-pip", str(home)], check=True)
        [self.site] = home.glob("lib/python3*/site-packages")
        self.bin = home / "bin"
        (self.site / "shared.pth").write_text(f"{libraries}\n", encoding="utf-8")

    def install(self, wheel: Path) -> None:
        """Installs one wheel, without what it depends on."""
        command = [uv.find_uv_bin(), "pip", "install", "--quiet", "--no-deps", "--no-index"]
        subprocess.run([*command, "--python", str(self.bin / "python"), str(wheel)], check=True)

    def files(self) -> list[str]:
        """Paths and digests of all files of the wheels, as their records have them."""
        records = sorted(self.site.glob("murmur_*.dist-info/RECORD"))
        found = [line for path in records for line in path.read_text().splitlines()]
        return sorted(line for line in found if not _WRITTEN.match(line))

    def murmur(self, *words: str, folder: Path) -> tuple[int, str]:
        """What `murmur` does here: its status, and what it prints."""
        own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            [str(self.bin / "murmur"), *words], cwd=folder, env=own, capture_output=True, text=True
        )
        return done.returncode, done.stdout + done.stderr
