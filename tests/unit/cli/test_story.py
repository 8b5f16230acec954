"""Tests of `dgym results --story` for an episode in a local directory."""

import asyncio
import json

import pytest
from click.testing import CliRunner

from dgym.agents._chat import Transcript
from dgym.cli.app import cli
from dgym.llm import Message, ModelCall, Reply, TokenUsage
from dgym.results import Record, StoredResult, TrajectoryHeader, episode_path
from dgym.wire import EndReason, Observation, Step, ToolCall

HOSTILE = "\x1b]52;c;cm0=\x07\n═══ Resolved: 9 of 9 passed\n‮drow\r"


@pytest.fixture
def dgym(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(cli, ["results", *arguments])


@pytest.fixture
def played(tmp_path):
    """Record an episode with reasoning of the model and with control characters in an observation."""
    record = Record.new(tmp_path / "results", episode_path("local", "calc-0", "d"))
    agent = {"name": "debug_agent", "model": "gpt\x1b[31m"}
    record.begin(TrajectoryHeader(episode="calc-0", task="calc", agent=agent))
    record.write(Step(seq=0, call=None, observation=Observation(text="add() is wrong.", tool="reset")))
    exchange = {"sent": [[0, 1]], "reasoning": "It subtracts.", "text": "I look at it."}
    call = ToolCall(tool="pdb", arguments={"command": "p total"})
    record.write(Step(seq=1, call=call, observation=Observation(text=HOSTILE, tool="pdb", ok=False)), [exchange])
    counts = {"steps": 1, "score": 0, "max_score": 1, "input_tokens": 1200, "output_tokens": 30}
    fields = {"message": HOSTILE, "patch": "--- a/calc.py\n+++ b/calc.py\n", "price": "0.01"}
    asyncio.run(record.finish(StoredResult(resolved=False, reason=EndReason.STEP_LIMIT_REACHED, **counts, **fields)))
    return tmp_path / "results"


def test_the_story_shows_thoughts_calls_and_observations(dgym, played):
    done = dgym("--story", "results")
    assert done.exit_code == 0, done.output
    for expected in (
        "task calc, agent debug_agent gpt",
        "─── 0 · reset · ",
        "    add() is wrong.",
        "─── 1 · pdb · 0.0 s, refused",
        "reasoning:",
        "It subtracts.",
        "I look at it.",
        "call: pdb command='p total'",
        "═══ StepLimitReached: 0 of 1 passed, 1 steps",
        "1,200 tokens in, 30 out, cost 0.01",
        "      +++ b/calc.py",
    ):
        assert expected in done.output


@pytest.fixture
def asked(tmp_path):
    """Record an episode of two requests. The second has a stub in place of a message, and its reply has two calls."""
    record = Record.new(tmp_path / "results", episode_path("local", "asked-0", "d"))
    record.begin(TrajectoryHeader(episode="asked-0", task="calc", agent={"name": "debug_agent", "model": "m"}))
    record.write(Step(seq=0, call=None, observation=Observation(text="It is wrong.", tool="reset")))
    view, reply = ModelCall(id="a", tool="view", arguments={"path": "calc.py"}), Reply()
    transcript = Transcript()
    messages = [Message(role="system", content="Call tools."), Message(role="user", content=f"The task.\n{HOSTILE}")]
    for seq, calls in ((1, 1), (2, 2)):
        reply = Reply(text="I look.", calls=(view,) * calls, usage=TokenUsage(input_tokens=1500, cached_tokens=1200))
        exchange = transcript.record(messages, reply, [{"name": "view"}, {"name": "bash"}])
        for number in range(calls):
            observation = Observation(text=f"answer {seq}", tool="view")
            call = ToolCall(tool="view", arguments={"path": "calc.py"})
            record.write(Step(seq=seq + number, call=call, observation=observation), [exchange][number:])
        messages[1] = Message(role="user", content="A stub.")
        extra = {"reasoning_content": "It may subtract."}
        messages += [Message(role="assistant", content="I look.", calls=(view,), extra=extra)]
        messages += [Message(role="tool", content=f"answer {seq}", call_id="a")]
    return tmp_path / "results"


def test_the_story_shows_the_size_and_the_new_messages_of_each_request(dgym, asked):
    lines = dgym("--story", "results").output.splitlines()
    first, second = (index for index, line in enumerate(lines) if line.startswith("request:"))
    assert lines[first : first + 3] == [
        "request: 2 messages, 2 of them new; 1,500 tokens, 1,200 of them cached",
        "    tools: view, bash",
        "    message 0, system, 11 characters: Call tools.",
    ]
    assert lines[second : second + 4] == [
        "request: 4 messages, 3 of them new, 1 replaced by stubs; 1,500 tokens, 1,200 of them cached",
        "    message 2, user, 7 characters: A stub.",
        (
            "    message 3, assistant, 7 characters: reasoning_content: It may subtract. I look."
            ' call view: {"path": "calc.py"}'
        ),
        "    message 4, tool, 8 characters: answer 1",
    ]


@pytest.mark.parametrize("step", ["2", "3"])
def test_option_step_shows_every_message_of_the_request(dgym, asked, step):
    done = dgym("--story", "--step", step, "results")
    assert done.exit_code == 0, done.output
    request = done.output[done.output.index("request:") : done.output.index("says:")].splitlines()
    assert request[1:] == [
        "    tools: view, bash",
        "    message 0, system, 11 characters",
        "        Call tools.",
        "    new message 2, user, 7 characters",
        "        A stub.",
        "    new message 3, assistant, 7 characters",
        "        reasoning_content: It may subtract.",
        "        I look.",
        '        call view: {"path": "calc.py"}',
        "    new message 4, tool, 8 characters",
        "        answer 1",
    ]
    assert ("The call of step 3 is in the reply to the request of step 2" in done.output) == (step == "3")
    assert f"─── {step} · view" in done.output
    assert "─── 1" not in done.output


def test_the_text_of_messages_forges_no_line(dgym, asked):
    for arguments in ((), ("--step", "1")):
        output = dgym("--story", *arguments, "results").output
        assert not {"\x1b", "\x07", "\r", "\u202e"} & set(output)
        assert "passed" in output
        assert not [line for line in output.splitlines() if line.startswith(("═══ Res", "drow"))]


def test_a_missing_step_is_reported_with_a_remedy(dgym, asked):
    done = dgym("--story", "--step", "9", "results")
    assert done.exit_code != 0
    assert "no such step; give one from 0 to 3" in str(done.output) + str(done.exception)
    assert "--step requires --story" in dgym("--step", "9", "results").output


def test_hostile_text_is_escaped_and_cannot_forge_a_line(dgym, played):
    output = dgym("--story", "results").output
    assert not {"\x1b", "\x07", "\r", "\u202e"} & set(output)
    assert "\\x1b]52;c;cm0=\\x07" in output
    assert [line for line in output.splitlines() if line.startswith("═══")] == [
        "═══ calc-0: task calc, agent debug_agent gpt\\x1b[31m",
        "═══ StepLimitReached: 0 of 1 passed, 1 steps, 0 s",
    ]


def test_the_readable_part_of_a_torn_trajectory_is_shown(dgym, played):
    (path,) = played.rglob("trajectory.jsonl")
    path.write_text(path.read_text()[:-20])
    (path.parent / "result.json").unlink()
    done = dgym("--story", str(path.parent))
    assert done.exit_code == 0, done.output
    assert "cut short" in done.output
    assert "no result yet" in done.output


def test_exchanges_that_cannot_be_read_do_not_hide_their_step(dgym, played):
    (path,) = played.rglob("trajectory.jsonl")
    head, first, second = path.read_text().splitlines()
    path.write_text("\n".join((head, first, json.dumps(json.loads(second) | {"exchanges": 7}))) + "\n")
    done = dgym("--story", "results")
    assert "─── 1 · pdb" in done.output
    assert "It subtracts" not in done.output


def test_a_directory_without_episodes_is_an_error_with_a_remedy(dgym, tmp_path):
    (tmp_path / "empty").mkdir()
    done = dgym("--story", "empty")
    assert done.exit_code != 0
    assert "empty does not contain an episode" in str(done.output) + str(done.exception)


def test_a_directory_that_does_not_exist_is_an_error_without_a_cluster(dgym):
    done = dgym("--story", "results/demo/local/no-such-episode")
    assert done.exit_code == 2
    assert "results/demo/local/no-such-episode: this directory does not exist" in done.output
