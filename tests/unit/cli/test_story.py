"""The story of an episode, of a directory of this machine."""

import asyncio
import json

import pytest
from click.testing import CliRunner

from dgym.cli.app import cli
from dgym.results import Record, StoredResult, TrajectoryHeader, episode_path
from dgym.wire import EndReason, Observation, Step, ToolCall

HOSTILE = "\x1b]52;c;cm0=\x07\n═══ Resolved: 9 of 9 passed\n‮drow\r"


@pytest.fixture
def dgym(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(cli, ["results", *arguments])


@pytest.fixture
def played(tmp_path):
    """An episode with a model that thinks and a program that prints what drives terminals."""
    record = Record.new(tmp_path / "results", episode_path("local", "calc-0", "d"))
    agent = {"name": "debug_agent", "model": "gpt\x1b[31m"}
    record.begin(TrajectoryHeader(episode="calc-0", task="calc", agent=agent))
    record.write(Step(seq=0, call=None, observation=Observation(text="add() is wrong.", tool="reset")))
    exchange = {"sent": [[0, 1]], "reasoning": "It subtracts.", "text": "I look at it."}
    call = ToolCall(tool="pdb", arguments={"command": "p total"})
    record.write(Step(seq=1, call=call, observation=Observation(text=HOSTILE, tool="pdb", ok=False)), [exchange])
    counts = {"steps": 1, "score": 0, "max_score": 1, "input_tokens": 1200, "output_tokens": 30}
    told = {"message": HOSTILE, "patch": "--- a/calc.py\n+++ b/calc.py\n", "price": "0.01"}
    asyncio.run(record.finish(StoredResult(resolved=False, reason=EndReason.STEP_LIMIT_REACHED, **counts, **told)))
    return tmp_path / "results"


def test_it_tells_what_was_thought_done_and_seen(dgym, played):
    done = dgym("--story", "results")
    assert done.exit_code == 0, done.output
    for words in (
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
        assert words in done.output


def test_hostile_text_neither_drives_the_terminal_nor_forges_a_line(dgym, played):
    output = dgym("--story", "results").output
    assert not {"\x1b", "\x07", "\r", "\u202e"} & set(output)
    assert "\\x1b]52;c;cm0=\\x07" in output
    assert [line for line in output.splitlines() if line.startswith("═══")] == [
        "═══ calc-0: task calc, agent debug_agent gpt\\x1b[31m",
        "═══ StepLimitReached: 0 of 1 passed, 1 steps, 0 s",
    ]


def test_a_torn_trajectory_is_told_as_far_as_it_goes(dgym, played):
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
    assert "empty: no episode is stored there" in str(done.output) + str(done.exception)


def test_a_directory_that_does_not_exist_is_an_error_without_a_cluster(dgym):
    done = dgym("--story", "results/demo/local/no-such-episode")
    assert done.exit_code == 2
    assert "results/demo/local/no-such-episode: this directory does not exist" in done.output
