"""What fails and comes back, with real processes; ``fire_drill.py`` measures all of it."""

import pytest

from tests.federation.devices import federation_of_three
from tests.federation.drills import (
    MASKED,
    in_phase,
    link_killed,
    link_killed_behind_a_proxy,
    network_cut,
    node_killed_in_phase,
)

pytestmark = pytest.mark.federation


@pytest.fixture(scope="module")
def devices(tmp_path_factory):
    with federation_of_three(tmp_path_factory.mktemp("drill")) as devices:
        yield devices


def test_network_that_is_cut_and_comes_back_costs_time_and_nothing_else(devices):
    outcome = network_cut(devices, seconds=10, words=("federation.num_rounds=1",))
    assert outcome.lost == "nothing"
    assert outcome.recovered.endswith("answers by round: [3]; rounds paid for: [1, 1, 1]")


def test_superlink_killed_in_a_secure_sum_is_gone_on_with_to_the_same_result(devices):
    outcome = link_killed(devices, in_phase("confirm"), words=tuple(MASKED))
    assert "0 of 1 rounds kept" in outcome.lost
    assert outcome.recovered == "`murmur resume`: the same result; rounds paid for: [1, 1, 1]"


def test_superlink_killed_behind_a_proxy_is_gone_on_with(devices):
    """Flower's own SuperNode would stop asking for work (``retry_broken_connections``)."""
    assert link_killed_behind_a_proxy(devices).recovered.startswith("`murmur resume`: the same")


def test_device_killed_before_it_masks_is_left_out_of_the_sum(devices):
    # No deadline: the round ends as soon as the SuperLink knows that the device is gone.
    outcome = node_killed_in_phase(devices, "share", timeout=300)
    assert outcome.recovered.startswith("the sum of 2 counted; rounds paid for: [1, 1, 0]")
