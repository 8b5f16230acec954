"""Code that runs before a program that is debugged or scored: ``sitecustomize`` and shims on PATH.

A shell command starts its Python programs itself. ``hook/sitecustomize.py`` on PYTHONPATH runs when their interpreter
starts, unless the command replaces PYTHONPATH, passes ``-I``, ``-E`` or ``-S``, or uses ``env -i``. A shim is a program
with the name of an interpreter in the first directory of PATH. It runs before the interpreter starts.

A debugged shell command has a private directory, its session, which the runner and the command's programs share. The
session contains the hook, the shims, the claim file of the debugged program, and the socket and the pipe to which that
program connects.

Interpreters import this module while ``sys.path`` may still contain the program's own modules. It therefore imports at
the top only modules that every interpreter has loaded.
"""

import os
import sys

START_VARIABLE = "DGYM_DEBUG_START"
HOOK = "hook"
PROGRAMS = "bin"
CLAIM = "claimed"
_SOCKET = "socket"
TRACES = "traces"
_RUNNER = os.path.dirname(os.path.abspath(__file__))
_HOOK_FILE = "sitecustomize.py"
_PASSED = "passed"
_LONGEST_LINE = 200
_LINES = 5
_TESTERS = ("pytest", "py.test")
_INSTALLED = ("site-packages", "dist-packages")
_ISOLATING = ("-E", "-I", "-S")
_SCRIPT = '#!/bin/sh\nexec %s -I -S %s %s "$0" "$@"\n'
_IMPORTING = '#!/bin/sh\nPYTHONPATH=%s${PYTHONPATH:+:$PYTHONPATH}\nexport PYTHONPATH\nexec %s "$@"\n'
_DISPATCHER = "dispatch"
_PACKAGE = "dgym_runner"


# Environment of a shell command, created by the runner


def hook_session(session, environment):
    """Create the shims and the hook in the session of a command to debug.

    Returns:
        The environment of the command, with the shims on PATH and the hook on PYTHONPATH.
    """
    programs, hook = os.path.join(session, PROGRAMS), os.path.join(session, HOOK)
    os.mkdir(programs)
    dispatcher = os.path.join(session, _DISPATCHER)
    with open(dispatcher, "w") as stream:
        stream.write(_SCRIPT % (_quoted(sys.executable), _quoted(os.path.abspath(__file__)), _quoted(session)))
    os.chmod(dispatcher, 0o700)
    for name in _names(environment.get("PATH", os.defpath)):
        os.symlink(dispatcher, os.path.join(programs, name))
    os.mkdir(hook)
    os.symlink(os.path.join(_RUNNER, HOOK, _HOOK_FILE), os.path.join(hook, _HOOK_FILE))
    return _with_first(environment, programs, hook)


def hook_scored(programs, environment):
    """Create the shims of a command to score in the directory ``programs``.

    Returns:
        The environment of the command, as ``hook_session`` does.
    """
    from .files import find_program

    hook = os.path.join(_RUNNER, HOOK)
    for name in _names(environment.get("PATH", os.defpath)):
        found = find_program(name, environment, os.getcwd())
        if found is None:
            continue  # a shim that executes its own name would start itself
        program = os.path.join(programs, name)
        with open(program, "w") as stream:
            stream.write(_IMPORTING % (_quoted(hook), _quoted(found)))
        os.chmod(program, 0o500)
    return _with_first(environment, programs, hook)


def _with_first(environment, programs, hook):
    path = programs + os.pathsep + (environment.get("PATH") or os.defpath)
    imports = os.pathsep.join(filter(None, [hook, environment.get("PYTHONPATH")]))
    return dict(environment, PATH=path, PYTHONPATH=imports)


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


# The session of a debugged shell command


def is_session(directory):
    """Returns True if this is the session of a debugged command that has not ended."""
    return os.path.exists(os.path.join(directory, _DISPATCHER))


def record_passed(session, words):
    """Record a program that is not debugged, for the error message if no program is debugged."""
    line = " ".join([os.path.basename(words[0])] + words[1:]).replace("\n", " ")[:_LONGEST_LINE]
    try:
        with open(os.path.join(session, _PASSED), "a") as stream:
            stream.write(line.encode("ascii", "backslashreplace").decode("ascii") + "\n")
    except OSError:
        pass


