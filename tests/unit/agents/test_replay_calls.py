from pathlib import Path

import pytest

from dgym.agents import AgentContext
from dgym.agents.replay import parse_calls, read_calls
from dgym.errors import ManifestError
from dgym.wire import ToolCall

EVAL = ToolCall(tool="eval")
VIEW = ToolCall(tool="view", arguments={"path": "calc.py"})
WALKTHROUGH = '{"tool": "view", "arguments": {"path": "calc.py"}}\n\n{"tool": "eval"}\n'
TRAJECTORY = (
    '{"schemaVersion": 1, "episode": "x"}\n'
    '{"seq": 0, "call": null, "observation": {"text": ""}}\n'
    '{"seq": 1, "call": {"tool": "view", "arguments": {"path": "calc.py"}}, "observation": {"text": "1 a"}}\n'
    '{"seq": 2, "call": {"tool": "eval"}, "observation": {"text": ""}}\n'
)


def context(trajectory, base=Path()):
    return AgentContext(task_name="some-task", parameters={"trajectory": trajectory}, base=base)


@pytest.mark.parametrize("text", [WALKTHROUGH, TRAJECTORY])
def test_walkthroughs_and_trajectories_give_the_same_calls(text):
    assert parse_calls(text, source="x") == [VIEW, EVAL]


def test_a_torn_last_line_is_left_out():
    assert parse_calls(WALKTHROUGH + '{"tool": "sub', source="x") == [VIEW, EVAL]


@pytest.mark.parametrize("line", ["nonsense", "[1]", '{"arguments": {}}', '{"tool": 3}'])
def test_a_broken_line_is_named(line):
    with pytest.raises(ManifestError, match=r"^walk\.jsonl:1: not a call or a step"):
        parse_calls(line + "\n" + WALKTHROUGH, source="walk.jsonl")


def test_calls_are_given_inline_or_in_a_file(tmp_path, monkeypatch):
    (tmp_path / "walk.jsonl").write_text(WALKTHROUGH)
    assert read_calls(context(WALKTHROUGH)) == [VIEW, EVAL]
    assert read_calls(context("walk.jsonl", tmp_path)) == [VIEW, EVAL]
    assert read_calls(context(str(tmp_path / "walk.jsonl"))) == [VIEW, EVAL]
    monkeypatch.chdir(tmp_path)
    assert read_calls(context("walk.jsonl", tmp_path / "elsewhere")) == [VIEW, EVAL]


@pytest.mark.parametrize(
    ("reference", "complaint"),
    [
        (None, "agent replay needs agent.parameters.trajectory"),
        ("", "agent replay needs"),
        ("no-such-file.jsonl", "cannot read"),
        ("package:no.such.package", "the package no.such.package cannot be imported"),
        ("package:dgym.wire", "no walkthrough for the task 'some-task'"),
    ],
)
def test_references_to_missing_files_are_refused(reference, complaint):
    with pytest.raises(ManifestError, match=complaint):
        read_calls(context(reference))


def test_in_a_cluster_no_package_but_those_of_the_benchmarks_is_imported():
    """An import runs code in the process of all episodes of the agent pod. ``unittest.__main__`` would end it."""
    with pytest.raises(ManifestError, match=r"not 'unittest\.__main__'"):
        read_calls(context("package:unittest.__main__", base=None))
    shipped = AgentContext(
        task_name="call-billing", parameters={"trajectory": "package:dgym.benchmarks.mini_nightmare"}, base=None
    )
    assert read_calls(shipped)
