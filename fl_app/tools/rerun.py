"""``murmur rerun RUN``: the same run again in a new folder, and whether its bits are the same.

A run follows from its configuration, its data and its seed, but for the noise: where that comes
from the operating system, as it must outside of tests, the models differ.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from omegaconf import OmegaConf

from fl_app.cli import run
from fl_app.config.composition import compose
from fl_app.config.errors import ConfigError
from fl_app.config.overrides import new_run_dir, quoted
from fl_app.config.own_classes import VARIABLE
from fl_app.report.settings import flat
from fl_app.run.provenance import read
from fl_app.run.results import RunFolder

_OWN = ("run_dir", "run_name", "results_dir")  # say where, not what


def main(argv: list[str]) -> int:
    """Run the tool with the words after ``murmur rerun``; 1 where bits that must agree differ."""
    parser = argparse.ArgumentParser(
        prog="murmur rerun", description="Do a run again, and compare the bits of its model."
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="default: a new one in runs/")
    given = parser.parse_args(argv)
    before, known = RunFolder.existing(given.run), read(given.run)
    if VARIABLE not in os.environ and known.get("config_dirs"):
        os.environ[VARIABLE] = known["config_dirs"]
    words = [w for w in before.overrides() if w.partition("=")[0] not in _OWN]
    _require_same(given.run, words)
    out = (given.out or new_run_dir(None)).absolute()
    if (out / "config.yaml").exists():
        raise ConfigError(f"--out={out}: holds a run already; name another folder")
    status = run([*words, f"run_dir={quoted(out)}"])
    if status:
        return status
    return _compare(given.run, out, compose(words).privacy.noise == "seeded")


def _require_same(folder: Path, words: list[str]) -> None:
    """ConfigError where conf/ no longer composes what the run was."""
    frozen = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml"), resolve=True)
    now = OmegaConf.to_container(compose(words), resolve=True)
    assert isinstance(frozen, dict) and isinstance(now, dict)
    was, becomes = (
        flat({str(k): v for k, v in frozen.items()}),
        flat({str(k): v for k, v in now.items()}),
    )
    differ = [
        key
        for key in sorted({*was, *becomes})
        if key not in _OWN and was.get(key) != becomes.get(key)
    ]
    if differ:
        key = min(differ, key=_made_of_others)
        raise ConfigError(
            f"{key}={was.get(key)}: is {becomes.get(key)} in this version of Murmur; rerun with "
            f"the version of the run (provenance.json: {read(folder).get('commit')})"
        )


def _compare(before: Path, after: Path, seeded: bool) -> int:
    one, two = (path / "model.safetensors" for path in (before, after))
    if not one.exists():
        print(f"{before}: was not finished, so there is nothing to compare")
        return 0
    if one.read_bytes() == two.read_bytes():
        print("the same bits: model.safetensors")
        return 0
    private = any(
        g["proven_total"] not in (None, "infinity") for g in RunFolder(before).guarantees()
    )
    if private and not seeded:
        print("another model: the noise is drawn anew, as it must be (privacy.noise=os)")
        return 0
    print("murmur rerun: another model: model.safetensors differs", file=sys.stderr)
    return 1


def _made_of_others(key: str) -> tuple[bool, str]:
    """Sorts keys that a user types before those that ``conf/`` makes of them."""
    return key.startswith(("strategy.client.", "strategy.server.")), key
