import math
from itertools import pairwise, product

import numpy as np
import pytest

from murmur.privacy.accounting import Threat, View, epsilon, rdp
from murmur.privacy.accounting.elementary_losses import report_probabilities, shuffled_loss
from murmur.privacy.accounting.flatten import flatten
from murmur.privacy.events import (
    LaplaceEvent,
    PureEvent,
    RandomizedResponseEvent,
    RepeatedEvent,
    ShuffledEvent,
)
from tests.murmur.privacy.accounting.true_delta import summed_delta
from tests.sums import reported

SLOTS = RepeatedEvent(ShuffledEvent(RandomizedResponseEvent(2.5, 10), 40), 500)


def test_five_hundred_slots_of_privatekt():
    # The specification's "about 244" is the clone bound composed by Rényi divergence; the
    # same bound composed exactly gives 235.
    spend = epsilon(SLOTS, 1e-5, Threat.SHUFFLE)
    assert f"{spend.bounds['rdp']:.0f}" == "244"
    assert f"{spend.epsilon:.0f}" == "235"
    assert spend.bounds["shuffle"] == spend.epsilon


def test_shuffling_is_no_help_against_who_sees_the_senders():
    local = epsilon(SLOTS, 1e-5)
    plain = epsilon(RepeatedEvent(RandomizedResponseEvent(2.5, 10), 500), 1e-5)
    assert local.bounds == plain.bounds


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("delta", [1e-5, 1e-3])
@pytest.mark.parametrize(("clients", "epsilon0", "categories"), [(20, 1, 10), (45, 3, 2)])
def test_a_worst_loss_far_more_likely_than_delta_has_an_answer(
    clients, epsilon0, categories, delta
):
    """The loss before the worst is far below it, so that nothing but the worst seems to be left."""
    label = RandomizedResponseEvent(epsilon0, categories)
    stated = epsilon(reported(label, clients), delta, Threat.SHUFFLE).bounds["shuffle"]
    one = shuffled_loss(label, epsilon0, clients)
    assert summed_delta([one], stated) <= delta * (1 + 1e-9)
    assert summed_delta([one], stated * (1 - 1e-6)) > delta


@pytest.mark.parametrize("categories", [2, 3])
@pytest.mark.parametrize("total", [0.0, 0.2, 0.6])
def test_the_bound_is_above_every_shuffled_response(categories, total):
    epsilon0, clients = 1.2, 4
    true, other = report_probabilities(epsilon0, categories)
    bound = shuffled_loss(RandomizedResponseEvent(epsilon0, categories), epsilon0, clients)
    worst = 0.0
    for others in product(range(categories), repeat=clients - 1):
        histograms = [{}, {}]
        for reports in product(range(categories), repeat=clients):
            seen = tuple(sorted(reports))
            for mine in (0, 1):
                chance = math.prod(
                    true if r == h else other for r, h in zip(reports, (mine, *others), strict=True)
                )
                histograms[mine][seen] = histograms[mine].get(seen, 0.0) + chance
        delta = sum(
            max(0.0, histograms[0][seen] - math.exp(total) * histograms[1][seen])
            for seen in histograms[0]
        )
        worst = max(worst, delta)
    assert worst <= summed_delta([bound], total)
    assert summed_delta([bound], total) < 1.6 * unshuffled_delta(epsilon0, total)


def unshuffled_delta(epsilon0, total):
    """δ(ε) of one ε0-DP report by itself."""
    return (math.exp(epsilon0) - math.exp(total)) / (1 + math.exp(epsilon0))


def test_one_client_is_not_shuffled():
    part = shuffled_loss(PureEvent(1.0), 1.0, 1)
    for total in (0.0, 0.5, 0.9):
        alone = unshuffled_delta(1.0, total)
        assert summed_delta([part], total) == pytest.approx(alone, rel=1e-4)


def test_larger_cohorts_hide_better():
    costs = [
        epsilon(RepeatedEvent(ShuffledEvent(PureEvent(1.0), n), 20), 1e-5, Threat.SHUFFLE).epsilon
        for n in (1, 2, 10, 100, 1000)
    ]
    assert all(a > b for a, b in pairwise(costs))


def test_the_closed_form_of_feldman_mcmillan_talwar_is_above():
    # Theorem 3.1, for ε0 ≤ ln(n/(16 ln(2/δ))).
    n, epsilon0, delta = 4000, 1.0, 1e-6
    assert epsilon0 <= math.log(n / (16 * math.log(2 / delta)))
    e = math.exp(epsilon0)
    closed = math.log1p(
        (e - 1) / (e + 1) * (8 * math.sqrt(e * math.log(4 / delta) / n) + 8 * e / n)
    )
    ours = epsilon(ShuffledEvent(PureEvent(epsilon0), n), delta, Threat.SHUFFLE).epsilon
    assert 0.05 * closed < ours < closed


def test_secure_sums_of_one_hot_labels_are_shuffled_labels():
    label = RandomizedResponseEvent(2.5, 10)
    summed = flatten(reported(label, 40), View(Threat.SECURE_AGGREGATION))
    assert dict(summed) == {ShuffledEvent(label, 40): 1}


def test_other_pure_releases_use_the_general_bound():
    noisy = ShuffledEvent(LaplaceEvent(1.0), 40)
    spend = epsilon(RepeatedEvent(noisy, 10), 1e-5, Threat.SHUFFLE)
    assert spend.epsilon <= epsilon(RepeatedEvent(LaplaceEvent(1.0), 10), 1e-5).epsilon


def test_renyi_divergence_of_a_shuffled_label_is_below_the_label_itself():
    label = RandomizedResponseEvent(2.5, 10)
    for order in np.exp(np.linspace(0.01, 4, 9)):
        hidden = rdp.divergence(ShuffledEvent(label, 40), float(order))
        assert 0 < hidden < rdp.divergence(label, float(order))
