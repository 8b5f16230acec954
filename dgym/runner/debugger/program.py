"""Runs the program as the interpreter would have: its ``__main__``, ``sys.path``, ``sys.argv`` and exit status."""

import atexit
import faulthandler
import os
import pdb  # noqa: T100 - its functions are replaced
import sys
import threading
import traceback
import types

from .. import main_program
from ..descriptors import move_high
from . import breakpoints
from . import pytest_plugin
from .remote_pdb import START, Debugger
from .tracing import HARNESS, HIDDEN, PROGRAM, Owners, interrupt_on_signal
from .wire import FDS_VARIABLE, Channel

_KEPT = frozenset(["bdb", "cmd", "pdb", "threading"])


def run(loaded, path, root, keep_private):
    """Connect to the host and run the program that it names.

    ``loaded`` and ``path`` are the modules and the ``sys.path`` that the interpreter itself began with;
    ``root`` is the runner's directory. ``keep_private``, unless None, takes the modules that only the debugger uses.
    """
    numbers = os.environ.pop(FDS_VARIABLE).split(",", 2)
    numbers[2:] = []
    channel = Channel(int(numbers[0]))
    traces = move_high(int(numbers[1]))
    start = channel.receive()
    if start is None:
        return
    faulthandler.register(start["trace_signal"], file=traces, all_threads=True, chain=False)
    debugger = _make_debugger(channel, start, root)
    program = _Program(start, debugger)
    program.take_place(path)
    private = main_program.forget_modules(loaded, _KEPT)
    if keep_private is not None:
        keep_private(private)
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

    def take_place(self, path):
        """Give the program its own sys.path and sys.argv."""
        start = self._start
        # Unless it is isolated, the interpreter has put the runner's directory first.
        sys.path[:] = path if main_program.is_isolated() else path[1:]
        first = main_program.first_entry(start["kind"], start["target"])
        if first is not None:
            sys.path.insert(0, first)
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
        code, namespace = main_program.load(self._start["kind"], self._start["target"])
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
