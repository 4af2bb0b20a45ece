"""Who is named: whoever is proven wrong, or whom no few others can stand in for; nobody honest."""

import numpy as np
import pytest

from murmur.round.aggregator import groups_of
from murmur.secure_sum.blame import DEDUCED, Blame, fewest_liars
from murmur.secure_sum.settings import SecureSumSettings


def test_the_smallest_explanation_is_counted():
    assert fewest_liars([]) == 0
    assert fewest_liars([(1, 2), (3, 4)]) == 2
    assert fewest_liars([(1, 2), (2, 4)]) == 1
    assert fewest_liars([(1, 2), (2, 4)], honest=2) == 2
    assert fewest_liars([(2,)], honest=2) == np.inf


def test_somebody_is_named_only_where_no_few_others_explain_the_sums():
    blame = Blame(most=1)
    assert blame.add({}, [(1, 2, 3)]) == {}
    assert blame.add({}, [(3, 4, 5)]) == {3: DEDUCED}
    assert blame.spoiled == [] and blame.add({}, [(4, 5)]) == {}  # one liar is known already


def test_one_conflict_names_nobody_and_several_over_rounds_name_whom_they_share():
    blame = Blame(most=2)
    assert blame.add({}, [(4, 1)]) == {} and blame.add({}, [(1, 4), (2, 4)]) == {}
    assert blame.spoiled == [(1, 4), (2, 4)]  # the same two again say no more
    assert blame.add({}, [(4, 3)]) == {4: DEDUCED} and blame.spoiled == []


def test_what_more_liars_than_may_be_have_spoiled_names_nobody():
    blame = Blame(most=1)
    assert blame.add({}, [(1, 2), (3, 4)]) == {} == blame.accused


def test_a_proven_liar_explains_the_sums_that_it_was_in():
    blame = Blame(most=2)
    assert blame.add({2: "a proof"}, [(1, 2, 3), (3, 4, 5)]) == {2: "a proof"}
    assert blame.spoiled == [(3, 4, 5)]
    assert blame.add({2: "again"}, []) == {}


def test_blame_survives_a_checkpoint():
    blame, again = Blame(2), Blame(2)
    blame.add({2: "a proof"}, [(3, 4, 5)])
    again.restore(blame.state())
    assert (again.accused, again.spoiled) == (blame.accused, blame.spoiled)


@pytest.mark.parametrize("mood", ["always", "by chance", "to shift the blame"])
def test_no_honest_client_is_named_whenever_the_liars_lie(mood):
    rng, settings = np.random.default_rng(7), SecureSumSettings("on", groups=10)
    liars, blame, left = {3, 11, 29, 36, 48}, Blame(5), list(range(50))
    for _ in range(30):
        left = [c for c in left if c not in blame.accused]
        spoiled = []
        for group in groups_of(left, settings, 50, rng):
            here = liars & set(group)
            lies = {
                "always": bool(here),
                "by chance": bool(here) and rng.random() < 0.5,
                "to shift the blame": bool(here) and 0 in group,  # whenever client 0 is there
            }
            spoiled += [group] if lies[mood] else []
        blame.add({}, spoiled)
    assert set(blame.accused) <= liars
    if mood != "to shift the blame":
        assert set(blame.accused) == liars


def test_groups_share_out_the_cohort_anew_and_keep_their_minimum():
    settings, rng = SecureSumSettings("on", groups=5), np.random.default_rng(1)
    first, second = (groups_of(range(50), settings, 50, rng) for _ in range(2))
    assert sorted(c for group in first for c in group) == list(range(50)) and first != second
    assert {len(group) for group in first} == {10} and settings.least_survivors(50) == 7
    assert [len(group) for group in groups_of(range(20), settings, 50, rng)] == [10, 10]
    assert groups_of([4, 2], SecureSumSettings("on"), 50, rng) == [[2, 4]]
