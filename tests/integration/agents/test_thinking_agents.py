"""The agents that ask a model, against a scripted one: real sessions, real HTTP."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from dgym.agents import AgentContext, Chat
from dgym.agents.memory import NO_CALL
from dgym.agents.model_agent import Loop, Settings
from dgym.env import AsyncRepoEnv
from dgym.episodes import normalize
from dgym.llm import load_models
from dgym.wire import EndReason, ToolCall
from tests.bare_python import bare_python
from tests.fakes.openai_server import Answer, Call, FakeOpenAI

DOCUMENTED = Path(__file__).parents[3] / "docs" / "trajectory.md"
LOOK = Answer(reasoning="What is there?", text="I look.", calls=(Call("view", {"path": "calc.py"}),))
BREAK = Answer(calls=(Call("pdb", {"command": "b calc.py:3"}),))
GO = Answer(calls=(Call("pdb", {"command": "c"}),))
REPAIR = Answer(calls=(Call("rewrite", {"path": "calc.py", "start": 3, "end": 3, "new_code": "    total += b\n"}),))
SUBMIT = Answer(calls=(Call("submit", {"message": "It subtracted."}),))
SOLUTION = [LOOK, BREAK, GO, REPAIR, SUBMIT]


def comment(number):
    return Answer(
        calls=(Call("rewrite", {"path": "calc.py", "start": 1, "end": 0, "new_code": f"# attempt {number}\n"}),)
    )


async def test_the_debug_agent_sees_everything_and_repairs_the_bug(play):
    played = await play(FakeOpenAI(script=SOLUTION), settings={"input_price": 2, "output_price": 8})
    assert (played.result.resolved, played.result.steps, played.result.rewrites) == (True, 5, 1)
    system, task, *history = played.requests[3]["messages"]
    assert "watch the program with pdb" in system["content"]
    for part in (
        "add() is wrong.",
        "calc.py",
        "1: calc.py:3",
        "AssertionError: -1",
        "total -= b",
        "check.py (read-only)",
    ):
        assert part in task["content"]
    assert [message["role"] for message in history] == ["assistant", "tool"] * 3
    assert "At calc.py:3 in add" in history[-1]["content"]
    assert "it adds" in played.steps[3]["observation"]["text"]  # the tests run by themselves after a rewrite
    assert played.steps[3]["observation"]["score"] == {"score": 1, "maxScore": 1}
    for words in ("reasoning:\n    What is there?", "says:\n    I look.", "call: pdb command='b calc.py:3'"):
        assert words in played.told


async def test_the_trajectory_tells_what_was_said_used_and_paid(play, monkeypatch):
    played = await play(FakeOpenAI(script=SOLUTION), settings={"input_price": 2, "output_price": 8})
    exchanges = [step["exchanges"] for step in played.steps]
    assert [len(each) for each in exchanges] == [1] * 5
    first = exchanges[0][0]
    assert (first["text"], first["reasoning"]) == ("I look.", "What is there?")
    assert first["calls"][0]["arguments"] == {"path": "calc.py"}
    usage = [each[0]["usage"] for each in exchanges]
    assert sum(one["inputTokens"] for one in usage) == played.result.input_tokens > 0
    assert sum(one["outputTokens"] for one in usage) == played.result.output_tokens > 0
    assert sum(float(one["price"]) for one in usage) == pytest.approx(float(played.result.price))
    assert all(each[0]["secondsModel"] > 0 for each in exchanges)
    monkeypatch.chdir(played.folder)
    told: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", DOCUMENTED.read_text("utf-8"), re.DOTALL)[0], told)
    assert [[message["content"] for message in request] for request in told["requests"]] == [
        [message["content"] or "" for message in body["messages"]] for body in played.requests
    ]


async def test_the_rewrite_agent_never_hears_of_pdb(play):
    played = await play(FakeOpenAI(script=[LOOK, GO, REPAIR, SUBMIT]), "rewrite_agent")
    assert played.result.resolved
    assert "pdb" not in json.dumps(played.requests[0])
    assert "There is no tool `pdb`" in played.steps[1]["observation"]["text"]


async def test_pdb_is_not_there_until_enough_rewrites_were_made(play):
    script = [comment(1), GO, comment(2), BREAK, GO, SUBMIT]
    played = await play(FakeOpenAI(script=script), "debug_5_agent", parameters={"rewrites_before_pdb": 2})
    assert "pdb" not in json.dumps(played.requests[0]) + json.dumps(played.requests[1])
    assert "There is no tool `pdb`" in played.steps[1]["observation"]["text"]
    assert "New from now on, the tool pdb" in played.steps[2]["observation"]["text"]
    assert "pdb" in [tool["function"]["name"] for tool in played.requests[3]["tools"]]
    assert "watch the program with pdb" in played.requests[3]["messages"][0]["content"]
    assert played.steps[4]["observation"]["frame"]["line"] == 3
    assert {"name": "pdb", "options": {"afterRewrites": 2}} in played.lines[0]["tools"]


async def test_a_model_sees_its_own_mistakes_and_goes_on(play):
    mistakes = {
        "no_call": NO_CALL,
        "refusal": NO_CALL,
        "malformed_arguments": "cannot be read: The arguments of `view` are not valid JSON",
        "truncated_arguments": "cannot be read: The arguments of `rewrite` are not valid JSON",
        "unknown_tool": "There is no tool `search_web`",
        "wrong_arguments": "view: there is no argument `file`",
    }
    played = await play(FakeOpenAI(script=SOLUTION, faults=mistakes))
    assert played.result.resolved
    assert played.result.steps == len(mistakes) + len(SOLUTION)
    for step, request, answer in zip(played.steps, played.requests[1:], mistakes.values(), strict=False):
        assert answer in step["observation"]["text"]
        assert answer in str(request["messages"][-1]["content"])


async def test_of_several_calls_the_first_is_made_and_all_are_answered(play):
    played = await play(FakeOpenAI(script=SOLUTION, faults=["two_calls"]))
    assert played.result.resolved
    assert played.steps[0]["call"]["tool"] == "listdir"
    made, not_made = played.requests[1]["messages"][-2:]
    assert "calc.py" in made["content"]
    assert "one call at a time" in not_made["content"]
    assert made["tool_call_id"] != not_made["tool_call_id"]


async def test_a_model_never_sees_the_faults_of_the_infrastructure(play):
    faults = ["server_error", "reset", "not_json", "rate_limit"]
    played = await play(FakeOpenAI(script=SOLUTION, faults=faults), settings={"max_tries": 6})
    assert (played.result.resolved, played.result.steps) == (True, 5)
    assert all(step["observation"].get("ok", True) for step in played.steps)
    assert played.steps[0]["exchanges"][0]["tries"] == 1 + len(faults)


async def test_a_model_that_does_not_answer_is_no_verdict(play):
    played = await play(FakeOpenAI(script=SOLUTION, faults=["unauthorized"]))
    assert played.result.reason is EndReason.MODEL_ERROR
    assert not played.result.reason.is_verdict
    assert "k" not in played.result.message.split()


async def test_a_prompt_that_is_too_long_is_cut_and_sent_again(play, new_task):
    long = "\n".join(f"line {number} of a long file" for number in range(3_000))
    files = [
        {"path": "calc.py", "content": "def add(a, b):\n    return a + b\n"},
        {"path": "long.txt", "content": long},
    ]
    task = new_task(source={"files": files}, entrypoint="python -c 'import calc'")
    look = Answer(calls=(Call("view", {"path": "long.txt"}),))
    played = await play(FakeOpenAI(script=[look, look, SUBMIT], context_limit=6_000), task=task)
    assert played.result.resolved
    assert played.result.steps == 3
    assert "characters left out" in json.dumps(played.requests[-1], ensure_ascii=False)
    assert "the prompt was too long" in (played.folder / "episode.log").read_text()


async def test_a_prompt_that_cannot_be_cut_further_is_sent_once(play):
    played = await play(FakeOpenAI(script=[SUBMIT], context_limit=20))
    assert played.result.reason is EndReason.CONTEXT_EXHAUSTED
    prompts = [json.dumps(request["messages"]) for request in played.requests]
    assert prompts
    assert len(prompts) == len(set(prompts))


@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        (["context_length"] * 99, EndReason.CONTEXT_EXHAUSTED),
        (["filtered_prompt"] * 99, EndReason.MODEL_REFUSED),
        (["filtered_reply"] * 99, EndReason.MODEL_REFUSED),
        (["no_call"] * 3, EndReason.NO_TOOL_CALL),
        (["refusal"] * 3, EndReason.NO_TOOL_CALL),
    ],
)
async def test_an_agent_that_cannot_go_on_is_scored_on_its_workspace(play, faults, reason):
    repaired = FakeOpenAI(script=[REPAIR, LOOK], faults=[None, *faults])
    played = await play(repaired)
    assert played.result.resolved, played.result
    unrepaired = await play(FakeOpenAI(script=[LOOK], faults=[None, *faults]))
    result = unrepaired.result
    assert (result.reason, result.score, result.max_score) == (reason, 0, 1)
    assert (result.reason.is_verdict, result.reason.is_truncation) == (True, True)


async def test_replies_without_a_call_that_are_not_in_a_row_do_not_end_the_episode(play):
    faults = [None, *["no_call"] * 2, None, *["no_call"] * 2, None]
    played = await play(FakeOpenAI(script=[LOOK, LOOK, REPAIR, SUBMIT], faults=faults))
    assert played.result.resolved
    assert (await play(FakeOpenAI(faults=["no_call"] * 9), parameters={"maxIdleReplies": 5})).result.steps == 5


CONTROL = [
    LOOK,
    Answer(calls=(Call("view", {"path": "nothing.py"}),)),
    Answer(calls=(Call("view", {"path": "calc.py", "start": "many"}),)),
    Answer(calls=(Call("grep", {"pattern": "def"}),)),
    Answer(calls=(Call("listdir", {}),)),
    Answer(calls=(Call("bash", {"command": "echo hello; exit 3"}),)),
    Answer(calls=(Call("no_tool", {}),)),
    comment(1),
    Answer(calls=(Call("eval", {}),)),
    SUBMIT,
]


async def test_the_arm_without_a_debugger_reads_nothing_about_one(play):
    tools = ["listdir", "view", "grep", "eval", "rewrite", "bash", "submit"]
    played = await play(FakeOpenAI(script=CONTROL), agent="rewrite_agent", spec={"tools": tools})
    assert played.result.steps == len(CONTROL)
    found = re.findall(r".{0,60}(?:breakpoint|pdb|debugger).{0,20}", json.dumps(played.requests), re.IGNORECASE)
    assert not found


async def test_a_used_up_token_budget_ends_the_episode_with_a_score(play):
    played = await play(FakeOpenAI(script=[LOOK]), tokenBudget=4_000, maxSteps=50)
    assert played.result.reason is EndReason.TOKEN_BUDGET_EXHAUSTED
    assert (played.result.score, played.result.max_score) == (0, 1)
    assert played.result.input_tokens + played.result.output_tokens >= 4_000
    assert 0 < played.result.steps < 50


async def test_the_deadline_does_not_wait_for_a_slow_model(play):
    played = await play(FakeOpenAI(script=[LOOK], latency=60), spec={"activeDeadlineSeconds": 2})
    assert played.result.reason is EndReason.DEADLINE_EXCEEDED
    assert played.result.max_score == 1


async def test_an_evaluation_that_passes_can_end_the_episode(play, new_task):
    task = new_task(scoring={"stopWhenEvalPasses": True})
    played = await play(FakeOpenAI(script=[REPAIR, LOOK]), task=task)
    assert (played.result.resolved, played.result.steps) == (True, 1)


@pytest.mark.parametrize("limit", [{"maxSteps": 2}, {"maxRewrites": 1}])
async def test_limits_end_the_episode(play, limit):
    played = await play(FakeOpenAI(script=[LOOK, comment(1)]), **limit)
    assert played.result.reason in (EndReason.STEP_LIMIT_REACHED, EndReason.REWRITE_LIMIT_REACHED)
    assert played.result.steps == 2


async def test_evaluations_are_the_users_choice(play):
    parameters = {"evalOnReset": False, "evalOnRewrite": False, "treeDepth": 0, "memorySize": 1}
    played = await play(FakeOpenAI(script=[LOOK, comment(1), SUBMIT]), parameters=parameters)
    assert "Last run of the tests" not in json.dumps(played.requests)
    assert "# Files" not in json.dumps(played.requests)
    assert len(played.requests[2]["messages"]) == 4  # system, task, and the last step's call and answer


async def test_an_episode_without_the_tool_eval_begins_without_a_run_of_the_tests(play):
    played = await play(FakeOpenAI(script=[LOOK, REPAIR, SUBMIT]), spec={"tools": ["view", "rewrite", "submit"]})
    assert played.result.resolved, played.result.message
    assert "Last run of the tests" not in json.dumps(played.requests)


async def test_history_can_be_left_behind_at_a_rewrite(play):
    script = [LOOK, BREAK, comment(1), SUBMIT]
    played = await play(FakeOpenAI(script=script), parameters={"resetHistoryAfterRewrite": True})
    assert len(played.requests[2]["messages"]) == 6
    assert len(played.requests[3]["messages"]) == 4


async def test_the_same_seed_gives_the_same_trajectory(play):
    erratic = {"model": "erratic-3"}
    first = await play(FakeOpenAI(), settings=erratic, seed=5, maxSteps=12, name="first")
    second = await play(FakeOpenAI(), settings=erratic, seed=5, maxSteps=12, name="second")
    assert observed(first) == observed(second)
    assert {request["seed"] for request in first.requests} == {5}


def observed(played):
    return [
        (step["call"], normalize(step["observation"]["text"]), [each.get("text") for each in step["exchanges"]])
        for step in played.steps
    ]


class Attached:
    """A session that lives, as it is when another worker takes it over: a reset answers with what it answered first."""

    def __init__(self, env, first):
        self._env = env
        self._first = first

    async def reset(self, **_):
        return self._first, self._env.info

    def __getattr__(self, name):
        return getattr(self._env, name)


async def test_an_agent_goes_on_where_another_worker_left_a_living_session(new_task, tmp_path):
    server = FakeOpenAI(script=SOLUTION)
    async with server, AsyncRepoEnv(new_task(), sandbox="none", python=bare_python()) as env:
        first, _ = await env.reset()
        await env.step("pdb b calc.py:3")
        await env.step(ToolCall.mistake(NO_CALL))
        config = tmp_path / "llm.yaml"
        config.write_text(json.dumps({"m": {"model": "scripted", "endpoint": server.url}}))
        models = load_models(config)
        chat = Chat(models.open("m"), session="one")
        await Loop(Attached(env, first), chat, AgentContext(task_name="calc", chat=chat), Settings()).run()
        await models.close()
        assert env.result is not None
        assert (env.result.resolved, env.result.steps) == (True, 7)
    roles = [message["role"] for message in server.received[0].body["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]


async def test_a_slow_model_holds_up_no_other_episode_of_the_process(play, tmp_path):
    slow = asyncio.create_task(play(FakeOpenAI(script=[LOOK], latency=600), name="slow"))
    fast = await play(FakeOpenAI(script=SOLUTION), name="fast")
    assert fast.result.resolved
    assert not slow.done()
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
    assert not list(tmp_path.glob("results/*/slow/*/*/result.json"))


async def test_seed_temperature_and_session_reach_the_model(play):
    played = await play(FakeOpenAI(script=SOLUTION), seed=7, temperature="0.5")
    assert {(body["seed"], body["temperature"]) for body in played.requests} == {(7, 0.5)}
    sessions = {received.session for received in played.server.received}
    assert len(sessions) == 1
    assert sessions != {""}
