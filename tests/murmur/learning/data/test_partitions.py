import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.algorithms.privatekt.partition import AuthorsPartition
from murmur.learning.data import class_counts
from murmur.learning.data.class_counts import (
    apportion,
    draw_counts,
    label_counts,
    symmetric_dirichlet,
)
from murmur.learning.data.partitions import IID, Dirichlet, QuantitySkew, Shards, Virtual
from murmur.random import experiment_rng

CLASSES = 10
MNIST_LIKE = np.tile(np.arange(CLASSES), 4800)
ALPHAS = st.floats(-3, 3).map(lambda exponent: 10.0**exponent)


def draw(partition, labels, num_clients, num_classes=CLASSES, seed=0):
    return partition(labels, num_clients, num_classes, experiment_rng(seed, "partition"))


def require_sound(shares, labels, *, complete=True, min_size=1):
    together = np.concatenate(shares)
    assert len(np.unique(together)) == len(together)
    assert together.min() >= 0 and together.max() < len(labels)
    assert min(map(len, shares)) >= min_size
    for share in shares:
        assert share.dtype == np.int64
        assert np.all(np.diff(share) > 0)
    if complete:
        assert len(together) == len(labels)


@st.composite
def populations(draw):
    """Labels, possibly with missing and rare classes, and a number of clients they suffice for."""
    labels = draw(st.lists(st.integers(0, CLASSES - 1), min_size=1, max_size=200))
    num_clients = draw(st.integers(1, len(labels)))
    return np.array(labels, dtype=np.int64), num_clients, draw(st.integers(0, 2**31))


@given(populations())
@settings(max_examples=60, derandomize=True)
def test_iid_shares_are_disjoint_complete_and_even(population):
    labels, num_clients, seed = population
    shares = draw(IID(), labels, num_clients, seed=seed)
    require_sound(shares, labels)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(populations(), ALPHAS)
@settings(max_examples=150, derandomize=True)
def test_dirichlet_per_client_ends_for_every_alpha_with_even_sizes(population, alpha):
    labels, num_clients, seed = population
    shares = draw(Dirichlet(alpha), labels, num_clients, seed=seed)
    require_sound(shares, labels)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(populations(), ALPHAS)
@settings(max_examples=100, derandomize=True)
def test_the_authors_partition_ends_in_shares_or_in_a_clear_error(population, alpha):
    labels, num_clients, seed = population
    try:
        shares = draw(AuthorsPartition(alpha, max_retries=20), labels, num_clients, seed=seed)
    except ValueError as error:
        assert str(error).startswith("min_size=1: ")
    else:
        require_sound(shares, labels)


@given(populations(), st.integers(1, 4))
@settings(max_examples=100, derandomize=True)
def test_shards_hold_exactly_so_many_classes_or_say_why_not(population, per_client):
    labels, num_clients, seed = population
    try:
        shares = draw(Shards(per_client), labels, num_clients, seed=seed)
    except ValueError as error:
        assert str(error).startswith(("num_clients=", "classes_per_client="))
        return
    present = len(np.unique(labels))
    require_sound(shares, labels, complete=num_clients * per_client >= present)
    assert all(len(np.unique(labels[share])) == per_client for share in shares)


@given(populations(), st.floats(0, 5), st.none() | ALPHAS)
@settings(max_examples=100, derandomize=True)
def test_a_power_law_of_sizes_is_complete_and_falls(population, exponent, alpha):
    labels, num_clients, seed = population
    shares = draw(QuantitySkew(exponent=exponent, alpha=alpha), labels, num_clients, seed=seed)
    require_sound(shares, labels)
    assert np.all(np.diff([len(share) for share in shares]) <= 0)


EVERY = [
    IID(),
    Dirichlet(0.5),
    Shards(2),
    QuantitySkew(exponent=1.0, alpha=0.5),
    AuthorsPartition(),
]
names = [type(partition).__name__ for partition in EVERY]


