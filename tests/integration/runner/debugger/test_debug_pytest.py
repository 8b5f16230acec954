"""Tests of pytest under the debugger: pytest keeps its options, and does not take over the debugger."""

import sys
from pathlib import Path

import pytest

from tests.support.plain_python import NO_PLUGINS

TESTS = """
import pytest

def add(a, b):
    total = a + b
    return total

def test_first():
    print('printed by the first')
    assert add(1, 2) == 3

def test_second():
    value = add(2, 2)
    assert value == 5

def test_third():
    assert True
""".lstrip("\n")


def pytest_versions():
    """Pairs of a Python version and a pytest version that it can run."""
    return [
        ("3.6", "pytest==3.0.*"),
        ("3.6", "pytest==4.6.*"),
        ("3.8", "pytest==6.2.*"),
        ("3.8", "pytest==8.3.*"),
        ("3.13", "pytest==8.3.*"),
        ("3.13", "pytest==9.*"),
    ]


@pytest.fixture(
    params=[pytest.param(None, id="installed")]
    + [pytest.param(pair, id="-".join(pair), marks=pytest.mark.matrix) for pair in pytest_versions()]
)
async def debug_tests(request, start_session, venv_here, venv_with):
    """A session with the entrypoint ``python -m pytest -q`` and three tests. The second test fails."""
    environment = venv_here
    if request.param:
        version, requirement = request.param
        found = [path for path in _pyenv() if Path(path).parent.parent.name.startswith(version + ".")]
        if not found:
            pytest.skip(f"pyenv has no Python {version}")
        # Current plugins do not load into pytest 3.0, and pytest 3.0 cannot disable them.
        plugins = () if "3.0" in requirement else ("pytest-xdist", "pytest-cov")
        environment = venv_with(found[0], requirement, *plugins)
    session = await start_session(environment, "python -m pytest -q -p no:cacheprovider", NO_PLUGINS)
    session.write("test_it.py", TESTS)
    session.is_installed = request.param is None  # the versions of the matrix lack some options
    return session


def _pyenv():
    return [str(path) for path in (Path.home() / ".pyenv" / "versions").glob("3.*/bin/python")]


async def help_of_pytest(debug):
    return (await debug.client.run("python -m pytest --help")).text


async def test_begins_before_pytest_and_stops_in_the_tests(debug_tests):
    debug = debug_tests
    result = await debug("w")
    assert result.frame is None
    assert "is about to start" in result.output
    result = await debug.each("b test_it.py:4", "c")
    assert (result.frame.file, result.frame.line) == ("test_it.py", 4)
    assert "printed by the first" in result.program_output
    where = await debug("w")
    assert where.output.splitlines()[0] == "  test_it.py(9)test_first()"
    assert (await debug("p a, b")).output == "(1, 2)\n"
    result = await debug.each("cl 1", "c")
    assert (result.state, result.exit_status) == ("ended", 1)
    assert "1 failed, 2 passed" in result.program_output


async def test_stepping_continues_in_the_next_test(debug_tests):
    debug = debug_tests
    assert (await debug("n")).frame.file == "test_it.py"
    await debug.each("b test_third", "b test_it.py:9", "c", "cl 2")
    seen = []
    while len(seen) < 4:
        result = await debug("n")
        seen.append((result.frame.file, result.frame.function))
    assert {file for file, _ in seen} == {"test_it.py"}
    assert "test_second" in {function for _, function in seen}


async def test_breakpoint_and_set_trace_in_a_test(debug_tests):
    debug = debug_tests
    debug.write(
        "test_it.py",
        """
        import pdb
        def test_one():
            x = 1
            pdb.set_trace()
            x = 2
            assert x == 2
        """,
    )
    result = await debug("c")
    assert (result.frame.file, result.frame.line) == ("test_it.py", 6)
    assert (await debug("p x")).output == "1\n"
    result = await debug("c")
    assert (result.state, result.exit_status) == ("ended", 0)


