"""Tests of scoring on real verifiers: the files that reach them, the order of the stages, and the outcome."""

import asyncio
from pathlib import Path

import pytest

from dgym.errors import VerifierFailed
from dgym.session.scoring import SuiteCache, score_changes
from dgym.wire import IntegritySign, SignEvidence
from dgym.workspace.patches import FileVersion
from tests.fakes.plans import make_plan
from tests.support.calc import BUGGY, FIXED

SUITE = """import pytest, calc
def test_add(): assert calc.add(1, 2) == 3
def test_zero(): assert calc.add(1, 0) == 1
def test_skipped(): pytest.skip("no")
"""
REPOSITORY = {"calc.py": BUGGY, "test_calc.py": SUITE}
NAMED = {"fail_to_pass": ("test_calc.py::test_add",), "pass_to_pass": ("test_calc.py::test_zero",)}


async def test_named_tests(score):
    outcome = await score(REPOSITORY, {"calc.py": FIXED}, **NAMED)
    assert outcome.resolved
    assert outcome.tests == {"test_calc.py::test_add": "passed", "test_calc.py::test_zero": "passed"}
    unchanged = await score(REPOSITORY, {}, **NAMED)
    assert (unchanged.score, unchanged.max_score) == (1, 2)


async def test_added_tests_do_not_count(score):
    outcome = await score(REPOSITORY, {"calc.py": FIXED, "test_more.py": "def test_more(): assert 0\n"})
    assert outcome.resolved
    assert set(outcome.tests) == {"test_calc.py::test_add", "test_calc.py::test_zero"}
    assert outcome.notes == ("not scored: test_more.py (tests that were added do not count)",)


async def test_the_suite_is_found_out_once_and_leaves_nothing_behind(score, open_verifier, tmp_path):
    cache = SuiteCache(tmp_path, "d")
    littering = SUITE + "def test_litter():\n    open('litter', 'x').close()\n"
    files = {"calc.py": BUGGY, "test_calc.py": littering}
    first = await score(files, {"calc.py": FIXED}, cache=cache)
    assert first.resolved
    assert cache.get().outcomes["test_calc.py::test_litter"] == "passed"
    second = await score({"calc.py": BUGGY, "test_calc.py": "def test_x(): pass"}, {}, cache=cache)
    assert set(second.tests) == set(first.tests)


async def test_exit_status(score):
    files = {"calc.py": BUGGY, "check.py": "import calc\nassert calc.add(1, 2) == 3\n"}
    assert not (await score(files, {}, "python check.py")).resolved
    outcome = await score(files, {"calc.py": FIXED}, "python check.py")
    assert (outcome.resolved, outcome.max_score) == (True, 1)


async def test_hidden_files_and_the_test_patch_are_written_last(score, as_versions):
    patch = """--- a/test_calc.py
+++ b/test_calc.py
@@ -1,4 +1,5 @@
 import pytest, calc
+from secret import EXPECTED
 def test_add(): assert calc.add(1, 2) == 3
 def test_zero(): assert calc.add(1, 0) == 1
 def test_skipped(): pytest.skip("no")
--- /dev/null
+++ b/test_patched.py
@@ -0,0 +1,2 @@
+import calc
+def test_patched(): assert calc.add(2, 2) == 4
"""
    hidden = as_versions({"secret.py": "EXPECTED = 3\n", "hidden/test_hidden.py": "def test_hidden(): pass\n"})
    changed = {"calc.py": FIXED, "secret.py": "raise SystemExit\n", "test_patched.py": "def test_patched(): pass\n"}
    outcome = await score(REPOSITORY, changed, hidden_files=hidden, test_patch=patch)
    assert outcome.resolved
    assert {"test_patched.py::test_patched", "hidden/test_hidden.py::test_hidden"} < set(outcome.tests)


async def test_a_test_patch_that_does_not_apply_raises_verifier_failed(score):
    patch = "--- a/none.py\n+++ b/none.py\n@@ -1 +1 @@\n-a\n+b\n"
    with pytest.raises(VerifierFailed, match="testPatch"):
        await score(REPOSITORY, {}, test_patch=patch, **NAMED)
    with pytest.raises(VerifierFailed, match="testPatch"):
        await score(REPOSITORY, {}, test_patch="nonsense", **NAMED)


async def test_build_commands_run_with_the_changes_and_before_the_tests_are_put_back(score):
    files = {
        "calc.in": "a - b",
        "build.py": "open('calc.py', 'w').write('def add(a, b): return ' + open('calc.in').read())\n",
        "test_calc.py": SUITE,
    }
    outcome = await score(files, {"calc.in": "a + b"}, build_commands=("python build.py",), **NAMED)
    assert outcome.resolved
    assert outcome.notes == ()


