"""Decides which Python program of an entrypoint is debugged, and starts it under the debugger.

A shell command may start several programs. The program that creates the claim file is debugged. The later programs run
without the debugger.
"""

import os
import re
import socket

from ..launch import Launch, LaunchRefused, parse_entrypoint
from ..shims import CLAIM, TRACES, at_socket, cleaned, driven, record_passed
from .wire import encode

# tox starts programs with a new environment. These variables make tox 3 and tox 4 pass PYTHONPATH on.
_TOX_PASSES_PYTHONPATH = {"TOX_TESTENV_PASSENV": "PYTHONPATH", "TOX_OVERRIDE": "testenv.pass_env+=PYTHONPATH"}

PROGRAM = "program"
LAUNCHER = "launcher"
TOOL = "tool"

_LAUNCHERS = frozenset("conda doit hatch inv invoke nox pdm pipenv poetry tox".split())
_TOOLS = frozenset(
    "black build compileall easy_install ensurepip flake8 isort mypy pip pre-commit pre_commit py_compile pylint "
    "pyproject-build pyright ruff setuptools_scm twine venv virtualenv wheel".split()
)
_COVERAGE_REPORTS = frozenset("annotate combine debug erase html json lcov report xml".split())
_COVERAGE_OPTIONS = frozenset(
    "--concurrency --context --data-file --debug --include --omit --rcfile --save-signal --source".split()
)
_DEBUGGERS = frozenset(["ipdb", "pdb", "pudb"])
_PDB_OPTIONS = frozenset(["-c", "--command"])
_QUESTIONS = frozenset(["-h", "-V", "--help", "--version"])
_SETUP_RUNS_TESTS = frozenset(["test", "nosetests", "pytest", "ptr"])
_INSTALLED = ("/site-packages/", "/dist-packages/")
_VERSION = re.compile(r"(-?[0-9][0-9.]*)?(\.py)?$")


class ShellLaunch(object):
    """A shell command whose first Python program is debugged."""

    def __init__(self, line):
        self.line = line


def choose(text, env, cwd):
    """Returns a ``Launch`` for one Python program, or a ``ShellLaunch`` for a command that needs a shell.

    Raises:
        LaunchRefused: The entrypoint cannot be debugged.
    """
    try:
        launch = parse_entrypoint(text, env, cwd)
    except LaunchRefused as refused:
        if not refused.needs_shell:
            raise
        return ShellLaunch(text)
    return ShellLaunch(text) if role(launch) == LAUNCHER else without_tracers(launch)


def without_tracers(launch):
    """Returns the program that ``coverage run`` or ``-m pdb`` runs, because these would replace the trace function."""
    words = list(launch.argv)
    if _name(launch) == "coverage" and words[:1] == ["run"]:
        options, notice = (
            _COVERAGE_OPTIONS,
            "Coverage is not measured under the debugger (it would disable breakpoints).",
        )
        del words[0]
    elif launch.kind == "module" and launch.target in _DEBUGGERS:
        options, notice = _PDB_OPTIONS, "The inner %s was left out: the program runs under pdb already." % launch.target
    else:
        return launch
    kind = "script"
    while words and words[0].startswith("-") and kind == "script":
        option = words.pop(0)
        if option in options:
            del words[:1]
        elif option in ("-m", "--module"):
            kind = "module"
        elif option.startswith("-m"):
            kind = "module"
            words.insert(0, option[2:])
    if not words:
        return launch
    notices = list(launch.notices) + [notice]
    return without_tracers(Launch(launch.python, launch.env, launch.flags, kind, words[0], words[1:], notices))


def role(launch):
    """Classifies a Python program.

    Returns:
        PROGRAM for the program to debug, LAUNCHER for a program that starts it, TOOL for a program that prepares for
        it. Programs that a TOOL starts are not debugged either, for example when pip builds packages.
    """
    if launch.kind == "script" and any(part in os.path.abspath(launch.target) for part in _INSTALLED):
        return TOOL
    name = _name(launch)
    if name in _LAUNCHERS:
        return LAUNCHER
    words = set(launch.argv)
    if words and words <= _QUESTIONS:
        return TOOL
    if name in _TOOLS or (name == "coverage" and words & _COVERAGE_REPORTS and "run" not in words):
        return TOOL
    if name == "setup" and launch.kind == "script" and not words & _SETUP_RUNS_TESTS:
        return TOOL
    return PROGRAM


def _name(launch):
    name = launch.target.partition(".")[0] if launch.kind == "module" else os.path.basename(launch.target)
    return _VERSION.sub("", name)


def take_over(session, launch, environment):
    """Replace this process by the debugged program, if ``launch`` is the program to debug.

    Returns:
        The environment of the program, if it is not debugged.
    """
    found = role(launch)
    if found == PROGRAM and _claim(session):
        _become_driver(session, without_tracers(launch), cleaned(environment, session))
    record_passed(session, launch.command())
    return dict(_TOX_PASSES_PYTHONPATH, **environment) if found == LAUNCHER else cleaned(environment, session)


def _claim(session):
    try:
        os.close(os.open(os.path.join(session, CLAIM), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError:
        return False
    return True


def _become_driver(session, launch, environment):
    channel = socket.socket(socket.AF_UNIX)
    at_socket(session, channel.connect)
    channel.sendall(encode(dict(launch.fields(), type="hello")))
    traces = os.open(os.path.join(session, TRACES), os.O_WRONLY)
    descriptors = (channel.detach(), traces)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, True)
    words, environment = driven(launch, descriptors, environment)
    os.execve(launch.python, words, environment)
