"""Tests of hostile manifests: small files that expand to many values, or that are nested deeper than the stack."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgym.api import load, loads
from dgym.documents import DEEPEST, MOST_REPEATED, MOST_VALUES, read_json, read_value, read_yaml
from dgym.errors import ManifestError

HEAD = "apiVersion: dgym.dev/v1alpha1\nkind: DebugTask\nmetadata: {name: calc}\nspec:\n"


def refused(text: str, source: str = "some.yaml") -> str:
    with pytest.raises(ManifestError) as caught:
        loads(text, source=source)
    return str(caught.value)


def laughs(levels: int, each: str = "[{}]") -> str:
    """Return a short manifest with 10 ** ``levels`` values: each level has ten aliases of the level before."""
    lines = ["  a0: &a0 [x, x, x, x, x, x, x, x, x, x]" if "<<" not in each else "  a0: &a0 {x: 1}"]
    lines += [f"  a{n}: &a{n} {each.replace('{}', ', '.join([f'*a{n - 1}'] * 10))}" for n in range(1, levels)]
    return HEAD + "\n".join(lines) + "\n"


@pytest.mark.parametrize("each", ["[{}]", "{k: [{}]}", "{<<: [{}]}"])
def test_aliases_that_repeat_too_many_values_are_refused(each):
    message = refused(laughs(10, each))
    assert message.startswith("some.yaml: document 1, line ")
    assert "aliases repeat more than 100,000 values; write out" in message


def test_the_message_has_the_line_of_the_alias_that_exceeds_the_limit():
    # Level n expands to about 10 ** (n + 1) values. Level a4, in line 9, is the first above the limit.
    assert "line 9: aliases repeat" in refused(laughs(10))


def test_aliases_as_keys_are_refused():
    assert "unhashable key" in refused(HEAD + "  a: &a [x]\n  ? [*a, *a]\n  : 1\n")
    assert "unhashable key" in refused(HEAD + "  ? [x]\n  : 1\n  ? [y]\n  : 1\n")


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, "{a: " * 100_000, "[\n" * 100_000, "- " * 100_000, "? " * 400, HEAD + "  a: " + "[" * 400],
    ids=["sequences", "mappings", "lines", "block", "keys", "inside"],
)
def test_documents_with_too_many_levels_are_refused(text):
    message = refused(text)
    assert message.startswith("some.yaml: document 1, line ")
    assert "nested more than 100 levels deep; flatten it" in message


def test_the_depth_of_aliases_counts_as_nesting():
    chain = "".join(f"  a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 200))
    message = refused(f"{HEAD}  a0: &a0 [x]\n{chain}")
    assert "nested more than 100 levels deep" in message
    # The document is level 1 and spec is level 2, so a98 is level 101.
    assert "line 103:" in message


def test_the_maximum_nesting_depth_is_accepted():
    inner = DEEPEST
    (document,) = read_yaml("[" * inner + "]" * inner)
    assert not document.problems
    (document,) = read_yaml("[" * (inner + 1) + "]" * (inner + 1))
    assert document.problems
    (document,) = read_json("[" * inner + "]" * inner)
    assert not document.problems


def test_a_document_of_too_many_values_is_refused():
    message = refused("x: [" + "0," * MOST_VALUES + "]")
    assert "line 1: more than 1,000,000 values; divide it" in message


def test_every_document_has_its_own_bounds():
    shared = "a: &a [" + "0," * (MOST_REPEATED * 2 // 3) + "]\nb: *a\n"
    assert [document.problems for document in read_yaml(f"{shared}---\n{shared}")] == [[], []]


def test_documents_before_a_refused_document_are_read():
    first, second = read_yaml(f"a: 1\n---\n{'[' * 200}\n---\nb: 2\n")
    assert first.value == {"a": 1}
    assert "nested more than 100 levels deep" in second.problems[0].message
    assert second.problems[0].line == 3


def test_values_of_the_command_line_are_bounded_too():
    with pytest.raises(ValueError, match="nested more than 100 levels deep"):
        read_value("[" * 100_000)


@pytest.mark.parametrize("depth", [DEEPEST + 1, 100_000])
def test_json_is_held_to_the_same_depth(depth, tmp_path):
    file = tmp_path / "deep.json"
    file.write_text('{"apiVersion": "[[[", "kind":\n"\\"[",\n"spec": ' + "[" * depth + "]" * depth + "}")
    with pytest.raises(ManifestError) as caught:
        load(file)
    assert str(caught.value) == f"{file}: document 1, line 3: nested more than 100 levels deep; flatten it"


def test_json_numbers_and_keys_that_are_too_much_are_refused():
    assert "not valid JSON" in refused("1" * 5000, "x.json")
    twice = "{" + ",".join(f'"k{n}": 0' for n in range(50_000)) + ',"k1": 0}'
    assert "k1: is given twice" in refused(twice, "x.json")


@given(st.recursive(st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=3), max_leaves=20))
def test_brackets_in_json_strings_do_not_count_as_levels(value):
    text = json.dumps(["[{" * 200, '"' + "[" * 200, value, "\\"])
    (document,) = read_json(text)
    assert document.value == json.loads(text)


@st.composite
def graphs(draw):
    """Draw YAML sequences that refer to earlier sequences by alias, often many times."""
    count = draw(st.integers(1, 12))
    lines = []
    for number in range(count):
        earlier = st.integers(0, number - 1).map(lambda n: f"*a{n}") if number else st.just("x")
        items = draw(st.lists(earlier | st.just("x"), min_size=1, max_size=8))
        lines.append(f"a{number}: &a{number} [{', '.join(items)}]")
    return lines


def written(lines) -> int:
    return sum(2 + line.count(",") + 1 for line in lines)


def meant(value) -> int:
    """Return the number of values after the aliases are expanded."""
    return 1 + sum(map(meant, value)) if isinstance(value, list) else 1


@given(graphs())
def test_the_reader_visits_what_is_written_and_builds_what_is_bounded(lines):
    (document,) = read_yaml("\n".join(lines))
    assert len(document.lines) <= 1 + written(lines)
    if document.problems:
        assert "aliases repeat" in document.problems[0].message
    else:
        assert sum(map(meant, document.value.values())) <= written(lines) + MOST_REPEATED


def test_a_field_that_an_alias_gives_has_the_line_of_the_alias():
    text = HEAD + "  resources:\n    limits: &l {cpu: 1.5}\n    requests: *l\n"
    message = refused(text)
    assert "line 6: spec.resources.limits.cpu" in message
    assert "line 7: spec.resources.requests.cpu" in message
