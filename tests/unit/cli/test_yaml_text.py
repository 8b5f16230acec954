import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgym.cli.output import comment
from dgym.documents import dump, read_yaml

SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=20)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(value=VALUES)
def test_dumped_values_are_read_back(value):
    (document,) = read_yaml(dump({"value": value}))
    assert document.value == {"value": value}
    (document,) = read_yaml(f"value: {dump(value, flow=True)}")
    assert document.value == {"value": value}


@pytest.mark.parametrize("text", ["python -m pytest -q", "./repo", "a", "numpy", "/tests/"])
def test_plain_text_is_not_quoted(text):
    assert dump(text) == f"{text}\n"


@pytest.mark.parametrize(
    "text", ["yes", "1.5", "x: y", "a #b", "*.py", "", "~", "-", "a\nb", "null", "1e3", ".5", "..."]
)
def test_ambiguous_text_is_quoted(text):
    assert dump(text)[0] in "'\""


def test_a_comment_stays_one_line():
    assert comment("a\nb\x1b[2J\u2028c") == "a b [2J c"
