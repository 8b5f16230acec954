from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Meta

from dgym.tools import Tool, ToolError, available_tools, load_tools, validate_arguments
from dgym.tools._schema import describe, read_docstring
from dgym.wire import ToolCall


class Everything(Tool):
    """Take an argument of each kind."""

    async def use(
        self,
        context: Any,
        path: str,
        line: Annotated[int, Meta(ge=1, le=9)] | None = None,
        ratio: float = 0.5,
        deep: bool = False,
        mode: Literal["fast", "slow"] = "fast",
        names: list[str] = [],  # noqa: B006 - never changed
    ) -> str:
        """Use.

        Args:
            context: Not an argument of a call.
            path: Which file,
                relative to the workspace.
            line (int): Which line.
        """
        return path


def check(**arguments: Any) -> dict[str, Any]:
    return validate_arguments(Everything(), ToolCall(tool="everything", arguments=arguments))


def test_the_schema_has_types_bounds_defaults_and_descriptions():
    schema = Everything().parameters
    assert schema["required"] == ["path"]
    assert schema["additionalProperties"] is False
    assert list(schema["properties"]) == ["path", "line", "ratio", "deep", "mode", "names"]
    assert schema["properties"]["path"] == {
        "type": "string",
        "description": "Which file, relative to the workspace.",
    }
    assert schema["properties"]["line"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 9,
        "description": "Which line.",
    }
    assert schema["properties"]["mode"] == {"enum": ["fast", "slow"], "default": "fast"}
    assert schema["properties"]["names"]["items"] == {"type": "string"}


@pytest.mark.parametrize("name", [name for name in Everything().signature.names if name != "path"])
def test_null_for_an_optional_argument_selects_the_default(name):
    assert check(path="a.py", **{name: None}) == {"path": "a.py"}


@pytest.mark.parametrize("tool", load_tools(available_tools()), ids=lambda tool: tool.name)
def test_every_tool_takes_null_for_what_it_does_not_require(tool):
    given = {parameter.name: "x" if parameter.required else None for parameter in tool.signature.parameters}
    assert tool.signature.check(given) == ({name: value for name, value in given.items() if value}, [])


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ({"line": "3"}, 3),
        ({"line": 3.0}, 3),
        ({"ratio": "0.25"}, 0.25),
        ({"ratio": "3"}, 3.0),
        ({"deep": "true"}, True),
    ],
)
def test_a_number_may_be_given_as_text_or_as_a_float(given, value):
    (name,) = given
    found = check(path="a.py", **given)[name]
    assert (found, type(found)) == (value, type(value))


def test_text_that_looks_like_a_number_stays_text():
    assert check(path="3", names=["4"]) == {"path": "3", "names": ["4"]}


def test_valid_arguments_pass_and_defaults_are_left_to_the_tool():
    assert check(path="a.py", line=3, ratio=1, names=["x"]) == {"path": "a.py", "line": 3, "ratio": 1.0, "names": ["x"]}
    assert check(path="a.py") == {"path": "a.py"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, "`path` is missing; it must be text."),
        ({"path": 3}, "`path` must be text, not 3 (an integer)."),
        ({"path": None}, "`path` must be text, not null."),
        ({"path": "a", "line": 2.5}, "`line` must be an integer from 1 to 9, not 2.5 (a float)."),
        ({"path": "a", "line": "12"}, "`line` is out of range: it must be an integer from 1 to 9, not 12"),
        ({"path": "a", "line": 12.0}, "`line` is out of range: it must be an integer from 1 to 9, not 12"),
        ({"path": "a", "line": "twelve"}, 'not "twelve" (text).'),
        ({"path": "a", "line": True}, "not true (a truth value)."),
        ({"path": "a", "line": 10}, "`line` is out of range: it must be an integer from 1 to 9, not 10"),
        ({"path": "a", "line": 10**30}, "`line` is out of range"),
        ({"path": "a", "ratio": "x"}, "`ratio` must be a number"),
        ({"path": "a", "deep": 1}, "`deep` must be true or false, not 1 (an integer)."),
        ({"path": "a", "mode": "quick"}, '`mode` must be one of "fast", "slow", not "quick" (text).'),
        ({"path": "a", "names": ["x", 1]}, "([1] is wrong)"),
        ({"path": "a", "lime": 3}, "unknown argument `lime`. Did you mean `line`?"),
        ({"path": "a\0b"}, "`path` contains a NUL character"),
        ({"path": "a", "names": ["\ud800"]}, "half of a surrogate pair"),
    ],
)
def test_an_invalid_argument_is_reported_with_valid_values(arguments, expected):
    with pytest.raises(ToolError) as caught:
        check(**arguments)
    assert expected in str(caught.value)
    assert "line: an integer from 1 to 9, optional. Which line." in str(caught.value)


