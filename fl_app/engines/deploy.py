"""The deploy engine: submit the run to a SuperLink, whose SuperNodes are people's own devices.

Flower starts the ServerApp on the SuperLink's machine, and that is where the run's folder is.
Where `murmur` runs on the same machine, or sees the folder over a network disk, it shows the
rounds as they are made; elsewhere it passes on Flower's log.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import tomli_w

from fl_app.config import compose, errors, groups, instantiate
from fl_app.config.overrides import to_run_config
from fl_app.config.settings import FederationSettings, pool_digest
from fl_app.device.agreement import overrides_for_devices
from fl_app.run.population import image_population, population
from fl_app.run.results import RunFolder
from murmur.files import owner_only
from murmur.learning.data.examples import Dataset
from murmur.round.task import RunError
from murmur.settings import settings

if TYPE_CHECKING:
    from fl_app.run.validated import ValidatedRun

PROJECT = groups.CONF.parent
_FLWR = str(Path(sys.executable).parent / "flwr")
_STARTED = re.compile(r"Successfully started run (\d+)")


@settings
class DeployEngine:
    """``conf/engine/deploy``.

    Attributes:
        superlink: the name of a connection in FLWR_HOME/config.toml.
        bundle: a signed bundle such as ``@murmur/murmur-fl==1.0.0``, which the SuperLink fetches;
            None: the project's folder is packed as it is, without a signature.
    """

    superlink: str | None
    bundle: str | None = None

    def __post_init__(self) -> None:
        if self.superlink is None:
            raise ValueError(
                "superlink=null: must be the name of a connection in FLWR_HOME/config.toml; "
                "`flwr config list` prints them"
            )
        if self.bundle is not None and not self.bundle.startswith("@"):
            raise ValueError(
                f"bundle={self.bundle}: must look like @account/app==1.0.0, or be null"
            )

    def begin(self) -> None:
        """Nothing: the SuperLink is there already."""

    def run(self, run: "ValidatedRun") -> None:
        """Submit the run, and follow Flower's log to the end.

        The log goes to ``flower.log`` in its folder, and to the screen while the ServerApp's files
        are not to be seen from here. Where they never are, Flower's status counts, and the folder
        stays without figures. Ctrl-C stops the run at the SuperLink.

        Args:
            run: in a folder as this machine sees it; what devices must be told is added to its
                overrides (``device_overrides``).

        Raises:
            ConfigError: the overrides are not for devices, or devices could not do what they say.
            RunError: the run did not finish, as far as its folder or Flower tells.
        """
        folder = run.folder
        words = [*run.overrides, *device_overrides(run.overrides)]
        run_config = folder.path / "flower-run-config.toml"
        run_config.write_text(tomli_w.dumps(to_run_config(words)), encoding="utf-8")
        with TemporaryDirectory() as packed:
            app = self.bundle or str(copy_app(PROJECT, Path(packed) / "app"))
            number = self._submit(app, run_config, folder)
        if folder.metrics() is not None:
            return
        status = self._status(number)
        if status != "finished:completed" or _visible(folder):
            log = folder.path / "flower.log"
            raise RunError(f"{folder.error() or f'Flower says {status}'} (the log: {log})")

    def _submit(self, app: str, run_config: Path, folder: RunFolder) -> str | None:
        """Start the run and follow its log to the end; the run's number, if it got one.

        Ctrl-C stops the run, which would otherwise go on at the devices without anybody watching.
        """
        number = None
        process = subprocess.Popen(
            [_FLWR, "run", app, str(self.superlink), "--stream", "--run-config", str(run_config)],
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        try:
            with open(folder.path / "flower.log", "a", encoding="utf-8", opener=owner_only) as log:
                for line in process.stdout:
                    log.write(line)
                    log.flush()
                    number = number or _started(line)
                    if not _visible(folder):
                        print(line, end="", flush=True)
        except KeyboardInterrupt:
            process.terminate()
            number = number or _started(process.stdout.read())
            if number is not None:
                self._flwr("stop", number)
            raise
        finally:
            process.terminate()
            process.wait()
        return number

    def _status(self, number: str | None) -> str:
        """Returns Flower's status of a run: "finished:completed" where all went well."""
        if number is None:
            return "that it did not start the run"
        answer = self._flwr("list", "--run-id", number)
        try:
            return str(json.loads(answer)["runs"][0]["status"])
        except (ValueError, KeyError, IndexError):
            return "nothing about the run; the SuperLink does not answer"

    def _flwr(self, word: str, *arguments: str) -> str:
        """Runs `flwr WORD`, and returns the JSON that it prints."""
        command = [_FLWR, word, *arguments, str(self.superlink), "--format", "json"]
        done = subprocess.run(
            command, env=_environment(), capture_output=True, text=True, check=False
        )
        return done.stdout