def passed_programs(session):
    """Returns the command lines of the first programs that were not debugged."""
    try:
        with open(os.path.join(session, _PASSED)) as stream:
            return [line for line in (stream.readline().strip() for _ in range(_LINES)) if line]
    except (OSError, ValueError):
        return []


def cleaned(environment, session):
    """Returns the environment without the entries that ``hook_session`` added."""
    environment = dict(environment)
    for variable, entry in (("PATH", PROGRAMS), ("PYTHONPATH", HOOK)):
        entries = environment.get(variable, "").split(os.pathsep)
        kept = [each for each in entries if each != os.path.join(session, entry)]
        if len(kept) < len(entries):
            environment[variable] = os.pathsep.join(kept)
            if not kept:
                del environment[variable]
    if environment.get("_", "").startswith(session):
        del environment["_"]  # bash puts the path of each program there
    return environment


def at_socket(session, operation):
    """Call ``operation`` with a short path of the session's socket, because it may have at most 107 bytes."""
    descriptor = os.open(session, os.O_RDONLY)
    try:
        return operation("/proc/self/fd/%d/%s" % (descriptor, _SOCKET))
    finally:
        os.close(descriptor)


# Code that a program runs before its own


def debug_if_first(session, words, parse):
    """Replace this process by the debugged program, if no program of the session has been claimed and this one fits.

    Args:
        session: Private directory of the shell command.
        words: Command line of the program.
        parse: Function that gets the module ``launch`` and returns the ``Launch``, or raises ``LaunchRefused``.

    Returns:
        The environment of the program, if it is not debugged.
    """
    if not os.path.isdir(session) or os.path.exists(os.path.join(session, CLAIM)):
        return cleaned(os.environ, session)
    path = list(sys.path)
    sys.path[:] = library_entries(path)
    try:
        from dgym_runner import launch
        from dgym_runner.debugger import takeover
    finally:
        sys.path[:] = path
    try:
        program = parse(launch)
    except launch.LaunchRefused:
        record_passed(session, words)
        return dict(os.environ)
    return takeover.take_over(session, program, os.environ)


def enter_interpreter(session):
    """Called when an interpreter of the session starts. Debugs its program, or cleans ``os.environ`` of the session."""
    with open("/proc/self/cmdline", "rb") as stream:
        words = [os.fsdecode(word) for word in stream.read().split(b"\0")[:-1]]
    environment = debug_if_first(
        session, words, lambda launch: launch.parse_interpreter(" ".join(words), sys.executable, words[1:])
    )
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    os.environ.update(environment)


def _start_program(session, shim, arguments):
    """Execute the program that the shim replaces, under the debugger if it is the program to debug."""
    from dgym_runner import files

    name = os.path.basename(shim)
    own = cleaned(os.environ, session)
    found = files.find_program(name, own, os.getcwd())
    if found is None:
        sys.stderr.write("%s: command not found\n" % name)
        sys.exit(127)
    words = [found] + arguments
    environment = debug_if_first(
        session, words, lambda launch: launch.parse_program(name, name, found, arguments, own, os.getcwd())
    )
    os.execve(found, words, environment)


# The debugged program


def driven(launch, descriptors, environment):
    """Returns the command line and the environment of a program that the debugger enters when its interpreter starts.

    The flags ``-E``, ``-I`` and ``-S`` would disable the hook. They are removed here, and ``enter_debugger`` applies
    their effects.
    """
    import json

    isolating = [flag for flag in launch.flags if flag in _ISOLATING]
    words = launch.command()
    words[1 : 1 + len(launch.flags)] = [flag for flag in launch.flags if flag not in _ISOLATING]
    own = {name: value for name, value in environment.items() if name.startswith("PYTHON")}
    environment = dict(environment)
    if "-E" in isolating or "-I" in isolating:
        for name in own:
            del environment[name]
    if "-I" in isolating:
        words.insert(1, "-s")
        environment["PYTHONSAFEPATH"] = "1"
    imports = [os.path.join(_RUNNER, HOOK), environment.get("PYTHONPATH")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, imports))
    fields = {"kind": launch.kind, "target": launch.target, "flags": isolating, "environment": own}
    environment[START_VARIABLE] = json.dumps(dict(fields, descriptors=descriptors))
    return words, environment


