"""A device has no report, sweep or planner, and PyTorch only where it computes."""

import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text())["project"]
# Packages of the extras that a device does not have.
NOT_ON_DEVICES = {
    "simulation": ["ray", "psutil", "tensorboard"],
    "sweeps": ["hydra-optuna-sweeper", "hydra-submitit-launcher", "hydra-joblib-launcher"],
    "report": ["altair", "vl-convert-python", "pandas"],
    "tracking": ["mlflow-skinny", "wandb", "tensorboard"],
    "dev": ["matplotlib", "pytest", "hypothesis", "opendp"],
}
MODULES = ["altair", "vl_convert", "pandas", "mlflow", "wandb", "optuna", "submitit", "psutil"]
SIMULATION_ONLY = ["ray", "matplotlib", "tomli_w", "tensorboard", "pytest", "hypothesis", "opendp"]
NOT_LOADED = ("fl_app.sweep", "fl_app.tracking", "fl_app.tools.advise")
CODE = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
{body}
"""


def run(body, blocked):
    code = CODE.format(blocked=set(blocked), body=body)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def installed_with(*extras):
    """Names of all distributions that pip would bring for the wheel with ``extras``."""
    waiting = [*PROJECT["dependencies"], f"{PROJECT['name']}[{','.join(extras)}]"]
    known = set()
    while waiting:
        asked = Requirement(waiting.pop())
        name = canonicalize_name(asked.name)
        for extra in {"", *asked.extras} - {e for n, e in known if n == name}:
            known.add((name, extra))
            if name == PROJECT["name"]:
                waiting += PROJECT["optional-dependencies"].get(extra, [])
                continue
            try:
                needs = metadata.requires(name) or []
            except metadata.PackageNotFoundError:  # an extra that is not installed here
                continue
            for need in map(Requirement, needs):
                if need.marker is None or need.marker.evaluate({"extra": extra}):
                    need.marker = None
                    waiting.append(str(need))
    return {name for name, _ in known}


@pytest.mark.parametrize("extra", sorted(NOT_ON_DEVICES))
def test_a_device_installs_no_report_sweep_or_planner(extra):
    assert set(NOT_ON_DEVICES[extra]) <= installed_with(extra)
    assert not set(NOT_ON_DEVICES[extra]) & installed_with("device")


def test_a_device_loads_no_report_sweep_or_planner():
    tools = ("device", "doctor", "ledger")
    body = f"""
import importlib
for tool in {tools}:
    importlib.import_module("fl_app.tools." + tool)
import fl_app.client_app, fl_app.device.hosts
print([name for name in sys.modules if name.startswith({NOT_LOADED})])
"""
    done = run(body, [*SIMULATION_ONLY, *MODULES])
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_client_app_and_node_import_without_the_servers_packages():
    done = run(
        "import fl_app.client_app, fl_app.device.hosts, fl_app.tools.doctor", SIMULATION_ONLY
    )
    assert done.returncode == 0, done.stderr


def test_every_client_class_imports_without_the_servers_packages():
    body = """
from fl_app.config.compose import compose
from fl_app.config.groups import groups
from hydra.utils import get_object
for name in groups()["strategy"]:
    get_object(compose([f"strategy={name}"]).strategy.client._target_)
"""
    done = run(body, SIMULATION_ONLY)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["fl_app.client_app", "murmur.round.host"])
def test_phases_that_compute_nothing_do_not_wait_for_pytorch(module):
    done = run(f"import {module}", [*SIMULATION_ONLY, "torch", "opacus", "sklearn"])
    assert done.returncode == 0, done.stderr
