import json
import re
import subprocess
import sys
from pathlib import Path

from tests.support.calc import BUGGY

CONFIG = """
base:
    output_path: "exps/calc"
    env_kwargs: {"path": "data/calc", "entrypoint": "python -m pytest -s test.py", "run_timeout": 60}
    llm_name: "gpt-4o"
    max_steps: 5
debug_agent:
    tools: ["eval", "pdb", "view", "rewrite"]
"""
WALK = [
    {"tool": "rewrite", "arguments": {"path": "calc.py", "start": 2, "end": 2, "new_code": "    return a + b"}},
    {"tool": "eval", "arguments": {}},
    {"tool": "view", "arguments": {"path": "calc.py"}},
]


def test_a_converted_configuration_runs_and_ends_when_the_tests_pass(folder):
    repository = folder.path / "data" / "calc"
    repository.mkdir(parents=True)
    (repository / "calc.py").write_text(BUGGY)
    (repository / "test.py").write_text("from calc import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n")
    (repository / ".debugreadonly").write_text("test.py\n")
    (folder.path / "config.yaml").write_text(CONFIG)
    (folder.path / "walk.jsonl").write_text("\n".join(map(json.dumps, WALK)))
    made = folder.dgym("migrate", "config.yaml", "--output", "calc.yaml")
    assert made.returncode == 0, made.stderr
    done = folder.dgym(
        *("run", "calc.yaml", *folder.arguments()[3:], "--output", "json", "--results", "exps/calc"),
        *("--agent", "replay", "-p", "agent.parameters.trajectory=walk.jsonl"),
    )
    assert done.returncode == 0, done.stderr
    (episode,) = json.loads(done.stdout)["episodes"]
    assert (episode["reason"], episode["steps"], episode["score"]) == ("Resolved", 2, 1)


def test_the_python_of_the_page_about_migration_runs(folder):
    page = (Path(__file__).parents[3] / "docs" / "migrating.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    task = {
        "apiVersion": "dgym.dev/v1alpha1",
        "kind": "DebugTask",
        "metadata": {"name": "thing"},
        "spec": {
            "entrypoint": "python check.py",
            "source": {
                "files": [
                    {"path": "check.py", "content": "print('checked')\nraise SystemExit(1)\n"},
                    {"path": "calc.py", "content": ""},
                ]
            },
        },
    }
    (folder.path / "thing.yaml").write_text(json.dumps(task))
    names = 'print(info["score"], info["max_score"], info["rewrites"], terminated, observation["breakpoints"])'
    done = subprocess.run(
        [sys.executable, "-c", code.replace("env.close()", f"{names}\nenv.close()")],
        cwd=folder.path,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "checked" in done.stdout
    assert "0 1 0 False" in done.stdout
