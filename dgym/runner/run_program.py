"""Run a script or a module as ``__main__`` and report whether it went through to its end.

An exit status says little about code that may call ``os._exit(0)`` or ``sys.exit(0)`` on import: the status counts
only when the program's own code or the library asked for it, not a file that the agent changed, and when nobody worked
on what decides about it.
"""

import os
import sys
import types


def run(orders, write):
    launch = orders["launch"]
    workspace = orders["workspace"]
    changed = [os.path.realpath(os.path.join(workspace, path)) for path in orders["changed"] or ()]
    guard = None
    if orders["changed"]:
        guard = sys.modules["__main__"].load("run_guard").ProgramGuard(changed)
        guard.snapshot()
    sys.argv = [launch["target"]] + list(launch["argv"])
    status, abnormal = 0, None
    try:
        if launch["kind"] == "module":
            run_module(launch["target"])
        else:
            run_script(launch["target"])
    except SystemExit as error:
        status = exit_status(error.code)
        abnormal = who_left(error.__traceback__, launch["target"], changed)
    except BaseException:
        status = 1
        show_traceback()
    if guard is not None and status == 0:
        abnormal = abnormal or guard.finished()
    if abnormal is None:
        write("status", status=status)
    else:
        write("status", status=status, abnormal=abnormal)
    sys.exit(status)


def run_module(name):
    import runpy

    sys.path.insert(0, os.getcwd())
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def run_script(path):
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    import tokenize

    main = types.ModuleType("__main__")
    main.__file__ = path
    main.__builtins__ = __builtins__
    with tokenize.open(path) as file:
        source = file.read()
    sys.modules["__main__"] = main
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)


def exit_status(code):
    if code is None:
        return 0
    if isinstance(code, int):
        return int(code) & 0xFF
    sys.stderr.write("%s\n" % (code,))
    return 1


def who_left(traceback, target, changed):
    """A sentence when a changed file other than the program itself ended it; None when the end is normal."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    path = os.path.realpath(traceback.tb_frame.f_code.co_filename) if traceback is not None else ""
    if path in changed and path != os.path.realpath(target):
        return "changed code ended the program (sys.exit in %s)" % os.path.basename(path)
    return None


def show_traceback():
    """What the interpreter would print, without the frames of this file and of runpy."""
    kind, value, traceback = sys.exc_info()
    ours = (os.path.realpath(__file__), os.path.realpath(sys.modules["types"].__file__))
    while traceback is not None and (
        os.path.realpath(traceback.tb_frame.f_code.co_filename) in ours
        or traceback.tb_frame.f_globals.get("__name__") == "runpy"
    ):
        traceback = traceback.tb_next
    sys.excepthook(kind, value.with_traceback(traceback), traceback)
