"""What a statement says of a server that sees only sums: its conditions, by how they are taken."""

import pytest

from fl_app.config.compose import choices, compose
from fl_app.config.errors import ConfigError
from fl_app.device import agreement
from fl_app.run.validated import ValidatedRun
from murmur.privacy.accounting import Threat, epsilon
from murmur.privacy.events import DiscreteGaussianEvent, RepeatedEvent
from murmur.privacy.exposure import SumFacts, by_sums
from murmur.round.cohorts import Weights
from murmur.secure_sum.settings import SecureSumSettings
from tests.node_keys import openssh
from tests.sums import noised

FINE = DiscreteGaussianEvent(2.0**20, 2.0**20)
ALIKE = Weights(lambda client: 1)


def exposure(settings, clients=1000, weights=ALIKE):
    failure = settings.failure_probability(clients)
    facts = SumFacts(
        clients,
        settings.colluders,
        failure,
        weights.of,
        weights.least,
        weights.greatest,
        settings.adversary,
    )
    return by_sums(noised(FINE, 1).event, {0: 2, 1: 2}, facts, settings.conditions(clients))


def conditions(settings, clients=1000):
    return " / ".join(exposure(settings, clients).assumptions)


def test_a_simulation_says_that_its_process_saw_everything():
    assert "simulated: in this run it saw every message" in conditions(
        SecureSumSettings("simulated")
    )


def test_without_pinned_peers_the_server_must_invent_nobody():
    said = conditions(SecureSumSettings("on", colluders=50))
    assert "at least 950 of the 1000 clients of every sum are honest" in said
    assert "one that invents clients or exchanges their keys reads every message" in said


def test_pinned_peers_and_cryptography_are_named(tmp_path):
    (tmp_path / "peers.txt").write_text(f"0 {'00' * 32}\n1 {'01' * 32}\n")
    said = conditions(SecureSumSettings("on", peers=str(tmp_path / "peers.txt")), 2)
    assert "each key in the peers file (SHA-256 " in said and "different device" in said
    assert "Ed25519 hold" in said and "invents" not in said


def test_the_terms_are_bound_to_the_keys_of_the_peers_file(tmp_path):
    path = tmp_path / "peers.txt"
    path.write_text("".join(f"{c} {c:064x}\n" for c in range(1, 6)))
    settings = SecureSumSettings("on", peers=str(path))
    terms = settings.terms("run", 1, range(1, 6), 3, 8)
    path.write_text("".join(f"{c} {c + (c == 5):064x}\n" for c in range(1, 6)))
    assert terms.keys != settings.terms("run", 1, range(1, 6), 3, 8).keys
    with pytest.raises(ValueError, match=r"^peers=.*key of each client"):
        settings.terms("run", 1, range(6), 3, 8)
    assert settings.pinned((1,)).keys() == {1} and SecureSumSettings("on").pinned((0,)) == {}


def test_a_run_names_the_servers_copy_of_the_peers_file_and_devices_need_none(tmp_path):
    path = tmp_path / "peers.txt"
    path.write_text("".join(f"{c} {c + 1:064x}\n" for c in range(4)))
    (tmp_path / "enrolled.txt").write_text(f"0,1,2,3 {openssh(0)}\n")
    words = ["federation.num_clients=4", "privacy.secure_aggregation=on"]
    words += [f"federation.peers={path}"]
    with pytest.raises(ConfigError, match="nobody pins keys in a simulation"):
        ValidatedRun(compose(["engine=inline", *words]))
    words += ["engine=deploy", f"federation.enrolled={tmp_path / 'enrolled.txt'}"]
    it = ValidatedRun(compose(words))
    assert it.strategy.setup.secure_sums.peers == str(path)
    assert not any(
        "peers" in word for word in agreement.overrides_for_devices(it.config, choices(words))
    )
    path.write_text(f"0 {1:064x}\n")
    with pytest.raises(ConfigError, match=r"peers=.*key of each client"):
        ValidatedRun(compose(words))


def test_a_ring_is_for_a_server_that_follows_the_protocol_and_its_lot_counts_in_delta():
    ring = SecureSumSettings("on", colluders=50, server="honest")
    assert "2^-40 a round, added to delta" in conditions(ring)
    assert "it follows the protocol (one that tells clients different things" in conditions(ring)
    assert exposure(ring).adversary == "a server that follows the protocol and sees only sums"
    seen = exposure(ring).clients["0"]
    complete = exposure(SecureSumSettings("on", colluders=50)).clients["0"]
    sums = Threat.SECURE_AGGREGATION
    # At a delta that the lot alone uses up, a sum is no better than its messages.
    tiny = 2.0**-41
    assert epsilon(seen, tiny, sums).epsilon == epsilon(seen, tiny).epsilon
    assert epsilon(complete, tiny, sums).epsilon < epsilon(seen, tiny, sums).epsilon
    assert 0 < epsilon(seen, 1e-5, sums).epsilon - epsilon(complete, 1e-5, sums).epsilon < 1e-6


def test_what_the_lot_may_cost_adds_up_over_rounds():
    once = noised(FINE, 100, failure=1e-6)
    sums = Threat.SECURE_AGGREGATION
    five = epsilon(RepeatedEvent(once, 5), 1e-5, sums).epsilon
    assert five == epsilon(RepeatedEvent(noised(FINE, 100), 5), 5e-6, sums).epsilon


def test_each_client_is_stated_by_its_own_weight():
    sizes = {0: 300, 1: 30}
    found = exposure(SecureSumSettings("on"), 12, Weights(sizes.__getitem__, 30, 300))
    heavy, light = (found.clients[name].events[0].event for name in ("0", "1"))
    assert (heavy.weight, light.weight, found.per_round.weight) == (300, 30, 300)
    assert {heavy.least_weight, light.least_weight} == {30}