def enter_debugger(loaded, path, here):
    """Enter the debugger when the interpreter of a program from ``driven`` starts.

    The debugger imports the standard library without the workspace on ``sys.path``. Otherwise it could import a
    ``code.py`` or ``cmd.py`` of the workspace.

    Args:
        loaded: Names of the modules that the interpreter has loaded.
        path: The ``sys.path`` of the interpreter.
        here: Directory of the hook.

    Returns:
        The function that starts tracing, and ``call_from``, which runs code of the program before that.
    """
    import json

    start = json.loads(os.environ.pop(START_VARIABLE))
    for name in [name for name in os.environ if name.startswith("PYTHON")]:
        del os.environ[name]
    os.environ.update(start["environment"])
    path = [entry for entry in path if os.path.abspath(entry) != here]
    if "-S" in start["flags"]:
        path = [entry for entry in path if not entry.endswith(_INSTALLED)]
    target = start["target"]
    first = os.path.dirname(os.path.realpath(target)) if os.path.isfile(target) else target
    others = path[: path.index(sys.path[0])] if sys.path else path
    entries = [os.getcwd() if start["kind"] == "module" else first] + others
    keep_private = import_privately() if any(map(_may_hide_library, entries)) else None
    from dgym_runner.debugger import program
    from dgym_runner.frames import call_from

    return program.enter(start, loaded, path, _RUNNER, keep_private), call_from


def _may_hide_library(entry):
    """Returns True if an entry of ``sys.path`` may contain a module with the name of a standard library module."""
    try:
        names = {name.partition(".")[0] for name in os.listdir(entry or os.curdir)}
    except OSError:
        return os.path.isfile(entry)  # an archive
    library = os.path.dirname(os.path.abspath(os.__file__))
    known = _list(library) + _list(os.path.join(library, "lib-dynload"))
    return any(name.partition(".")[0] in names for name in known)


def _list(directory):
    try:
        return os.listdir(directory)
    except OSError:
        return []


def import_privately():
    """Make modules that are imported after this call import each other, even if the program has modules of these names.

    Code of the standard library also imports modules inside functions. At that time, the program's modules may have
    replaced them in ``sys.modules``. The modules therefore get their own ``__import__``.

    Returns:
        A function that ends the private imports. Its argument is the dict of the private modules.
    """
    import builtins
    from importlib.machinery import PathFinder

    modules = {}
    original = builtins.__import__

    def private_import(name, global_names=None, local_names=None, fromlist=(), level=0):
        if level or name not in modules or isinstance(fromlist, list):  # C code passes a list, and needs sys.modules
            return original(name, global_names, local_names, fromlist, level)
        return modules[name if fromlist else name.partition(".")[0]]

    namespace = dict(vars(builtins), __import__=private_import)

    def create_module(spec):
        module = type(sys)(spec.name)
        module.__dict__["__builtins__"] = namespace
        return module

    class Finder(object):
        @staticmethod
        def find_spec(name, path=None, target=None):
            spec = PathFinder.find_spec(name, path, target)
            if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
                spec.loader.create_module = create_module
            return spec

    sys.meta_path.insert(sys.meta_path.index(PathFinder), Finder)

    def end(private):
        modules.update(private)
        sys.meta_path.remove(Finder)

    return end


def library_entries(path):
    """Returns the entries of ``path`` that contain the standard library, without site-packages and the workspace."""
    library = os.path.dirname(os.path.abspath(os.__file__))
    return [
        entry
        for entry in path
        if entry.endswith(".zip") or (os.path.abspath(entry).startswith(library) and not entry.endswith(_INSTALLED))
    ]


def run_next(here, call=lambda function, *arguments: function(*arguments)):
    """Run the ``sitecustomize`` of the environment, which the runner's ``sitecustomize`` in ``here`` hides.

    ``call(function, *arguments)`` calls the function that executes the module.
    """
    # importlib.util would import more modules, and the program may have its own modules of these names.
    import _frozen_importlib
    import _frozen_importlib_external

    others = [path for path in sys.path if os.path.abspath(path) != here]
    spec = _frozen_importlib_external.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = _frozen_importlib.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        call(spec.loader.exec_module, module)


if __name__ == "__main__":
    sys.modules[_PACKAGE] = type(sys)(_PACKAGE)
    sys.modules[_PACKAGE].__path__ = [_RUNNER]
    # Otherwise a module that imports ``dgym_runner.shims`` would load this file a second time.
    sys.modules[_PACKAGE + ".shims"] = sys.modules["__main__"]
    _start_program(sys.argv[1], sys.argv[2], sys.argv[3:])
