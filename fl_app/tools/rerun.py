"""A run once more: ``murmur resume RUN`` goes on with it, ``murmur rerun RUN`` starts it anew.

A resumed run ends as an uninterrupted one would have, and nothing is paid for twice: rounds that
the clients have answered before are answered from their ledgers. It goes on in the folder that is
given, which may be a copy; ``federation.num_rounds=20`` behind it extends it, finished or not.

A run follows from its configuration, its data and its seed, but for the noise: where that comes
from the operating system, as it must outside of tests, the models of a run and its rerun differ.
"""

import os
import sys
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fl_app.cli import run
from fl_app.config import compose, errors, overrides, plugins
from fl_app.config.renamed import present_targets
from fl_app.run.model_folder import FOLDER, WEIGHTS, weights_file
from fl_app.run.population import data_digests
from fl_app.run.provenance import read_provenance
from fl_app.run.results import RunFolder
from fl_app.tools.options import parser_of
from murmur.learning.data.digests import differing

_OWN = ("run_dir", "run_name", "results_dir")  # say where, not what
_OTHER_DATA = "the data are not those of the run"


def resume(argv: list[str]) -> int:
    """Go on with the run that ``argv`` names, from its last checkpoint; the run's exit status.

    Raises:
        ConfigError: there is no run, or it is finished and is not to have more rounds.
    """
    given = parser_of("resume").parse_args(argv)
    folder = RunFolder.existing(given.run)
    words = [word for word in folder.overrides() if not word.startswith("run_dir=")]
    words += [*given.overrides, f"run_dir={overrides.quoted(given.run.absolute())}"]
    done = folder.metrics()
    if done is not None and folder.lacks_epsilon():
        done = None  # its last step is to be done again
    if done is not None and compose.compose(words).federation.num_rounds <= done["rounds"]:
        raise errors.ConfigError(
            f"{given.run}: this run is finished; federation.num_rounds=N with more than "
            f"{done['rounds']} extends it"
        )
    return run(words)


def rerun(argv: list[str]) -> int:
    """Do the run that ``argv`` names again in a new folder, and compare the bits of its model.

    Data that have changed since are told at once, by part; the new run is then one of these.

    Returns:
        The new run's exit status where that is not 0; 1 where bits that must agree differ, or data.

    Raises:
        ConfigError: there is no run, this version composes another configuration for it, its data
            cannot be read, or the new folder holds a run already.
    """
    given = parser_of("rerun").parse_args(argv)
    before = RunFolder.existing(given.run)
    known = read_provenance(given.run)
    if plugins.VARIABLE not in os.environ and known.get("config_dirs"):
        os.environ[plugins.VARIABLE] = known["config_dirs"]
    words = [word for word in before.overrides() if word.partition("=")[0] not in _OWN]
    _require_same(given.run, words)
    out = (given.out or overrides.new_run_dir(None)).absolute()
    if (out / "config.yaml").exists():
        raise errors.ConfigError(f"--out={out}: holds a run already; name another folder")
    config = compose.compose(words)
    other = differing(before.data_digests(), data_digests(config))
    if other:
        print(f"murmur rerun: {_OTHER_DATA} ({', '.join(other)})", file=sys.stderr)
    status = run([*words, f"run_dir={overrides.quoted(out)}"])
    if status:
        return status
    if other:
        print(f"murmur rerun: not compared: {_OTHER_DATA}", file=sys.stderr)
        return 1
    return _compare(given.run, out, config.privacy.noise == "seeded")


def _require_same(folder: Path, words: list[str]) -> None:
    """ConfigError where conf/ no longer composes what the run in ``folder`` was.

    It names the first key that differs, one that a user types before those that conf/ makes of it.
    """
    was = _leaves(OmegaConf.load(folder / "config.yaml"))
    becomes = _leaves(compose.compose(words))
    different = [key for key in {*was, *becomes} if was.get(key) != becomes.get(key)]
    different = [key for key in different if key not in _OWN]
    if different:
        key = min(different, key=_made_of_others)
        raise errors.ConfigError(
            f"{key}={was.get(key)}: is {becomes.get(key)} in this version of Murmur; rerun with "
            f"the version of the run (provenance.json: {read_provenance(folder).get('commit')})"
        )


def _leaves(config: object) -> dict[str, str]:
    """A configuration of OmegaConf as dotted keys and texts, its references followed."""
    plain = present_targets(OmegaConf.to_container(config, resolve=True))
    assert isinstance(plain, dict)
    return overrides.flat_texts({str(key): value for key, value in plain.items()})


def _made_of_others(key: str) -> tuple[bool, str]:
    """Sorts keys that a user types before those that ``conf/`` makes of them."""
    return key.startswith(("strategy.client.", "strategy.server.")), key


def _compare(before: Path, after: Path, seeded: bool) -> int:
    """Say whether two runs' models have the same bits.

    Without noise (no finite proven ε) they must, as they must with noise that follows from the
    seed.

    Args:
        before: the run's folder.
        after: the new run's.
        seeded: whether the noise follows from the seed.

    Returns:
        1 where they should and have not, else 0.
    """
    old = weights_file(before)
    if not old.exists():
        print(f"{before}: was not finished, so there is nothing to compare")
        return 0
    name = f"{FOLDER}/{WEIGHTS}"
    if old.read_bytes() == weights_file(after).read_bytes():
        print(f"the same bits: {name}")
        return 0
    proven = [
        guarantee["proven_total"] for guarantee in RunFolder(before).statement()["guarantees"]
    ]
    is_noisy = any(value not in (None, "infinity") for value in proven)
    if is_noisy and not seeded:
        print("another model: the noise is drawn anew, as it must be (privacy.noise=os)")
        return 0
    print(f"murmur rerun: another model: {name} differs", file=sys.stderr)
    for line in _other_versions(read_provenance(before), read_provenance(after)):
        print(f"murmur rerun: {line}", file=sys.stderr)
    return 1


def _other_versions(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Returns a line for each package whose version differs between two runs' provenance."""
    lines = []
    versions = after.get("versions", {})
    for name, version in before.get("versions", {}).items():
        now = versions.get(name)
        if now != version:
            lines.append(f"{name} was {version or 'not installed'}, is {now or 'not installed'}")
    return lines
