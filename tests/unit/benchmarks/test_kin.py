"""Tests of the adapters of SWE-smith, R2E-Gym, SWE-bench-Live, SWE-rebench, Harbor and Exercism, with few rows."""

import json
import subprocess

import pytest

from dgym.api import DebugTask
from dgym.benchmarks.datasets import ImageNames, RowError, load_adapter, make_tasks
from dgym.benchmarks.datasets.r2egym import patch_of
from dgym.benchmarks.datasets.swesmith import reverse_patch
from dgym.workspace.patches import FileVersion, apply_patch
from tests.support.kin import exercises, file_diffs, harbor_tasks, live_rows, r2e_rows, rebench_rows, smith_rows
from tests.support.miniature import git

NO_NAMES = ImageNames()


@pytest.fixture(scope="module")
def mini(repositories):
    return repositories


def row(adapter, data, images=NO_NAMES):
    found = load_adapter(adapter).row(data, images)
    (task,) = make_tasks("mini", "test", [found])
    assert isinstance(task, DebugTask)
    return found


def test_the_reverse_of_a_bug_repairs_it(mini):
    root, rows = mini
    for data in smith_rows(rows):
        bug, gold = data["patch"], row("swesmith", data).solution
        commit = next(one for one in rows if one["instance_id"] == data["instance_id"].split(".")[0])["base_commit"]
        whole = git(root / "mini__coins", "show", f"{commit}~0:coins/money.py").encode()
        broken = apply_patch(gold, {"coins/money.py": FileVersion(whole)}.get)
        assert apply_patch(bug, broken.get) == {"coins/money.py": FileVersion(whole)}


@pytest.mark.parametrize(
    "patch",
    [
        "diff --git a/x b/x\nindex 1..2 100644\n--- a/x\n+++ b/x\n@@ -1,2 +1,3 @@ def f\n a\n--- b\n+++ c\n+d\n",
        "diff --git a/n b/n\nnew file mode 100644\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+x\n\\ No newline at end\n",
    ],
)
def test_reversing_a_patch_twice_gives_the_patch(patch):
    assert reverse_patch(reverse_patch(patch)) == patch
    assert reverse_patch(patch) != patch


def test_swesmith_is_scored_by_pytest(mini):
    found = row("swesmith", smith_rows(mini[1])[0])
    assert (found.evaluation, found.fail_to_pass) == (None, ("tests/test_money.py::test_parse[12.3]",))
    assert found.image == "jyangballin/swesmith.x86_64.mini_1776_coins.abcdef12"
    with pytest.raises(RowError, match="repo is not of the form"):
        row("swesmith", smith_rows(mini[1])[0] | {"repo": "mini"})


def test_swesmith_commits_the_bug_in_a_directory_of_another_user(mini, tmp_path, monkeypatch):
    """In a pod the directory also belongs to another user, because nothing runs as root there."""
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    git(mini[0] / "mini__coins", "worktree", "add", "-q", "--detach", str(tmp_path / "testbed"))
    for command in row("swesmith", smith_rows(mini[1])[0]).setup_commands:
        done = subprocess.run(["sh", "-c", command], cwd=tmp_path / "testbed", capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    monkeypatch.delenv("GIT_TEST_ASSUME_DIFFERENT_OWNER")
    assert git(tmp_path / "testbed", "log", "--format=%s") == "Initial commit\n"
    assert "fraction or 0" in git(tmp_path / "testbed", "show", "HEAD:coins/money.py")


def patch_shape(patch):
    return [line for line in patch.splitlines() if not line.startswith("index ")]


NEW_AND_GONE = """\
diff --git a/new.py b/new.py
new file mode 100644
--- /dev/null
+++ b/new.py
@@ -0,0 +1,2 @@
+a = 1
+b = 2
\\ No newline at end of file
diff --git a/gone.py b/gone.py
deleted file mode 100644
--- a/gone.py
+++ /dev/null
@@ -1,1 +0,0 @@
-c = 3
"""


def test_a_parsed_commit_becomes_the_patch_that_it_was():
    assert patch_of(json.dumps({"file_diffs": list(file_diffs(NEW_AND_GONE))}), ()) == NEW_AND_GONE


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda diff: diff.pop("header"), r"parsed_commit_content: .*missing required field `header`"),
        (lambda diff: diff["hunks"][0]["line_group"]["all_lines"][0].update(type="odd"), "a line of type 'odd'"),
        (lambda diff: diff["hunks"][0]["line_group"]["all_lines"].pop(), "parsed_commit_content is not a valid patch"),
    ],
)
def test_an_invalid_parsed_commit_is_reported(mini, change, complaint):
    (diff,) = file_diffs(mini[1][0]["patch"])
    change(diff)
    with pytest.raises(RowError, match=complaint):
        patch_of(json.dumps({"file_diffs": [diff]}), ())


