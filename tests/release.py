"""Builds what a release consists of, and tries it: `make release-check`, or this module.

Of each distribution it builds the sdist and the wheel. The sdist must build the same wheel again.
On each Python that is supported and found on this machine, each wheel is installed beside the
core's in an environment of its own, and does what it is for. Libraries are those of the one that
runs this. Another Python needs its own, in ``.venv/release-3.12`` and so on: they are installed
there once with `make release-check INSTALL=1`, which takes some GB from the package index.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import uv

from tests.wheels import (
    CORE,
    NAMES,
    Environment,
    built,
    folder_of,
    link_libraries,
    own_libraries,
    unpacked,
)

PYTHONS = ("3.11", "3.12", "3.13")
RUN = ["strategy=fedavg", "privacy=none", "dataset=digits", "engine=inline", "tracking=none"]
RUN += ["federation.num_clients=6", "federation.num_rounds=1"]


def built_all(folder: Path) -> dict[str, Path]:
    """Builds sdists and wheels; the wheels, by the names of their distributions.

    Raises:
        SystemExit: an sdist builds another wheel than the project.
    """
    wheels = {}
    for name in ("murmur-fl", *NAMES):
        wheels[name] = built(folder_of(name), folder)
        sdist = built(folder_of(name), folder, "sdist")
        again = built(unpacked(sdist, folder / "unpacked"), folder / "unpacked")
        require(contents(again) == contents(wheels[name]), f"{sdist.name} builds another wheel")
        print(f"built {wheels[name].name}, and the same from {sdist.name}", flush=True)
    return wheels


def contents(wheel: Path) -> dict[str, bytes]:
    """The files of a wheel, by name."""
    with zipfile.ZipFile(wheel) as packed:
        return {name: packed.read(name) for name in packed.namelist()}


def require(is_so: bool, said: str) -> None:
    """Ends the check with ``said`` unless ``is_so``."""
    if not is_so:
        raise SystemExit(f"release-check: {said}")


def interpreter(version: str) -> str | None:
    """The command of that Python, where it runs on this machine."""
    if version == f"{sys.version_info[0]}.{sys.version_info[1]}":
        return sys.executable
    path = shutil.which(f"python{version}")
    if path is None or subprocess.run([path, "-c", ""], capture_output=True).returncode:
        return None
    return path


def libraries_of(version: str, python: str, wheel: Path, install: bool) -> list[Path]:
    """Folders with the libraries for a Python; none where they are not installed."""
    if python == sys.executable:
        return own_libraries()
    home = CORE / ".venv" / f"release-{version}"
    done = home / ".installed"
    if install and not done.exists():
        pip = [uv.find_uv_bin(), "pip", "install", "--python", str(home / "bin" / "python")]
        subprocess.run([python, "-m", "venv", "--clear", "--without-pip", str(home)], check=True)
        wanted = f"murmur-fl[simulation,report,fast,device] @ {wheel.as_uri()}"
        subprocess.run([*pip, "--constraint", str(CORE / "constraints.txt"), wanted], check=True)
        done.touch()
    return list(home.glob("lib/python3*/site-packages")) if done.exists() else []


def try_all(wheels: dict[str, Path], libraries: Path, python: str, folder: Path) -> None:
    """Installs each wheel beside the core's, and uses it.

    Raises:
        SystemExit: one does not do what it is for.
    """

    def environment(*names: str) -> Environment:
        here = Environment(folder / "-".join(names), libraries, python)
        for name in names:
            here.install(wheels[name])
        return here

    def run(here: Environment, name: str) -> Path:
        path = folder / name
        status, said = here.murmur(*RUN, f"run_dir={path}", folder=folder)
        require(status == 0 and (path / "metrics.json").exists(), f"{name}: {said}")
        return path

    core = environment("murmur-fl")
    version = wheels["murmur-fl"].name.split("-")[1]
    require(f"murmur {version}" in core.murmur("--version", folder=folder)[1], "another version")
    path = run(core, "run")
    status, said = core.murmur("report", str(path), folder=folder)
    require(status == 2 and "pip install ./packages/murmur-report" in said, said)
    report = environment("murmur-fl", "murmur-report")
    status, said = report.murmur("report", str(path), folder=folder)
    require(status == 0 and (path / "report.html").stat().st_size > 10_000, said)
    guard = environment("murmur-fl", "murmur-guard")
    status, said = guard.murmur("guard", "--help", folder=folder)
    require(status == 0 and "usage: murmur guard" in said, said)
    path = run(environment("murmur-fl", "murmur-kernels"), "run-with-kernels")
    provenance = json.loads((path / "provenance.json").read_text(encoding="utf-8"))
    require(provenance["versions"].get("murmur-kernels") == version, "kernels did not train")


def main() -> None:
    """Build, try on each Python, and print a line for each."""
    parser = argparse.ArgumentParser(description="Build what a release consists of, and try it.")
    parser.add_argument("--install", action="store_true", help="libraries for other Pythons too")
    install = parser.parse_args().install
    with tempfile.TemporaryDirectory(prefix="release-") as name:
        folder = Path(name)
        (folder / "unpacked").mkdir()
        wheels = built_all(folder)
        for version in PYTHONS:
            python = interpreter(version)
            if python is None:
                print(f"Python {version}: not tried here (not found)", flush=True)
                continue
            places = libraries_of(version, python, wheels["murmur-fl"], install)
            if not places:
                print(f"Python {version}: not tried here (no libraries; INSTALL=1)", flush=True)
                continue
            home = folder / version
            try_all(wheels, link_libraries(home / "libraries", places), python, home)
            print(f"Python {version}: all four distributions work", flush=True)


if __name__ == "__main__":
    main()
