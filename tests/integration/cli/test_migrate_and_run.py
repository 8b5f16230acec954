import json

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
    (repository / "calc.py").write_text("def add(a, b):\n    return a - b\n")
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
