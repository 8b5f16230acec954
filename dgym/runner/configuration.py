"""The configuration of the runner for one task, and the environment of its commands.

The environment is built from an allow-list. It excludes API keys of the user who started the runner, and variables
that change how Python or pytest behave. In a container, the environment of the image can be inherited in addition.
"""

import collections
import os
import sys

from .connection import RequestError

_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_RUNNER_DIRECTORY = os.path.dirname(os.path.abspath(__file__))
_NEVER_INHERITED = ("PYTEST_", "DGYM_", "PYTHON", "COVERAGE_", "COV_CORE_", "LD_PRELOAD")
_NOT_OF_ACTIVATE = ("_", "SHLVL", "PWD", "OLDPWD", "DGYM_TAG", "DGYM_REPORT_FD")
_ACTIVATE_TIMEOUT = 300


class SetupError(RequestError):
    """The task's ``activate`` line failed."""

    kind = "setup"


# Limits for the commands; None is unlimited.
Limits = collections.namedtuple("Limits", ["memory_bytes", "processes", "cpu_seconds", "file_size_bytes"])


class Configuration(object):
    """The configuration of one task.

    Attributes:
        workspace: Absolute path of the workspace.
        environment: Environment variables of the commands.
        scratch: The runner's private directory.
    """

    def __init__(self, workspace, environment, scratch):
        self.workspace = workspace
        self.environment = environment
        self.scratch = scratch

    def path(self, path):
        """Returns the absolute path of ``path``, which may be relative to the workspace; raises OSError for a NUL."""
        if "\0" in path:
            raise OSError(22, "the path contains a NUL byte", path.replace("\0", "\\0"))
        return os.path.normpath(os.path.join(self.workspace, path)) if path else self.workspace


def make_scratch():
    """Create a private directory for home, temporary files and the runner's state. ``Server.end`` removes it."""
    parent = os.environ.get("TMPDIR") or "/tmp"
    scratch = os.path.join(parent, "dgym-%s" % os.urandom(6).hex())
    for name in ("", "home", "tmp", "state"):
        os.mkdir(os.path.join(scratch, name), 0o700)
    return scratch


def base_environment(scratch, python, inherit, extra):
    """Returns the environment: the allow-list with the task's interpreter first on PATH, updated with ``extra``.

    With ``inherit``, variables of this process that are not in ``_NEVER_INHERITED`` are included.
    """
    environment = {}
    if inherit:
        environment.update((name, value) for name, value in os.environ.items() if not name.startswith(_NEVER_INHERITED))
    environment.update(
        PATH=os.environ.get("PATH") or _DEFAULT_PATH,
        LANG=os.environ.get("LANG") or "C.UTF-8",
        TZ=os.environ.get("TZ") or "UTC",
        TMPDIR=os.path.join(scratch, "tmp"),
        PYTHONHASHSEED="0",
        # Python may run stale bytecode after an edit that keeps the size, within the same second.
        PYTHONDONTWRITEBYTECODE="1",
        DGYM_RUNNER=_RUNNER_DIRECTORY,
    )
    home = environment.get("HOME", "")
    if not (home and os.access(home, os.W_OK)):
        environment["HOME"] = os.path.join(scratch, "home")
    if python:
        environment.update(_interpreter_variables(python, scratch, environment["PATH"]))
    environment.update(extra)
    return environment


def _interpreter_variables(python, scratch, path):
    """Returns PATH (and VIRTUAL_ENV); ``python`` is the directory of a virtual environment or an interpreter's path."""
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
    """Returns the environment of a shell after it ran the ``activate`` line.

    The runner's own interpreter writes the environment to the report descriptor. Standard output may contain what the
    line prints, and some images have no ``env -0``.

    ``run(line, timeout)`` runs a line with a report descriptor. Raises ``SetupError`` if the line fails.
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
