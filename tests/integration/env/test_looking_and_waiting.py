"""Tests of tools that appear later, tests that run after a rewrite, and calls that do not count as steps."""

import pytest

from dgym.env import AsyncRepoEnv
from dgym.wire import ToolCall
from tests.support.bare_python import bare_python

LATE_PDB = {"name": "pdb", "options": {"afterRewrites": 1}}
REPAIR = {"tool": "rewrite", "arguments": {"path": "calc.py", "start": 2, "end": 2, "new_code": "    return a + b"}}


@pytest.fixture
async def open_env(new_task):
    envs = []

    async def open_one(tools, **spec):
        task = new_task(**{"entrypoint": "python test_calc.py", **spec})
        env = AsyncRepoEnv(task, tools=tools, sandbox="none", python=bare_python())
        envs.append(env)
        return env, await env.reset()

    yield open_one
    for env in envs:
        await env.close()


async def test_a_tool_that_is_not_available_yet_is_unknown_and_not_mentioned(open_env):
    env, (observation, info) = await open_env([LATE_PDB, "rewrite", "view"])
    assert "pdb" not in observation["text"] + str(info)
    early, *_ = await env.step("pdb b calc.py:2")
    assert not early["ok"]
    assert "Unknown tool `pdb`" in early["text"]
    rewritten, _, _, _, info = await env.step(REPAIR)
    assert "The tool pdb is available from now on: Debug the program" in rewritten["text"]
    assert [tool["name"] for tool in info["tools"]] == ["pdb", "rewrite", "view"]
    assert "Debug the program" in info["instructions"]["pdb"]
    late, _, _, _, info = await env.step("pdb b calc.py:2")
    assert late["ok"]
    assert "tools" not in info
    assert [tool["name"] for tool in env.info["tools"]] == ["pdb", "rewrite", "view"]
    assert [point["file"] for point in info["breakpoints"]] == ["calc.py"]


async def test_tests_run_after_each_rewrite_with_the_option_on_rewrite(open_env):
    evaluating = {"name": "eval", "options": {"onRewrite": True}}
    check = "python -c 'import calc; assert calc.add(2, 3) == 5; print(\"it adds\")'"
    env, (_, info) = await open_env([evaluating, "rewrite"], entrypoint=check, scoring={"stopWhenEvalPasses": True})
    assert info["evaluation"] is None
    wrong = {"tool": "rewrite", "arguments": {"path": "calc.py", "start": 1, "end": 0, "new_code": "# a comment"}}
    observation, _, _, _, info = await env.step(wrong)
    assert observation["score"] == {"score": 0, "max_score": 1}
    assert "AssertionError" in info["evaluation"]
    assert observation["text"].endswith(info["evaluation"])
    right = {"tool": "rewrite", "arguments": {"path": "calc.py", "start": 3, "end": 3, "new_code": "    return a + b"}}
    observation, reward, terminated, _, info = await env.step(right)
    assert (reward, terminated, info["reason"]) == (1.0, True, "Resolved")
    assert "it adds" in info["evaluation"]


async def test_a_peek_is_not_a_step(open_env):
    env, (_, info) = await open_env(["rewrite"])
    assert info["focus_file"] is None
    tree = await env.peek({"tool": "listdir", "arguments": {}})
    assert "calc.py" in tree["text"]
    seen = await env.peek({"tool": "view", "arguments": {"path": "calc.py"}})
    assert "return a - b" in seen["text"]
    assert not (await env.peek(REPAIR))["ok"]
    assert "a - b" in (await env.peek("view calc.py"))["text"]
    assert (len(env.trajectory()), env.info["focus_file"]) == (1, None)
    await env.step(REPAIR)
    assert env.info["focus_file"] == "calc.py"
    await env.finish()
    assert "has ended" in (await env.peek("view calc.py"))["text"]


async def test_an_invalid_call_is_a_step_whose_observation_has_the_problem(open_env):
    env, _ = await open_env(["view"])
    observation, *_ = await env.step(ToolCall.invalid("The reply does not contain a call."))
    assert (observation["text"], observation["ok"]) == ("The reply does not contain a call.", False)
    assert env.info["steps"] == 1


async def test_observers_get_every_step_once_also_after_another_reset(open_env):
    env, _ = await open_env(["view", "bash"])
    seen = []
    env.observe(lambda step: seen.append((step.seq, step.observation.ok)))
    await env.step("view calc.py")
    assert seen == [(1, True)]
    await env.step("fly away")
    await env.finish()
    assert seen[1:] == [(2, False)]
    await env.reset()
    await env.step("view calc.py")
    assert seen[2:] == [(0, True), (1, True)]
