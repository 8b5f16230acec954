"""Tests of the agents that use a model, with real sessions and a scripted model behind real HTTP."""

import asyncio
import itertools
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dgym.agents
from dgym.episodes import normalize
from dgym.wire import EndReason
from tests.fakes.openai_server import Answer, Call, FakeOpenAI
from tests.integration.agents.conftest import play_one
from tests.support.calc import FIXED

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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def solved(tmp_path_factory):
    """The episode in which the debug agent makes the calls of ``SOLUTION``."""
    settings = {"input_price": 2, "output_price": 8}
    directory = tmp_path_factory.mktemp("solved")
    return await play_one(directory, FakeOpenAI(script=SOLUTION), settings=settings, seed=7, temperature="0.5")


def test_the_debug_agent_sees_everything_and_repairs_the_bug(solved):
    played = solved
    assert (played.result.resolved, played.result.steps, played.result.rewrites) == (True, 5, 1)
    system, task, *history = played.requests[3]["messages"]
    assert "watch the program with pdb" in system["content"]
    for part in ("add() is wrong.", "calc.py", "AssertionError: -1", "check.py (read-only)"):
        assert part in task["content"]
    assert [message["role"] for message in history] == ["assistant", "tool"] * 3
    assert "total -= b" in history[1]["content"]
    assert "At calc.py:3 in add" in history[-1]["content"]
    assert "it adds" in played.steps[3]["observation"]["text"]  # the agent runs the tests after each rewrite
    assert played.steps[3]["observation"]["score"] == {"score": 1, "maxScore": 1}
    for words in ("reasoning:\n    What is there?", "says:\n    I look.", "call: pdb command='b calc.py:3'"):
        assert words in played.narrated


def test_the_trajectory_records_replies_tokens_and_prices(solved, monkeypatch):
    played = solved
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
    namespace: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", DOCUMENTED.read_text("utf-8"), re.DOTALL)[0], namespace)
    assert [[message["content"] for message in request] for request in namespace["requests"]] == [
        [message["content"] or "" for message in body["messages"]] for body in played.requests
    ]


async def test_prompts_of_the_rewrite_agent_and_the_debug_agent_differ_only_in_pdb(play, solved):
    played = await play(FakeOpenAI(script=[LOOK, GO, REPAIR, SUBMIT]), "rewrite_agent")
    assert played.result.resolved
    debug, rewrite = solved.requests[0], played.requests[0]
    assert "pdb" not in json.dumps(rewrite)
    assert "Unknown tool `pdb`" in played.steps[1]["observation"]["text"]
    advice = (Path(dgym.agents.__file__).parent / "prompts" / "pdb.j2").read_text("utf-8")
    assert advice in debug["messages"][0]["content"]
    system = debug["messages"][0]["content"].replace(advice, "")
    assert system.replace("\n\n\n", "\n").split() == rewrite["messages"][0]["content"].split()
    assert without_place(debug["messages"][1]["content"]) == without_place(rewrite["messages"][1]["content"])
    offered = [{tool["function"]["name"]: tool["function"] for tool in body["tools"]} for body in (debug, rewrite)]
    assert set(offered[0]) - set(offered[1]) == {"pdb"}
    for name, tool in offered[1].items():
        assert tool["parameters"].keys() == offered[0][name]["parameters"].keys()


async def test_pdb_is_available_after_the_configured_number_of_rewrites(play):
    script = [comment(1), GO, comment(2), BREAK, GO, SUBMIT]
    played = await play(FakeOpenAI(script=script), "debug_5_agent", parameters={"rewrites_before_pdb": 2})
    assert "pdb" not in json.dumps(played.requests[0]) + json.dumps(played.requests[1])
    assert "Unknown tool `pdb`" in played.steps[1]["observation"]["text"]
    assert "The tool pdb is available from now on" in played.steps[2]["observation"]["text"]
    assert "pdb" in [tool["function"]["name"] for tool in played.requests[3]["tools"]]
    assert "watch the program with pdb" in played.requests[3]["messages"][-1]["content"]
    assert grows(played.requests)
    assert played.steps[4]["observation"]["frame"]["line"] == 3
    assert {"name": "pdb", "options": {"afterRewrites": 2}} in played.lines[0]["tools"]


