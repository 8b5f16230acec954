"""Tests of a third-party distribution with a tool, an agent and an adapter, which ``dgym`` uses."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dgym.results import read_trajectory
from tests.support.command import DGYM

PACKAGE = Path(__file__).parents[2] / "fakes" / "plugin_package"
DEADLINE_SECONDS = 100
MANIFEST = """\
apiVersion: dgym.dev/v1alpha1
kind: Episode
metadata: {name: calc}
spec:
  task:
    entrypoint: python check.py
    instructions: add() is wrong.
    source:
      files:
        - {path: calc.py, content: "class Calc:\\n    def add(self, a, b):\\n        return a - b\\n"}
        - {path: check.py, content: "from calc import Calc\\nassert Calc().add(2, 3) == 5\\n"}
        - {path: .debugreadonly, content: "check.py\\n"}
  agent: {name: flip}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A directory in which the distribution is installed, as pip would install its wheel."""
    directory = tmp_path_factory.mktemp("site")
    wheels = tmp_path_factory.mktemp("wheels")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    subprocess.run(build, cwd=PACKAGE, check=True, capture_output=True)
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory)
    return directory


@pytest.fixture
def run(site, tmp_path):
    (tmp_path / "episode.yaml").write_text(MANIFEST)

    def run_dgym(*arguments, python_path=site):
        environment = {**os.environ, "PYTHONPATH": str(python_path)}
        return subprocess.run(
            [str(DGYM), *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )

    return run_dgym


def trajectory_of(done, folder):
    assert done.returncode == 0, done.stderr
    (episode,) = json.loads(done.stdout)["episodes"]
    assert episode["reason"] == "Resolved", episode
    (trajectory,) = folder.glob("results/**/trajectory.jsonl")
    return read_trajectory(trajectory)


RUN = ("run", "episode.yaml", "--sandbox", "none", "--python", sys.executable, "--output", "json")


def test_an_installed_agent_solves_an_episode_with_an_installed_tool(run, tmp_path):
    trajectory = trajectory_of(run(*RUN), tmp_path)
    assert trajectory.header.agent["name"] == "flip"
    outline = trajectory.steps[1]
    assert outline.call.tool == "outline"
    assert outline.observation.text == "1-3 Calc\n  2-3 add"


def test_a_manifest_gives_an_installed_tool_its_options(run, tmp_path):
    tools = 'tools=["view", "eval", "rewrite", "submit", {name: outline, options: {withClasses: false}}]'
    trajectory = trajectory_of(run(*RUN, "-p", tools), tmp_path)
    assert trajectory.steps[1].observation.text == "calc.py defines nothing."


def test_installed_plugins_are_listed_and_described(run):
    assert "outline" in run("tools").stdout
    described = run("tools", "outline").stdout
    assert "List the functions and classes of a Python file with their lines." in described
    assert "depth: an integer from 1 to 5, default 2. How deeply nested definitions are shown." in described


def test_an_installed_adapter_makes_tasks_of_rows(run, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    row = {"instance_id": "T-1", "text": "It is wrong.", "commit": "abc", "tests": ["t.py::test_a"]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    done = run("benchmark", "import", "tickets", "--from", "rows.jsonl")
    assert done.stdout.startswith("imported 1 instances as tickets"), done.stderr
    rendered = run("benchmark", "render", "tickets", "--output", "out")
    assert rendered.returncode == 0, rendered.stderr
    assert "image: registry.example/tickets/T-1" in (tmp_path / "out" / "t-1.yaml").read_text()
    assert "out/t-1.yaml: document 1: DebugTask t-1: valid" in run("validate", "-f", "out").stdout


def test_without_the_distribution_its_agent_is_missing_by_name(run, tmp_path):
    done = run(*RUN, python_path=tmp_path)
    assert done.returncode == 2
    assert "unknown agent 'flip'" in done.stderr
