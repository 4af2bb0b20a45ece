"""The deploy engine: submit the run to a SuperLink, whose SuperNodes are people's own devices.

Flower starts the ServerApp on the SuperLink's machine, and that is where the run's folder is.
Where `murmur` runs on the same machine, or sees the folder over a network disk, it shows the
rounds as they are made; elsewhere it passes on Flower's log.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import tomli_w

from fl_app.config.building import build
from fl_app.config.composition import choices, compose
from fl_app.config.errors import ConfigError
from fl_app.config.help_text import CONF
from fl_app.config.run_config import to_run_config
from fl_app.config.settings import FederationSettings
from fl_app.device import pool_digest
from fl_app.device.agreement import overrides_for_devices
from fl_app.engines.packing import copy_app
from fl_app.run.population import image_population, population
from fl_app.run.results import RunFolder
from murmur.learning.array_file import private
from murmur.round.task import RunError

PROJECT = CONF.parent
_STARTED = re.compile(r"Successfully started run (\d+)")


class DeployEngine:
    """``superlink``: a connection in FLWR_HOME/config.toml.

    ``bundle``: a signed bundle such as ``@murmur/murmur-fl==0.1.0``, which the SuperLink fetches;
    None: the project's folder is packed as it is, without a signature.
    """

    def __init__(self, superlink: str | None, bundle: str | None = None) -> None:
        if superlink is None:
            raise ValueError(
                "superlink=null: must be the name of a connection in FLWR_HOME/config.toml; "
                "`flwr config list` prints them"
            )
        if bundle is not None and not bundle.startswith("@"):
            raise ValueError(f"bundle={bundle}: must look like @account/app==1.0.0, or be null")
        self.superlink, self.bundle = superlink, bundle

    def begin(self) -> None:
        """Nothing: the SuperLink is there already."""

    def run(self, overrides: list[str], folder: RunFolder) -> None:
        """Submit, wait for the end, and raise RunError if the run did not finish."""
        words = [*overrides, *device_overrides(overrides)]
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
        """Start the run and follow its log to the end; the run's number, if it got one."""
        command = [_flwr(), "run", app, self.superlink, "--stream", "--run-config"]
        number = None
        process = subprocess.Popen(
            [*command, str(run_config)],
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        try:
            with open(folder.path / "flower.log", "a", encoding="utf-8", opener=private) as log:
                for line in process.stdout:
                    log.write(line)
                    log.flush()
                    if (started := _STARTED.search(line)) is not None:
                        number = started[1]
                    if not _visible(folder):
                        print(line, end="", flush=True)
        except KeyboardInterrupt:
            process.terminate()
            if number is None and (started := _STARTED.search(process.stdout.read())) is not None:
                number = started[1]
            if number is not None:  # else the devices would go on without anybody watching
                self._flwr("stop", number)
            raise
        finally:
            process.terminate()
            process.wait()
        return number

    def _status(self, number: str | None) -> str:
        """What Flower says of a run: "finished:completed" where all went well."""
        if number is None:
            return "that it did not start the run"
        answer = self._flwr("list", "--run-id", number)
        try:
            return str(json.loads(answer)["runs"][0]["status"])
        except (ValueError, KeyError, IndexError):
            return "nothing about the run; the SuperLink does not answer"

    def _flwr(self, word: str, *arguments: str) -> str:
        command = [_flwr(), word, *arguments, self.superlink, "--format", "json"]
        if word == "list":
            command = [_flwr(), word, self.superlink, *arguments, "--format", "json"]
        done = subprocess.run(
            command, env=_environment(), capture_output=True, text=True, check=False
        )
        return done.stdout


def device_overrides(overrides: list[str]) -> list[str]:
    """All that devices read of a run: what they are asked for, and what the pool is."""
    config = compose(overrides)
    federation: FederationSettings = build(config.federation, "federation")
    terms = federation.device_terms()
    if terms is None:
        raise ConfigError("federation.devices=null: engine=deploy sets it; take the override away")
    people, fitted = image_population(config), population(config).fitted
    data = people.dataset
    plain = data.classes in (None, tuple(map(str, range(data.num_classes))))
    classes = data.num_classes if plain else list(data.classes or ())
    found = {
        "shape": list(people.dataset.input_shape),
        "classes": classes,
        "public": pool_digest(people.public) if len(people.public) else None,
        "features": None if fitted is None else fitted.digest,
    }
    public = [
        f"federation.devices.{key}={json.dumps(value)}"
        for key, value in found.items()
        if getattr(terms, key) is None and value is not None
    ]
    return [
        *public,
        *(
            word
            for word in overrides_for_devices(config, choices(overrides))
            if word not in overrides
        ),
    ]


def _visible(folder: RunFolder) -> bool:
    """Whether the ServerApp's files are to be seen from here."""
    return (folder.path / "config.yaml").exists()


def _environment() -> dict[str, str]:
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    return {**quiet, **os.environ}


def _flwr() -> str:
    return str(Path(sys.executable).parent / "flwr")
