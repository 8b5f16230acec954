"""Tests of the choice of a shell for an entrypoint, and of the Python program in a shell command to debug."""

import os
import sys

import pytest

from dgym.runner.debugger.takeover import LAUNCHER, PROGRAM, TOOL, ShellLaunch, choose, role, without_tracers
from dgym.runner.launch import Launch, LaunchRefused, parse_interpreter
from dgym.runner.shims import cleaned


@pytest.fixture
def programs(tmp_path):
    """A directory of programs on PATH."""
    (tmp_path / "python").symlink_to(sys.executable)
    for name, first in (("tox", f"#!{tmp_path}/python"), ("pytest", f"#!{tmp_path}/python"), ("make", "#!/bin/sh")):
        (tmp_path / name).write_text(first + "\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    "entrypoint",
    [
        "PYTHONPATH=$PWD/src python -m pytest",
        "cd src && pytest",
        "make test",
        ". env.sh",
        "exec python app.py",
        "env -i python app.py",
        "python app.py < input.txt",
        "tox -e py",
    ],
)
def test_a_command_that_only_a_shell_can_run(programs, entrypoint):
    launch = choose(entrypoint, {"PATH": str(programs)}, str(programs))
    assert isinstance(launch, ShellLaunch)
    assert launch.line == entrypoint


@pytest.mark.parametrize(
    "entrypoint", ["python app.py", "pytest -q", "python setup.py build", "pytest --help", "A=1 env B=2 pytest"]
)
def test_one_program_needs_no_shell(programs, entrypoint):
    assert isinstance(choose(entrypoint, {"PATH": str(programs)}, str(programs)), Launch)


@pytest.mark.parametrize("entrypoint", ["no-such-program", "python -c 'print(1)'", "python", "A=1"])
def test_entrypoints_without_a_python_program_are_refused(programs, entrypoint):
    with pytest.raises(LaunchRefused, match="set debugEntrypoint"):
        choose(entrypoint, {"PATH": str(programs)}, str(programs))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("app.py", PROGRAM),
        ("-m pytest tests/pip", PROGRAM),
        ("/venv/bin/pytest-3.9 -q", PROGRAM),
        ("setup.py test", PROGRAM),
        ("-m coverage run -m pytest", PROGRAM),
        ("/venv/bin/tox -e py", LAUNCHER),
        ("-m nox", LAUNCHER),
        ("/venv/bin/pip3.11 install .", TOOL),
        ("-m pip.__main__ install .", TOOL),
        ("-m venv place", TOOL),
        ("setup.py develop", TOOL),
        ("-m coverage erase", TOOL),
        ("/venv/bin/sqlformat --version", TOOL),
        ("/venv/lib/python3.11/site-packages/pyproject_hooks/_in_process.py build", TOOL),
    ],
)
def test_the_part_a_program_has_in_a_shell_command(arguments, expected):
    assert role(parse_interpreter("", "/venv/bin/python", arguments.split())) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("-m pdb app.py --flag", ("script", "app.py", ["--flag"])),
        ("-mpdb app.py", ("script", "app.py", [])),
        ("-m pdb -m pytest -q", ("module", "pytest", ["-q"])),
        ("-m pdb -mpytest -q", ("module", "pytest", ["-q"])),
        ("-m pdb -c continue -c p app.py -m x", ("script", "app.py", ["-m", "x"])),
        ("-m pdb -c continue -m pytest -c setup.cfg", ("module", "pytest", ["-c", "setup.cfg"])),
        ("-m pdb -ccontinue --command=n --command s app.py", ("script", "app.py", [])),
        ("-B -m ipdb app.py", ("script", "app.py", [])),
        ("-m coverage run -m pdb app.py", ("script", "app.py", [])),
        ("-m pdb -m coverage run app.py", ("script", "app.py", [])),
        ("-m pdb", ("module", "pdb", [])),
        ("-m app -m pdb", ("module", "app", ["-m", "pdb"])),
    ],
)
def test_an_inner_debugger_is_left_out(arguments, expected):
    launch = without_tracers(parse_interpreter("", "/venv/bin/python", arguments.split()))
    assert (launch.kind, launch.target, launch.argv) == expected
    assert any("inner" in notice for notice in launch.notices) == (launch.target != "pdb" and "app -m" not in arguments)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("-m coverage run -m pytest -q", ("module", "pytest", ["-q"])),
        ("-m coverage run --branch --source src -p --omit=x app.py -m", ("script", "app.py", ["-m"])),
        ("-m coverage run", ("module", "coverage", ["run"])),
        ("-m pytest run", ("module", "pytest", ["run"])),
    ],
)
def test_a_program_under_coverage_is_debugged_without_coverage(arguments, expected):
    launch = without_tracers(parse_interpreter("", "/venv/bin/python", arguments.split()))
    assert (launch.kind, launch.target, launch.argv) == expected
    assert bool(launch.notices) == ("-m coverage run -" in arguments)


def test_variables_of_a_session_are_removed_from_the_environment():
    session = "/tmp/dgym-1/debug-2"
    given = {"PATH": f"{session}/bin:/usr/bin", "PYTHONPATH": f"{session}/hook", "_": f"{session}/bin/python", "A": "1"}
    assert cleaned(given, session) == {"PATH": "/usr/bin", "A": "1"}
    given = {"PATH": "/usr/bin", "PYTHONPATH": os.pathsep.join(["src", f"{session}/hook", "lib"]), "_": "/bin/ls"}
    assert cleaned(given, session) == {"PATH": "/usr/bin", "PYTHONPATH": "src:lib", "_": "/bin/ls"}
