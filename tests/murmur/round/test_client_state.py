"""What clients remember can be had as of a round, also after later rounds were made."""

import numpy as np
import pytest

from murmur.round.client_state import ClientState, ClientStateError


def arrays(value):
    return {"x": np.full(3, value, np.float32)}


@pytest.fixture
def state(tmp_path):
    state = ClientState(tmp_path / "clients")
    for number in (2, 5, 9):
        state.save(7, number, arrays(number))
    return state


def value(state, as_of, client=7):
    found = state.load(client, as_of)
    return None if found is None else found["x"][0]


def test_the_last_two_rounds_are_kept(state):
    assert [value(state, number) for number in (5, 6, 8, 9, 20)] == [5, 5, 5, 9, 9]
    assert sorted(path.stem for path in (state.folder / "7").iterdir()) == ["5", "9"]


def test_nothing_was_remembered_before_the_first_round(state):
    assert value(state, 1) is None
    assert value(state, 9, client=8) is None


def test_a_state_that_is_gone_is_an_error_and_no_fresh_start(state):
    for number in (2, 4):
        with pytest.raises(ClientStateError, match=f"round {number} is no longer kept"):
            state.load(7, number)


def test_a_round_done_again_replaces_it_and_what_came_after(state):
    state.save(7, 6, arrays(60))
    assert [value(state, number) for number in (5, 6, 9)] == [5, 60, 60]


def test_a_run_that_starts_again_forgets_all(state):
    state.save(7, 1, arrays(10))
    assert [value(state, number) for number in (0, 1, 9)] == [None, 10, 10]


def test_damage_and_a_file_of_another_round_are_noticed(state):
    nine = state.folder / "7" / "9.safetensors"
    nine.write_bytes((state.folder / "7" / "5.safetensors").read_bytes())
    with pytest.raises(ClientStateError, match="another client or round"):
        state.load(7, 9)
    nine.write_bytes(nine.read_bytes()[:-1])
    with pytest.raises(ClientStateError, match="damaged or edited"):
        state.load(7, 9)
