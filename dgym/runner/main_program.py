"""The program as the interpreter itself starts it: ``sys.path``, ``__main__`` and the modules that are loaded.

The debugger and the scorer run the program in a process that has imported modules before it. What they share is here,
so that the program is the same under both and under plain Python.
"""

import importlib.machinery
import io
import os
import runpy
import sys
import types

_PACKAGE = "dgym_runner"


def is_isolated():
    """Whether the interpreter leaves the directory of a script or module out of ``sys.path``."""
    return bool(sys.flags.isolated or getattr(sys.flags, "safe_path", False))


def first_entry(kind, target):
    """What the interpreter puts first on ``sys.path``; None when it puts nothing there."""
    if kind == "script" and _is_importable(target):
        return os.path.join(os.getcwd(), target) if sys.version_info >= (3, 9) else target
    if is_isolated():
        return None
    if kind == "script":
        return os.path.dirname(os.path.realpath(target))
    return os.getcwd() if sys.version_info >= (3, 7) else ""


def _is_importable(target):
    """Whether the interpreter imports ``__main__`` from there: a directory or an archive."""
    for hook in sys.path_hooks:
        try:
            hook(target)
            return True
        except ImportError:
            continue
    return False


def prepare(kind, target):
    """Make an empty ``__main__``; returns the function that runs the program in it, and the function's arguments.

    Raises ``SystemExit`` where the interpreter would exit, and what a script that cannot be compiled raises.
    """
    main = types.ModuleType("__main__")
    main.__dict__.update(__annotations__={}, __builtins__=sys.modules["builtins"])
    sys.modules["__main__"] = main
    if kind == "module":
        return runpy._run_module_as_main, (target,)
    if _is_importable(target):
        return runpy._run_module_as_main, ("__main__", False)
    return exec, (_load_script(target, main.__dict__), main.__dict__)


def _load_script(target, namespace):
    path = os.path.join(os.getcwd(), target)
    try:
        with io.open(path, "rb") as stream:
            data = stream.read()
    except OSError as error:
        sys.stderr.write("can't open file %r: %s\n" % (target, error))
        raise SystemExit(2)
    name = path if sys.version_info >= (3, 9) else target
    loader = importlib.machinery.SourceFileLoader("__main__", name)
    namespace.update(__loader__=loader, __file__=name, __cached__=None)
    return compile(data, name, "exec", dont_inherit=True)


def forget_modules(loaded, keep=()):
    """Have the program import itself what was imported after ``loaded``, as far as its own files make a difference.

    Where a file before the standard library on ``sys.path`` has the name of an imported module, the program must get
    that file, and so must the library's modules that need it. ``keep`` names modules that go only if such a file has
    their own name: the process works with their state. Returns what was dropped.
    """
    new = sorted(set(sys.modules) - set(loaded))
    entries = _before_library()
    hidden = {name for name in {name.partition(".")[0] for name in new} if _is_hidden(name, entries)}
    dropped = {}
    for name in new:
        top = name.partition(".")[0]
        if top == _PACKAGE or top in hidden or (hidden and top not in keep and _is_plain(sys.modules[name])):
            dropped[name] = sys.modules.pop(name)
    return dropped


def _is_hidden(name, entries):
    """Whether a plain interpreter imports ``name`` from one of these entries of ``sys.path``."""
    if name in sys.builtin_module_names or _is_frozen(name):
        return False
    spec = importlib.machinery.PathFinder.find_spec(name, entries)
    return spec is not None and spec.loader is not None


def _is_frozen(name):
    return importlib.machinery.FrozenImporter.find_spec(name) is not None


def _is_plain(module):
    """Whether importing a module twice has no consequences: it is Python code, and not of the import system."""
    filename = getattr(module, "__file__", None)
    name = getattr(module, "__name__", "")
    return isinstance(filename, str) and filename.endswith(".py") and name.partition(".")[0] != "importlib"


def _before_library():
    library = os.path.dirname(os.path.abspath(os.__file__))
    found = []
    for entry in sys.path:
        if os.path.abspath(entry).startswith(library):
            break
        found.append(entry)
    return found
