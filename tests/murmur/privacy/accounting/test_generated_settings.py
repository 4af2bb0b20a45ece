"""Whatever the accountant is asked, it answers: never below the truth, nor far above.

That is 1% at most where docs/accounting.md says "exact".
"""

import pytest

from murmur.privacy.accounting import compose, privacy_loss
from tests.murmur.privacy.accounting.generated_settings import drawn


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "numbers", [range(80), pytest.param(range(80, 20_080), marks=pytest.mark.long)], ids=len
)
def test_every_setting_has_an_answer_that_is_not_below_the_truth(numbers):
    faults = {}
    for number in numbers:
        setting = drawn(number)
        try:
            found = setting.faults()
        except Exception as error:  # every other setting is still tried
            found = [repr(error)]
        if found:
            faults[number] = found, setting
    assert not faults


@pytest.mark.parametrize("factor", [0.99, 1.02])
def test_an_accountant_that_is_wrong_is_found(monkeypatch, factor):
    truly = privacy_loss.epsilon
    monkeypatch.setattr(privacy_loss, "epsilon", lambda *given: factor * truly(*given))
    compose._epsilon.cache_clear()
    wrong = [number for number in range(16) if drawn(number).faults()]
    compose._epsilon.cache_clear()
    assert len(wrong) > 5