async def test_pdb_option_leads_to_post_mortem(debug_tests):
    debug = debug_tests
    debug.entrypoint += " --pdb"
    result = await debug("c")
    assert (result.frame.file, result.frame.function) == ("test_it.py", "test_second")
    assert "AssertionError" in result.output
    assert "next test" in result.output
    assert (await debug("p value")).output == "4\n"
    result = await debug("c")
    assert result.state == "ended"
    assert "1 failed, 2 passed" in result.program_output


FAILURES = {
    "doctest": (
        {"calc.py": 'def half(n):\n    """\n    >>> half("x")\n    1\n    """\n    return n / 2\n'},
        "--doctest-modules calc.py",
        ("calc.py", 6, "half"),
    ),
    "doctest-text": (
        {"notes.txt": ">>> 1 + 1\n2\n>>> undefined\n3\n"},
        "--doctest-glob=*.txt notes.txt",
        ("<doctest notes.txt[1]>", 1, "<module>"),
    ),
    "conftest": (
        {"sub/conftest.py": "value = 1\nimport no_such_module\n", "sub/test_it.py": "def test(): pass\n"},
        ".",
        ("sub/conftest.py", 2, "<module>"),
    ),
    "test module": ({"test_it.py": "value = 1\nimport no_such_module\n"}, "", ("test_it.py", 2, "<module>")),
    "unittest": (
        {
            "test_it.py": "import unittest\nclass Case(unittest.TestCase):\n    def test_one(self):\n"
            "        value = 1\n        self.assertEqual(value, 2)\n"
        },
        "",
        ("test_it.py", 5, "test_one"),
    ),
    "hidden": (
        {
            "test_it.py": "def check(n):\n    __tracebackhide__ = True\n    assert n == 2\n"
            "def test_one():\n    value = 1\n    check(value)\n"
        },
        "",
        ("test_it.py", 6, "test_one"),
    ),
    "library": (
        {"test_it.py": "import json\ndef test_one():\n    value = 1\n    json.loads('{')\n"},
        "",
        ("test_it.py", 4, "test_one"),
    ),
    "fail": (
        {"test_it.py": "import pytest\ndef test_one():\n    value = 1\n    pytest.fail('no')\n"},
        "",
        ("test_it.py", 4, "test_one"),
    ),
}


@pytest.mark.parametrize("failure", FAILURES)
async def test_pdb_option_stops_in_the_innermost_frame_of_the_workspace(debug_tests, failure):
    debug = debug_tests
    files, arguments, place = FAILURES[failure]
    (debug.workspace / "test_it.py").unlink()
    for name, text in files.items():
        debug.write(name, text)
    debug.entrypoint += f" --pdb {arguments}"
    result = await debug("c")
    assert result.state == "stopped", result
    assert (result.frame.file, result.frame.line, result.frame.function) == place, result.output
    assert not (await debug("p value" if "doctest" not in failure else "p 1")).failed
    assert (await debug("c")).state == "ended"


async def test_a_conftest_of_the_root_that_cannot_be_imported_ends_the_program_as_in_pytest(debug_tests):
    debug = debug_tests
    debug.write("conftest.py", "import no_such_module\n")
    debug.entrypoint += " --pdb"
    result = await debug("c")
    alone = await debug.client.run(debug.entrypoint)
    assert (result.state, result.exit_status) == ("ended", alone.exit_status)
    assert "no_such_module" in result.program_output


async def test_capture_in_the_configuration_does_not_hide_output(debug_tests):
    debug = debug_tests
    debug.write("pytest.ini", "[pytest]\naddopts = --capture=fd -v\n")
    result = await debug.each("b test_it.py:9", "c")
    assert "printed by the first" in result.program_output
    assert (await debug("c")).state == "ended"


async def test_coverage_is_disabled_with_a_notice(debug_tests):
    debug = debug_tests
    if not debug.is_installed and "No module" in (await debug.client.run("python -c 'import pytest_cov'")).text:
        pytest.skip("pytest-cov is not installed beside this pytest")
    debug.entrypoint += " -p pytest_cov --cov=. --cov-report="
    result = await debug.each("b test_it.py:4", "c")
    assert result.frame.line == 4
    assert result.notices == ("Coverage is not measured under the debugger (it would disable breakpoints).",)


