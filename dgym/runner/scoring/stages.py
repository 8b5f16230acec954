"""The two stages in which ``wrapper.py`` starts a task's entrypoint with a report of its outcome.

The first stage runs isolated (``-I -S``), reads its settings from standard input and parses the entrypoint. It then
executes the second stage under the entrypoint's own interpreter, or a shell. The settings contain a token that the
program must not read, so they are passed in an unlinked file. The program could read an environment or arguments from
``/proc``.

Other modules are imported inside functions, because the second stage imports this module while the workspace may be on
``sys.path``.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SETTINGS_VARIABLE = "DGYM_REPORT_SETTINGS_FD"
REPORT_VARIABLE = "DGYM_REPORT_FD"
_CHANGE_DIRECTORY = r"\s*cd\s+([\w./+-]+)\s*&&\s*"


# The descriptors


def _pack_settings(settings):
    """Returns an inheritable descriptor of an unlinked file that contains ``settings``."""
    import json
    import tempfile

    with tempfile.TemporaryFile() as file:
        file.write(json.dumps(settings).encode())
        file.flush()
        descriptor = os.dup(file.fileno())
    os.set_inheritable(descriptor, True)
    return descriptor


def read_settings(descriptor):
    """Returns the settings from a descriptor of ``_pack_settings``. The position in the file does not change."""
    import json

    size = os.fstat(descriptor).st_size
    return json.loads(os.pread(descriptor, size, 0).decode())


def open_writer(descriptor, token):
    """Returns a function that writes a record. It does nothing in a forked child or if the descriptor was replaced."""
    import json

    from dgym_runner.descriptors import identity

    opened = identity(descriptor)
    owner = os.getpid()
    getpid, write_bytes, encode = os.getpid, os.write, json.JSONEncoder(ensure_ascii=True).encode

    def write(kind, **fields):
        if getpid() != owner or identity(descriptor) != opened:
            return
        data = ("%s %s\n" % (token, encode(dict(fields, kind=kind)))).encode()
        while data:
            data = data[write_bytes(descriptor, data) :]

    return write


# The first stage


def plan():
    """The first stage. It ends by executing another program."""
    import json

    from dgym_runner.launch import LaunchRefused

    settings = json.loads(sys.stdin.buffer.read().decode())
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    if settings["evaluation"] is not None:
        _run_evaluation(settings)
    try:
        launch = _parse(settings["entrypoint"])
    except (LaunchRefused, OSError):
        launch = None  # the entrypoint needs a shell
    report = int(os.environ[REPORT_VARIABLE])
    os.set_inheritable(report, True)
    # Code of the task has not run yet. If this record is missing, the run did not start, and the agent is not
    # responsible for this.
    write = open_writer(report, settings["token"])
    write("form", form="shell" if launch is None else "pytest" if launch.is_pytest else "python")
    if launch is None:
        _run_shell(settings)
    settings["launch"] = launch.fields()
    environment = dict(os.environ)
    environment.update(launch.env)
    environment[SETTINGS_VARIABLE] = str(_pack_settings(settings))
    argv = [launch.python] + list(launch.flags) + [os.path.join(HERE, "wrapper.py"), "--start"]
    os.execve(launch.python, argv, environment)


def _run_evaluation(settings):
    """Run the evaluation script as a child of this process, and exit."""
    from dgym_runner.descriptors import move_high
    from dgym_runner.scoring import script

    write = open_writer(move_high(int(os.environ[REPORT_VARIABLE])), settings["token"])
    write("form", form="script")
    script.run(settings["evaluation"], write)


def _parse(entrypoint):
    """Parse ``entrypoint`` as one Python program and change to its directory.

    A prefix ``cd DIRECTORY && …`` is accepted, because the end of a program under a shell can be observed much less.
    Raises ``LaunchRefused`` or OSError.
    """
    import re

    from dgym_runner.launch import parse_entrypoint

    directory = os.getcwd()
    moved = re.match(_CHANGE_DIRECTORY, entrypoint)
    if moved:
        directory = os.path.normpath(os.path.join(directory, moved.group(1)))
        entrypoint = entrypoint[moved.end() :]
    launch = parse_entrypoint(entrypoint, dict(os.environ), directory)
    os.chdir(directory)
    if moved:
        launch.env.setdefault("PWD", directory)
    return launch


def _run_shell(settings):
    """Replace this process by a shell that runs the line. The line's interpreters have the hook on PYTHONPATH."""
    import tempfile

    from dgym_runner import shims

    environment = shims.hook_scored(tempfile.mkdtemp(prefix="dgym-programs-"), os.environ)
    environment[SETTINGS_VARIABLE] = str(_pack_settings(settings))
    shell = "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"
    os.execve(shell, [shell, "-c", settings["entrypoint"]], environment)


# The second stage


def start(loaded):
    """The second stage: run the program and exit. ``loaded`` has the names of the interpreter's own modules."""
    from dgym_runner import shims

    # The program must not be able to import files of this directory. Until ``sys.path`` is restored below, files of the
    # workspace must not hide modules of the standard library.
    path = sys.path[1:] if os.path.realpath(sys.path[0]) == os.path.realpath(HERE) else list(sys.path)
    sys.path[:] = shims.library_entries(path)
    from dgym_runner.descriptors import move_high
    from dgym_runner.scoring import start as program  # imported while the workspace is not on sys.path

    descriptor = int(os.environ.pop(SETTINGS_VARIABLE))
    report = int(os.environ.pop(REPORT_VARIABLE))
    settings = read_settings(descriptor)
    os.close(descriptor)
    write = open_writer(move_high(report), settings.pop("token"))
    sys.path[:] = path
    program.run(settings, write, loaded)
