"""`python -m research.owners.signal` says what noise leaves, from public numbers alone."""

import pytest

from research.owners.signal import main

SIGNAL = ["dataset=digits", "federation.public=0", "engine=inline"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["strategy=gradient_rounds", "privacy.epsilon=0.1"], "not at this budget: at ε = 0.1"),
        (["strategy=gradient_rounds", "privacy.epsilon=50"], "of the score without noise"),
        (["strategy=gradient_rounds", "privacy.epsilon=inf"], "all of it: there is no noise"),
        (["strategy=class_moments", "privacy.epsilon=0.1"], "not at this budget"),
        (
            ["strategy=class_moments", "privacy.unit=record", "privacy.epsilon=30"],
            "no share is foretold: how much is kept depends on how the classes lie",
        ),
        (["strategy=class_moments", "privacy.epsilon=0.1"], "to stand above the noise:"),
    ],
)
def test_what_noise_leaves_is_said_from_public_numbers(words, said, capsys):
    main([*SIGNAL, *words])
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["strategy=votes", "federation.public=0.2"], "is for gradient_rounds and class_moments"),
        (["strategy=gradient_rounds", "strategy.nosuch=1"], "strategy.nosuch"),
    ],
)
def test_signal_is_for_two_strategies_and_settings_that_can_be(words, said):
    with pytest.raises(SystemExit, match=said):
        main([*SIGNAL, *words])