async def test_mistakes_of_the_model_are_reported_to_it_and_the_episode_continues(play):
    mistakes = {
        "no_call": "Your reply had text, but it called no tool",
        "malformed_arguments": "cannot be read: The arguments of `view` are not valid JSON",
        "refusal": "Your reply refused to go on",
        "truncated_arguments": "cannot be read: The arguments of `rewrite` are not valid JSON",
        "unknown_tool": "Unknown tool `search_web`",
        "cut_in_thought": "Your reply was cut off at the limit of its length",
        "wrong_arguments": "view: unknown argument `file`",
    }
    played = await play(FakeOpenAI(script=SOLUTION, faults=mistakes))
    assert played.result.resolved
    assert played.result.steps == len(mistakes) + len(SOLUTION)
    assert grows(played.requests)
    for step, request, answer in zip(played.steps, played.requests[1:], mistakes.values(), strict=False):
        assert answer in step["observation"]["text"]
        assert answer in str(request["messages"][-1]["content"])


async def test_calls_of_a_reply_are_made_in_order_until_the_episode_ends(play):
    calls = (*LOOK.calls, Call("view", "{"), *BREAK.calls, *GO.calls, *REPAIR.calls)
    played = await play(FakeOpenAI(script=[Answer(calls=calls), Answer(calls=(*SUBMIT.calls, *LOOK.calls))]))
    assert (played.result.resolved, played.result.steps) == (True, 6)
    assert len(played.requests) == 2
    answers = played.requests[1]["messages"][-5:]
    assert [answer["role"] for answer in answers] == ["tool"] * 5
    assert len({answer["tool_call_id"] for answer in answers}) == 5
    for answer, part in zip(
        answers, ("total -= b", "cannot be read", "Breakpoint 1", "At calc.py:3", "it adds"), strict=True
    ):
        assert part in answer["content"]
    assert [len(step.get("exchanges", ())) for step in played.steps] == [1, 0, 0, 0, 0, 1]


TEXT_FORMS = [
    "view calc.py",
    '```json\n{"tool": "view", "arguments": {"path": "calc.py"}}\n```',
    '<tool_call>{"name": "view", "arguments": {"path": "calc.py"}}</tool_call>',
    "<call>view calc.py</call>",
]


@pytest.mark.parametrize("tool_calling", ["native", "text"])
async def test_a_reply_that_is_only_a_call_is_parsed_in_every_form(play, tool_calling):
    server = FakeOpenAI(script=[*(Answer(text=content) for content in TEXT_FORMS), REPAIR, SUBMIT])
    played = await play(server, settings={"tool_calling": tool_calling})
    assert (played.result.resolved, played.result.steps) == (True, len(TEXT_FORMS) + 2)
    for content, step, request in zip(TEXT_FORMS, played.steps, played.requests[1:], strict=False):
        assert step["call"] == {"tool": "view", "arguments": {"path": "calc.py"}}, content
        assert step["exchanges"][0]["inText"], content
        assistant, answer = request["messages"][-2:]
        assert assistant == {"role": "assistant", "content": content}
        assert answer["role"] == "user", content
        assert "total -= b" in answer["content"], content


async def test_the_text_form_is_explained_only_with_tool_calling_text(play, solved):
    assert not re.findall("<call>|As one line of text", json.dumps(solved.requests))
    text = await play(FakeOpenAI(script=SOLUTION), settings={"tool_calling": "text"})
    assert text.result.resolved
    assert "<call>view calc.py</call>" in text.requests[-1]["messages"][0]["content"]
    assert grows(text.requests)


