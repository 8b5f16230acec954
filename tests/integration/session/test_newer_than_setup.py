"""Tests that files from the agent and the scorer are newer than files from the setup, compared in whole seconds."""

from tests.integration.session.conftest import PYTEST
from tests.support.calc import BUGGY

BUILD = """
import os, shutil, sys
def second(path):
    return int(os.stat(path).st_mtime)
if os.path.exists("calc.py") and second("calc.txt") <= second("calc.py"):
    sys.exit("calc.py is up to date")
shutil.copyfile("calc.txt", "calc.py")
"""
FILES = {
    "build.py": BUILD,
    "calc.txt": BUGGY,
    "test_calc.py": "import calc\n\n\ndef test_add():\n    assert calc.add(2, 3) == 5\n",
}
TASK = {
    "files": FILES,
    "entrypoint": PYTEST,
    "setupCommands": ["python build.py"],
    "buildCommands": ["python build.py"],
}
REPAIR = "rewrite calc.txt 2 <c>    return a + b</c>"
SOLUTION = """--- a/calc.txt
+++ b/calc.txt
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a - b
+    return a + b
"""


async def test_a_repair_is_built_in_the_sandbox_and_in_the_verifier(open_session):
    session = await open_session(**TASK)
    await session.step(1, REPAIR)
    built = await session.step(2, "bash python build.py && cat calc.py")
    assert "return a + b" in built.text
    await session.step(3, "bash sed -i s/+/-/ calc.py")
    assert (await session.step(4, "submit")).end_reason == "Resolved"


async def test_the_solution_is_built(open_session):
    session = await open_session(**TASK, solution=SOLUTION)
    await session.apply_solution()
    assert (await session.step(1, "submit")).end_reason == "Resolved"


async def test_eval_builds_what_has_changed_as_scoring_does(open_session):
    session = await open_session(**TASK, reset=False)
    first = await session.reset(evaluate=True)
    assert "1 failed" in first.text
    await session.step(1, REPAIR)
    repaired = await session.step(2, "eval")
    assert repaired.score.resolved, repaired.text
    again = await session.step(3, "eval")
    assert again.score.resolved, again.text
    await session.step(4, "bash printf 'import sys\\nsys.exit(\"no compiler\")\\n' > build.py")
    broken = await session.step(5, "eval")
    assert not broken.score.resolved
    assert "no compiler" in broken.text
    assert "The build command `python build.py` failed, so no test ran. Exit status 1." in broken.text


async def test_eval_builds_before_the_first_change_where_setup_does_not(open_session):
    session = await open_session(files=FILES, entrypoint=PYTEST, buildCommands=["python build.py"], reset=False)
    assert "1 failed" in (await session.reset(evaluate=True)).text
