"""Tests of requests to the model: the server's record, OpenAI's schema and the trajectory agree."""

import itertools
import json
import re

import pydantic
import pytest
from click.testing import CliRunner

from dgym.agents import sent_requests
from dgym.cli.app import cli
from tests.fakes.openai_schema import check_request
from tests.fakes.openai_server import Answer, Call, FakeOpenAI
from tests.integration.agents.conftest import as_sent

THOUGHT = {"reasoning_details": [{"type": "reasoning.encrypted", "data": "c2VjcmV0"}]}
ODD = [
    Answer(reasoning=" What?\n", text=" I look. é\u2028", calls=(Call("view", {"path": "calc.py"}),), extra=THOUGHT),
    Answer(text="I think."),
    Answer(calls=(Call("listdir", {}), Call("view", '{"path":"calc.py" ,"start": 1e0}'), Call("view", "{"))),
    Answer(calls=(Call("search the web!", {}),)),
    Answer(refusal="No."),
    Answer(text="bash ls"),
    Answer(text="<call>bash ls</call> and <call>listdir</call>"),
    Answer(),
    Answer(calls=(Call("bash", {"command": "sed -i 's/-=/+=/' calc.py"}),)),
    Answer(calls=(Call("rewrite", {"path": "calc.py", "start": 1, "end": 0, "new_code": "# a comment\n"}),)),
    Answer(calls=(Call("submit", {}),)),
]
FORMS = {
    "native": {"generate_kwargs": {"max_tokens": 4000, "top_p": 0.9, "parallel_tool_calls": False}},
    "text": {"tool_calling": "text"},
    "no-system": {"system_prompt_support": False},
    "text-no-system": {"tool_calling": "text", "system_prompt_support": False},
    "drop": {"reasoning": "drop"},
    "think": {"reasoning_end_token": "</think>"},
}


CASES = [(agent, "native") for agent in ("debug_agent", "rewrite_agent", "bash_agent")]


@pytest.mark.parametrize(("agent", "form"), [*CASES, *(("debug_5_agent", form) for form in FORMS)])
async def test_the_trajectory_has_every_request_byte_for_byte(play, tmp_path, agent, form):
    parameters = {"rewritesBeforePdb": 1} if agent == "debug_5_agent" else {}
    played = await play(
        FakeOpenAI(script=ODD), agent, settings=FORMS[form], parameters=parameters, seed=3, temperature="0.5"
    )
    assert played.result.resolved, played.result.message
    received = [json.dumps(body["messages"]) for body in played.requests]
    assert as_sent(played.exchanges, tmp_path / "one.json") == received
    offered = [[tool["function"]["name"] for tool in body.get("tools", ())] for body in played.requests]
    for request, tools in zip(sent_requests(played.exchanges), offered, strict=True):
        assert request is not None
        assert list(request.tools) == tools or "text" in form


async def test_the_story_shows_the_whole_request_of_a_step(play):
    played = await play(FakeOpenAI(script=ODD))
    for step, body in zip((step for step in played.steps if "exchanges" in step), played.requests, strict=True):
        done = CliRunner().invoke(cli, ["results", "--story", "--step", str(step["seq"]), str(played.folder)])
        assert done.exit_code == 0, done.output
        shown = re.sub(r"\s+|\\\\u[0-9a-f]{4}", "", done.output)
        assert f"request: {len(body['messages'])} messages" in done.output
        for message in body["messages"]:
            content = re.sub(r"\s+", "", message["content"] or "")
            assert content in shown
            assert message.get("reasoning_content", "").strip() in done.output
            for call in message.get("tool_calls", ()):
                assert f"call {call['function']['name']}: {call['function']['arguments']}" in done.output


async def test_the_next_request_shows_a_compaction(play, new_task):
    long = {"path": "long.txt", "content": "\n".join(f"line {number} of a long file" for number in range(3_000))}
    task = new_task(source={"files": [long]}, entrypoint="python -c 1")
    read = [
        Answer(calls=(Call("view", {"path": "long.txt", "start": start, "end": start + 200}),))
        for start in range(1, 800, 50)
    ]
    submit = Answer(calls=(Call("submit", {}),))
    played = await play(FakeOpenAI(script=[*read, submit]), task=task, settings={"context_limit": 12_000})
    requests = [request for request in sent_requests(played.exchanges) if request is not None]
    compacted = [(before, after) for before, after in itertools.pairwise(requests) if after.removed]
    assert compacted
    for before, after in compacted:
        gone = set(before.numbers) - set(after.numbers)
        assert len(gone) == after.removed
        stubs = [
            after.known[number].content for number in after.new if "old observation" in after.known[number].content
        ]
        assert len(stubs) == after.removed
    story = CliRunner().invoke(cli, ["results", "--story", str(played.folder)]).output
    assert story.count("replaced by stubs") == len(compacted)


@pytest.mark.parametrize(
    "change",
    [
        {"reasoning_effort": "endless"},
        {"unknown": 1},
        {"messages": [{"role": "user", "content": "a", "unknown": 1}]},
        {"messages": [{"role": "tool", "content": "a"}]},
        {"tools": [{"type": "function", "function": {"name": "a", "unknown": {}}}]},
    ],
)
def test_the_schema_rejects_unknown_fields(change):
    good = {"model": "m", "messages": [{"role": "assistant", "content": "a", "reasoning_content": "b"}]}
    check_request(good)
    with pytest.raises(pydantic.ValidationError):
        check_request({**good, **change})
