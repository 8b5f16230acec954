import json

from tests.support.calc import BUGGY

WALK = [
    {"tool": "rewrite", "arguments": {"path": "tests/test_calc.py", "new_code": "def test_add():\n    pass\n"}},
    {"tool": "rewrite", "arguments": {"path": "src/pkg/calc.py", "start": 2, "end": 2, "new_code": "    return a + b"}},
]


def make_repository(root):
    (root / "src" / "pkg").mkdir(parents=True)
    (root / "tests").mkdir()
    (root / "src" / "pkg" / "__init__.py").touch()
    (root / "src" / "pkg" / "calc.py").write_text(BUGGY)
    test = "from pkg.calc import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n"
    (root / "tests" / "test_calc.py").write_text(test)


def test_a_repository_is_run_with_nothing_but_what_init_wrote(folder):
    make_repository(folder.path / "thing")
    made = folder.dgym("init", "thing", "--agent", "replay")
    assert made.returncode == 0, made.stderr
    (folder.path / "walk.jsonl").write_text("\n".join(map(json.dumps, WALK)))
    done = folder.dgym(
        *("run", "thing.yaml", *folder.arguments()[3:], "--output", "json"),
        *("-p", "agent.parameters.trajectory=walk.jsonl"),
    )
    assert done.returncode == 0, done.stderr
    (episode,) = json.loads(done.stdout)["episodes"]
    assert (episode["reason"], episode["score"], episode["maxScore"], episode["rewrites"]) == ("Resolved", 1, 1, 1)
    report = folder.dgym("report")
    assert "1 of 1 resolved" in report.stdout
    assert "thing" in report.stdout
    assert "Stage" in report.stdout
