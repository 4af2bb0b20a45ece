"""A device needs neither Ray nor the server's packages, and PyTorch only where it computes."""

import subprocess
import sys

import pytest

SIMULATION_ONLY = ["ray", "matplotlib", "tomli_w", "tensorboard", "pytest", "hypothesis", "opendp"]
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


def test_client_app_and_node_import_without_the_servers_packages():
    done = run("import fl_app.client_app, fl_app.device.node, fl_app.tools.doctor", SIMULATION_ONLY)
    assert done.returncode == 0, done.stderr


def test_every_client_class_imports_without_the_servers_packages():
    body = """
from fl_app.config.composition import compose
from fl_app.config.conf_files import groups
from hydra.utils import get_object
for name in groups()["strategy"]:
    get_object(compose([f"strategy={name}"]).strategy.client._target_)
"""
    done = run(body, SIMULATION_ONLY)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["fl_app.client_app", "fl_app.device.secure_node"])
def test_phases_that_compute_nothing_do_not_wait_for_pytorch(module):
    done = run(f"import {module}", [*SIMULATION_ONLY, "torch", "opacus", "sklearn"])
    assert done.returncode == 0, done.stderr
