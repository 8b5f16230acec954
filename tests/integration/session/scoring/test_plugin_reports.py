"""Tests of the plugin's reports: every kind of outcome, under every supported pytest."""

import os
import sys
from pathlib import Path

import pytest

from dgym.sandbox.local import ensure_environment

VERSIONS = [("3.6", "3.0.7"), ("3.8", "4.6.11"), ("3.8", "6.2.5"), ("3.12", "8.3.5"), ("3.13", "9.0.2")]

SUITE = """
import unittest
import pytest

def test_pass(): pass
def test_fail(): assert 1 == 2
def test_skip(): pytest.skip("not today")

@pytest.mark.xfail
def test_xfail(): assert 0

@pytest.mark.xfail
def test_xpass(): pass

@pytest.fixture
def bad_setup(): assert 0

@pytest.fixture
def bad_teardown():
    yield
    assert 0

def test_setup(bad_setup): pass
def test_teardown(bad_teardown): pass

@pytest.mark.parametrize("word", ["a b", "c::d"])
def test_words(word): pass

class TestCase(unittest.TestCase):
    def test_equal(self): self.assertEqual(1, 1)
    def test_unequal(self): self.assertEqual(1, 2)
    @unittest.skip("no")
    def test_skipped(self): pass
"""
OUTCOMES = {
    "test_all.py::test_pass": "passed",
    "test_all.py::test_fail": "failed",
    "test_all.py::test_skip": "skipped",
    "test_all.py::test_xfail": "xfailed",
    "test_all.py::test_xpass": "xpassed",
    "test_all.py::test_setup": "error",
    "test_all.py::test_teardown": "error",
    "test_all.py::test_words[a b]": "passed",
    "test_all.py::test_words[c::d]": "passed",
    "test_all.py::TestCase::test_equal": "passed",
    "test_all.py::TestCase::test_unequal": "failed",
    "test_all.py::TestCase::test_skipped": "skipped",
}
ENTRYPOINTS = ["python -m pytest -q", "pytest -q", "true && python -m pytest -q"]


def pyenv_python(version):
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = sorted(root.glob(f"versions/{version}.*/bin/python"))
    if not found:
        pytest.skip(f"pyenv has no Python {version}")
    return str(found[-1])


@pytest.fixture(
    params=["this", *(pytest.param(pair, marks=pytest.mark.matrix, id="-pytest".join(pair)) for pair in VERSIONS)]
)
async def python(request):
    if request.param == "this":
        return sys.executable
    interpreter, version = request.param
    environment = await ensure_environment([f"pytest=={version}"], python=pyenv_python(interpreter))
    return str(Path(environment) / "bin" / "python")


def normalized(outcomes):
    """Remove the ``()`` that old versions of pytest add to the names of unittest classes."""
    return {test.replace("::()", ""): outcome for test, outcome in outcomes.items()}


@pytest.mark.parametrize("entrypoint", ENTRYPOINTS)
async def test_every_outcome_is_reported(run_plain, python, entrypoint):
    result = await run_plain({"test_all.py": SUITE}, entrypoint, python=python, changed=["calc.py"])
    report = result.report
    assert normalized(report.outcomes) == OUTCOMES, result.run.text
    assert sorted(test.replace("::()", "") for test in report.collected) == sorted(OUTCOMES)
    assert result.completed
    assert result.run.exit_status == 1
    assert (report.canary, report.tampering) == ("failed", [])


async def test_the_canary_neither_shows_nor_changes_the_exit_status(run_plain, python):
    result = await run_plain({"test_one.py": "def test_one(): pass\n"}, python=python, changed=["x.py"])
    assert result.report.canary == "failed"
    assert result.run.exit_status == 0
    assert result.run.text.count("passed") == 1
    assert "fail" not in result.run.text
    assert result.report.collected == ["test_one.py::test_one"]


async def test_the_canary_runs_only_with_untrusted_files(run_plain):
    result = await run_plain({"test_one.py": "def test_one(): pass\n"})
    assert result.report.canary is None
    assert result.completed


async def test_collecting_only_runs_nothing(run_plain, python):
    entrypoint = "python -m pytest -q --collect-only"
    result = await run_plain({"test_all.py": SUITE}, entrypoint, python=python, changed=["x.py"])
    assert len(result.report.collected) == len(OUTCOMES)
    assert result.report.outcomes == {}
    assert result.report.canary is None


async def test_a_run_of_setups_only_reports_skipped_tests(run_plain, python):
    suite = "import pytest\n@pytest.mark.skipif(True, reason='no')\ndef test_a(): pass\ndef test_b(): assert 0\n"
    result = await run_plain({"test_all.py": suite}, python=python, setup_only=True)
    assert result.report.outcomes == {"test_all.py::test_a": "skipped"}


async def test_files_that_cannot_be_collected_are_reported(run_plain, python):
    files = {"test_bad.py": "import nothing_of_this_name\n", "test_good.py": "def test_a(): pass\n"}
    result = await run_plain(files, python=python)
    assert result.report.collection_errors == ["test_bad.py"]
    assert result.report.collected == ["test_good.py::test_a"]
    assert result.completed
    assert result.run.exit_status != 0


