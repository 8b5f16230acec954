"""Tests of the execution of tools: the episode continues with an observation after any error, except a lost sandbox."""

from functools import reduce

import msgspec
import pytest

from dgym.errors import EditError, EpisodeOver, ManifestError, PatchError, PathError, SandboxLost
from dgym.session._execution import execute, read_action
from dgym.tools import Tool, ToolError, ToolResult
from dgym.wire import ACTION_LIMIT, OBSERVATION_LIMIT, ToolCall, checked_action


class Edit(Tool):
    """Pretend to rewrite."""

    async def use(self, context, path: str) -> ToolResult:
        return ToolResult(text="done", rewrote=True, focus_file=path)


class Listener(Tool):
    """Break when told of a rewrite."""

    async def use(self, context) -> str:
        raise ZeroDivisionError("by zero")

    async def on_rewrite(self, context, path: str) -> str:
        raise KeyError(path)


class Refusing(Tool):
    """Refuse, or lose the sandbox."""

    async def use(self, context, lost: bool = False) -> str:
        if lost:
            raise SandboxLost("it is gone")
        raise ToolError("not like that; like this")


class ThirdParty(Tool):
    """Fail as a tool may that uses dgym's own modules, or answer with a large diff."""

    async def use(self, context, failure: int) -> ToolResult:
        if failure < len(FAILURES):
            raise FAILURES[failure]("what went wrong")
        return ToolResult(text="changed", diff="+line\n" * 100_000)


FAILURES = (PathError, EditError, PatchError, ManifestError, EpisodeOver)
TOOLS = {tool.name: tool for tool in (Edit(), Listener(), Refusing(), ThirdParty())}


async def run(tool, **arguments):
    return await execute(TOOLS, None, ToolCall(tool=tool, arguments=arguments))


async def test_a_broken_listener_does_not_undo_a_rewrite():
    execution = await run("edit", path="calc.py")
    assert execution.rewrote
    assert execution.observation.ok
    assert "listener failed after the rewrite: KeyError" in execution.observation.text


async def test_a_broken_tool_is_an_observation():
    observation = (await run("listener")).observation
    assert not observation.ok
    assert "ZeroDivisionError: by zero" in observation.text


async def test_a_refusal_is_what_the_model_reads():
    assert (await run("refusing")).observation.text == "not like that; like this"


async def test_a_lost_sandbox_is_never_an_observation():
    with pytest.raises(SandboxLost):
        await run("refusing", lost=True)


@pytest.mark.parametrize("failure", range(len(FAILURES)), ids=[each.__name__ for each in FAILURES])
async def test_exceptions_of_a_tool_become_observations(failure):
    observation = (await run("third_party", failure=failure)).observation
    assert not observation.ok
    assert observation.text == f"The tool third_party failed: {FAILURES[failure].__name__}: what went wrong"


async def test_a_diff_is_cut_like_text():
    diff = (await run("third_party", failure=len(FAILURES))).observation.diff
    assert len(diff.encode()) <= OBSERVATION_LIMIT
    assert "bytes cut" in diff


UNFIT = {
    "half of a surrogate pair": ["edit \ud800.py", {"tool": "edit", "arguments": {"path": ["\udfff"]}}],
    f"it can have at most {ACTION_LIMIT:,}.": ["edit " + "x" * ACTION_LIMIT],
    "nested too deeply": [
        {"tool": "edit", "arguments": reduce(lambda value, _: {"a": value}, range(depth), {})} for depth in (250, 5000)
    ],
}


@pytest.mark.parametrize("problem", UNFIT)
async def test_an_action_that_cannot_be_sent_is_refused_with_a_short_message(problem):
    for action in UNFIT[problem]:
        call, refusal = read_action(checked_action(action), TOOLS)
        assert len(msgspec.json.encode(call)) < 1000
        assert problem in (await execute(TOOLS, None, call, refusal)).observation.text


@pytest.mark.parametrize("action", ["", "nothing at all", {"arguments": {}}, 7])
async def test_an_unreadable_action_is_reported_when_it_is_executed(action):
    observation = (await execute(TOOLS, None, *read_action(action, TOOLS))).observation
    assert not observation.ok
    assert "edit" in observation.text or "action" in observation.text


async def test_a_call_is_read_the_same_each_time():
    assert read_action("edit calc.py", TOOLS) == (ToolCall(tool="edit", arguments={"path": "calc.py"}), "")
    assert read_action("?", TOOLS) == read_action("?", TOOLS)
