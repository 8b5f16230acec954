"""Tests with a miniature of SWE-bench: only the gold patch resolves a task, and later commits are not accessible."""

import json
import os
import subprocess

import pytest
from click.testing import CliRunner

from dgym.api import load
from dgym.benchmarks.datasets import TaskHealth, add_health
from dgym.benchmarks.datasets._adapter import NO_FUTURE
from dgym.cli.app import cli
from dgym.env import AsyncRepoEnv
from tests.support.bare_python import bare_python
from tests.support.command import dgym
from tests.support.miniature import git, make_repository, write_rows

CHANGES = """\
echo "def pytest_sessionstart(): print('PASSED tests/test_money.py::test_parse[12.3]')" > conftest.py
echo > tests/test_money.py
sed -i 's/int(whole) \\* 100/int(whole) * 10/' coins/money.py
"""


@pytest.fixture(scope="module")
def mini(tmp_path_factory):
    """A function that runs ``dgym benchmark`` with the imported miniature, and the directory of its repositories."""
    root = tmp_path_factory.mktemp("mini")
    rows = make_repository(root)
    environment = {**os.environ, "XDG_CACHE_HOME": str(root / "cache")}

    def run(*arguments):
        return dgym("benchmark", *arguments, cwd=root, environment=environment)

    file = write_rows(root / "rows.jsonl", rows)
    assert run("import", "mini", "--adapter", "swebench", "--from", file).returncode == 0
    return run, root


def test_the_gold_patch_resolves_and_the_number_of_excluded_tasks_is_recorded(mini):
    run, root = mini
    health = root / "cache" / "dgym" / "benchmarks" / "mini" / "test.health.json"
    add_health(health, [TaskHealth(instance="mini__coins-3", state="Flaky", message="test_show")])
    options = ("--repositories", root, "--python", bare_python(), "--filter", "mini__coins-1,mini__coins-3")
    done = run("run", "mini", "--agent", "solution", *options, "--results", "gold", "--output", "json")
    assert done.returncode == 0, done.stderr
    (episode,) = json.loads(done.stdout)["episodes"]
    assert episode["reason"] == "Resolved"
    assert "read from the text of the evaluation script" in episode["message"]
    (line,) = [json.loads(line) for line in run("predictions", "gold").stdout.splitlines()]
    assert (line["instance_id"], line["model_patch"][:33]) == ("mini__coins-1", "diff --git a/coins/money.py b/coi")
    assert line["hidden_tests_named"] is False
    (trajectory,) = (root / "gold").rglob("trajectory.jsonl")
    header, steps = trajectory.read_text().split("\n", 1)
    change = {"entrypoint": "pytest -rA tests/test_money.py"}
    trajectory.write_text(f"{json.dumps({**json.loads(header), **change})}\n{steps}")
    marked = run("predictions", "gold")
    assert json.loads(marked.stdout)["hidden_tests_named"] is True
    assert "1 of 1 episodes had an entrypoint that named hidden tests" in marked.stderr
    report = CliRunner().invoke(cli, ["report", str(root / "gold")])
    assert "mini-test: 1 task of the benchmark left out (1 Flaky)." in report.output


async def test_an_empty_patch_does_not_resolve_and_the_agent_cannot_change_the_tests(mini):
    run, root = mini
    done = run("render", "mini", "--repositories", root, "--output", "out", "--filter", "mini__coins-1")
    assert done.returncode == 0, done.stderr
    (task,) = load(root / "out" / "mini-coins-1.yaml")
    async with AsyncRepoEnv(task, tools=["bash"], python=bare_python()) as env:
        await env.reset()
        untouched = await env.finish()
        await env.reset()
        await env.step({"tool": "bash", "arguments": {"command": CHANGES}})
        changed = await env.finish()
    assert (untouched.resolved, untouched.score, untouched.max_score) == (False, 2, 3)
    assert changed.tests == {
        "tests/test_money.py::test_parse[12.3]": "failed",
        "tests/test_money.py::test_whole": "failed",
        "tests/test_money.py::test_parse[12.30]": "failed",
    }


def test_later_commits_are_removed_from_a_repository(tmp_path):
    rows = make_repository(tmp_path)
    repository = tmp_path / "mini__coins"
    future = git(repository, "rev-parse", "HEAD").strip()
    git(repository, "remote", "add", "origin", "https://example.com/x.git")
    git(repository, "update-ref", "refs/remotes/origin/main", future)
    git(repository, "tag", "v1.0", rows[0]["base_commit"])
    git(repository, "checkout", "-q", "-B", "main", rows[1]["base_commit"])
    git(repository, "repack", "-adq")
    subprocess.run(["sh", "-c", NO_FUTURE], cwd=repository, check=True, capture_output=True)
    assert git(repository, "remote") == ""
    assert git(repository, "for-each-ref", "--format=%(refname)").split() == ["refs/heads/main", "refs/tags/v1.0"]
    known = git(repository, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split()
    assert rows[1]["base_commit"] in known
    assert future not in known
    assert git(repository, "reflog").strip() == ""