def test_r2e_gym_counts_exact_outcomes(mini):
    found = row("r2egym", r2e_rows(mini[1])[0])
    assert (found.evaluation.rule, found.evaluation.parser) == ("exact", "code")
    assert found.evaluation.outcomes == dict.fromkeys(["test_whole", "test_parse[12.30]", "test_parse[12.3]"], "PASSED")
    assert (found.image, found.instructions) == ("namanjain12/coins_final:1", "Prices with one digit come out too low.")
    assert patch_shape(found.solution) == patch_shape(mini[1][0]["patch"])
    names = {}
    exec(found.evaluation.parser_code, names)
    text = "x FAILED\n= short test summary info =\n\x1b[31mFAILED\x1b[0m r2e_tests/a.py::T::b - E: x\nPASSED a.py::c\n"
    assert names["parse"](text) == {"T.b": "FAILED", "c": "PASSED"}
    with pytest.raises(RowError, match="expected_output_json does not name a test"):
        row("r2egym", r2e_rows(mini[1])[0] | {"expected_output_json": "{}"})


def test_live_has_commands_and_a_parser_that_is_code(mini):
    found = row("swebench-live", live_rows(mini[1])[0])
    assert found.evaluation.parser == "code"
    names = {}
    exec(found.evaluation.parser_code, names)
    assert names["parse"]("a pass\nb fail\nc odd\n") == {"a": "PASSED", "b": "FAILED", "c": "ERROR"}
    assert found.evaluation.script.splitlines()[3] == "python -c pass"
    plain = row("swebench-live", live_rows(mini[1])[0] | {"log_parser": "pytest", "test_cmds": "pytest -rA"})
    assert (plain.evaluation.parser, plain.evaluation.parser_code) == ("pytest", None)
    with pytest.raises(RowError, match="code without a function parse"):
        row("swebench-live", live_rows(mini[1])[0] | {"log_parser": "def other(): pass"})
    with pytest.raises(RowError, match="does not name a command that runs the tests"):
        row("swebench-live", live_rows(mini[1])[0] | {"test_cmds": []})


def test_rebench_has_commands_in_its_configuration(mini):
    found = row("swe-rebench", rebench_rows(mini[1])[0])
    assert (found.entrypoint, found.evaluation.parser) == ("pytest -rA", "pytestV2")
    with pytest.raises(RowError, match="language is 'go'; dgym debugs Python"):
        row("swe-rebench", rebench_rows(mini[1])[0] | {"language": "Go"})


def test_harbor_tasks_are_directories(tmp_path):
    adapter = load_adapter("harbor")
    rows = list(adapter.rows(harbor_tasks(tmp_path)))
    assert [one["instance_id"] for one in rows] == ["coins-1", "coins-2", "coins-3"]
    found = row("harbor", rows[0])
    assert (found.image, found.working_directory) == (None, "/app")
    assert [file.path for file in found.files] == ["money.py"]
    assert "def test_" not in "".join(file.content for file in found.files)
    named = row("harbor", rows[0], ImageNames(template="harbor/{{ instance_id }}"))
    assert (named.image, named.files) == ("harbor/coins-1", ())
    del rows[0]["files"]["tests/test.sh"]
    with pytest.raises(RowError, match=r"tests/test\.sh is missing"):
        row("harbor", rows[0])


def test_exercises_are_stubs_with_tests_and_documents(tmp_path):
    adapter = load_adapter("exercism")
    (data,) = adapter.rows(exercises(tmp_path))
    found = row("exercism", data)
    assert found.fail_to_pass == ("leap_test.py::LeapTest::test_century", "leap_test.py::LeapTest::test_common")
    assert sorted(file.path for file in found.files) == ["leap.py", "leap_test.py"]
    assert found.instructions.startswith("Say whether a year is a leap year.\n\nWrite it in leap.py.")
    repaired = apply_patch(found.solution, {"leap.py": FileVersion(found.files[0].data())}.get)
    assert b"% 400" in repaired["leap.py"].data
    config = json.dumps({"files": {"solution": ["no.py"], "test": ["leap_test.py"], "example": []}})
    (tmp_path / "exercises/practice/leap/.meta/config.json").write_text(config)
    (data,) = adapter.rows(tmp_path)
    with pytest.raises(RowError, match=r"names 'no\.py', which is missing"):
        row("exercism", data)