async def test_a_test_chosen_by_name_and_a_breakpoint_in_conftest(debug_tests):
    debug = debug_tests
    debug.entrypoint = "pytest -q -p no:cacheprovider 'test_it.py::test_third'"
    debug.write(
        "conftest.py",
        "import pytest\n@pytest.fixture(autouse=True)\ndef around():\n    before = 1\n    yield\n    after = 1\n",
    )
    await debug.each("b conftest.py:4", "b conftest.py:6", "b test_it.test_second")
    assert (await debug("c")).frame.line == 4
    assert (await debug("c")).frame.line == 6
    result = await debug("c")
    assert result.exit_status == 0
    assert "1 passed" in result.program_output
    assert "Breakpoint 3 at test_it.py:12 was never hit" in result.notices[0]


async def test_trace_option_stops_at_each_test(debug_tests):
    debug = debug_tests
    if not debug.is_installed and "--trace " not in (await help_of_pytest(debug)).replace("=", " "):
        pytest.skip("this pytest has no --trace")
    debug.entrypoint += " --trace"
    for name in ("test_first", "test_second", "test_third"):
        assert (await debug("c")).frame.function == name
    assert (await debug("c")).state == "ended"


async def test_a_test_file_with_a_syntax_error(debug_tests):
    debug_tests.write("test_it.py", "def broken(:\n")
    result = await debug_tests("c")
    assert (result.state, result.exit_status) == ("ended", 2)
    assert "SyntaxError" in result.program_output


@pytest.mark.matrix
async def test_xdist_is_asked_for(start_session, venv_with):
    debug = await start_session(venv_with(_pyenv()[-1], "pytest", "pytest-xdist"), "python -m pytest -q -n 2")
    debug.write("test_it.py", TESTS)
    result = await debug.each("b test_it.py:4", "c")
    assert result.frame.line == 4
    assert result.notices == ("pytest-xdist was requested: under the debugger the tests run in one process.",)


async def test_a_plugin_with_the_option_of_xdist_runs_in_one_process(start_session, venv_here, tmp_path):
    plugins = tmp_path / "plugins"
    (plugins / "xdist-1.0.dist-info").mkdir(parents=True)
    (plugins / "xdist-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: xdist\nVersion: 1.0\n")
    (plugins / "xdist-1.0.dist-info" / "entry_points.txt").write_text("[pytest11]\nxdist = xdist\n")
    (plugins / "xdist.py").write_text(
        "def pytest_addoption(parser):\n"
        "    parser.getgroup('xdist')._addoption('-n', '--numprocesses', dest='workers')\n"
        "def pytest_configure(config):\n    print('workers:', config.option.workers)\n"
    )
    debug = await start_session(
        venv_here,
        "python -m pytest -q -p xdist -n2",
        {"PYTHONPATH": str(plugins), **NO_PLUGINS},
    )
    debug.write("test_it.py", TESTS)
    result = await debug.each("b test_it.py:4", "c")
    assert "workers: 0" in result.program_output
    assert result.frame.line == 4
    assert result.notices == ("pytest-xdist was requested: under the debugger the tests run in one process.",)


async def test_unittest(start_session):
    debug = await start_session(sys.prefix, "python -m unittest test_case.py")
    debug.write(
        "test_case.py",
        """
        import unittest
        class Case(unittest.TestCase):
            def test_one(self):
                x = 1
                self.assertEqual(x, 1)
            def test_two(self):
                self.assertTrue(True)
        """,
    )
    result = await debug("n")
    assert (result.frame.file, result.frame.line) == ("test_case.py", 2)
    result = await debug.each("b test_case.Case.test_one", "c")
    assert result.frame.line == 5
    assert (await debug.each("n", "n", "n")).frame.function == "test_two"


