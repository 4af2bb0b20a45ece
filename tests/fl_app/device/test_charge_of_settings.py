"""Whatever a server sets that conf/ lists for devices, a release hides what was charged for it.

Local training is replaced by the worst that it could do:
one record, or a client's data, turns its result around. The rest is the client's own code.
``make test-long`` tries each key with each strategy, and thousands of combinations.
"""

import json
from collections import Counter

import numpy as np
import pytest

from fl_app.config.errors import ConfigError
from tests import charge_tape
from tests.asked_of_device import CASES, SIZES, Asked, own_keys

record = charge_tape.record


def tried(case, settings, tmp_path, monkeypatch, record):
    """How often a setting was refused, answered without protection, or answered and hidden."""
    outcomes, largest, answered = Counter(), 0.0, set()
    for chosen in settings:
        said = [f"{key}={json.dumps(v).replace('Infinity', 'inf')}" for key, v in chosen.items()]
        sizes = None if "federation.num_clients" in chosen else SIZES
        try:
            words = ["federation.num_clients=3", *case.words, *said]
            asked = Asked(words, tmp_path, sizes, case.purpose)
        except (ConfigError, ValueError):
            outcomes["refused"] += 1
            continue
        with monkeypatch.context() as patch:
            share = asked.worst(patch, record)
        outcomes["open" if share is None else "hidden"] += 1
        answered |= chosen.keys() if share is not None else set()
        largest = max(largest, share or 0.0)
        assert largest <= 1 + 1e-9, said
    return outcomes, largest, answered


@pytest.mark.parametrize("name", CASES)
def test_no_value_of_any_key_makes_a_release_cost_more_than_its_charge(
    tmp_path, monkeypatch, record, name
):
    case = CASES[name]
    settings = case.one_by_one(own_keys(name))
    outcomes, largest, answered = tried(case, settings, tmp_path, monkeypatch, record)
    assert outcomes["hidden"] > outcomes["refused"] and answered
    assert largest > 0.7  # neighbours that use up what was charged were found


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_nor_does_any_key_with_any_strategy_or_several_at_once(tmp_path, monkeypatch, record, name):
    case = CASES[name]
    settings = [*case.one_by_one(), *case.together(200, np.random.default_rng(0))]
    tried(case, settings, tmp_path, monkeypatch, record)
