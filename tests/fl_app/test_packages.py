"""Words of packages beside the core, and what is said where a package is missing."""

from importlib import metadata

import pytest

from fl_app import cli, packages
from fl_app.cli import PACKAGED, TOOLS, main
from fl_app.config.errors import ConfigError
from fl_app.device.node_settings import DeviceError
from fl_app.device.service import Device
from tests.murmur.flower.nodes import POLICY

GUARD = """
guard:
  bundles: any
  data: []
  app_seconds: 10
  answer_seconds: 20
  cpu_seconds: 100
  memory_mib: 2000
  disk_mib: 64
  processes: 60
  unprotected: refuse
"""


@pytest.fixture
def alone(monkeypatch):
    """The core, as if nothing were installed beside it."""
    monkeypatch.setattr(metadata, "entry_points", lambda **which: ())


@pytest.mark.parametrize("word", PACKAGED)
def test_a_missing_package_is_named_with_the_command_that_installs_it(alone, capsys, word):
    assert word in TOOLS
    assert main([word, "--help"]) == 2
    package = PACKAGED[word]
    assert capsys.readouterr().err == (
        f"murmur {word}: needs the package {package}, which is not installed: in a checkout, "
        f"`pip install ./packages/{package}`; elsewhere, its wheel\n"
    )


def test_doctor_guard_names_its_package_too(alone, tmp_path, capsys):
    assert main(["doctor", "guard", "--device", str(tmp_path)]) == 2
    assert "pip install ./packages/murmur-guard" in capsys.readouterr().err


def test_a_word_of_a_package_is_its_entry_point(monkeypatch):
    def tool(argv):
        return 7

    class Entry:
        def load(self):
            return tool

    monkeypatch.setattr(metadata, "entry_points", lambda **which: (Entry(),))
    assert cli.main(["report"]) == 7


def test_a_package_whose_library_is_missing_is_named(monkeypatch):
    class Entry:
        def load(self):
            raise ImportError("No module named 'altair'")

    monkeypatch.setattr(metadata, "entry_points", lambda **which: (Entry(),))
    with pytest.raises(ConfigError, match="murmur-report cannot be loaded: No module named 'alt"):
        packages.load_entry("murmur.tools", "report", "murmur-report")


def test_a_device_whose_policy_has_guard_refuses_to_start_without_it(alone, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY + GUARD)
    owner = {"policy": str(policy), "state": str(tmp_path), "clients": 0}
    with pytest.raises(DeviceError, match=r"`guard`: needs .*pip install \./packages/murmur-guard"):
        Device(owner)
    policy.write_text(POLICY)
    assert Device(owner).folder == tmp_path
