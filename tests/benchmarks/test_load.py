"""A small one of each load; `benchmarks.load` measures the large ones."""

import pytest

from benchmarks import load

pytestmark = pytest.mark.federation


def test_rounds_do_not_make_a_run_grow():
    assert float(load.rounds(60).rsplit("| ", 1)[1].split()[0]) < 100  # KiB a round


def test_devices_beside_each_other_all_answer():
    assert "3 of 3 answered" in load.devices(3)
