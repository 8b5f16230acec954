"""Tests of intervals of indexes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgym_operator.controllers import Indexes

SETS = st.sets(st.integers(0, 60))


@given(SETS, SETS)
def test_they_are_sets(some, more):
    indexes = Indexes().plus(some).plus(more)
    assert len(indexes) == len(some | more)
    assert [index for index in range(62) if index in indexes] == sorted(some | more)
    assert indexes.covers(Indexes().plus(some))
    assert list(indexes.minus(Indexes().plus(some))) == sorted(more - some)
    assert Indexes().plus(some).covers(indexes) == (more <= some)
    assert Indexes.parse(str(indexes)) == indexes


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", ""), ("0-2,4", "0-2,4"), ("4,0-2,3", "0-4"), ("1-3,2-9", "1-9"), ("x,-1,5-2,7", "7"), (" 1 , 2", "1-2")],
)
def test_they_are_written_in_the_shortest_way(text, expected):
    assert str(Indexes.parse(text)) == expected


def test_a_text_is_not_contained_in_indexes():
    assert "1" not in Indexes.parse("0-9")
