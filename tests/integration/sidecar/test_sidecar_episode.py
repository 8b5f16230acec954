"""Tests of an episode in a pod, from the upload of the workspace to the outcome."""

import asyncio
import pickle

import msgspec
import pytest

import dgym
from dgym.errors import AccessRefused
from dgym.session import EpisodeLimits
from dgym.wire import EndReason
from dgym.wire.http import Role


async def test_an_episode_from_prepare_to_resolved(pod, helpers):
    await pod.prepare(entrypoint="python -m pytest -q", setupCommands=["echo ready > ready.txt"])
    env = pod.connect()
    observation, info = await env.reset(options={"eval": True})
    assert "calc is wrong" in observation["text"]
    assert observation["score"] == {"score": 0, "max_score": 1}
    assert "1 failed" in info["evaluation"]
    assert (info["steps"], info["resolved"], info["reason"]) == (0, False, None)
    assert {tool["name"] for tool in info["tools"]} == {"bash", "view", "eval", "pdb", "rewrite", "submit"}
    assert info["instructions"]["task"] == "calc is wrong"

    observation, _, _, _, info = await env.step("pdb b calc.py:2")
    assert "tools" not in info
    observation, reward, terminated, truncated, info = await env.step({"tool": "pdb", "arguments": {"command": "c"}})
    assert observation["frame"] == {"file": "calc.py", "line": 2, "function": "add"}
    assert [point["line"] for point in info["breakpoints"]] == [2]
    assert (reward, terminated, truncated) == (0.0, False, False)

    observation, *_ = await env.step(helpers.repair)
    assert "+    return a + b" in observation["diff"]
    assert "+    return a + b" in await env.patch()
    assert "return a + b" in (await env.peek("view calc.py"))["text"]

    env.record_usage(input_tokens=700, output_tokens=30)
    _, reward, terminated, truncated, info = await env.step("submit")
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert (info["resolved"], info["reason"], info["score"], info["max_score"]) == (True, "Resolved", 1, 1)
    assert "+    return a + b" in await env.patch()
    assert [step.seq for step in env.trajectory()] == [0, 1, 2, 3, 4]
    assert env.trajectory()[1].call.tool == "pdb"

    outcome = pod.termination()
    assert (outcome.reason, outcome.resolved, outcome.score, outcome.steps, outcome.rewrites) == (
        "Resolved",
        True,
        1,
        4,
        1,
    )
    assert (outcome.input_tokens, outcome.output_tokens) == (700, 30)
    assert (pod.termination_message().episode_uid, pod.termination_message().attempt) == ("uid", 1)


async def test_a_bad_call_is_an_observation_and_never_an_error(pod):
    await pod.prepare()
    env = pod.connect()
    await env.reset()
    for action in ("no such tool", {"tool": "view"}, {"tool": "view", "arguments": {"path": 7}}, {"x": {1, 2}}, ""):
        observation, *_ = await env.step(action)
        assert not observation["ok"]
        assert observation["text"]
    assert env.info["steps"] == 5


async def test_a_call_that_cannot_be_sent_is_an_observation(pod):
    await pod.prepare()
    env = pod.connect()
    await env.reset()
    unfit = {
        "half of a surrogate pair": ["view \ud800", {"tool": "view", "arguments": {"path": "\udfff"}}],
        "it can have at most 1,048,576.": [{"tool": "bash", "arguments": {"command": "#" * 3_000_000}}],
    }
    for problem, actions in unfit.items():
        for action in actions:
            assert problem in (await env.step(action))[0]["text"]
            assert problem in (await env.peek(action))["text"]
    assert env.info["steps"] == 3


async def test_a_repository_that_the_image_holds_needs_no_upload(pod, helpers):
    pod.bake()
    await pod.prepare(source=None)
    env = pod.connect()
    await env.reset()
    assert "return a - b" in (await env.peek("view calc.py"))["text"]
    await env.step(helpers.repair)
    assert (await env.finish()).resolved
    assert (await env.patch()).count("diff --git") == 1


async def test_the_step_limit_ends_the_episode_with_its_reason(pod):
    await pod.prepare(limits=EpisodeLimits(max_steps=2))
    env = pod.connect()
    await env.reset()
    await env.step("view calc.py")
    _, reward, terminated, truncated, info = await env.step("view calc.py")
    assert (reward, terminated, truncated, info["reason"]) == (0.0, False, True, "StepLimitReached")
    status, body = await pod.step(3, "view", {"path": "calc.py"})
    assert (status, body["code"]) == (409, "limit_reached")


async def test_only_the_role_that_prepares_has_the_solution(pod):
    await pod.prepare()
    env = pod.connect()
    await env.reset()
    applied = await env.apply_solution()
    assert "calc.py" in applied.text
    assert await env.apply_solution() == applied
    status, body = await pod.raw("POST", "/v1/apply-solution", role=Role.DRIVE)
    assert (status, body["code"]) == (403, "forbidden")
    assert (await env.finish()).resolved


async def test_the_blocking_environment_drives_an_episode(pod, helpers):
    await pod.prepare()
    made = dgym.RepoEnv.connect(pod.url, pod.tokens[Role.DRIVE], render_mode="ansi")

    def drive():
        with pickle.loads(pickle.dumps(made)) as env:
            env.reset()
            env.step(helpers.repair)
            assert "return a + b" in env.render()
            *_, info = env.step("submit")
            return info["resolved"]

    assert await asyncio.to_thread(drive)


async def test_options_of_local_episodes_are_refused(pod):
    await pod.prepare()
    env = pod.connect()
    with pytest.raises(ValueError, match="task"):
        await env.reset(options={"task": other_task()})
    with pytest.raises(ValueError, match="render_mode"):
        pod.connect(render_mode="html")
    assert env.result is None
    env = dgym.AsyncRepoEnv.connect(pod.url, pod.tokens[Role.DRIVE])
    await env.reset()
    with pytest.raises(AccessRefused):
        await env.apply_solution()
    await env.close()
    await env.close()


def other_task():
    return msgspec.convert({"metadata": {"name": "other"}, "spec": {}}, dgym.DebugTask)


async def test_finish_records_the_reason_of_the_driver(pod):
    await pod.prepare()
    env = pod.connect()
    await env.reset()
    result = await env.finish(EndReason.TOKEN_BUDGET_EXHAUSTED)
    assert (result.reason, result.resolved) == (EndReason.TOKEN_BUDGET_EXHAUSTED, False)
    assert await env.finish() == result


async def test_a_reset_with_the_same_key_resumes_the_episode(pod, helpers):
    await pod.prepare()
    first = pod.connect(reset_key="episode", epoch=1)
    await first.reset()
    await first.step(helpers.repair)
    await first.close()

    second = pod.connect(reset_key="episode", epoch=2)
    observation, info = await second.reset()
    assert (info["steps"], info["rewrites"]) == (1, 1)
    assert observation["tool"] == "rewrite"
    assert second.trajectory()[1].call.arguments == helpers.repair["arguments"]
    *_, info = await second.step("submit")
    assert info["resolved"]

    third = pod.connect(reset_key="episode", epoch=3)
    _, info = await third.reset()
    assert (info["resolved"], info["reason"]) == (True, "Resolved")
