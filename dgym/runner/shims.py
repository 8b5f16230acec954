"""What stands before the programs of a shell command that is debugged or scored: programs on PATH, ``sitecustomize``.

An interpreter does not import the runner's ``sitecustomize`` when the command replaces ``PYTHONPATH``, starts it with
``-I``, ``-E`` or ``-S``, or runs ``env -i``. A program that stands first on PATH in the place of an interpreter acts
before the interpreter starts.

Interpreters import this module before ``sys.path`` is safe, so at its top it imports what every interpreter has loaded.
"""

import os
import sys

_TESTERS = ("pytest", "py.test")
_SCRIPT = '#!/bin/sh\nexec %s -I -S %s %s "$0" "$@"\n'
_IMPORTING = '#!/bin/sh\nPYTHONPATH=%s${PYTHONPATH:+:$PYTHONPATH}\nexport PYTHONPATH\nexec %s "$@"\n'
_DISPATCHER = "dispatch"
_PACKAGE = "dgym_runner"


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
    from .files import find_program

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


def _start(session, shim, arguments):
    """Start the program in whose place ``shim`` stands: under the debugger if it is the one to debug, else as it is."""
    from dgym_runner import files, launch
    from dgym_runner.debugger import directory, takeover

    name = os.path.basename(shim)
    environment = dict(os.environ)
    own = directory.cleaned(environment, session)
    found = files.find_program(name, own, os.getcwd())
    if found is None:
        sys.stderr.write("%s: command not found\n" % name)
        sys.exit(127)
    if directory.is_unclaimed(session):
        try:
            program = launch.parse_program(name, name, found, arguments, own, os.getcwd())
        except launch.LaunchRefused:
            directory.record_passed(session, [found] + arguments)
        else:
            environment = takeover.take_over(session, program, environment)
    else:
        environment = own
    os.execve(found, [found] + arguments, environment)


def library_entries(path):
    """The entries of a ``sys.path`` that hold the standard library, without what is installed or the workspace's."""
    library = os.path.dirname(os.path.abspath(os.__file__))
    installed = ("site-packages", "dist-packages")
    return [
        entry
        for entry in path
        if entry.endswith(".zip") or (os.path.abspath(entry).startswith(library) and not entry.endswith(installed))
    ]


def run_next(here):
    """Run the ``sitecustomize`` that ``sys.path`` has outside of the directory ``here``, if there is one.

    The runner's ``sitecustomize`` hides the environment's own, which Python then does not find.
    """
    import importlib.machinery
    import importlib.util

    others = [path for path in sys.path if os.path.abspath(path) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "__main__":
    sys.modules[_PACKAGE] = type(sys)(_PACKAGE)
    sys.modules[_PACKAGE].__path__ = [os.path.dirname(os.path.abspath(__file__))]
    _start(sys.argv[1], sys.argv[2], sys.argv[3:])