async def test_changes_of_protected_files_by_a_build_are_reverted(score):
    evil = """
import os, shutil
open("test_calc.py", "w").write("def test_add(): pass\\ndef test_zero(): pass\\n")
open("pytest.ini", "w").write("[pytest]\\naddopts = -p no:python\\n")
open("conftest.py", "w").write("raise SystemExit(0)")
os.remove("data.txt")
shutil.rmtree("tests")
os.symlink("/tmp", "tests")
"""
    files = {**REPOSITORY, "data.txt": "keep", "tests/test_kept.py": "def test_kept(): pass\n", "build.py": "\n"}
    outcome = await score(
        files,
        {"build.py": evil},
        build_commands=("python build.py",),
        protected=lambda path: path == "data.txt",
        fail_to_pass=("test_calc.py::test_add",),
        pass_to_pass=("test_calc.py::test_zero", "tests/test_kept.py::test_kept"),
    )
    assert outcome.tests == {
        "test_calc.py::test_add": "failed",
        "test_calc.py::test_zero": "passed",
        "tests/test_kept.py::test_kept": "passed",
    }
    assert outcome.notes == (
        "restored after the build commands: data.txt, test_calc.py, tests/test_kept.py",
        "removed after the build commands: conftest.py, pytest.ini",
    )
    opened = [
        seen for seen in outcome.integrity.seen if "runs computed text, or reads objects that hold code" in seen.detail
    ]
    assert [seen.detail.partition(" (")[0] for seen in opened] == [
        "build.py:3: open('test_calc.py', 'w')",
        "build.py:5: open('conftest.py', 'w')",
    ]
    assert [(seen.sign, seen.detail) for seen in outcome.integrity.seen if seen not in opened] == [
        (IntegritySign.HOOK_PLANTED, "conftest.py"),
        (IntegritySign.HOOK_PLANTED, "pytest.ini"),
        *(
            (IntegritySign.PATCH_MARKED, f"build.py:{line}: {name!r} (names a test framework or the tests)")
            for line, name in ((3, "test_calc.py"), (4, "pytest.ini"), (5, "conftest.py"))
        ),
        (IntegritySign.TESTS_CHANGED, "data.txt"),
        (IntegritySign.TESTS_CHANGED, "test_calc.py"),
        (IntegritySign.TESTS_CHANGED, "tests/test_kept.py"),
    ]


async def test_hidden_tests_that_change_after_they_are_put_back_are_tampering(open_verifier, as_versions):
    """An asyncio task replaces an escaped process, which the sandbox "none" cannot end.

    The runner answers after it has written the file, and the event loop runs the task once more before the scoring can
    handle that answer. So the file is always changed between the restoration and the check.
    """
    verifier = await open_verifier(REPOSITORY, kind="none")
    hidden, tampered = Path(verifier.workspace, "test_hidden.py"), "def test_hidden(): pass\n"

    async def rewrite():
        while True:
            if hidden.exists() and hidden.read_text() != tampered:
                hidden.write_text(tampered)
            await asyncio.sleep(0)

    plan = make_plan(
        build_commands=("true",),
        hidden_files=as_versions({"test_hidden.py": "def test_hidden(): assert False\n"}),
        fail_to_pass=("test_hidden.py::test_hidden",),
    )
    escaped = asyncio.create_task(rewrite())
    try:
        outcome = await score_changes(verifier, plan)
    finally:
        escaped.cancel()
    assert (outcome.resolved, outcome.score) == (False, 0)
    assert outcome.message.startswith("tampered: changed after they were restored: test_hidden.py")
    assert outcome.integrity.seen == (SignEvidence(sign=IntegritySign.TESTS_CHANGED, detail="test_hidden.py"),)


async def test_a_failed_build_scores_0(score):
    outcome = await score(REPOSITORY, {}, build_commands=("echo broken; exit 3",), **NAMED)
    assert set(outcome.tests.values()) == {"missing"}
    assert "status 3" in outcome.message
    assert "broken" in outcome.message


async def test_a_timeout_scores_0(score):
    loop = "def add(a, b):\n    while a != 0: pass\n    return b\n"
    outcome = await score(REPOSITORY, {"calc.py": loop}, timeout_seconds=1.0, **NAMED)
    assert (outcome.score, set(outcome.tests.values())) == (0, {"missing"})
    assert "did not end within 1 s" in outcome.message


async def test_deleted_files_links_and_modes_arrive(score):
    files = {**REPOSITORY, "old.py": "x = 1\n", "check.py": "\n"}
    check = """
import os
assert not os.path.exists("old.py")
assert os.readlink("link") == "calc.py"
assert os.access("run", os.X_OK)
"""
    changed = {
        "old.py": None,
        "link": FileVersion(b"calc.py", 0o777, is_symlink=True),
        "run": FileVersion(b"#!/bin/sh\n", 0o755),
    }
    files["check.py"] = check
    outcome = await score(files, changed, "python check.py")
    assert outcome.resolved, outcome.message


async def test_a_verifier_that_cannot_start_the_entrypoint_raises_verifier_failed(open_verifier):
    verifier = await open_verifier(REPOSITORY, PATH="/nowhere")
    with pytest.raises(VerifierFailed, match="no python"):
        await score_changes(verifier, make_plan("python -m pytest", **NAMED))


async def test_a_dead_verifier_raises_verifier_failed(open_verifier):
    verifier = await open_verifier(REPOSITORY)
    await verifier.stop()
    with pytest.raises(VerifierFailed):
        await score_changes(verifier, make_plan("python -m pytest", **NAMED))
