"""Prepares ``sys.path``, ``__main__`` and ``sys.modules`` for a program as the interpreter itself would.

The debugger and the scorer run the program in a process that has already imported modules. The functions here make the
program behave under both as under plain Python.
"""

import importlib.machinery
import io
import os
import runpy
import sys
import types

_PACKAGE = "dgym_runner"


def is_isolated():
    """Returns True if the interpreter does not add the directory of a script or module to ``sys.path``."""
    return bool(sys.flags.isolated or getattr(sys.flags, "safe_path", False))


def first_entry(kind, target):
    """Returns the entry that the interpreter adds at the start of ``sys.path``, or None if it adds nothing."""
    if kind == "script" and _is_importable(target):
        return os.path.join(os.getcwd(), target) if sys.version_info >= (3, 9) else target
    if is_isolated():
        return None
    if kind == "script":
        return os.path.dirname(os.path.realpath(target))
    return os.getcwd() if sys.version_info >= (3, 7) else ""


def _is_importable(target):
    """Returns True if the target is a directory or an archive, from which the interpreter imports ``__main__``."""
    for hook in sys.path_hooks:
        try:
            hook(target)
            return True
        except ImportError:
            continue
    return False


def prepare(kind, target):
    """Create an empty ``__main__``.

    Returns:
        The function that runs the program in ``__main__``, and its arguments.

    Raises:
        SystemExit: The script cannot be read.
        SyntaxError, ValueError: The script cannot be compiled.
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
    """Remove modules that were imported after ``loaded`` from ``sys.modules``, so that the program imports its own.

    A file of the program may have the name of an imported module, and be on ``sys.path`` before the standard library.
    The program must then import that file, and so must the modules of the standard library that import this name.

    Args:
        loaded: Names of the modules that are always kept.
        keep: Names of modules with state that this process needs. They are removed only if a file of the program has
            the same name.

    Returns:
        The removed modules by name.
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
    """Returns True if a plain interpreter would import ``name`` from one of these entries of ``sys.path``."""
    if name in sys.builtin_module_names or _is_frozen(name):
        return False
    spec = importlib.machinery.PathFinder.find_spec(name, entries)
    return spec is not None and spec.loader is not None


def _is_frozen(name):
    return importlib.machinery.FrozenImporter.find_spec(name) is not None


def _is_plain(module):
    """Returns True if the module can be imported twice: it is Python code and not part of the import system."""
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
