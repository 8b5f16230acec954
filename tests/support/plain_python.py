"""Programs whose output shows how they were started, for tests that compare the runner with plain Python."""

import re
import subprocess
import zipfile
from pathlib import Path

# Other installed plugins of pytest would take seconds to load.
NO_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
REPORT = """\
import os, sys
import beside
import __main__, pkgutil

print(beside.value, sys.argv, sys.path[0], getattr(sys, "orig_argv", [0])[1:], __main__ is sys.modules["__main__"])
for name in ("__name__", "__doc__", "__package__", "__file__", "__cached__", "__annotations__"):
    print(name, repr(vars(__main__).get(name, "absent")))
print(type(__loader__), getattr(__loader__, "name", None), getattr(__loader__, "path", None))
print(__spec__ and (__spec__.name, __spec__.origin, __spec__.parent, __spec__.cached))
print(repr(__main__), type(__builtins__), sorted(name for name in vars(__main__) if name.startswith("__")))
try:
    print(pkgutil.get_data("__main__", "data.txt"))
except Exception as error:
    print(type(error), error)
"""
STACKS = """\
import atexit, inspect, os, sys, threading, traceback

def show_stack():
    print([(os.path.basename(entry[1]), entry[2], entry[3]) for entry in inspect.stack()])
    traceback.print_stack()
    sys.stderr.flush()

show_stack()
for thread in [threading.Thread(target=show_stack)]:
    thread.start()
    thread.join()
atexit.register(show_stack)
sys.stdout.flush()
"""
FAILING = """
def fail():
    raise KeyError("not found")

fail()
"""
FORMS = {
    "python main.py one": "a script",
    "python ./sub/../main.py": "a path that is not normal",
    "python link.py": "a symbolic link",
    "python package one": "a directory",
    "python app.pyz one": "an archive",
    "python -m package": "a package",
    "python -m package.tool one": "a module of a package",
    "python -m main": "a module",
}
HIDING = """\
import sys

found = []
for name in {names!r} + {dependents!r}:
    try:
        found.append((name, getattr(__import__(name), "mine", None)))
    except BaseException as error:
        found.append((name, type(error), str(error)))
sys.stdout.write("\\n".join(map(repr, found)) + "\\n")
"""


def write_forms(workspace, program=REPORT):
    """Write the program in each form of ``FORMS``."""
    for directory in ("", "sub", "real", "package"):
        place = workspace / directory
        place.mkdir(exist_ok=True)
        (place / "beside.py").write_text(f"value = {directory!r}\n")
        (place / "data.txt").write_text("data\n")
    for path in ("main.py", "real/main.py", "package/__main__.py", "package/tool.py"):
        (workspace / path).write_text(program)
    (workspace / "package/__init__.py").write_text("")
    (workspace / "link.py").symlink_to("real/main.py")
    with zipfile.ZipFile(workspace / "app.pyz", "w") as archive:
        for name, text in (("__main__.py", program), ("beside.py", "value = 'archive'\n"), ("data.txt", "data\n")):
            archive.writestr(name, text)


def library_names(python):
    """The names of the standard library's modules, except names that begin with two underscores."""
    code = "import sys, os; print(*getattr(sys, 'stdlib_module_names', ()) or os.listdir(os.path.dirname(os.__file__)))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    names = {name.partition(".")[0] for name in done.stdout.split() if name.partition(".")[2] in ("", "py")}
    return sorted(name for name in names if name.isidentifier() and not name.startswith("__"))


def write_hiding(workspace, names, dependents=("tempfile", "traceback", "inspect", "json", "dataclasses")):
    """Write ``main.py``, and beside it a module for each of ``names``, which are names of the standard library.

    The program also imports ``dependents``, which may need some of these modules.
    """
    for name in names:
        (workspace / f"{name}.py").write_text(f"mine = {name!r}\n")
    (workspace / "main.py").write_text(HIDING.format(names=list(names), dependents=list(dependents)))


def plain(python, entrypoint, workspace):
    """The output of the entrypoint with plain Python."""
    environment = {"PATH": f"{Path(python).parent}:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1", **NO_PLUGINS}
    done = subprocess.run(
        ["/bin/bash", "-c", entrypoint],
        cwd=workspace,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return without_advice(done.stdout)


def without_advice(text):
    """``text`` without the advice that Python 3.13 adds if a module has the name of a library module.

    The advice depends on the directory in which the interpreter started. With the runner, that is the runner's.
    """
    return re.sub(r" \(consider renaming .*?\)", "", text)