@pytest.mark.parametrize("tool_calling", ["native", "text"])
async def test_a_new_tool_does_not_change_earlier_messages(play, tool_calling):
    script = [comment(1), LOOK, comment(2), BREAK, GO, SUBMIT]
    played = await play(
        FakeOpenAI(script=script),
        "debug_5_agent",
        parameters={"rewrites_before_pdb": 2},
        settings={"tool_calling": tool_calling},
    )
    assert grows(played.requests)
    assert not re.findall("breakpoint|pdb|debugger", json.dumps(played.requests[:3]), re.IGNORECASE)
    assert "watch the program with pdb" in played.requests[3]["messages"][-1]["content"]
    assert ("- pdb " in played.requests[3]["messages"][-1]["content"]) == (tool_calling == "text")
    assert played.steps[4]["observation"]["frame"]["line"] == 3
    tools = [step["exchanges"][0].get("tools", []) for step in played.steps]
    assert [names[-1:] for names in tools] == [["submit"], [], [], ["pdb"], [], []]


@pytest.mark.parametrize("reasoning", ["return", "drop"])
async def test_reasoning_is_sent_back_unchanged(play, reasoning):
    details = [{"type": "reasoning.encrypted", "data": "c2VjcmV0"}]
    look = Answer(reasoning=" What?\n", text=" I look.", calls=LOOK.calls, extra={"reasoning_details": details})
    played = await play(FakeOpenAI(script=[look, REPAIR, SUBMIT]), settings={"reasoning": reasoning})
    assistant = {name: value for name, value in played.requests[1]["messages"][2].items() if name != "tool_calls"}
    returned = {"reasoning_content": " What?\n", "reasoning_details": details}
    content = " I look." if reasoning == "return" else "I look."
    assert assistant == {"role": "assistant", "content": content, **(returned if reasoning == "return" else {})}
    assert played.steps[0]["exchanges"][0]["reasoning"] == "What?"


RESPONSES = {"api": "responses", "input_price": 2, "output_price": 8}


async def test_an_agent_debugs_by_the_responses_api(play):
    played = await play(FakeOpenAI(script=SOLUTION), settings=RESPONSES, seed=5, temperature="0.5")
    assert (played.result.resolved, played.result.steps, played.result.rewrites) == (True, 5, 1)
    assert {received.path for received in played.server.received} == {"/v1/responses"}
    first, last = played.requests[0], played.requests[-1]
    assert (first["store"], first["include"]) == (False, ["reasoning.encrypted_content"])
    assert (first["temperature"], first["model"], "seed" in first) == (0.5, "scripted", False)
    assert [item.get("role", item["type"]) for item in first["input"]] == ["system", "user"]
    assert {(tool["type"], tool["strict"]) for tool in first["tools"]} == {("function", False)}
    thought, assistant, call, answer = last["input"][2:6]
    assert thought["encrypted_content"] == "encrypted 1"
    assert assistant["content"][0]["text"] == "I look."
    assert (call["name"], answer["call_id"]) == ("view", call["call_id"])
    assert "total -= b" in answer["output"]
    assert grows(played.requests)
    exchange = played.steps[1]["exchanges"][0]
    assert exchange["usage"]["cachedTokens"] > 0
    assert exchange["usage"]["price"]
    assert played.steps[0]["exchanges"][0]["reasoning"] == "What is there?"


INVALID_REPLIES = [
    (Answer(reasoning="Hm", finish_reason="length"), "Your reply was cut off at the limit of its length"),
    (Answer(reasoning="Hm."), "Your reply had only reasoning"),
    (Answer(refusal="No."), "Your reply refused to go on"),
    (Answer(), "Your reply was empty"),
    (Answer(calls=(Call("view", '{"path": "ca'),), finish_reason="length"), "write less at a time"),
    (Answer(text="view calc.py"), "total -= b"),
]


async def test_replies_without_a_valid_call_by_the_responses_api(play):
    script = [*itertools.chain.from_iterable((LOOK, answer) for answer, _ in INVALID_REPLIES), REPAIR, SUBMIT]
    played = await play(FakeOpenAI(script=script), settings=RESPONSES)
    assert (played.result.resolved, played.result.steps) == (True, len(script))
    observed = [step["observation"]["text"] for step in played.steps[1::2]]
    assert [words for text, (_, words) in zip(observed, INVALID_REPLIES, strict=False) if words not in text] == []
    assert grows(played.requests)


