"""Tests of the examples in the README: they work without changes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import dgym

README = Path(__file__).parents[3] / "README.md"
BUGGY = "\n" * 9 + "\ndef add(a, b):\n    return a - b\n"
TEST = "import calc\n\n\ndef test_add():\n    assert calc.add(2, 3) == 5\n"


def block(language: str, containing: str) -> str:
    """The fenced block in that language with that text."""
    blocks = re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    (found,) = [text for text in blocks if containing in text]
    return found


@pytest.fixture
def folder(tmp_path):
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "calc.py").write_text(BUGGY)
    (repository / "test_calc.py").write_text(TEST)
    return tmp_path


def run(folder, *command, stdin=""):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run(
        command, cwd=folder, env=environment, input=stdin, capture_output=True, text=True, timeout=100, check=False
    )


def test_the_hand_written_manifest_and_tool_run(folder):
    manifest = block("yaml", "kind: Episode")
    tools = block("yaml", "WordCount")
    (folder / "episode.yaml").write_text(manifest + tools)
    (folder / "my_tools.py").write_text(block("python", "class WordCount"))
    assert "valid" in dgym("validate", "episode.yaml", cwd=folder).stdout
    lines = "word_count calc.py\nrewrite calc.py 12 <c>    return a + b</c>\nsubmit\n"
    finished = run(folder, "dgym", "run", "episode.yaml", "--output", "json", stdin=lines)
    assert finished.returncode == 0, finished.stderr
    (result,) = [json.loads(path.read_text()) for path in folder.glob("results/**/result.json")]
    assert result["reason"] == "Resolved"
    assert "7 words" in next(folder.glob("results/**/trajectory.jsonl")).read_text()


def test_the_python_api_in_ten_lines(folder):
    (folder / "task.yaml").write_text(
        "apiVersion: dgym.dev/v1alpha1\nkind: DebugTask\nmetadata: {name: calc}\n"
        "spec: {source: {localPath: ./repository}}\n"
    )
    finished = run(folder, sys.executable, "-c", block("python", "dgym.RepoEnv"))
    assert finished.returncode == 0, finished.stderr
    assert "Resolved 1.0" in finished.stdout
    assert "return a + b" in finished.stdout


def test_every_document_the_readme_names_exists():
    for target in re.findall(r"\]\(([^)#]+)\)", README.read_text(encoding="utf-8")):
        assert (README.parent / target).exists(), target