@pytest.mark.parametrize("partition", EVERY, ids=names)
def test_the_result_follows_from_the_generator_alone(partition):
    first, again = draw(partition, MNIST_LIKE, 40), draw(partition, MNIST_LIKE, 40)
    other = draw(partition, MNIST_LIKE, 40, seed=1)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("partition", EVERY, ids=names)
def test_more_clients_than_examples_is_refused(partition):
    with pytest.raises(ValueError, match=r"^num_clients=21: there are only 20 private examples"):
        draw(partition, MNIST_LIKE[:20], 21)


@pytest.mark.parametrize("partition", EVERY, ids=names)
def test_a_label_beyond_the_classes_is_refused(partition):
    with pytest.raises(ValueError, match=r"^labels=0\.\.9: .*num_classes=9"):
        draw(partition, MNIST_LIKE, 4, num_classes=9)


@pytest.mark.parametrize(
    ("partition", "num_clients"),
    [
        (IID(), 10_000),
        (Dirichlet(1e-3), 10_000),
        (Shards(2), 10_000),
        (QuantitySkew(exponent=1.0, alpha=0.5), 10_000),
        (AuthorsPartition(), 1000),
    ],
)
def test_thousands_of_clients_get_their_shares(partition, num_clients):
    require_sound(draw(partition, MNIST_LIKE, num_clients), MNIST_LIKE)


def mixtures(partition, num_clients):
    counts = label_counts(draw(partition, MNIST_LIKE, num_clients), MNIST_LIKE, CLASSES)
    return counts / counts.sum(axis=1, keepdims=True)


def test_a_smaller_alpha_skews_more():
    largest = [mixtures(Dirichlet(alpha), 80).max(axis=1).mean() for alpha in (0.2, 1, 100)]
    assert largest[0] > largest[1] > largest[2]
    assert largest[2] < 0.2


def test_dirichlet_per_client_has_the_variance_of_its_distribution():
    # Var of a share under Dir(α·1_C) is (1/C)(1-1/C)/(Cα+1); 0.015 for α = 0.5, C = 10.
    # Of 5,000 independent shares the sample variance has a standard error of about 3%.
    variances = [
        mixtures(Dirichlet(0.5), 500).var(),
        symmetric_dirichlet(experiment_rng(0, "x"), 0.5, 500, CLASSES).var(),
    ]
    assert variances[1] == pytest.approx(0.015, rel=0.12)
    # Multinomial draws of 96 add (1/96)·E[q(1-q)] = 0.00078; exhausted classes take some away.
    assert variances[0] == pytest.approx(0.0158, rel=0.15)


def test_dirichlet_per_client_does_not_leave_the_last_clients_a_single_class():
    largest = np.concatenate([draw_largest(seed)[-5:] for seed in range(5)])
    # The largest of ten shares under α = 0.5 averages 0.36, deviates by 0.11.
    assert largest.mean() < 0.36 + 4 * 0.11 / 5


def draw_largest(seed):
    shares = draw(Dirichlet(0.5), MNIST_LIKE, 40, seed=seed)
    counts = label_counts(shares, MNIST_LIKE, CLASSES)
    return counts.max(axis=1) / counts.sum(axis=1)


def test_shards_give_every_class_as_many_holders():
    counts = label_counts(draw(Shards(2), MNIST_LIKE, 100), MNIST_LIKE, CLASSES)
    assert np.all((counts > 0).sum(axis=0) == 20)
    assert np.all(counts.sum(axis=1) == 480)


def test_shards_of_more_classes_than_there_are_is_refused():
    with pytest.raises(ValueError, match=r"^classes_per_client=3: must be at most 2"):
        draw(Shards(3), np.array([0, 1] * 10), 4)