def test_all_invalid_arguments_are_reported_together():
    with pytest.raises(ToolError) as caught:
        check(lime=1, ratio="x")
    assert [line for line in str(caught.value).splitlines() if line.startswith("everything:")] == [
        "everything: unknown argument `lime`. Did you mean `line`?",
        "everything: `path` is missing; it must be text.",
        'everything: `ratio` must be a number, not "x" (text).',
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(Everything().signature.names) | st.text(max_size=8), JSON, max_size=5))
def test_any_arguments_are_either_checked_or_answered(arguments):
    try:
        values = check(**arguments)
    except ToolError as error:
        str(error).encode("utf-8")
    else:
        assert values.keys() == {name for name, value in arguments.items() if value is not None}


def test_a_long_value_is_shortened_in_the_answer():
    with pytest.raises(ToolError) as caught:
        check(path=["x" * 10_000])
    assert len(str(caught.value)) < 1500


def test_instructions_describe_the_tool_its_arguments_and_its_text_form():
    class Double(Tool):
        """Double a number."""

        examples = ("double 4",)

        async def use(self, context: Any, number: int) -> str:
            return str(2 * number)

    assert Double().instructions.splitlines() == [
        "Double a number.",
        "",
        "Arguments of double:",
        "  number: an integer",
        "As one line of text, words with spaces quoted as in a shell:",
        "  double 4",
    ]


def test_the_name_is_the_class_in_snake_case_unless_given():
    class HTTPProbe2Fast(Tool):
        """Probe."""

    class Named(Tool):
        """Probe."""

        name = "probe"

    assert Everything.name == "everything"
    assert HTTPProbe2Fast.name == "httpprobe2_fast"
    assert Named.name == "probe"


class WithoutUse(Tool):
    """Nothing."""


class NotAsync(Tool):
    """Nothing."""

    def use(self, context: Any) -> str:  # type: ignore[override]
        return ""


class Undescribed(Tool):
    async def use(self, context: Any) -> str:
        return ""


class Variadic(Tool):
    """Nothing."""

    async def use(self, context: Any, *paths: str) -> str:
        return ""


class WrongVerbatim(Tool):
    """Nothing."""

    verbatim = "line"

    async def use(self, context: Any, text: str) -> str:
        return ""


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (WithoutUse, "needs a method `async def use"),
        (NotAsync, "needs a method `async def use"),
        (Undescribed, "needs a docstring"),
        (Variadic, "parameter `paths`"),
        (WrongVerbatim, "'line', which is not a parameter"),
    ],
)
def test_a_class_that_cannot_be_described_raises_with_the_reason(kind, expected):
    with pytest.raises(TypeError, match=expected):
        kind().parameters  # noqa: B018


def test_docstrings_of_other_sections_are_not_arguments():
    summary, arguments = read_docstring(
        "Do it.\n\nMore.\n\nArgs:\n    a: One.\n    b: Two: three.\n\nReturns:\n    c: No."
    )
    assert summary == "Do it.\n\nMore."
    assert arguments == {"a": "One.", "b": "Two: three."}


def test_bounds_of_one_side_are_described():
    assert describe({"type": "integer", "minimum": 1}) == "an integer of at least 1"
    assert describe({"type": "number", "maximum": 2}) == "a number of at most 2"


class Point(Tool):
    """Point somewhere."""

    async def use(self, context, at: tuple[int, int], names: list[str] = []) -> str:  # noqa: B006 - never changed
        return f"{at} {names}"


def test_a_parameter_of_fixed_length_is_described():
    assert "at: a list" in Point().instructions
    _, problems = Point().signature.check({"at": 3})
    assert "a list" in problems[0]
