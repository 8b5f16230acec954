"""Tests of the scripted models, on which the tests of agents depend."""

from dataclasses import replace

import pytest

from tests.fakes.openai_answers import Call
from tests.fakes.openai_policies import Request, all_tasks, debugger, erratic, position_in, rewriter, scripted

TOOLS = ("eval", "view", "pdb", "rewrite", "listdir", "submit")


def request(task, calls=(), tools=TOOLS, answered=None):
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": f"Task:\n{task.instructions}\n"}]
    for number, call in enumerate(calls):
        function = {"name": call.tool, "arguments": call.text}
        messages.append(
            {"role": "assistant", "content": None, "tool_calls": [{"id": str(number), "function": function}]}
        )
        messages.append({"role": "tool", "tool_call_id": str(number), "content": "…"})
    offered = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in tools]
    return Request({"messages": messages, "tools": offered}, len(calls) if answered is None else answered)


@pytest.mark.parametrize("task", all_tasks(), ids=lambda task: task.name)
@pytest.mark.parametrize("memory", [2, 100])
def test_the_debugger_plays_the_whole_walkthrough_from_what_it_sees(task, memory):
    played = []
    for _ in task.walkthrough:
        (call,) = debugger(request(task, played[-memory:], answered=len(played))).calls
        played.append(call)
    assert tuple(played) == task.walkthrough
    assert debugger(request(task, played)).calls == ()


def test_the_debugger_continues_after_a_restart_and_after_mistakes():
    task = all_tasks()[0]
    done = list(task.walkthrough[:5])
    assert debugger(request(task, done, answered=0)).calls == (task.walkthrough[5],)
    mistaken = [*done, Call("search_web", {}), Call("view", '{"path": ')]
    assert debugger(request(task, mistaken, answered=7)).calls == (task.walkthrough[5],)


def test_unavailable_tools_are_not_called():
    task = all_tasks()[0]
    played = []
    while calls := debugger(request(task, played, tools=("view", "rewrite", "eval"))).calls:
        played += calls
    assert {call.tool for call in played} == {"view", "rewrite", "eval"}


def test_the_rewriter_only_rewrites_and_gives_up():
    played = []
    while calls := rewriter(request(all_tasks()[0], played)).calls:
        played += calls
    assert played[-1].tool == "submit"
    assert {call.tool for call in played} == {"view", "rewrite", "eval", "submit"}
    codes = [call.arguments["new_code"] for call in played if call.tool == "rewrite"]
    assert all(code.startswith("#") for code in codes)
    assert len(codes) > 5


def test_the_erratic_one_repeats_itself_for_a_seed_only():
    task = all_tasks()[0]

    def behaviour(seed):
        return [erratic(request(task, answered=number), seed) for number in range(50)]

    assert behaviour(1) == behaviour(1)
    assert behaviour(1) != behaviour(2)
    assert sum(answer.mistake for answer in behaviour(1)) > 10


def test_ambiguous_positions_are_decided_by_the_number_of_answers():
    actions = [Call("a"), Call("c"), Call("b"), Call("c"), Call("d")]
    assert position_in(actions, [Call("c")], 2) == 2
    assert position_in(actions, [Call("c")], 4) == 4
    assert position_in(actions, [Call("b"), Call("c")], 0) == 4
    assert position_in(actions, [], 3) == 0


def test_the_scripted_model_makes_the_calls_of_the_instructions_and_thinks_before_them():
    script = '[{"tool": "view", "arguments": {"path": "a.py"}, "think": 5}, {"tool": "eval", "arguments": {}}]'
    task = replace(all_tasks()[0], instructions=f"Do it. <script>{script}</script>")
    first = scripted(request(task))
    assert (first.calls, first.seconds) == ((Call("view", {"path": "a.py"}),), 5)
    second = scripted(request(task, first.calls))
    assert (second.calls, second.seconds) == ((Call("eval", {}),), 0)
    assert scripted(request(task, (*first.calls, *second.calls))).calls == ()
