import json
import shlex
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgym.tools import Tool, ToolError, load_tools, parse_action, validate_arguments
from dgym.wire import ToolCall

TOOLS = {
    tool.name: tool for tool in load_tools(["bash", "grep", "listdir", "pdb", "rewrite", "submit", "view", "eval"])
}


class Pick(Tool):
    """Pick."""

    async def use(self, context: Any, count: int, factor: float = 1.0, on: bool = False, names: list[str] = []) -> str:  # noqa: B006
        return ""


def parse(action: Any, **more: Tool) -> ToolCall:
    return parse_action(action, TOOLS | more)


@pytest.mark.parametrize(
    ("line", "tool", "arguments"),
    [
        ("eval", "eval", {}),
        ("  view calc.py 1 40  ", "view", {"path": "calc.py", "start": 1, "end": 40}),
        ("view 'my file.py'", "view", {"path": "my file.py"}),
        ("view calc.py 1 40 false", "view", {
            "path": "calc.py", "start": 1, "end": 40, "include_line_numbers": False,
        }),
        ("listdir src 2", "listdir", {"path": "src", "depth": 2}),
        ("grep 'def .*\\(' src 5", "grep", {"pattern": "def .*\\(", "path": "src", "max_results": 5}),
        ("grep 12", "grep", {"pattern": "12"}),
        ("pdb b calc.py:12, x == 'a b'", "pdb", {"command": "b calc.py:12, x == 'a b'"}),
        ("pdb for x in y:\n    print(x)", "pdb", {"command": "for x in y:\n    print(x)"}),
        ("bash echo \"it's\" | wc -c", "bash", {"command": "echo \"it's\" | wc -c"}),
        ("submit it's done", "submit", {"message": "it's done"}),
        ("submit", "submit", {}),
        ("rewrite a.py <c>x = 1</c>", "rewrite", {"path": "a.py", "new_code": "x = 1"}),
        ("rewrite a.py 3 <c>x</c>", "rewrite", {"path": "a.py", "start": 3, "new_code": "x"}),
        ("rewrite a.py 3:5 <c></c>", "rewrite", {"path": "a.py", "start": 3, "end": 5, "new_code": ""}),
        ("rewrite 'a b.py' 3:2 <c>\n  x\n  y\n</c>\n", "rewrite", {
            "path": "a b.py", "start": 3, "end": 2, "new_code": "  x\n  y\n",
        }),
        ("rewrite a.py 1 <c>s = '</c><c>'</c>", "rewrite", {"path": "a.py", "start": 1, "new_code": "s = '</c><c>'"}),
    ],
)  # fmt: skip
def test_a_line_of_text_is_a_call(line, tool, arguments):
    call = parse(line)
    assert (call.tool, call.arguments) == (tool, arguments)
    validate_arguments(TOOLS[tool], call)


def test_words_are_converted_by_the_schema_and_a_list_takes_the_rest():
    call = parse("pick 3 2.5 true a 'b c'", pick=Pick())
    assert call.arguments == {"count": 3, "factor": 2.5, "on": True, "names": ["a", "b c"]}


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("", "The action is empty."),
        ("veiw calc.py", "Unknown tool `veiw`. Did you mean `view`?"),
        ("view 'calc.py", "no closing quotation"),
        ("view a 1 2 true 5", "too many words, from `5` on"),
        ("eval now", "too many words, from `now` on"),
        ("rewrite a.py 3:5 x = 1", "between <c> and </c>"),
        ("rewrite a.py three <c>x</c>", "a path and optionally a range"),
        ("rewrite <c>x</c>", "a path and optionally a range"),
        ("rewrite 'a <c>x</c>", "no closing quotation"),
        ('{"tool": "view"', "is not JSON"),
        ("{}", "must name its tool"),
        ({}, "must name its tool"),
        ({"tool": "view", "args": {}}, "has no field `args`"),
        ({"tool": "veiw"}, "Did you mean `view`?"),
        ({"tool": 3}, "Unknown tool `3`."),
        ({"tool": "view", "arguments": ["calc.py"]}, "must be an object"),
        ({"tool": "view", "arguments": {1: 2}}, "must be an object"),
        (7, "An action cannot be int."),
    ],
)
def test_an_action_that_is_not_a_call_raises_tool_error(action, expected):
    with pytest.raises(ToolError) as caught:
        parse(action)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    "line", ["view calc.py one", "view calc.py 1.5", "view calc.py 0", "listdir . 99", "pdb", "bash"]
)
def test_an_argument_of_the_wrong_type_is_refused_by_the_validation(line):
    call = parse(line)
    with pytest.raises(ToolError, match=r"must be|is missing"):
        validate_arguments(TOOLS[call.tool], call)


def test_a_mapping_and_its_json_text_are_the_same_call():
    action = {"tool": "view", "arguments": {"path": "calc.py", "start": 1}}
    assert parse(action) == parse(json.dumps(action)) == ToolCall(tool="view", arguments=action["arguments"])
    assert parse({"tool": "eval"}) == parse({"tool": "eval", "arguments": None}) == ToolCall(tool="eval")


@settings(deadline=None)
@given(
    st.text().filter(lambda text: "<c>" not in text),
    st.text().filter(lambda text: "</c>" not in text and not text.startswith(("\n", "\r"))),
)
def test_the_text_form_of_rewrite_keeps_path_and_code(path, code):
    call = parse(f"rewrite {shlex.quote(path)} 2:3 <c>{code}</c>")
    assert call.arguments == {"path": path, "start": 2, "end": 3, "new_code": code}


@pytest.mark.parametrize("code", ["", "x = 1", "'"])
def test_a_path_that_contains_the_code_tag_is_refused_in_text_form(code):
    with pytest.raises(ToolError, match="The text form is"):
        parse(f"rewrite '<c>' 2:3 <c>{code}</c>")
    arguments = {"path": "<c>", "start": 2, "end": 3, "new_code": code}
    assert parse({"tool": "rewrite", "arguments": arguments}).arguments == arguments


@settings(deadline=None)
@given(st.text() | st.sampled_from(sorted(TOOLS)).flatmap(lambda name: st.text().map(lambda rest: f"{name} {rest}")))
def test_any_text_is_a_call_or_raises_tool_error(line):
    with suppress(ToolError):
        call = parse(line)
        validate_arguments(TOOLS[call.tool], call)


@pytest.mark.timeout(60)  # A regular expression that backtracks would take hours.
@pytest.mark.attack("slow-text")
@pytest.mark.parametrize("text", ["<c>" * 100_000, "<c>" + "</c>" * 100_000 + "x", "<c></c>" + " " * 500_000 + "x"])
def test_the_text_form_of_rewrite_takes_time_in_proportion_to_its_length(text):
    with pytest.raises(ToolError):
        parse(f"rewrite a.py {text}")


def test_a_line_number_of_thousands_of_digits_is_refused():
    with pytest.raises(ToolError, match="a range"):
        parse(f"rewrite a.py {'9' * 5000} <c>x</c>")
