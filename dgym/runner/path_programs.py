"""Programs that stand first on PATH while a shell command is debugged or scored, each in the place of a Python program.

An interpreter does not import the runner's ``sitecustomize`` when the command replaces ``PYTHONPATH``, starts it with
``-I``, ``-E`` or ``-S``, or runs ``env -i``. A program of this directory acts before the interpreter starts.
"""

import os
import sys

_TESTERS = ("pytest", "py.test")
_SCRIPT = '#!/bin/sh\nexec %s -I -S %s %s "$0" "$@"\n'
_IMPORTING = '#!/bin/sh\nPYTHONPATH=%s${PYTHONPATH:+:$PYTHONPATH}\nexport PYTHONPATH\nexec %s "$@"\n'
_DISPATCHER = "dispatch"


def make(directory, session, environment):
    """Fill ``directory`` with a program for each Python interpreter and pytest that PATH leads to."""
    os.mkdir(directory)
    dispatcher = os.path.join(session, _DISPATCHER)
    with open(dispatcher, "w") as stream:
        stream.write(_SCRIPT % (_quoted(sys.executable), _quoted(os.path.abspath(__file__)), _quoted(session)))
    os.chmod(dispatcher, 0o700)
    for name in _names(environment.get("PATH", os.defpath)):
        os.symlink(dispatcher, os.path.join(directory, name))


def make_importing(directory, entry, environment):
    """Fill ``directory`` with programs that put ``entry`` first on PYTHONPATH, which a command may have replaced."""
    from .launch import find_program

    for name in _names(environment.get("PATH", os.defpath)):
        found = find_program(name, environment, os.getcwd())
        if found is None:
            continue  # Started by its name, it would start itself.
        program = os.path.join(directory, name)
        with open(program, "w") as stream:
            stream.write(_IMPORTING % (_quoted(entry), _quoted(found)))
        os.chmod(program, 0o500)


def _quoted(path):
    return "'%s'" % path.replace("'", "'\\''")


def _names(path):
    from .launch import is_interpreter

    found = set()
    for directory in path.split(os.pathsep):
        try:
            names = os.listdir(directory)
        except OSError:
            continue
        found.update(name for name in names if name in _TESTERS or is_interpreter(name))
    return sorted(found)


def main(session, shim, arguments):
    """Start what ``shim`` stands for: under the debugger if it is the program to debug, else as it is."""
    from dgym_runner import debug_directory, debug_takeover, launch

    name = os.path.basename(shim)
    environment = dict(os.environ)
    own = debug_directory.cleaned(environment, session)
    found = launch.find_program(name, own, os.getcwd())
    if found is None:
        sys.stderr.write("%s: command not found\n" % name)
        sys.exit(127)
    if debug_directory.open_for(session):
        try:
            program = launch.parse_program(name, name, found, arguments, own, os.getcwd())
        except launch.LaunchRefused:
            debug_takeover.note(session, [found] + arguments)
        else:
            environment = debug_takeover.consider(session, program, environment)
    else:
        environment = own
    os.execve(found, [found] + arguments, environment)


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    package = type(sys)("dgym_runner")
    package.__path__ = [here]
    sys.modules[package.__name__] = package
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
