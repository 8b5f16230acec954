"""Tests of programs whose exit status is the score: only a program that runs to its end counts."""

import pytest

CHECK = "import calc\nassert calc.add(1, 2) == 3\nprint('good')\n"
GOOD = "def add(a, b): return a + b\n"
BAD = "def add(a, b): return a - b\n"
ENTRYPOINTS = ["python check.py", "python -m check", "cd . && python check.py", "PYTHONUTF8=1 python -B check.py"]


@pytest.mark.parametrize("entrypoint", ENTRYPOINTS)
async def test_a_program_that_ends_well(run_plain, entrypoint):
    result = await run_plain({"check.py": CHECK, "calc.py": GOOD}, entrypoint, changed=["calc.py"])
    assert (result.completed, result.run.exit_status, result.run.text) == (True, 0, "good\n")
    assert result.report.form == "python"


@pytest.mark.parametrize("entrypoint", ENTRYPOINTS)
async def test_a_program_that_fails_shows_its_own_traceback(run_plain, entrypoint):
    result = await run_plain({"check.py": CHECK, "calc.py": BAD}, entrypoint, changed=["calc.py"])
    assert (result.completed, result.run.exit_status) == (True, 1)
    assert result.run.text.startswith("Traceback (most recent call last):\n")
    assert result.run.text.rstrip().endswith("AssertionError")
    assert "scoring/start" not in result.run.text


LEAVING = {
    "os._exit": "import os; os._exit(0)\n",
    "os._exit at exit": "import atexit, os; atexit.register(os._exit, 0)\n" + BAD,
    "sys.exit": "import sys; sys.exit(0)\n",
    "SystemExit in a function": "def add(a, b): raise SystemExit\n",
    "exec": "import os; os.execv('/bin/true', ['true'])\n",
    "fork": "import os\nif os.fork(): os._exit(0)\n" + GOOD,
    "forged record": (
        "import os\nfor number in range(3, 2000):\n"
        '    try: os.write(number, b\'{"kind": "status", "status": 0}\\n\')\n    except OSError: pass\n'
        "os._exit(0)\n"
    ),
    "excepthook": "import os, sys\nsys.excepthook = lambda *args: os._exit(0)\n" + BAD,
    "signal": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n",
}


@pytest.mark.parametrize(
    ("entrypoint", "attack"), [*(("python check.py", attack) for attack in LEAVING), ("python -m check", "os._exit")]
)
async def test_code_under_test_that_leaves_early_does_not_count(run_plain, entrypoint, attack):
    result = await run_plain({"check.py": CHECK, "calc.py": LEAVING[attack]}, entrypoint, changed=["calc.py"])
    assert not (result.completed and result.run.exit_status == 0)


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("import sys; sys.exit(0)", 0),
        ("import sys; sys.exit()", 0),
        ("import sys; sys.exit(7)", 7),
        ("import sys; sys.exit('message')", 1),
        ("import sys; sys.exit(256 + 3)", 3),
        ("raise KeyError('x')", 1),
        ("import unittest; unittest.main()", None),
        ("import threading; threading.Thread(target=print, args=('late',)).start()", 0),
    ],
)
async def test_every_way_to_end_a_program_counts_as_completed(run_plain, ending, status):
    result = await run_plain({"check.py": ending + "\n"}, "python check.py", changed=["calc.py"])
    assert result.completed
    if status is not None:
        assert result.run.exit_status == status


async def test_unittest_is_a_module_like_any_other(run_plain):
    suite = (
        "import unittest, calc\nclass T(unittest.TestCase):\n"
        "    def test_add(self): self.assertEqual(calc.add(1, 2), 3)\n"
    )
    for code, status in ((GOOD, 0), (BAD, 1)):
        result = await run_plain({"test_calc.py": suite, "calc.py": code}, "python -m unittest", changed=["calc.py"])
        assert (result.completed, result.run.exit_status) == (True, status), result.run.text


async def test_a_program_sees_what_it_would_see_alone(run_plain):
    check = """
import os, sys, pickle
import __main__
class Thing: pass
assert pickle.loads(pickle.dumps(Thing())).__class__ is Thing
assert __main__.__dict__ is globals() and __name__ == "__main__" and __file__.endswith("check.py")
assert sys.argv == [sys.argv[0], "a b", "--flag"], sys.argv
assert sys.argv[0].endswith("check.py")
assert sys.path[0] == os.path.dirname(os.path.abspath(__file__)), sys.path
assert not [path for path in sys.path if "dgym/runner" in path]
assert sys.stdin.read() == ""
assert not [name for name in os.environ if name.startswith("DGYM_REPORT")]
"""
    for entrypoint in ("python sub/check.py 'a b' --flag", "cd sub && python check.py 'a b' --flag"):
        result = await run_plain({"sub/check.py": check}, entrypoint)
        assert (result.completed, result.run.text) == (True, "")


@pytest.mark.parametrize(
    ("line", "status"), [("exit 3", 3), ("true | true; echo $((1 + 1))", 0), ("no-such-program", 127)]
)
async def test_other_entrypoints_run_as_shell_lines(run_plain, line, status):
    result = await run_plain({}, line)
    assert (result.report.form, result.completed, result.run.exit_status) == ("shell", True, status)


async def test_a_missing_script_is_named_in_the_output(run_plain):
    result = await run_plain({}, "python nothing.py")
    assert result.run.exit_status != 0
    assert "nothing.py" in result.run.text
