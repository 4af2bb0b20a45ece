"""Fixtures for all tests: real data where it is, private folders, no leftovers of other runs."""

import gc
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

from fl_app.config.own_classes import VARIABLE
from tests.ended import end_ray

# No test fails because the machine is busy.
settings.register_profile("murmur", parent=settings(), deadline=None)
settings.load_profile("murmur")

# The modules that take longest, by their time: `make test` leaves them to `make test-thorough`. The
# longest come first, so that no worker is left with one at the end.
THOROUGH = (
    "murmur/flower/test_plain_app.py",
    "fl_app/test_typed_pages.py",
    "federation/test_fire_drill.py",
    "deploy/test_policies.py",
    "formats/test_golden_runs.py",
    "fl_app/run/test_killed.py",
    "fl_app/test_experiments.py",
    "fl_app/tools/test_audit.py",
    "fl_app/config/test_own_classes.py",
    "fl_app/config/test_all_numbers.py",
    "fl_app/run/test_published_once.py",
    "fl_app/engines/test_ray.py",
    "fl_app/device/test_hostile_server.py",
    "fl_app/engines/test_flower_run.py",
    "fl_app/sweep/test_launchers.py",
    "fl_app/device/test_non_interference.py",
    "fl_app/sweep/test_sweep.py",
    "fl_app/test_cli.py",
    "fl_app/run/test_data_card.py",
    "fl_app/test_fuzz.py",
    "strategies/test_neighbours_of_releases.py",
    "strategies/test_budget_by_threat.py",
    "research/test_gauntlet.py",
    "strategies/test_hostile_clients.py",
    "fl_app/device/test_charge_of_settings.py",
    "fl_app/device/test_charge_of_sums.py",
    "fl_app/test_small_install.py",
    "fl_app/test_in_a_program.py",
    "fl_app/test_machine.py",
    "murmur/flower/test_rounds.py",
    "fl_app/device/test_devices.py",
    "strategies/test_kd_dpfl.py",
    "fl_app/tools/test_plan.py",
    "fl_app/config/test_composition.py",
    "murmur/flower/test_replies.py",
    "fl_app/sweep/test_on_ray.py",
    "murmur/flower/test_killed.py",
    "fl_app/device/test_serving.py",
    "fl_app/engines/test_sockets.py",
    "fl_app/device/test_agreement.py",
    "murmur/privacy/ledger/test_crash.py",
    "clients/test_kd_dpfl.py",
    "strategies/test_protected_evaluation.py",
    "murmur/flower/test_texts.py",
    "fl_app/tools/test_resume.py",
    "fl_app/tools/test_audit_of_sums.py",
    "fl_app/run/test_canaries.py",
    "inputs/test_changed_data.py",
    "fl_app/engines/test_engines.py",
    "fl_app/test_compute.py",
    "murmur/privacy/ledger/test_export.py",
    "fl_app/device/test_guard.py",
    "fl_app/tools/test_advise.py",
    "strategies/test_dpfl_bnn.py",
    "fl_app/test_damaged_files.py",
    "strategies/test_nbafl.py",
    "fl_app/device/test_sandbox.py",
    "research/test_frontier.py",
    "research/test_audited_runs.py",
)


@pytest.hookimpl(tryfirst=True)  # before marks are selected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark and sort by ``THOROUGH``; the rest stays as it is."""
    place = {Path(__file__).parent / name: number for number, name in enumerate(THOROUGH)}
    for item in items:
        if item.path in place:
            item.add_marker("thorough")
    items.sort(key=lambda item: place.get(item.path, len(place)))


def pytest_collection_finish() -> None:
    """What is imported by now stays: the garbage collector need not look through it again."""
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.fixture
def data_root() -> Path:
    """The folder with MNIST, Fashion-MNIST and PneumoniaMNIST; skips where there is none."""
    root = os.environ.get("MURMUR_DATA")
    if not root:
        pytest.skip("MURMUR_DATA names no folder with the real data sets")
    return Path(root)


@pytest.fixture
def short_temporary(monkeypatch):
    """A temporary folder of the test's own; ``tmp_path`` leaves no room for names of sockets.

    Workers of a data loader that cannot name theirs (107 bytes) wait for ever.
    """
    with tempfile.TemporaryDirectory(prefix="m-", dir="/tmp") as name:
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)


@pytest.fixture(autouse=True)
def no_folders_of_other_tests(monkeypatch):
    """``--config-dir`` is put into the environment, for the processes that a command starts."""
    monkeypatch.setenv(VARIABLE, os.environ.get(VARIABLE, ""))


@pytest.fixture(autouse=True, scope="module")
def no_ray_of_other_modules():
    """A sweep or a run on Ray leaves it running for the next one in this process."""
    yield
    end_ray()
