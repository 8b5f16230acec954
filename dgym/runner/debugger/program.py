"""Runs the program as the interpreter would have: its ``__main__``, ``sys.path``, ``sys.argv`` and exit status."""

import atexit
import faulthandler
import importlib.machinery
import io
import os
import pdb  # noqa: T100 - its functions are replaced
import runpy
import sys
import threading
import traceback
import types

from ..descriptors import move_high
from . import breakpoints
from . import pytest_plugin
from .remote_pdb import START, Debugger
from .tracing import HARNESS, HIDDEN, PROGRAM, Owners, interrupt_on_signal
from .wire import FDS_VARIABLE, Channel


def run(loaded, path, root):
    """Connect to the host and run the program that it names.

    ``loaded`` and ``path`` are the modules and the ``sys.path`` that the interpreter itself began with;
    ``root`` is the runner's directory.
    """
    numbers = os.environ.pop(FDS_VARIABLE).split(",")
    channel = Channel(int(numbers[0]))
    traces = move_high(int(numbers[1]))
    start = channel.receive()
    if start is None:
        return
    faulthandler.register(start["trace_signal"], file=traces, all_threads=True, chain=False)
    debugger = _make_debugger(channel, start, root)
    program = _Program(start, debugger)
    program.take_place(path)
    forget_modules(loaded)
    _install_hooks(debugger)
    if start["is_pytest"]:
        pytest_plugin.connect(debugger)
    program.run()


def _make_debugger(channel, start, root):
    owners = Owners(start["workspace"], root)
    owners.claim(START, HARNESS)
    debugger = Debugger(channel, start["limit"])
    debugger.start_tracing(start["workspace"], owners)
    debugger.title = start["title"]
    debugger.listing = start["listing"]
    debugger.notices += start["notices"]
    debugger.notices += breakpoints.restore(debugger, start["breakpoints"], start["next_number"])
    interrupt_on_signal(debugger, start["interrupt_signal"])
    atexit.register(_report_end, debugger)
    return debugger


def _report_end(debugger):
    # Registered first, so that it runs after everything the program has registered.
    message = debugger.state()
    message["type"] = "end"
    message["output"], message["cut"] = debugger.answer.take(debugger.limit)
    message["notices"] = message["notices"] + breakpoints.explain_misses(debugger, debugger.tracing_lost)
    debugger.channel.send(message)
    # Nothing stops any more, and the interpreter is about to clear the debugger's modules under the trace function.
    threading.settrace(None)
    sys.settrace(None)


def forget_modules(loaded):
    """Drop the debugger from ``sys.modules``, and library modules that a file of the program would have hidden."""
    library = os.path.dirname(os.path.abspath(os.__file__))
    before_library = []
    for entry in sys.path:
        if os.path.abspath(entry).startswith(library):
            break
        before_library.append(entry)
    for name in sorted(set(sys.modules) - loaded):
        top = name.partition(".")[0]
        if top == "dgym_runner" or _is_hidden_by(top, before_library):
            del sys.modules[name]


def _is_hidden_by(name, entries):
    return any(
        os.path.isfile(os.path.join(entry, candidate))
        for entry in entries
        for candidate in (name + ".py", os.path.join(name, "__init__.py"))
    )


def _install_hooks(debugger):
    """Have ``breakpoint()`` and the functions of ``pdb`` lead to this session."""

    def set_trace(*_args, **_kwargs):
        debugger.set_trace(sys._getframe().f_back)

    def breakpointhook(*_args, **_kwargs):
        if os.environ.get("PYTHONBREAKPOINT") != "0":
            debugger.set_trace(sys._getframe().f_back)

    def post_mortem(t=None):
        error = t if isinstance(t, BaseException) else sys.exc_info()[1] or getattr(sys, "last_value", None)
        trace = t if isinstance(t, types.TracebackType) else getattr(error, "__traceback__", None)
        if trace is not None:
            debugger.post_mortem(error, trace, "goes on after the call")

    pdb.set_trace = set_trace
    pdb.post_mortem = pdb.pm = post_mortem
    if hasattr(sys, "breakpointhook"):
        sys.breakpointhook = breakpointhook