def device_overrides(overrides: list[str]) -> list[str]:
    """All that devices read of a run: what they are asked for, and what the pool is.

    From the server's data come the form of an image and of its label, and digests of pool and
    features, where the overrides leave them null. No data are among them. The
    rest are the choices of files and those values that a server may set (``server_may_set``).

    Args:
        overrides: as typed, with ``engine=deploy``.

    Returns:
        The words that ``overrides`` lack.

    Raises:
        ConfigError: the overrides are not for devices, or devices could not do what they say.
    """
    config = compose.compose(overrides)
    federation: FederationSettings = instantiate.build(config.federation, "federation")
    terms = federation.device_data_spec()
    if terms is None:
        raise errors.ConfigError(
            "federation.devices=null: engine=deploy sets it; take the override away"
        )
    people = image_population(config)
    fitted = population(config).fitted
    found: dict[str, object] = {"shape": list(people.dataset.input_shape)}
    found |= _labels_of(people.dataset)
    if len(people.public):
        found["public"] = pool_digest(people.public)
    if fitted is not None:
        found["features"] = fitted.digest
    public = [
        f"federation.devices.{key}={json.dumps(value)}"
        for key, value in found.items()
        if getattr(terms, key) is None
    ]
    chosen = overrides_for_devices(config, compose.choices(overrides))
    return [*public, *(word for word in chosen if word not in overrides)]


def _labels_of(dataset: Dataset) -> dict[str, object]:
    """The form of a data set's labels, as ``federation.devices`` has it."""
    objective = dataset.objective
    numbered = tuple(map(str, range(dataset.num_classes)))
    if objective.kind == "regression":
        return {"label_range": [objective.low, objective.high]}
    if objective.kind == "multilabel":
        return {"labels": list(dataset.classes or numbered)}
    if dataset.classes in (None, numbered):
        return {"classes": dataset.num_classes}
    return {"classes": list(dataset.classes or ())}


def copy_app(project: Path, folder: Path) -> Path:
    """Copy the files that Flower packs of this project to ``folder``; returns it.

    Flower walks the whole folder that it is asked to pack, and resolves every path in it before it
    looks at ``fab-include``. A project's folder holds its environment and its results, so that
    takes ten seconds of processor time; the files that are really packed are a few hundred.

    Args:
        project: a checkout, or where a wheel was installed, which has ``pyproject.toml`` within
            ``fl_app``.
        folder: made where it is missing.
    """
    manifest = project / "pyproject.toml"
    if not manifest.exists():
        manifest = project / "fl_app" / "pyproject.toml"
    project_file = tomllib.loads(manifest.read_text(encoding="utf-8"))
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(manifest, folder / "pyproject.toml")
    for pattern in project_file["tool"]["flwr"]["app"]["fab-include"]:
        for path in project.glob(pattern):
            target = folder / path.relative_to(project)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    return folder


def _visible(folder: RunFolder) -> bool:
    """Tells whether the ServerApp's files are to be seen from here."""
    return (folder.path / "config.yaml").exists()


def _started(line: str) -> str | None:
    found = _STARTED.search(line)
    return None if found is None else found[1]


def _environment() -> dict[str, str]:
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    return {**quiet, **os.environ}
