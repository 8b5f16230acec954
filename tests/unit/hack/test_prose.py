import subprocess
from pathlib import Path

import pytest

from hack import check_prose

DIFF = """\
diff --git a/a.py b/a.py
--- a/a.py
+++ b/a.py
@@ -1,0 +2,2 @@ def f():
+one
+two
@@ -9 +11 @@
-old
+new
diff --git a/b.md b/b.md
--- a/b.md
+++ /dev/null
@@ -1 +0,0 @@
-gone
"""


@pytest.mark.parametrize(
    "line",
    [
        "What the container of an agent pod runs, and before it, with `tokens`, another",
        "The sidecar's word about the attempt; once it is told to end, that of then.",
        "Of what follows, these are not part.",
        "Since when the deadline stands still, though it has begun to run.",
        "What failed is no verdict.",
        "None are kept.",
        "priority: Of `spec.priority`.",
    ],
)
def test_wordings_of_the_old_dialect_cause_warnings(line: str) -> None:
    assert list(check_prose.warnings(line))


@pytest.mark.parametrize(
    "line",
    [
        "When the deadline clock was last paused, after it had started.",
        "True if no field that `decide()` reads has changed.",
        "What is your name?",
        "Highest allowed `spec.priority`.",
    ],
)
def test_plain_english_is_not(line: str) -> None:
    assert list(check_prose.warnings(line)) == []


def test_the_added_lines_of_a_diff() -> None:
    assert check_prose.added(DIFF) == {"a.py": {2, 3, 11}}


def test_comments_and_strings_of_python_are_prose() -> None:
    text = 'told = 1  # a comment\n"""One\ntwo."""\nf"a {told} b"\n'
    lines = check_prose.prose("a.py", text)
    assert lines[1] == "a comment"
    assert (lines[2], lines[3]) == ("One", "two.")
    assert "a " in lines[4]


def test_a_change_gets_warnings_with_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("page.md").write_text("The operator says so.\n")
    for command in ("init -q", "add .", "-c user.name=a -c user.email=a@b commit -qm one"):
        subprocess.run(["git", *command.split()], check=True)
    Path("page.md").write_text("The operator says so.\nNone are kept.\n")
    assert check_prose.main([]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "page.md:2: warning: 'None are': write a full sentence: subject, verb, object",
        "wordings to read again: 1; they do not fail the check",
    ]
