"""Bins of a table's columns, from what is public about them alone."""

import numpy as np
import pytest

from murmur.learning.features.bins import Bins

SCHEMA = {
    "carrier": {"list": ["AA", "UA"]},
    "hour": {"range": [0, 24], "bins": 4},
}


def rows(*values):
    return np.array(values, np.float32).reshape(len(values), -1, 1, 1)


def test_every_column_and_pair_has_one_bin_and_rows_have_length_one():
    bins = Bins(SCHEMA, [["carrier", "hour"]])
    assert bins.width == 3 + 6 + 18
    found = bins(rows([0, 5], [1, 23.9], [-1, 30]))
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)
    assert (found > 0).sum(axis=1).tolist() == [3, 3, 3]


def test_what_is_unknown_or_out_of_range_has_bins_of_its_own():
    bins = Bins(SCHEMA)
    assert bins.places(rows([-1, 12])[:, :, 0, 0]).tolist() == [[2, 3 + 2]]
    assert bins.places(rows([0, -0.1])[:, :, 0, 0]).tolist() == [[0, 3 + 4]]
    assert bins.places(rows([0, 24.1])[:, :, 0, 0]).tolist() == [[0, 3 + 5]]
    assert bins.places(rows([0, 24])[:, :, 0, 0]).tolist() == [[0, 3 + 3]]
    assert bins.columns[0].labels() == ["AA", "UA", "any other"]
    assert bins.columns[1].labels()[-2:] == ["below 0, or missing", "above 24"]


@pytest.mark.parametrize("odd", [-1, 2, 99, 0.5, 1e38, np.nan, np.inf, -np.inf, 1e-45])
def test_whatever_is_no_place_in_the_list_is_any_other(odd):
    assert Bins(SCHEMA).places(rows([odd, 5])[:, :, 0, 0]).tolist() == [[2, 3 + 0]]


@pytest.mark.parametrize(
    ("odd", "place"), [(np.nan, 4), (-np.inf, 4), (-1e38, 4), (np.inf, 5), (1e38, 5), (1e-45, 0)]
)
def test_every_number_has_a_bin_of_its_range_or_beside_it(odd, place):
    assert Bins(SCHEMA).places(rows([0, odd])[:, :, 0, 0]).tolist() == [[0, 3 + place]]


def test_the_schema_of_bins_makes_the_same_bins():
    told = Bins(SCHEMA).schema
    assert Bins(told).digest == Bins(SCHEMA).digest and Bins(told).columns == Bins(SCHEMA).columns


def test_a_row_depends_on_itself_alone():
    bins = Bins(SCHEMA, [["hour", "carrier"]])
    together = bins(rows([0, 5], [1, 9]))
    np.testing.assert_array_equal(together[:1], bins(rows([0, 5])))


def test_parts_say_where_a_column_stands():
    bins = Bins(SCHEMA, [["carrier", "hour"]])
    assert bins.parts() == [
        ("carrier", slice(0, 3)),
        ("hour", slice(3, 9)),
        ("carrier × hour", slice(9, 27)),
    ]


@pytest.mark.parametrize(
    ("schema", "crossed", "words"),
    [
        ({}, [], "what is known in public"),
        ({"a": {"list": []}}, [], "schema.a.list"),
        ({"a": {"list": ["x", "x"]}}, [], "each once"),
        ({"a": {"range": [2, 1], "bins": 3}}, [], "in order"),
        ({"a": {"range": [0, 1], "bins": 0}}, [], "schema.a.bins=0"),
        ({"a": {"mean": 3}}, [], "must be {list"),
        (SCHEMA, [["hour", "hour"]], "two columns of the schema"),
        (SCHEMA, [["hour", "origin"]], "carrier, hour"),
    ],
)
def test_a_schema_that_cannot_be_is_refused_by_name(schema, crossed, words):
    with pytest.raises(ValueError, match=words):
        Bins(schema, crossed)


def test_rows_that_break_the_schema_are_refused():
    with pytest.raises(ValueError, match="has 2 columns"):
        Bins(SCHEMA)(rows([0, 1, 2]))
