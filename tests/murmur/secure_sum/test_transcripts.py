"""No coalition of a lying server and its clients learns more than one confirmed sum."""

import dataclasses

import pytest

from murmur.secure_sum.terms import SumTerms
from tests.murmur.secure_sum.secure_summing import terms
from tests.murmur.secure_sum.transcripts import Transcript


def transcript(number):
    """Mostly small cohorts: what goes wrong does so in these as well."""
    n = 50 if number % 100 == 50 else 20 if number % 20 == 10 else 5
    return Transcript(n, number)


@pytest.mark.parametrize(
    "numbers", [range(60), pytest.param(range(60, 10_060), marks=pytest.mark.long)], ids=len
)
def test_a_lying_server_learns_no_sum_but_one_confirmed_one(numbers):
    revealed = 0
    for number in numbers:
        found = transcript(number).run()
        assert found.violations() == [], number
        revealed += bool(found.sums())
    assert revealed > len(numbers) // 20  # else the coalition tries nothing that could succeed


@pytest.mark.parametrize("n", [5, 20])
def test_a_calm_transcript_reveals_the_one_sum(n):
    sums = [Transcript(n, number, terms(n), calm=True).run().sums() for number in range(8)]
    assert any(len(found) == 1 for found in sums)


def test_the_transcripts_notice_thresholds_that_are_too_low(monkeypatch):
    monkeypatch.setattr(SumTerms, "_require_safe_threshold", lambda self: None)
    low = dataclasses.replace(terms(8, minimum=0.5), threshold=2, minimum=4)
    found = [Transcript(8, number, low, calm=True).run().violations() for number in range(20)]
    assert any("both secrets" in line for lines in found for line in lines)