async def test_a_step_out_of_a_fixture_stops_in_the_tests(debug_tests):
    debug = debug_tests
    debug.write(
        "conftest.py",
        "import pytest\n@pytest.fixture(autouse=True)\ndef around():\n    before = 1\n    yield\n    after = 1\n",
    )
    for command in ("r", "n"):
        await debug.each("run", "tbreak conftest.py:6", "c")
        result = await debug(command)
        assert (result.state, result.frame.file, result.frame.function) == ("stopped", "conftest.py", "around"), command


WAITING = """
import pytest

def test_waits():
    value = 1
    value = 2
    while value == 3:
        pass

def test_next():
    assert True
"""


@pytest.mark.parametrize(("method", "place"), [("signal", "mark"), ("thread", "command line")])
async def test_time_at_a_stop_does_not_count_for_pytest_timeout(start_session, venv_here, method, place):
    command = "python -m pytest -q -p no:cacheprovider -p pytest_timeout"
    debug = await start_session(venv_here, command, NO_PLUGINS)
    if place == "mark":
        mark = f"@pytest.mark.timeout(0.5, method={method!r})\n"
        debug.write("test_it.py", WAITING.replace("def test_waits", mark + "def test_waits"))
    else:
        debug.entrypoint += f" --timeout=0.5 --timeout-method={method}"
        debug.write("test_it.py", WAITING)
    result = await debug.each("tbreak test_it.py:test_waits", "c", "p __import__('time').sleep(0.7)")
    assert (result.frame and result.frame.function, result.output) == ("test_waits", "None\n")
    result = await debug("c")
    assert (result.state, result.exit_status) == ("ended", 0), result.program_output


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["signal", "thread"])
async def test_time_after_an_interrupt_does_not_count_for_pytest_timeout(start_session, venv_here, method):
    debug = await start_session(
        venv_here,
        f"python -m pytest -q -p no:cacheprovider -p pytest_timeout --timeout=4 --timeout-method={method}",
        NO_PLUGINS,
    )
    debug.write("test_it.py", WAITING.replace("value = 2", "value = 3"))
    result = await debug("c", timeout=2.0)
    assert result.frame.function == "test_waits", result
    assert (await debug("p __import__('time').sleep(4)")).output == "None\n"
    assert (await debug("value = 2")).state == "stopped"
    result = await debug("c")
    assert (result.state, result.exit_status) == ("ended", 0), result.program_output


async def test_time_at_a_stop_does_not_count_for_faulthandler(debug_tests):
    debug = debug_tests
    if not debug.is_installed and "faulthandler_exit_on_timeout" not in await help_of_pytest(debug):
        pytest.skip("this pytest has no faulthandler_exit_on_timeout")
    debug.write("pytest.ini", "[pytest]\nfaulthandler_timeout = 0.5\nfaulthandler_exit_on_timeout = true\n")
    debug.write("test_it.py", WAITING)
    result = await debug.each("tbreak test_it.py:test_waits", "c", "p __import__('time').sleep(0.7)")
    assert (result.frame and result.frame.function, result.output) == ("test_waits", "None\n")
    result = await debug("c")
    assert (result.state, result.exit_status) == ("ended", 0), result.program_output


async def test_plugins_are_notified_of_each_stop(debug_tests):
    debug = debug_tests
    debug.write("test_it.py", WAITING)
    debug.write(
        "conftest.py",
        """
        import sys
        def pytest_enter_pdb(config):
            breakpoint()
            sys.stdout.write('entered\\n')
        def pytest_leave_pdb():
            raise ValueError('no pdb here')
        """.replace("breakpoint()", "import pdb; pdb.set_trace()"),
    )
    result = await debug.each("b test_it.py:test_waits", "b test_it.py:test_next", "c")
    assert result.program_output.count("entered") == 1
    result = await debug("c")
    assert (result.frame.function, result.program_output.count("entered")) == ("test_next", 1)
    left = ("pytest_leave_pdb failed: ValueError: no pdb here",)
    assert result.notices in (left, ())  # pytest 3 does not have the hook
    result = await debug("c")
    assert (result.state, result.exit_status) == ("ended", 0)
