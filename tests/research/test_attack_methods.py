"""Each attack succeeds where nothing protects, and no longer where noise does."""

import numpy as np
import pytest

from murmur.privacy.audit import success
from murmur.privacy.mechanisms.randomized_bits import BinaryRandomizedResponse
from murmur.privacy.mechanisms.randomized_response import RandomizedResponse
from murmur.privacy.noise import NoiseGenerator
from research.attacks.methods.labels import best_guess
from research.attacks.methods.linking import alike
from research.attacks.methods.membership import confidence, likelihood_ratio
from research.attacks.methods.reconstruction import image_of_change, likeness


def test_success_is_the_area_under_the_curve_and_hits_at_few_alarms():
    assert success([3, 4], [1, 2]) == success([2], [0]) != success([1], [1])
    assert success([1], [1]).auc == 0.5
    found = success([0.5, 2.5], [1, 2, 3, 0])
    assert found.auc == pytest.approx(4 / 8) and found.hits == 0
    rng = np.random.default_rng(1)
    normal = success(rng.normal(1, 1, 20_000), rng.normal(0, 1, 20_000))
    assert normal.auc == pytest.approx(0.760, abs=0.01)  # Φ(1/√2)
    assert normal.hits == pytest.approx(0.018, abs=0.006)  # 1 − Φ(Φ⁻¹(0.999) − 1)


@pytest.mark.parametrize(("yes", "no"), [([], [1]), ([1], []), ([np.nan], [1])])
def test_scores_that_say_nothing_are_refused(yes, no):
    with pytest.raises(ValueError, match="scores"):
        success(yes, no)


def test_confidence_is_the_logit_of_the_true_class():
    probabilities = np.array([0.1, 0.5, 0.9])
    assert confidence(-np.log(probabilities)) == pytest.approx(
        np.log(probabilities / (1 - probabilities))
    )
    assert np.isfinite(confidence(np.zeros(1))).all()


@pytest.mark.parametrize(("shift", "least", "most"), [(2.0, 0.87, 0.95), (0.0, 0.4, 0.6)])
def test_shadows_find_members_where_a_threshold_is_lost_among_hard_and_easy_examples(
    shift, least, most
):
    rng = np.random.default_rng(2)
    hardness, inside = rng.normal(0, 10, 400), rng.random((17, 400)) < 0.5
    inside[:4] = np.arange(4)[:, None] % 2 == 0
    scores = hardness + shift * inside + rng.normal(0, 1, inside.shape)
    target, members = scores[-1], inside[-1]
    ratios = likelihood_ratio(target, scores[:-1], inside[:-1])
    assert least < success(ratios[members], ratios[~members]).auc < most
    assert success(target[members], target[~members]).auc < 0.65
    with pytest.raises(ValueError, match="two models"):
        likelihood_ratio(target, scores[:1], inside[:1])


@pytest.mark.parametrize(
    ("gamma", "least", "most"), [(0.5, 1, 1), (0.2, 0.99, 1), (1e-3, 0.3, 0.7)]
)
def test_a_client_is_known_by_its_bits_until_they_are_noise(gamma, least, most):
    rng, noise = np.random.default_rng(3), NoiseGenerator.seeded("linking")
    shared = rng.random(3_000) < 0.5
    bits = np.where(rng.random((20, 3_000)) < 0.2, ~shared, shared).astype(np.uint8)
    if gamma < 0.5:
        flips = BinaryRandomizedResponse(gamma)
        earlier, later = flips.privatize(bits, noise), flips.privatize(bits, noise)
    else:
        earlier = later = bits
    assert least <= success(*alike(earlier, later)).auc <= most


@pytest.mark.parametrize(
    ("epsilon", "least", "most"), [(1e6, 1, 1), (2.0, 0.7, 0.9), (0.01, 0, 0.2)]
)
def test_the_best_guesser_knows_a_class_by_labels_until_they_are_noise(epsilon, least, most):
    truth = np.arange(400) % 10
    mechanism = RandomizedResponse(epsilon, 10)
    reports = mechanism.privatize(np.repeat(truth[:, None], 8, 1), NoiseGenerator.seeded("guess"))
    keep = np.expm1(min(epsilon, 500)) / (np.expm1(min(epsilon, 500)) + 10)
    guesses = best_guess(reports, keep, np.full(10, 0.1))
    assert least <= np.mean(guesses == truth) <= most


def test_the_best_guesser_weighs_what_was_known_before():
    assert best_guess(np.array([[1]]), 0.1, np.array([0.9, 0.1]))[0] == 0
    assert best_guess(np.array([[1]]), 1.0, np.array([0.9, 0.1]))[0] == 1


@pytest.mark.parametrize(("sigma", "least", "most"), [(0.0, 0.999, 1.001), (1.0, -0.6, 0.6)])
def test_an_image_shows_in_its_gradient_until_noise_covers_it(sigma, least, most):
    rng = np.random.default_rng(4)
    image, change = rng.random(64), rng.normal(0, 0.1, 10)
    weights = np.outer(change, image) + rng.normal(0, sigma, (10, 64))
    biases = change + rng.normal(0, sigma, 10)
    [[found]] = likeness(image_of_change(weights, biases)[None], image[None])
    assert least <= found <= most
    assert not image_of_change(np.ones((2, 3)), np.zeros(2)).any()
