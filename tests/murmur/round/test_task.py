"""Errors in words: a class of this program is no word of its users."""

import pytest

from fl_app.config.errors import ConfigError
from murmur.round.task import RequestError, RunError, TaskError, in_words


@pytest.mark.parametrize("kind", [RunError, TaskError, RequestError, ConfigError])
def test_errors_of_our_own_stand_without_their_class(kind):
    assert in_words(kind("model=1: too small")) == "model=1: too small"


def test_others_are_named_and_so_is_one_that_says_nothing():
    assert in_words(ArithmeticError("the loss")) == "ArithmeticError: the loss"
    assert in_words(RunError()) == "RunError: "
