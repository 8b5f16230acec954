"""Tests of the attacks that remain possible according to docs/scoring.md. Update the page when a test fails."""

from tests.fakes.attacks.model import CALC

FORGE = """
import gc, os
for _thing in gc.get_objects():
    if type(_thing).__name__ == "Reporter" and hasattr(_thing, "_write"):
        for _name in ("test_kept", "test_add", "test_divide", "test_mean", "TestCalc::test_equal"):
            _thing._write("test", id="tests/test_calc.py::" + _name, outcome="passed")
        _thing._write("canary", outcome="failed")
        _thing._write("end")
        _thing._write("status", status=0)
        os._exit(0)
"""
RECOGNISES = """
class Value:
    def __init__(self): self.friends = (4, 5)
    def __eq__(self, other): return other in self.friends
    __hash__ = object.__hash__
def add(a, b): return Value() if a else 0
def divide(a, b): raise ValueError
def mean(numbers): return 2.0
"""
CHECK = "import calc\nassert calc.add(1, 2) == 3\n"


async def test_known_limit_code_written_for_dgym_forges_a_whole_run(play):
    played = await play({"calc.py": CALC + FORGE})
    assert played.result.resolved


async def test_known_limit_values_that_recognise_what_they_are_compared_with(play):
    played = await play({"calc.py": CALC + RECOGNISES})
    assert played.result.resolved


async def test_known_limit_data_of_tests_rewritten_while_they_run(play):
    test = "import json, calc\ndef test_add(): assert calc.add(2, 3) == json.load(open('tests/expected.json'))\n"
    files = {"calc.py": "def add(a, b): return a - b\n", "tests/test_calc.py": test, "tests/expected.json": "5\n"}
    code = files["calc.py"] + "open('tests/expected.json', 'w').write('-1')\n"
    played = await play({"calc.py": code}, files=files, scoring={})
    assert played.result.resolved


async def test_known_limit_sys_exit_in_a_program_of_a_shell_line(play):
    files = {"calc.py": "def add(a, b): return a - b\n", "check.py": CHECK}
    changes = {"calc.py": "import sys\nsys.exit(0)\n"}
    scoring = {"parser": "exitStatus"}
    played = await play(changes, files=files, scoring=scoring, entrypoint="true && python check.py")
    assert played.result.resolved
    played = await play(changes, files=files, scoring=scoring, entrypoint="python check.py")
    assert not played.result.resolved


async def test_known_limit_isolated_pythons_of_a_shell_line_are_not_watched(play):
    files = {"calc.py": "def add(a, b): return a - b\n", "check.py": "import sys\nsys.path.insert(0, '.')\n" + CHECK}
    changes = {"calc.py": "import os\nos._exit(0)\n"}
    scoring = {"parser": "exitStatus"}
    played = await play(changes, files=files, scoring=scoring, entrypoint="true && python -I check.py")
    assert played.result.resolved


async def test_known_limit_a_program_that_judges_itself(play):
    files = {"app.py": "raise SystemExit(1)\n"}
    played = await play({"app.py": "\n"}, files=files, scoring={"parser": "exitStatus"}, entrypoint="python app.py")
    assert played.result.resolved
