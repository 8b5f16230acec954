"""The configuration of the runner for one task, and the environment that commands get from it.

The environment is built from an allow-list and never inherited (unless the image's own is asked for, in containers):
keys of the user who started the runner, and variables that change how Python or pytest behave, stay out.
"""

import collections
import os
import sys

from .connection import RequestError

_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
RUNNER_DIRECTORY = os.path.dirname(os.path.abspath(__file__))
_NEVER_INHERITED = ("PYTEST_", "DGYM_", "PYTHON", "COVERAGE_", "COV_CORE_", "LD_PRELOAD")
_NOT_OF_ACTIVATE = ("_", "SHLVL", "PWD", "OLDPWD", "DGYM_TAG", "DGYM_REPORT_FD")
_ACTIVATE_TIMEOUT = 300


class SetupError(RequestError):
    """The task's ``activate`` line failed."""

    kind = "setup"


# Bounds on what runs inside; None means unbounded.
Limits = collections.namedtuple("Limits", ["memory_bytes", "processes", "cpu_seconds", "file_size_bytes"])


class Configuration(object):
    """Where the workspace is, which environment commands start with, and the runner's private directory."""

    def __init__(self, workspace, environment, scratch):
        self.workspace = workspace
        self.environment = environment
        self.scratch = scratch

    def path(self, path):
        """The absolute path of ``path``, which may be relative to the workspace."""
        if "\0" in path:
            raise OSError(22, "the path holds a NUL byte", path.replace("\0", "\\0"))
        return os.path.normpath(os.path.join(self.workspace, path)) if path else self.workspace


def make_scratch():
    """A private directory for home, temporary files and the runner's state, which ``Server.end`` removes."""
    parent = os.environ.get("TMPDIR") or "/tmp"
    scratch = os.path.join(parent, "dgym-%s" % os.urandom(6).hex())
    for name in ("", "home", "tmp", "state"):
        os.mkdir(os.path.join(scratch, name), 0o700)
    return scratch


def base_environment(scratch, python, inherit, extra):
    """The allow-list, the task's interpreter first on PATH, then the task's own variables."""
    environment = {}
    if inherit:
        environment.update((name, value) for name, value in os.environ.items() if not name.startswith(_NEVER_INHERITED))
    environment.update(
        PATH=os.environ.get("PATH") or _DEFAULT_PATH,
        LANG=os.environ.get("LANG") or "C.UTF-8",
        TZ=os.environ.get("TZ") or "UTC",
        TMPDIR=os.path.join(scratch, "tmp"),
        PYTHONHASHSEED="0",
        # Stale bytecode falsifies verdicts: a same-size edit within the second still ran the old code.
        PYTHONDONTWRITEBYTECODE="1",
        DGYM_RUNNER=RUNNER_DIRECTORY,
    )
    home = environment.get("HOME", "")
    if not (home and os.access(home, os.W_OK)):
        environment["HOME"] = os.path.join(scratch, "home")
    if python:
        environment.update(_interpreter_variables(python, scratch, environment["PATH"]))
    environment.update(extra)
    return environment


def _interpreter_variables(python, scratch, path):
    """PATH (and VIRTUAL_ENV) for a virtual environment's directory or for an interpreter's path."""
    programs = os.path.join(python, "bin") if os.path.isdir(python) else os.path.dirname(python)
    if not os.path.isdir(python) and not os.path.exists(os.path.join(programs, "python")):
        programs = os.path.join(scratch, "bin")
        os.mkdir(programs)
        for name in ("python", "python3"):
            os.symlink(python, os.path.join(programs, name))
    variables = {"PATH": programs + os.pathsep + path}
    if os.path.exists(os.path.join(os.path.dirname(programs), "pyvenv.cfg")):
        variables["VIRTUAL_ENV"] = os.path.dirname(programs)
    return variables


def activated_environment(activate, run):
    """The environment a shell has after the ``activate`` line; ``run(line, timeout)`` runs a line with a report.

    It is printed to the report descriptor by the runner's own interpreter, since what the line writes to standard
    output must not be mistaken for it, and ``env -0`` is not everywhere.
    """
    dump = (
        "import os; os.write(int(os.environ['DGYM_REPORT_FD']), "
        "b''.join(k + b'=' + v + b'\\0' for k, v in os.environb.items()))"
    )
    script = '%s\n[ $? -eq 0 ] || exit 1\nexec "%s" -I -S -c "%s"' % (activate, sys.executable, dump)
    result, text, report = run(script, _ACTIVATE_TIMEOUT)
    if result["exit_status"] != 0 or not report.endswith(b"\0"):
        how = "timed out" if result["ended_by"] == "timeout" else "exit status %s" % result["exit_status"]
        raise SetupError("activate failed (%s): %s\n%s" % (how, activate, text.decode("utf-8", "replace")))
    environment = {}
    for entry in report.split(b"\0"):
        name, separator, value = entry.partition(b"=")
        if separator and os.fsdecode(name) not in _NOT_OF_ACTIVATE:
            environment[os.fsdecode(name)] = os.fsdecode(value)
    return environment