class _Program(object):
    def __init__(self, start, debugger):
        self._start = start
        self._debugger = debugger
        self._script = os.path.abspath(start["target"]) if start["kind"] == "script" else None

    def take_place(self, path):
        """Give the program its own sys.path and sys.argv."""
        start = self._start
        sys.path[:] = path
        if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
            sys.path[0] = os.path.dirname(os.path.realpath(self._script)) if self._script else os.getcwd()
        argv = pytest_plugin.arguments(start["argv"], os.environ) if start["is_pytest"] else start["argv"]
        sys.argv[:] = [start["target"]] + argv
        if hasattr(sys, "orig_argv"):
            sys.orig_argv[:] = start["orig_argv"]

    def run(self):
        debugger = self._debugger
        debugger.begin(sys._getframe())
        try:
            self._execute()
        except SystemExit:
            self._finished()
            raise
        except BaseException as error:
            self._finished()
            self._failed(error)
        self._finished()

    def _execute(self):
        code, namespace = self._load_script() if self._script else self._load_module()
        if self._debugger.has_stopped:
            # At a breakpoint in a package that the module needed: the agent has taken over already.
            self._debugger.record_file(code.co_filename)
        elif not self._start["is_pytest"] and self._debugger.owners.of(code.co_filename) == PROGRAM:
            self._debugger.record_file(code.co_filename)
            self._debugger.stop_in(code)
        else:
            before = compile("pass", START, "exec")
            self._debugger.stop_in(before)
            exec(before, namespace)
        exec(code, namespace)

    def _load_script(self):
        try:
            with io.open(self._script, "rb") as stream:
                data = stream.read()
        except OSError as error:
            sys.stderr.write("can't open file %r: %s\n" % (self._start["target"], error))
            raise SystemExit(2)
        code = compile(data, self._script, "exec", dont_inherit=True)
        main = self._new_main(self._script if sys.version_info >= (3, 9) else self._start["target"])
        main["__loader__"] = importlib.machinery.SourceFileLoader("__main__", self._script)
        return code, main

    def _load_module(self):
        try:
            _name, spec, code = runpy._get_module_details(self._start["target"], runpy._Error)
        except runpy._Error as error:
            raise SystemExit("%s: %s" % (sys.executable, error))
        sys.argv[0] = spec.origin
        main = self._new_main(spec.origin)
        main.update(__loader__=spec.loader, __spec__=spec, __package__=spec.parent, __cached__=spec.cached)
        return code, main

    def _new_main(self, filename):
        module = types.ModuleType("__main__")
        module.__dict__.update(
            __file__=filename, __builtins__=sys.modules["builtins"], __annotations__={}, __cached__=None
        )
        sys.modules["__main__"] = module
        return module.__dict__

    def _finished(self):
        """The main module has ended: from now on only breakpoints stop the program, for example in exit handlers."""
        debugger = self._debugger
        debugger.tracing_lost = bool(debugger.breaks) and sys.gettrace() is not debugger.trace
        debugger.first_code = None
        debugger.stop_at_breakpoints()

    def _failed(self, error):
        trace = self._own_part(error.__traceback__)
        error = error.with_traceback(trace)
        try:
            sys.excepthook(type(error), error, trace)
        except BaseException:
            traceback.print_exception(type(error), error, trace)
        if trace is not None:
            self._debugger.post_mortem(error, trace)
        # Raised again, so that the interpreter decides the exit status; its message is out already.
        sys.excepthook = lambda *_ignored: None
        raise error

    def _own_part(self, trace):
        owners = self._debugger.owners
        while trace is not None:
            filename = trace.tb_frame.f_code.co_filename
            if owners.of(filename) != HIDDEN and not filename.endswith("runpy.py"):
                if filename != "<frozen runpy>":
                    return trace
            trace = trace.tb_next
        return None