async def test_with_reasoning_drop_reasoning_is_not_requested_or_sent_back(play):
    played = await play(FakeOpenAI(script=SOLUTION), settings={**RESPONSES, "reasoning": "drop"})
    assert played.result.resolved
    assert "include" not in played.requests[0]
    kinds = {item["type"] for request in played.requests for item in request["input"]}
    assert kinds == {"message", "function_call", "function_call_output"}
    assert grows(played.requests)


async def test_marks_for_the_cache_move_with_the_end_of_the_request(play):
    calls = (*LOOK.calls, *BREAK.calls)
    script = [Answer(calls=calls), GO, REPAIR, SUBMIT]
    played = await play(FakeOpenAI(script=script), settings={"cache_control": True})
    assert played.result.resolved
    marked = [
        [
            place
            for place, message in enumerate(request["messages"])
            if "cache_control" in json.dumps(message["content"])
        ]
        for request in played.requests
    ]
    assert marked == [[0, 1], [0, 1, 4], [0, 4, 6], [0, 6, 8]]
    (part,) = played.requests[1]["messages"][4]["content"]
    assert (part["type"], part["cache_control"]) == ("text", {"type": "ephemeral"})
    assert not grows(played.requests)
    assert grows([without_marks(request) for request in played.requests])


def without_marks(request):
    messages = [
        {**message, "content": message["content"][0]["text"]} if isinstance(message["content"], list) else message
        for message in request["messages"]
    ]
    return {**request, "messages": messages}


def grows(requests):
    """True if each request begins with the messages and tools of the request before it, byte for byte."""
    pairs = [
        (json.dumps(request[part])[:-1], json.dumps(later[part]))
        for request, later in itertools.pairwise(requests)
        for part in ("messages", "input", "tools")
        if part in request
    ]
    return all(later.startswith(earlier) for earlier, later in pairs)


async def test_failures_of_requests_are_not_in_the_conversation(play):
    faults = ["server_error", "reset", "not_json", "rate_limit"]
    played = await play(FakeOpenAI(script=SOLUTION, faults=faults), settings={"max_tries": 6})
    assert (played.result.resolved, played.result.steps) == (True, 5)
    assert all(step["observation"].get("ok", True) for step in played.steps)
    assert played.steps[0]["exchanges"][0]["tries"] == 1 + len(faults)


@pytest.mark.parametrize("fault", ["unauthorized", "forbidden"])
async def test_a_model_that_fails_is_not_counted_and_the_changes_before_are_kept_without_a_score(play, fault):
    played = await play(FakeOpenAI(script=SOLUTION[3:], faults=[None, fault]))
    assert (played.result.reason, played.result.max_score) == (EndReason.MODEL_ERROR, 0)
    assert not played.result.reason.is_counted
    assert "k" not in played.result.message.split()
    assert "+    total += b" in (played.folder / "patch.diff").read_text()
    assert [step["call"]["tool"] for step in played.steps] == ["rewrite"]


def with_a_long_file(new_task, entrypoint="python -c 'import calc'"):
    long = "\n".join(f"line {number} of a long file" for number in range(3_000))
    files = [
        {"path": "calc.py", "content": FIXED},
        {"path": "long.txt", "content": long},
    ]
    return new_task(source={"files": files}, entrypoint=entrypoint)


READ = Answer(calls=(Call("view", {"path": "long.txt"}),))
LONG_READ = [
    Answer(calls=(Call("view", {"path": "long.txt", "start": start, "end": start + 200}),))
    for start in range(1, 1000, 50)
]


async def test_an_observation_that_is_too_long_is_cut_and_sent_again(play, new_task):
    task = with_a_long_file(new_task)
    played = await play(FakeOpenAI(script=[READ, READ, SUBMIT], context_limit=4_000), task=task)
    assert played.result.resolved
    assert played.result.steps == 3
    assert "characters left out" in json.dumps(played.requests[-1], ensure_ascii=False)
    assert "the request was too long" in (played.folder / "episode.log").read_text()


