"""Tests of the bundled tasks: the tests fail before the solution and pass after it, and pdb helps to find each bug."""

import ast
import os
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from dgym.api import expand
from dgym.benchmarks import bundled, episode_set, load_bundled, walkthrough
from dgym.env import AsyncRepoEnv
from dgym.errors import ManifestError
from dgym.workspace.patches import FileVersion, apply_patch

TASKS = load_bundled("mini_nightmare")
each_task = pytest.mark.parametrize("task", TASKS, ids=lambda task: task.metadata.name)


def repository(task, *, solved):
    """The files of a task by path, before or after its solution."""
    files = {file.path: file.data() for file in task.spec.source.files}
    if solved:
        versions = {path: FileVersion(data=data, mode=0o644, is_symlink=False) for path, data in files.items()}
        changed = apply_patch(task.spec.solution, versions.get)
        files.update({path: version.data for path, version in changed.items()})
    return files


def outcomes(root, *, solved):
    """The outcomes of all tests of all tasks, from a single run of pytest over copies of all repositories."""
    for task in TASKS:
        for path, data in repository(task, solved=solved).items():
            file = root / task.metadata.name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join(str(root / task.metadata.name) for task in TASKS),
    }
    options = ["-q", "-p", "no:cacheprovider", "-o", "junit_family=xunit1", "--junitxml=report.xml", "--rootdir=."]
    subprocess.run([sys.executable, "-m", "pytest", *options], cwd=root, env=environment, capture_output=True)
    result = {}
    for case in ElementTree.parse(root / "report.xml").iter("testcase"):
        name, _, path = case.get("file", "").partition("/")
        failed = any(case.find(kind) is not None for kind in ("failure", "error", "skipped"))
        result[name, f"{path}::{case.get('name')}"] = "failed" if failed else "passed"
    return result


def expected(*, solved):
    wanted = {}
    for task in TASKS:
        scoring = task.spec.scoring
        wanted |= dict.fromkeys(((task.metadata.name, test) for test in scoring.pass_to_pass), "passed")
        failing = "passed" if solved else "failed"
        wanted |= dict.fromkeys(((task.metadata.name, test) for test in scoring.fail_to_pass), failing)
    return wanted


@pytest.mark.thorough
@pytest.mark.parametrize("solved", [False, True], ids=["before", "after"])
def test_only_the_named_tests_fail_before_the_solution(tmp_path, solved):
    assert outcomes(tmp_path, solved=solved) == expected(solved=solved)


def test_there_are_ten_of_different_kinds():
    assert bundled() == ["mini_nightmare"]
    assert len({task.metadata.annotations["dgym.dev/bug"] for task in TASKS}) == 10


def test_the_set_has_an_episode_for_each():
    planned = expand(episode_set("mini_nightmare"), TASKS)
    assert [one.task.metadata.name for one in planned] == [task.metadata.name for task in TASKS]
    assert planned[0].episode.metadata.name == "mini-nightmare-0"


def test_unknown_names():
    with pytest.raises(ManifestError, match="the benchmarks are mini_nightmare"):
        load_bundled("mini")
    with pytest.raises(ManifestError, match="no bundled task is named 'nothing'"):
        walkthrough("nothing")


@each_task
def test_a_repository_does_not_contain_the_solution_and_supports_python_3_8(task):
    files = repository(task, solved=False)
    assert files[".debugreadonly"] == b"tests/\n"
    assert not [path for path in files if path.endswith((".yaml", ".jsonl", ".pyc"))]
    lines = 0
    for path, data in files.items():
        if path.endswith(".py"):
            ast.parse(data, filename=path, feature_version=(3, 8))
            lines += 0 if path.startswith("tests/") else data.count(b"\n")
    assert 60 <= lines <= 150
    assert not re.search("bug|wrong|fixme|todo", b"".join(files.values()).decode(), re.IGNORECASE)


@each_task
def test_a_walkthrough_uses_pdb_before_it_rewrites(task):
    calls = walkthrough(task.metadata.name)
    tools = [call.tool for call in calls]
    commands = [call.arguments["command"] for call in calls if call.tool == "pdb"]
    assert tools[0] == "eval"
    assert tools[-2:] == ["eval", "submit"]
    assert tools.index("pdb") < tools.index("rewrite")
    assert any(command.startswith("b ") for command in commands)
    assert "c" in commands
    assert any(command.startswith("p ") for command in commands)
    protected = [call for call in calls if call.tool == "rewrite" and call.arguments["path"].startswith("tests/")]
    assert not protected


@pytest.mark.thorough
@each_task
async def test_a_walkthrough_ends_resolved(task):
    async with AsyncRepoEnv(task) as env:
        await env.reset()
        *calls, last = walkthrough(task.metadata.name)
        for call in calls:
            observation, reward, terminated, truncated, _ = await env.step(
                {"tool": call.tool, "arguments": call.arguments}
            )
            assert (reward, terminated, truncated) == (0, False, False)
            assert observation["ok"] or call.tool == "eval", observation["text"]
        _, reward, terminated, _, info = await env.step({"tool": last.tool, "arguments": last.arguments})
        assert terminated
        assert (reward, info["resolved"], info["reason"]) == (1.0, True, "Resolved")
        assert info["max_score"] == len(task.spec.scoring.fail_to_pass) + len(task.spec.scoring.pass_to_pass)
