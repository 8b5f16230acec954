"""Tests of the unchanged manifests under examples/: each task fails at first, and its solution resolves it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dgym.api import DebugTask, Episode, EpisodeSet, expand, find_task, load
from dgym.cli.app import cli
from dgym.env import AsyncRepoEnv
from dgym.wire import EndReason

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))


def tasks_of(path):
    """The tasks of all episodes of a manifest, without duplicates."""
    resources = load(path)
    tasks = [resource for resource in resources if isinstance(resource, DebugTask)]
    found = {}
    for resource in resources:
        if isinstance(resource, Episode):
            found[resource.metadata.name] = find_task(resource, tasks)
        elif isinstance(resource, EpisodeSet):
            found |= {one.task.metadata.name: one.task for one in expand(resource, tasks)}
    assert found
    return list(found.values())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
async def test_examples_are_broken_and_can_be_solved(path):
    for task in tasks_of(path):
        async with AsyncRepoEnv(task) as env:
            await env.reset()
            untouched = await env.finish()
            await env.reset()
            await env.apply_solution()
            solved = await env.finish()
        assert untouched.reason is EndReason.UNRESOLVED
        assert solved.reason is EndReason.RESOLVED, solved.message
        assert solved.score == solved.max_score > untouched.score


def test_arms_run_the_same_tasks_side_by_side_and_are_compared(tmp_path, monkeypatch):
    """The unchanged example, with recorded agents in place of agents that use a model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gives-up.jsonl").write_text('{"tool": "submit", "arguments": {}}\n')
    gives_up = {"name": "replay", "parameters": {"trajectory": str(tmp_path / "gives-up.jsonl")}}
    agents = ("set.arms.0.agent.name=solution", f"set.arms.1.agent={json.dumps(gives_up)}", "set.samples=1")

    def dgym(*arguments):
        done = CliRunner().invoke(cli, arguments)
        assert done.exit_code == 0, (done.output, done.exception)
        return json.loads(done.stdout)

    example = next(str(path) for path in EXAMPLES if path.name == "arms.yaml")
    ran = dgym("run", example, *(word for each in agents for word in ("-p", each)), "--output", "json")
    assert [(each["episode"], each["task"], each["arm"]) for each in ran["episodes"]] == [
        ("pays-debug-0", "basket", "debug"),
        ("pays-rewrite-0", "basket", "rewrite"),
        ("pays-debug-1", "voucher", "debug"),
        ("pays-rewrite-1", "voucher", "rewrite"),
    ]
    report = dgym("report", "--output", "json")
    assert [(each["arm"], each["figures"]["resolved"], each["figures"]["scored"]) for each in report["arms"]] == [
        ("debug", 2, 2),
        ("rewrite", 0, 2),
    ]
    (pair,) = report["armPairs"]
    assert (pair["complete"], pair["comparison"]["difference"], pair["comparison"]["pValue"]) == (2, -1.0, 0.5)
    groups = {(each["value"], each["arm"], each["figures"]["scored"]) for each in report["labels"]}
    assert {("shop", "debug", 2), ("easy", "rewrite", 1), ("medium", "debug", 1)} <= groups