@pytest.mark.parametrize("known", [True, False])
async def test_old_observations_are_removed_when_the_context_is_full(play, new_task, known):
    read = LONG_READ
    server = FakeOpenAI(script=[*read, SUBMIT], context_limit=12_000)
    settings = {"context_limit": 12_000} if known else {}
    played = await play(server, task=with_a_long_file(new_task), settings=settings)
    assert (played.result.resolved, played.result.steps) == (True, len(read) + 1)
    removed = [step["exchanges"][0].get("removed", []) for step in played.steps]
    compactions = [index for index, each in enumerate(removed) if each]
    assert 2 <= len(compactions) <= 8
    requests = [request for request in played.requests if len(json.dumps(request)) // 4 <= 12_000]
    broken = [not grows(pair) for pair in itertools.pairwise(requests)]
    assert sum(broken) == len(compactions)
    assert "old observation of" in json.dumps(played.requests[-1])
    known_messages = [message for step in played.steps for message in step["exchanges"][0].get("messages", [])]
    first, _ = removed[compactions[0]][0]
    assert "line 1 of a long file" in known_messages[first]["content"]


async def test_an_episode_that_may_not_be_compacted_ends(play, new_task):
    server = FakeOpenAI(script=[*LONG_READ, SUBMIT])
    task = with_a_long_file(new_task, "python -c 'import calc; assert calc.add(1, 2) == 4'")
    played = await play(server, task=task, settings={"context_limit": 12_000}, parameters={"compaction": "stop"})
    assert played.result.reason is EndReason.CONTEXT_EXHAUSTED
    assert 0 < played.result.steps < len(LONG_READ)
    assert grows(played.requests)
    assert "old observation" not in json.dumps(played.requests)


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
async def test_an_episode_whose_agent_cannot_continue_is_scored(play, faults, reason):
    repaired = FakeOpenAI(script=[REPAIR, LOOK], faults=[None, *faults])
    played = await play(repaired)
    assert played.result.resolved, played.result
    unrepaired = await play(FakeOpenAI(script=[LOOK], faults=[None, *faults]))
    result = unrepaired.result
    assert (result.reason, result.score, result.max_score) == (reason, 0, 1)
    assert (result.reason.is_counted, result.reason.is_truncation) == (True, True)


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


def call(tool, **arguments):
    return Answer(calls=(Call(tool, arguments),))


WRONG = [
    call("view", path="."),
    call("view", path="calc.py", file="calc.py"),
    call("view", path="calc.py", start=90),
    call("grep", pattern="("),
    call("grep", pattern="no such text"),
    call("listdir", path="nothing"),
    call("rewrite", path="check.py", new_code="print(1)\n"),
    call("rewrite", path="calc.py", start=9, end=3, new_code="x\n"),
    call("rewrite", path="calc.py"),
    call("rewrite", path="calc.py", new_code="def add(a, b:\n"),
    call("eval"),
    call("rewrite", path="calc.py", new_code="def add(a, b):\n    return add(a, b)\n"),
    call("eval"),
    call("rewrite", path="calc.py", new_code="import os\nos.kill(os.getpid(), 11)\n"),
    call("eval", path="calc.py"),
    call("bash", command="env; ls -a; git log; cat nothing"),
    call("bash", command="python -c 'import sys; print(sys.path, sys.flags, sys.gettrace())'; exec 2>&1; python -X"),
    call("bash", command="kill -9 $$"),
    call("bash"),
    Answer(calls=(Call("rewrite", "{"), Call("eval", '{"a'))),
    Answer(text="I think."),
    Answer(refusal="No."),
    Answer(reasoning="Hm."),
    Answer(text="", finish_reason="length"),
]


@pytest.mark.parametrize("tool_calling", ["native", "text"])
async def test_requests_of_the_arm_without_a_debugger_do_not_mention_a_debugger(play, tool_calling):
    # The manifest lists pdb, like a manifest for both arms.
    tools = ["pdb", "listdir", "view", "grep", "eval", "rewrite", "bash", "submit"]
    script = [*CONTROL[:-1], *WRONG, SUBMIT]
    settings = {"tool_calling": tool_calling}
    parameters = {"maxIdleReplies": 9}
    played = await play(
        FakeOpenAI(script=script), "rewrite_agent", spec={"tools": tools}, settings=settings, parameters=parameters
    )
    assert played.result.steps == sum(max(1, len(answer.calls)) for answer in script)
    read = json.dumps([played.requests, [step["observation"]["text"] for step in played.lines[1:]]])
    assert not re.findall(r".{0,60}(?:breakpoint|pdb|debugger).{0,20}", read, re.IGNORECASE)
    for part in ("SyntaxError", "RecursionError", "read-only", "exit status", "cannot be read", "PATH="):
        assert part.lower() in read.lower(), part


async def test_a_used_up_token_budget_ends_the_episode_with_a_score(play):
    played = await play(FakeOpenAI(script=[LOOK]), tokenBudget=4_000, maxSteps=50)
    assert played.result.reason is EndReason.TOKEN_BUDGET_EXHAUSTED
    assert (played.result.score, played.result.max_score) == (0, 1)
    assert played.result.input_tokens + played.result.output_tokens >= 4_000
    assert 0 < played.result.steps < 50


PRICED = {"input_price": 2000, "output_price": 8000}


async def test_an_episode_ends_at_its_cost_limit_and_is_scored(play):
    script = [REPAIR, LOOK]
    whole = await play(FakeOpenAI(script=script), settings=PRICED, maxSteps=6, name="whole")
    spent = [Decimal(step["exchanges"][0]["usage"]["price"]) for step in whole.steps]
    limit = format(sum(spent[:3]), "f")
    played = await play(FakeOpenAI(script=script), settings=PRICED, maxSteps=6, costLimit=limit)
    assert (played.result.steps, Decimal(played.result.price)) == (3, Decimal(limit))
    assert played.result.resolved  # the workspace is scored as it is
    played = await play(FakeOpenAI(script=[LOOK]), settings=PRICED, costLimit="0.5", name="unrepaired")
    assert played.result.reason is EndReason.COST_LIMIT_REACHED
    assert (played.result.score, played.result.max_score) == (0, 1)
    assert (played.result.reason.is_counted, played.result.reason.is_truncation) == (True, True)


async def test_a_lost_attempt_counts_against_the_cost_limit(play):
    played = await play(FakeOpenAI(script=[LOOK]), settings=PRICED, maxSteps=3)
    (played.folder / "result.json").unlink()
    again = await play(FakeOpenAI(script=[LOOK]), settings=PRICED, costLimit=played.result.price, maxSteps=3)
    assert (again.result.attempt, again.result.reason, again.result.steps) == (2, EndReason.COST_LIMIT_REACHED, 0)
    assert (again.requests, again.result.price) == ([], played.result.price)


@pytest.mark.parametrize("prices", [{}, {"input_price": 1}])
async def test_a_cost_limit_needs_a_model_with_prices(play, prices):
    played = await play(FakeOpenAI(script=[SUBMIT]), settings=prices, costLimit="2.50")
    assert (played.result.reason, played.requests) == (EndReason.INVALID_SPEC, [])
    for part in ("agent.costLimit is 2.50", "'m'", "one.json", "no prices", "add input_price and output_price"):
        assert part in played.result.message


async def test_the_deadline_does_not_wait_for_a_slow_model(play):
    played = await play(FakeOpenAI(script=[LOOK], latency=60), spec={"activeDeadlineSeconds": 1})
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


async def test_automatic_evaluations_can_be_disabled(play):
    parameters = {"evalOnReset": False, "evalOnRewrite": False, "treeDepth": 0}
    played = await play(FakeOpenAI(script=[LOOK, comment(1), SUBMIT]), parameters=parameters)
    assert "First run of the tests" not in json.dumps(played.requests)
    assert "# Files" not in json.dumps(played.requests)


async def test_an_episode_without_the_tool_eval_begins_without_a_run_of_the_tests(play):
    played = await play(FakeOpenAI(script=[LOOK, REPAIR, SUBMIT]), spec={"tools": ["view", "rewrite", "submit"]})
    assert played.result.resolved, played.result.message
    assert "First run of the tests" not in json.dumps(played.requests)


ANY = st.sampled_from(
    [
        *CONTROL[:-1],
        *(BREAK, GO, REPAIR),
        Answer(),
        Answer(text="I think."),
        Answer(reasoning="Hm."),
        Answer(text=" view calc.py\n"),
        Answer(refusal="No."),
        Answer(text="Both.", calls=(*BREAK.calls, *GO.calls)),
        Answer(calls=(Call("view", "{"), Call("view", '{"path":"calc.py" ,"start": 1e0}'))),
        Answer(text="é <call>view calc.py</call>\n<call>listdir</call>", reasoning="  spaces  "),
        Answer(text="", finish_reason="length"),
    ]
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    script=st.lists(ANY, min_size=2, max_size=8),
    agent=st.sampled_from(["debug_agent", "rewrite_agent", "debug_5_agent", "bash_agent"]),
    tool_calling=st.sampled_from(["native", "text"]),
    api=st.sampled_from(["chat", "responses"]),
    number=st.uuids(),
)
async def test_every_request_extends_the_previous_request(play, script, agent, tool_calling, api, number):
    parameters = {"maxIdleReplies": 9} | ({"rewritesBeforePdb": 1} if agent == "debug_5_agent" else {})
    played = await play(
        FakeOpenAI(script=[*script, SUBMIT]),
        agent,
        parameters=parameters,
        settings={"tool_calling": tool_calling, "api": api},
        name=f"n{number}"[:20].rstrip("-"),
    )
    assert len(played.requests) == len(script) + 1
    assert grows(played.requests)


async def test_the_bash_agent_repairs_with_a_shell_alone(play):
    sed = Answer(calls=(Call("bash", {"command": "sed -i 's/-=/+=/' calc.py"}),))
    played = await play(FakeOpenAI(script=[sed, SUBMIT]), "bash_agent")
    assert played.result.resolved
    assert [tool["function"]["name"] for tool in played.requests[0]["tools"]] == ["bash", "submit"]
    assert not re.findall("breakpoint|pdb|debugger|rewrite|eval", json.dumps(played.requests), re.IGNORECASE)


async def test_the_same_seed_gives_the_same_trajectory(play):
    erratic = {"model": "erratic-3"}
    first = await play(FakeOpenAI(), settings=erratic, seed=5, maxSteps=12, name="first")
    second = await play(FakeOpenAI(), settings=erratic, seed=5, maxSteps=12, name="second")
    assert observed(first) == observed(second)
    assert {request["seed"] for request in first.requests} == {5}


def observed(played):
    return [
        (
            step["call"],
            without_place(step["observation"]["text"]),
            [each.get("text") for each in step.get("exchanges", ())],
        )
        for step in played.steps
    ]


def without_place(text):
    """Remove the parts that differ between runs, and the directory of the sandbox of kind ``none``."""
    return re.sub(r"files-\w+", "files", normalize(text))


async def test_a_slow_model_does_not_delay_other_episodes_of_the_process(play, tmp_path):
    slow = asyncio.create_task(play(FakeOpenAI(script=[LOOK], latency=600), name="slow"))
    fast = await play(FakeOpenAI(script=SOLUTION), name="fast")
    assert fast.result.resolved
    assert not slow.done()
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
    assert not list(tmp_path.glob("results/*/slow/*/*/result.json"))


def test_seed_temperature_and_session_reach_the_model(solved):
    assert {(body["seed"], body["temperature"]) for body in solved.requests} == {(7, 0.5)}
    sessions = {received.session for received in solved.server.received}
    assert len(sessions) == 1
    assert sessions != {""}
