import numpy as np
import pytest

from murmur.privacy.accounting import elementary_losses, epsilon, privacy_loss
from murmur.privacy.accounting.calibrate import label_epsilon
from murmur.privacy.events import RandomizedResponseEvent, RepeatedEvent

DELTA = 1e-5


def composed_epsilon(each, categories, count, delta):
    one = elementary_losses.label_loss(each, categories, count)
    return privacy_loss.epsilon([one], delta)


@pytest.mark.parametrize(
    ("per_round", "labels", "rounds", "basic", "rdp", "exact"),
    [
        (5, 2, 10, "50", "49.3", "49.0"),
        (5, 2, 100, "500", "356", "347"),
        (5, 2, 250, "1250", "809", "795"),
        (1, 2, 10, "10", "5.5", "5.0"),
        (1, 10, 250, "250", "12.6", "11.8"),
    ],
)
def test_the_table_of_privatekt(per_round, labels, rounds, basic, rdp, exact):
    one_round = RepeatedEvent(RandomizedResponseEvent(per_round / labels, 10), labels)
    bounds = epsilon(RepeatedEvent(one_round, rounds), DELTA).bounds
    for name, golden in {"basic": basic, "rdp": rdp, "exact": exact}.items():
        assert f"{bounds[name]:.{len(golden.partition('.')[2])}f}" == golden


@pytest.mark.parametrize("epsilon0", [1e-6, 0.5, 800.0])
def test_report_probabilities_add_up_and_have_the_ratio_of_epsilon(epsilon0):
    true, other = elementary_losses.report_probabilities(epsilon0, 7)
    assert true + 6 * other == pytest.approx(1.0, rel=1e-15)
    if epsilon0 < 700:
        assert np.log(true / other) == pytest.approx(epsilon0, rel=1e-9)


def test_dp_accounting_agrees_with_the_exact_composition():
    from dp_accounting.pld import privacy_loss_distribution as pld

    _, other = elementary_losses.report_probabilities(0.5, 10)
    library = pld.from_randomized_response(10 * other, 10).self_compose(80)
    ours = composed_epsilon(0.5, 10, 80, DELTA)
    # The library rounds every loss up to its lattice.
    assert ours <= library.get_epsilon_for_delta(DELTA) <= ours * (1 + 1e-4)
    labels = RepeatedEvent(RandomizedResponseEvent(0.5, 10), 80)
    level = library.get_delta_for_epsilon(6.0)
    assert epsilon(labels, level).epsilon == pytest.approx(6.0, rel=1e-3)


def test_dp_accountings_accountant_still_ignores_the_count_and_ours_does_not():
    # When the first assertion fails, the library has been repaired: say so in the docs.
    import dp_accounting

    def library(count):
        accountant = dp_accounting.pld.PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
        event = dp_accounting.RandomizedResponseDpEvent(0.5, 10)
        accountant.compose(dp_accounting.SelfComposedDpEvent(event, count))
        return accountant.get_epsilon(DELTA)

    epsilon0 = np.log1p(0.5 * 10 / 0.5)  # at which a label is kept with probability 1/2
    assert library(100) == library(1)
    assert library(1) == pytest.approx(composed_epsilon(epsilon0, 10, 1, DELTA), rel=1e-3)
    assert composed_epsilon(epsilon0, 10, 100, DELTA) > 30 * library(100)


@pytest.mark.parametrize("labels", [1, 20, 500, 20_000])
def test_a_total_epsilon_is_spent_but_not_exceeded(labels):
    per_label = label_epsilon(5.0, DELTA, 10, labels)
    total = epsilon(RepeatedEvent(RandomizedResponseEvent(per_label, 10), labels), DELTA).epsilon
    assert 5.0 * (1 - 1e-5) <= total <= 5.0
    assert per_label >= 5.0 / labels