async def test_a_test_id_of_the_entrypoint_selects_one_test(run_plain):
    result = await run_plain({"test_all.py": SUITE}, "python -m pytest -q test_all.py::test_pass")
    assert result.report.outcomes == {"test_all.py::test_pass": "passed"}


async def test_a_module_of_the_workspace_named_like_one_of_the_library_hides_nothing(run_plain):
    files = {"traceback.py": "raise SystemExit(3)\n", "json.py": "x = 1\n", "test_one.py": "def test_one(): pass\n"}
    result = await run_plain(files, changed=["x.py"])
    assert result.completed, result.run.text
    assert result.report.outcomes == {"test_one.py::test_one": "passed"}


@pytest.mark.parametrize("entrypoint", ENTRYPOINTS)
async def test_the_descriptors_and_the_plugin_stay_with_the_session(run_plain, entrypoint):
    suite = """
import os, subprocess, sys
def test_environment():
    assert not [name for name in os.environ if name.startswith("DGYM_REPORT")]
    assert "dgym" not in os.environ.get("PYTEST_ADDOPTS", "")
def test_inner_session(tmp_path):
    (tmp_path / "test_inner.py").write_text("def test_inner(): assert 0")
    assert subprocess.call([sys.executable, "-m", "pytest", str(tmp_path)]) == 1
def test_fork():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
"""
    result = await run_plain({"test_all.py": suite}, entrypoint)
    assert set(result.report.outcomes.values()) == {"passed"}, result.run.text
    assert len(result.report.outcomes) == 3
    assert result.completed


async def test_a_directory_before_the_program_is_understood(run_plain):
    files = {"app/code_of_app.py": "x = 1\n", "app/test_app.py": "import code_of_app\ndef test_a(): pass\n"}
    result = await run_plain(files, "cd app && python -m pytest -q")
    assert result.report.form == "pytest"
    assert list(result.report.outcomes.values()) == ["passed"]


async def test_options_of_the_task_hold(run_plain):
    files = {"pytest.ini": "[pytest]\naddopts = -p no:terminal -k one\n", "test_a.py": "def test_one(): pass\n"}
    result = await run_plain(files, environment={"PYTEST_ADDOPTS": "-x"}, changed=["x.py"])
    assert result.report.outcomes == {"test_a.py::test_one": "passed"}


async def test_repeated_runs_of_one_shell_line_add_up(run_plain):
    files = {"test_a.py": "def test_a(): pass\n", "test_b.py": "def test_b(): assert 0\n"}
    result = await run_plain(files, "pytest -q test_a.py; pytest -q test_b.py; true")
    assert result.report.sessions == 2
    assert result.report.outcomes == {"test_a.py::test_a": "passed", "test_b.py::test_b": "failed"}
    assert result.completed


@pytest.mark.parametrize(
    "line",
    [
        "PYTHONPATH=$PWD/src python -m pytest -q",
        "PYTEST_ADDOPTS=-x; export PYTEST_ADDOPTS PYTHONPATH=src; pytest -q",
        "sh -c 'PYTHONPATH=src exec python -m pytest -q'",
    ],
)
async def test_a_shell_line_that_replaces_variables_reports_too(run_plain, line):
    files = {"src/code_of_app.py": "x = 1\n", "test_app.py": "import code_of_app\ndef test_a(): pass\n"}
    result = await run_plain(files, line)
    assert result.report.outcomes == {"test_app.py::test_a": "passed"}, result.run.text
    assert (result.report.form, result.completed) == ("shell", True)


async def test_a_pytest_that_cannot_import_the_plugin_runs_without(run_plain):
    result = await run_plain({"test_a.py": "def test_a(): pass\n"}, "true && python -E -m pytest -q")
    assert (result.run.exit_status, result.report.form) == (0, "shell"), result.run.text


@pytest.mark.matrix
@pytest.mark.parametrize("entrypoint", ["pytest -q -p xdist.plugin -n2", "true && pytest -q -p xdist.plugin -n auto"])
async def test_workers_are_set_aside_so_that_the_canary_sees_every_test(run_plain, entrypoint):
    environment = await ensure_environment(["pytest==9.0.2", "pytest-xdist==3.8.0"], python=pyenv_python("3.13"))
    suite = "def test_a(worker_id): assert worker_id == 'master'\ndef test_b(): pass\n"
    python = str(Path(environment) / "bin" / "python")
    result = await run_plain({"test_a.py": suite}, entrypoint, python=python, changed=["x.py"])
    assert result.report.outcomes == {"test_a.py::test_a": "passed", "test_a.py::test_b": "passed"}, result.run.text
    assert (result.completed, result.report.canary) == (True, "failed")


async def test_a_link_to_an_interpreter_that_is_gone_is_not_found(run_plain, tmp_path):
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "python2").symlink_to("/nowhere/python2")
    path = f"{programs}:{Path(sys.executable).parent}:/usr/bin:/bin"
    line = "python2 -m pytest -q || python -m pytest -q"
    result = await run_plain({"test_x.py": "def test_x(): pass\n"}, line, environment={"PATH": path})
    assert "not found" in result.run.text, result.run.text
    assert result.report.outcomes == {"test_x.py::test_x": "passed"}
