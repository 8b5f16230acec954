"""Tests of the spaces: which values they contain, and that their samples are valid and depend only on the seed."""

import copy
import pickle
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from dgym.gymnasium import JsonValue, ToolCalls, UnicodeText
from dgym.tools import Tool, ToolError, available_tools, load_tools, parse_action, validate_arguments

SHIPPED = load_tools(available_tools())


class Tree(msgspec.Struct):
    name: str
    children: list["Tree"] = []


class Everything(Tool):
    """Take an argument of each kind."""

    async def use(
        self,
        context: Any,
        path: Annotated[str, Meta(min_length=2, max_length=5)],
        line: Annotated[int, Meta(ge=1, lt=9)] | None = None,
        step: Annotated[int, Meta(multiple_of=7, gt=0)] = 7,
        ratio: Annotated[float, Meta(gt=0, le=1)] = 0.5,
        deep: bool = False,
        mode: Literal["fast", "slow"] = "fast",
        names: Annotated[list[str], Meta(min_length=1, max_length=2)] = [],  # noqa: B006 - never changed
        extra: dict[str, int] = {},  # noqa: B006
        tree: Tree | None = None,
        anything: Any = None,
    ) -> str:
        """Use."""
        return path


class Dated(Tool):
    """Take what cannot be drawn."""

    examples = ("dated [a-z]",)

    async def use(self, context: Any, pattern: Annotated[str, Meta(pattern=r"^\[")]) -> str:
        """Use."""
        return pattern


class Impossible(Dated):
    """Take what cannot be drawn, without an example."""

    examples = ("impossible x", "another call", "impossible 'open")


TOOLS = [*SHIPPED, Everything(), Dated(), Impossible()]
SPACE = ToolCalls(TOOLS)
BY_NAME = {tool.name: tool for tool in TOOLS}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10) | st.floats(-2, 12) | st.text(max_size=6) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def accepted(call: Any) -> bool:
    """Return whether the environment accepts a call."""
    try:
        parsed = parse_action(call, BY_NAME)
        validate_arguments(BY_NAME[parsed.tool], parsed)
    except ToolError:
        return False
    return True


def test_samples_are_valid_calls_of_every_tool_that_can_be_sampled():
    space = ToolCalls(TOOLS, words=["src/größe.py", "calc.py"], seed=1)
    calls = [space.sample() for _ in range(1500)]
    assert all(call in space for call in calls)
    assert [call for call in calls if not accepted(call)] == []
    assert {call["tool"] for call in calls} == {*BY_NAME} - {"impossible"}
    assert any(call["arguments"].get("path") == "src/größe.py" for call in calls)
    assert any(not str(call["arguments"]).isascii() for call in calls)
    assert any(call["arguments"].get("tree") for call in calls)
    assert {call["arguments"].get("step", 7) % 7 for call in calls} == {0}
    msgspec.json.encode(calls)


@given(st.data())
def test_the_space_holds_the_calls_that_the_tools_accept(data):
    tool = data.draw(st.sampled_from(TOOLS))
    names = st.sampled_from([*tool.signature.names, "nothing"])
    arguments = data.draw(st.dictionaries(names, JSON, max_size=4) | JSON.filter(lambda value: value is not None))
    call = {"tool": data.draw(st.just(tool.name) | JSON), "arguments": arguments}
    assert (call in SPACE) == accepted(call)


@pytest.mark.parametrize(
    "call",
    [
        "eval",
        None,
        {},
        {"tool": "eval", "extra": 1},
        {"tool": "view"},
        {"tool": "view", "arguments": {"path": "a\0b"}},
        {"tool": "view", "arguments": {"path": "a", "start": True}},
        {"tool": ["view"], "arguments": {"path": "a"}},
    ],
)
def test_invalid_calls_are_not_in_the_space(call):
    assert call not in ToolCalls(SHIPPED)


def test_a_call_may_leave_out_its_arguments():
    assert {"tool": "eval"} in ToolCalls(SHIPPED)


