"""Tests of the code and the commands on pages in docs/, executed from top to bottom."""

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from dgym.results import read_trajectory
from tests.support.command import dgym

# An async vector environment forks. Since Python 3.12, a fork of a process with threads issues a warning.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.timeout(500),
]

DOCS = Path(__file__).parents[3] / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"^# (\S+\.\w+)$")


def follow(page, namespace):
    """Write the files (blocks whose first line is a file name), and run the Python code and the commands."""
    for language, block in BLOCK.findall((DOCS / page).read_text("utf-8")):
        named = FILE.match(block.split("\n", 1)[0])
        if named:
            Path(named[1]).parent.mkdir(parents=True, exist_ok=True)
            Path(named[1]).write_text(block)
        elif language == "python":
            exec(compile(block, page, "exec"), namespace)
        elif language == "console":
            run_console(block)


def run_console(block):
    """Run each ``$ command``. The lines below it must be in its output; ``…`` stands for any text."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *shown = part.split("#", 1)[0].rstrip().split("\n")
        if command.startswith("pip install"):
            continue
        program, *arguments = shlex.split(command)
        assert program == "dgym", command
        done = dgym(*arguments, cwd=Path.cwd())
        output = " ".join((done.stdout + done.stderr).split())
        assert done.returncode == 0, output
        for piece in re.split(r"…|\n", "\n".join(shown)):
            assert " ".join(piece.split()) in output, command


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working directory. Its modules can be imported during the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = {*sys.modules}
    yield tmp_path
    for name in {*sys.modules} - before:
        if (tmp_path / f"{name}.py").exists():
            del sys.modules[name]


def test_gymnasium(folder):
    namespace: dict[str, Any] = {}
    follow("gymnasium.md", namespace)
    page = (DOCS / "gymnasium.md").read_text("utf-8")
    keys = re.findall(r"^\| `(\w+)` \| .* \| `(?:UnicodeText|JsonValue)`", page, re.MULTILINE)
    assert {*keys} == {*namespace["env"].unwrapped.observation_space}


def test_writing_an_agent(folder):
    follow("writing-an-agent.md", {})
    (trajectory,) = folder.glob("results/**/trajectory.jsonl")
    assert [step.call.tool for step in read_trajectory(trajectory).steps[1:]] == ["rewrite", "eval"]
    assert "trying line 35" in (trajectory.parent / "episode.log").read_text()


def test_writing_a_task(folder):
    follow("writing-a-task.md", {})
    assert len([*folder.glob("results/**/result.json")]) == 3


def test_a_page_that_is_wrong_is_found(folder):
    run_console("$ dgym version\ndgym …")
    with pytest.raises(AssertionError):
        run_console("$ dgym version\nanother program")
    with pytest.raises(AssertionError):
        run_console("$ dgym run no-such-file.yaml\n")
