"""Fixtures for all tests: real data where it is, private folders, no leftovers of other runs."""

import gc
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

from fl_app.config.plugins import VARIABLE
from tests.ended import end_ray

# No test fails because the machine is busy.
settings.register_profile("murmur", parent=settings(), deadline=None)
settings.load_profile("murmur")

# The modules that take longest, by their time: `make test` leaves them to `make test-thorough`. The
# longest come first, so that no worker is left with one at the end.
THOROUGH = (
    "tests/murmur/flower/test_plain_app.py",
    "packages/tests/test_typed_pages.py",
    "tests/federation/test_fire_drill.py",
    "tests/deploy/test_policies.py",
    "tests/formats/test_golden_runs.py",
    "tests/fl_app/run/test_killed.py",
    "tests/fl_app/test_experiments.py",
    "packages/murmur-report/tests/test_audit.py",
    "tests/fl_app/config/test_plugins.py",
    "tests/fl_app/config/test_all_numbers.py",
    "tests/fl_app/run/test_published_once.py",
    "tests/fl_app/engines/test_ray.py",
    "tests/fl_app/device/test_hostile_server.py",
    "tests/fl_app/engines/test_flower_run.py",
    "tests/fl_app/sweep/test_launchers.py",
    "tests/fl_app/device/test_non_interference.py",
    "tests/fl_app/sweep/test_sweep.py",
    "tests/fl_app/test_cli.py",
    "tests/fl_app/run/test_data_card.py",
    "tests/fl_app/test_fuzz.py",
    "tests/strategies/test_neighbours_of_releases.py",
    "tests/strategies/test_budget_by_threat.py",
    "packages/murmur-report/tests/research/test_gauntlet.py",
    "tests/strategies/test_hostile_clients.py",
    "tests/fl_app/device/test_charge_of_settings.py",
    "tests/fl_app/device/test_charge_of_sums.py",
    "tests/fl_app/test_small_install.py",
    "tests/fl_app/test_in_a_program.py",
    "tests/fl_app/test_machine.py",
    "tests/deploy/test_generated_statements.py",
    "tests/murmur/flower/test_rounds.py",
    "tests/fl_app/device/test_devices.py",
    "tests/strategies/test_kd_dpfl.py",
    "tests/research/test_kd_dpfl_budget.py",
    "tests/fl_app/config/test_compose.py",
    "tests/murmur/flower/test_replies.py",
    "tests/fl_app/sweep/test_on_ray.py",
    "tests/murmur/flower/test_killed.py",
    "tests/fl_app/device/test_serving.py",
    "tests/fl_app/engines/test_sockets.py",
    "tests/fl_app/device/test_agreement.py",
    "tests/murmur/privacy/ledger/test_crash.py",
    "tests/clients/test_kd_dpfl.py",
    "tests/strategies/test_protected_evaluation.py",
    "tests/murmur/flower/test_texts.py",
    "tests/fl_app/tools/test_resume.py",
    "packages/murmur-report/tests/test_audit_of_sums.py",
    "tests/fl_app/run/test_canaries.py",
    "tests/inputs/test_changed_data.py",
    "tests/fl_app/engines/test_engines.py",
    "tests/fl_app/test_compute.py",
    "tests/murmur/privacy/ledger/test_export.py",
    "packages/murmur-guard/tests/test_guard.py",
    "tests/fl_app/tools/test_advise_rounds.py",
    "tests/strategies/test_dpfl_bnn.py",
    "tests/fl_app/test_damaged_files.py",
    "tests/strategies/test_nbafl.py",
    "packages/murmur-guard/tests/test_sandbox.py",
    "packages/murmur-guard/tests/test_attacks.py",
    "packages/murmur-guard/tests/test_trial.py",
    "tests/research/test_frontier.py",
    "packages/murmur-report/tests/research/test_audited_runs.py",
)


@pytest.hookimpl(tryfirst=True)  # before marks are selected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark and sort by ``THOROUGH``; the rest stays as it is.

    Single thorough tests of other modules are long ones, and come first.
    """
    place = {Path(__file__).parents[1] / name: number for number, name in enumerate(THOROUGH)}
    for item in items:
        if item.path in place:
            item.add_marker("thorough")
    last = len(place)
    items.sort(
        key=lambda item: place.get(item.path, -1 if item.get_closest_marker("thorough") else last)
    )


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