@pytest.mark.parametrize(
    "make",
    [
        UnicodeText,
        lambda: ToolCalls(SHIPPED, words=["."]),
        lambda: JsonValue(list[int | None] | None, [None, [], [1, None]]),
    ],
)
def test_equal_seeds_sample_equally_through_copies_and_pickles(make):
    space = make()
    copies = [make(), copy.deepcopy(space), pickle.loads(pickle.dumps(space))]
    space.seed(7)
    expected = [space.sample() for _ in range(30)]
    assert all(value in space for value in expected)
    for other in copies:
        assert other == space
        assert repr(other) == repr(space)
        other.seed(7)
        assert [other.sample() for _ in range(30)] == expected
    space.seed(8)
    assert [space.sample() for _ in range(30)] != expected
    assert not space.is_np_flattenable
    assert space != "another thing"


@given(st.text())
def test_every_text_of_unicode_is_in_the_space_of_texts(text):
    assert text in UnicodeText()


@pytest.mark.parametrize("value", ["\ud800", "a\udfff", b"bytes", None, 3])
def test_invalid_text_is_not_in_the_space_of_texts(value):
    assert value not in UnicodeText()


def test_sampled_texts_are_of_all_planes():
    space = UnicodeText(seed=1)
    text = "".join(space.sample() for _ in range(200))
    assert max(text) > "\uffff"
    assert text.encode().decode() == text


class Bounded(Tool):
    """Take numbers within bounds."""

    async def use(
        self,
        context: Any,
        narrow: Annotated[int, Meta(ge=-5, lt=-3)],
        below: Annotated[int, Meta(le=-7)],
        ratio: Annotated[float, Meta(gt=0, le=1)],
        low: Annotated[float, Meta(lt=-2.5)],
        any_number: float,
        halves: Annotated[float, Meta(ge=3, multiple_of=0.5)],
    ) -> str:
        """Use."""
        return str(narrow)


class Planted(Tool):
    """Take a value of a recursive type."""

    async def use(self, context: Any, tree: Tree) -> str:
        """Use."""
        return tree.name


class Endless(msgspec.Struct):
    next: "Endless"


class Endlessly(Tool):
    """Take a value of a type that has none."""

    async def use(self, context: Any, value: Endless) -> str:
        """Use."""
        return str(value)


class Identified(Tool):
    """Take identifiers."""

    async def use(self, context: Any, some: Annotated[list[UUID], Meta(min_length=1)]) -> str:
        """Use."""
        return str(some)


class Listed(Tool):
    """Take identifiers, or none."""

    async def use(self, context: Any, some: list[UUID]) -> str:
        """Use."""
        return str(some)


@given(st.integers(0, 2**32))
def test_sampled_numbers_are_within_bounds_and_recursive_types_terminate(seed):
    tools = [Bounded(), Planted()]
    space = ToolCalls(tools, seed=seed)
    for call in (space.sample() for _ in range(4)):
        values, problems = next(tool for tool in tools if tool.name == call["tool"]).signature.check(call["arguments"])
        assert problems == []
        assert {type(value) for value in values.values()} <= {int, float, Tree}


def test_a_type_without_an_end_and_a_format_cannot_be_drawn():
    space = ToolCalls([Endlessly(), Identified(), Listed()], seed=1)
    assert [space.sample() for _ in range(5)] == [{"tool": "listed", "arguments": {"some": []}}] * 5


def test_tuples_have_their_length_and_types():
    space = JsonValue(tuple[int, str], [(1, "a")])
    assert space.sample() in space
    assert [2, "b"] in space
    for wrong in ([1], ["a", 1], [1, "a", 2], None, "1a", {"a": 1}):
        assert wrong not in space


def test_numpy_values_are_not_in_the_space():
    assert np.int64(3) not in JsonValue(int, [1])
    assert True not in JsonValue(int, [1])
    assert type(JsonValue(int, [1]).sample()) is int
    call = ToolCalls([Bounded()], seed=1).sample()
    assert {type(value) for value in call["arguments"].values()} == {int, float}


def test_a_sample_may_be_changed():
    space = JsonValue(list[int], [[1]])
    space.sample().clear()
    assert space.sample() == [1]
