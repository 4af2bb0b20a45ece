"""Every number of every file of ``conf``, out of all bounds; ``test_numbers`` has a sample."""

import pytest

from tests.fl_app.config.test_numbers import GROUPS, cases, faults, files

__all__ = ["files"]  # the fixture


@pytest.mark.parametrize(("group", "name", "key", "value"), cases(*GROUPS))
def test_every_number_out_of_all_bounds_is_one_sentence(files, group, name, key, value):
    assert faults(files, group, name, key, value) == []