def test_the_authors_partition_is_theirs():
    shares = draw(AuthorsPartition(0.5, local_size=600), MNIST_LIKE, 80)
    require_sound(shares, MNIST_LIKE)
    sizes = np.array([len(share) for share in shares])
    # Exact while no class has run out, smaller afterwards, all that remains for the last.
    assert np.all(sizes[:40] == 600)
    assert np.all(sizes[:-1] <= 600)
    assert sizes[-1] == 48_000 - sizes[:-1].sum() > 600
    by_default = draw(AuthorsPartition(), MNIST_LIKE, 80)
    assert all(np.array_equal(a, b) for a, b in zip(shares, by_default, strict=True))


def test_kd_dpfls_groups_are_given_in_their_order():
    groups = {"large": {"count": 5, "size": 6000}, "general": {"count": 40, "size": 400}}
    shares = draw(QuantitySkew(groups=groups), MNIST_LIKE, 45)
    require_sound(shares, MNIST_LIKE, complete=False)
    assert [len(share) for share in shares] == [6000] * 5 + [400] * 40


def test_groups_may_have_skewed_labels():
    groups = {f"group {size}": {"count": 1, "size": size} for size in (7, 1, 30)}
    shares = draw(QuantitySkew(groups=groups, alpha=0.1), MNIST_LIKE[:50], 3)
    require_sound(shares, MNIST_LIKE[:50], complete=False)
    assert [len(share) for share in shares] == [7, 1, 30]


def test_a_million_virtual_clients_are_drawn_when_they_are_asked():
    shares = draw(Virtual(size=20), MNIST_LIKE[:300], 10**6)
    assert len(shares) == 10**6
    assert shares.sizes.tolist() == [20] * 10**6
    last = shares[999_999]
    assert len(last) == 20 and np.all(np.diff(last) >= 0)
    assert np.array_equal(last, draw(Virtual(size=20), MNIST_LIKE[:300], 10**6)[999_999])
    assert not np.array_equal(last, shares[999_998])
    assert not np.array_equal(last, draw(Virtual(size=20), MNIST_LIKE[:300], 10**6, 10, 1)[999_999])
    with pytest.raises(IndexError, match="client=1000000"):
        shares[10**6]


def test_virtual_clients_draw_every_example_alike_or_by_their_own_mixture():
    labels = np.repeat(np.arange(3), [10, 30, 60])
    even = draw(Virtual(size=10), labels, 3000, num_classes=4)
    held = np.bincount(np.concatenate(even), minlength=100)
    assert abs(held - 300).max() < 5 * np.sqrt(300)
    skewed = draw(Virtual(size=10, alpha=0.05), labels, 500, num_classes=4)
    counts = label_counts(skewed, labels, 4)
    assert np.all(counts.sum(axis=1) == 10) and not counts[:, 3].any()
    assert counts.max(axis=1).mean() > 9
    # Each of the three classes present is as likely as the others, however rare it is.
    assert np.allclose(counts[:, :3].mean(axis=0), 10 / 3, atol=1)


def test_virtual_clients_number_their_rows_as_all_others_do():
    shares, places = draw(Virtual(size=5), MNIST_LIKE[:50], 4), np.arange(100, 150)
    for own, moved in zip(shares, shares.restricted_to(places), strict=True):
        assert np.array_equal(own + 100, moved)


def test_classes_run_out_alike_in_blocks_and_one_client_at_a_time(monkeypatch):
    rng = experiment_rng(3, "x")
    labels = rng.choice(CLASSES, 5000, p=np.arange(1, 11) / 55)
    cases = [(Dirichlet(alpha), clients) for alpha in (1e-3, 0.3, 50) for clients in (7, 900)]
    whole = [draw(partition, labels, clients) for partition, clients in cases]
    monkeypatch.setattr(class_counts, "_MAX_BLOCK_CLIENTS", 1)
    for (partition, clients), shares in zip(cases, whole, strict=True):
        again = draw(partition, labels, clients)
        assert all(map(np.array_equal, shares, again))


