"""Texts of a shape that was parsed before read as if they were parsed themselves."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dgym.documents import read_yaml
from dgym_operator.render import Renderer
from dgym_operator.render.shapes import ShapeCache


class Parser:
    """Reads YAML, and counts how often."""

    def __init__(self):
        self.parsed = 0

    def __call__(self, text):
        self.parsed += 1
        (document,) = read_yaml(text)
        if document.problems or not isinstance(document.value, dict):
            raise ValueError(document.problems)
        return document.value


def outcome(read, *arguments):
    try:
        return read(*arguments)
    except ValueError:
        return "refused"


words = st.text("ab \"'\\\n#:{}[],-?%&*!|>é\u2028", max_size=8) | st.sampled_from(["dgym-value-0", "key", "", "1", "~"])
values = words.map(json.dumps)
pieces = st.sampled_from(
    [
        "%s: %s",
        "%s: {%s: %s}",
        "%s: [%s, 1, %s]",
        "%s: 'say %s'",
        '%s: 5" and %s wide',
        "# said %s",
        "%s: %s # with %s",
        "%s: |\n  a block\n  with %s",
        '%s: "two\n  lines" ',
        "%s: !!str %s",
        "? %s\n: %s",
        "key: %s",
    ]
)


@st.composite
def families(draw):
    """Some texts of one template."""
    lines = draw(st.lists(pieces, min_size=1, max_size=4))
    template = "\n".join(lines)
    number = template.count("%s")
    filled = st.lists(values, min_size=number, max_size=number).map(lambda each: template % tuple(each))
    return draw(st.lists(filled, min_size=1, max_size=4))


@given(families())
@example(['"a": 1\n"b": 2', '"a": 1\n"a": 2'])
@example(['{"a": "x", k: 5", "b": "c"}', '{"a": "y", k: 5", "b": "c"}'])
def test_texts_of_a_family_read_as_if_parsed(texts):
    shapes, parse = ShapeCache(), Parser()
    for text in texts:
        assert outcome(shapes.read, text, parse) == outcome(Parser(), text)


def test_a_shape_is_parsed_once():
    shapes, parse = ShapeCache(), Parser()
    for number in range(50):
        text = f'name: "episode-{number}"\nlabels: {{"key-{number}": "x"}}\nlist: ["{number}", 1]'
        assert shapes.read(text, parse) == {
            "name": f"episode-{number}",
            "labels": {f"key-{number}": "x"},
            "list": [str(number), 1],
        }
    assert parse.parsed == 1


def test_a_tree_belongs_to_its_caller():
    shapes, parse = ShapeCache(), Parser()
    shapes.read('a: {"b": "c"}', parse)["a"]["b"] = "changed"
    assert shapes.read('a: {"b": "c"}', parse) == {"a": {"b": "c"}}


def test_old_shapes_give_way():
    shapes, parse = ShapeCache(), Parser()
    for number in [*range(200), 0]:
        shapes.read(f'n{number}: "x"', parse)
    assert parse.parsed == 201


@pytest.mark.parametrize("template", ["restricted", "baseline"])
def test_pods_of_one_template_have_one_shape(make_context, template, monkeypatch):
    parsed = []
    monkeypatch.setattr("dgym_operator.render.renderer.read_yaml", lambda text: parsed.append(text) or read_yaml(text))
    renderer = Renderer(forms=False)
    for number in range(20):
        context = make_context(
            name=f"episode-{number}-1", episode=f"episode-{number}", episode_uid=f"uid-{number}", attempt=1 + number % 3
        )
        assert renderer.render(template, context) == Renderer(forms=False).render(template, context)
    assert len(parsed) == 1 + 20
