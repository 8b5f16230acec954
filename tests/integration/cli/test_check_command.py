"""Tests of ``dgym check`` with real runs, and of the warnings in later results."""

import json

import pytest
import yaml

from tests.support.bare_python import bare_python
from tests.support.command import dgym as run_dgym

SOUND = """
apiVersion: dgym.dev/v1alpha1
kind: DebugTask
metadata: {name: sound}
spec:
  source:
    files:
      - {path: calc.py, content: "def add(a, b):\\n    return a - b\\n"}
      - path: test_calc.py
        content: |
          import calc
          def test_add():
              assert calc.add(2, 3) == 5
          def test_zero():
              assert calc.add(0, 0) == 0
  solution: |
    --- a/calc.py
    +++ b/calc.py
    @@ -1,2 +1,2 @@
     def add(a, b):
    -    return a - b
    +    return a + b
"""
PASSING = """
---
apiVersion: dgym.dev/v1alpha1
kind: Episode
metadata: {name: passing}
spec:
  agent: {name: replay, parameters: {trajectory: walk.jsonl}}
  task:
    source: {files: [{path: test_a.py, content: "def test_a(): pass\\n"}]}
    scoring: {failToPass: ["test_a.py::test_a"]}
"""


@pytest.fixture
def dgym(tmp_path):
    def run(*arguments):
        return run_dgym(*arguments, "--python", bare_python(), cwd=tmp_path)

    return run


def test_tasks_are_checked_and_a_result_warns_of_one_that_passes_already(dgym, tmp_path):
    (tmp_path / "tasks.yaml").write_text(SOUND + PASSING)
    (tmp_path / "walk.jsonl").write_text('{"tool": "submit", "arguments": {}}\n')
    done = dgym("check", "tasks.yaml", "--repeat", "1")
    assert done.returncode == 1, done.stderr
    sound, _, passing = done.stdout.partition("passing: ")
    outcome, _, lists = sound.partition("\n")
    assert outcome == "sound: fine"
    assert yaml.safe_load(lists)["scoring"] == {
        "failToPass": ["test_calc.py::test_add"],
        "passToPass": ["test_calc.py::test_zero"],
    }
    assert passing.startswith("2 problems\n  problem: an empty patch resolves this task")

    assert dgym("run", "tasks.yaml", "--results", "results").returncode == 0
    (result,) = (tmp_path / "results").glob("local/passing/*/1/result.json")
    assert "an empty patch resolves this task" in json.loads(result.read_text())["message"]


LACKING = """
apiVersion: dgym.dev/v1alpha1
kind: DebugTask
metadata: {name: lacking}
spec:
  source:
    files:
      - path: test_a.py
        content: |
          import importlib.metadata, socket, subprocess
          import pytest
          def test_good():
              pass
          def test_bug():
              assert 1 == 2
          def test_module():
              import nowhere_to_be_found
          def test_metadata():
              importlib.metadata.version("shop")
          def test_script():
              subprocess.run(["shop"])
          def test_plugin(mocker):
              pass
          async def test_async():
              pass
          def test_network():
              socket.create_connection(("nowhere.invalid", 80))
"""


def test_tests_that_lack_something_are_problems_with_remedies_and_never_to_be_repaired(dgym, tmp_path):
    (tmp_path / "task.yaml").write_text(LACKING)
    done = dgym("check", "task.yaml", "--repeat", "1", "--write")
    assert done.returncode == 1, done.stderr
    problems = [line for line in done.stdout.splitlines() if line.startswith("  problem: ")]
    assert len(problems) == 5
    for expected in ("nowhere_to_be_found", "named shop;", "program named shop", "fixture mocker", "pytest-asyncio"):
        assert any(expected in line for line in problems), expected
    assert "note: 1 test or file: need the network" in done.stdout
    (task,) = yaml.safe_load_all((tmp_path / "task.yaml").read_text())
    assert task["spec"]["scoring"] == {"failToPass": ["test_a.py::test_bug"], "passToPass": ["test_a.py::test_good"]}


def test_the_assessments_are_printed_as_json(dgym, tmp_path):
    (tmp_path / "task.yaml").write_text(LACKING)
    done = dgym("check", "task.yaml", "--repeat", "1", "--output", "json")
    assert done.returncode == 1, done.stderr
    (assessment,) = json.loads(done.stdout)
    assert assessment.keys() == {"task", "problems", "notes", "failToPass", "passToPass", "passes", "lacks"}
    assert {"kind": "module", "name": "nowhere_to_be_found", "tests": ["test_a.py::test_module"]} in assessment["lacks"]