def test_settings_from_hydra_work_as_they_are():
    from omegaconf import OmegaConf

    groups = OmegaConf.create(
        {"large": {"count": 1, "size": 9}, "general": {"count": 2, "size": 4}}
    )
    assert [len(s) for s in draw(QuantitySkew(groups=groups), MNIST_LIKE, 3)] == [9, 4, 4]


TWO = {"sites": {"count": 2, "size": 51}}


@pytest.mark.parametrize(
    ("partition", "num_clients", "said"),
    [
        (QuantitySkew(groups=TWO), 3, r"^num_clients=3: groups describe 2 clients"),
        (QuantitySkew(groups=TWO), 2, r"^groups=102 examples.*only 100"),
        (QuantitySkew(exponent=1.0, min_size=26), 4, r"^min_size=26: .*need 104 examples"),
        (Dirichlet(min_size=26), 4, r"^min_size=26: .*need 104 examples"),
        (AuthorsPartition(1e-3, min_size=5), 20, r"^min_size=5: no draw in max_retries=100"),
    ],
)
def test_what_cannot_be_had_is_refused_with_the_reason(partition, num_clients, said):
    with pytest.raises(ValueError, match=said):
        draw(partition, MNIST_LIKE[:100], num_clients)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (Dirichlet, {"alpha": 0}),
        (Dirichlet, {"alpha": -1}),
        (Dirichlet, {"alpha": float("nan")}),
        (Dirichlet, {"alpha": float("inf")}),
        (Dirichlet, {"alpha": "0.5"}),
        (Dirichlet, {"min_size": 0}),
        (AuthorsPartition, {"max_retries": 0}),
        (AuthorsPartition, {"alpha": 0}),
        (AuthorsPartition, {"local_size": 0}),
        (Shards, {"classes_per_client": 0}),
        (Shards, {"classes_per_client": 1.5}),
        (Virtual, {"size": 0}),
        (Virtual, {"alpha": 0}),
        (QuantitySkew, {"exponent": -1}),
        (QuantitySkew, {"exponent": None}),
        (QuantitySkew, {"groups": {"large": 5}}),
        (QuantitySkew, {"groups": {"large": {"count": 0, "size": 5}}}),
        (QuantitySkew, {"groups": {"large": {"count": 1, "size": 5.5}}}),
    ],
)
def test_bad_settings_are_refused_by_name(kind, values):
    (name,) = values
    with pytest.raises(ValueError, match=rf"^{name}.*[=:]"):
        kind(**values)


def test_one_rule_for_sizes_and_not_two():
    with pytest.raises(ValueError, match="exactly one of them must be set"):
        QuantitySkew(exponent=1.0, groups=TWO)


@given(st.integers(0, 10_000), st.lists(st.floats(0, 1), min_size=1, max_size=30))
@settings(max_examples=100, derandomize=True)
def test_apportioning_loses_nothing_and_is_off_by_less_than_one(total, weights):
    shares = np.array(weights) + 1e-9
    counts = apportion(total, shares)
    assert counts.sum() == total
    assert np.all(np.abs(counts - total * shares / shares.sum()) < 1 + 1e-6)


@pytest.mark.parametrize("alpha", [1e-6, 1e-3, 1.0, 1e3, 1e6])
def test_dirichlet_draws_are_finite_at_both_ends(alpha):
    rows = symmetric_dirichlet(experiment_rng(0, "x"), alpha, 1000, CLASSES)
    assert np.all(np.isfinite(rows)) and np.allclose(rows.sum(axis=1), 1)
    assert np.all(np.abs(rows.mean(axis=0) - 0.1) < 4 * 0.3 / np.sqrt(1000))


def test_counts_follow_the_proportions_while_they_last_and_then_what_is_left():
    proportions = np.array([[1.0, 0, 0], [0, 1.0, 0]])
    counts = draw_counts(np.array([5, 7]), proportions, np.array([9, 4, 3]), experiment_rng(0, "x"))
    assert counts[0].tolist() == [5, 0, 0]
    assert counts[1, 1] == 4 and counts[1].sum() == 7
