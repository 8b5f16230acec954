"""Creates the debugger inside the program when its interpreter starts.

The interpreter itself runs the program, so that ``__main__`` and its callers are the same as without the debugger.
"""

import atexit
import faulthandler
import os
import pdb  # noqa: T100 - its functions are replaced
import sys
import threading
import types

from .. import main_program
from ..descriptors import move_high
from . import breakpoints
from . import pytest_plugin
from .remote_pdb import START, Debugger
from .tracing import HARNESS, HIDDEN, PROGRAM, Owners, interrupt_on_signal
from .wire import Channel

_KEPT = frozenset(["bdb", "cmd", "pdb", "threading"])


def enter(driven, loaded, path, root, keep_private):
    """Connect to the host and create the debugger.

    Args:
        driven: The fields that ``shims.driven`` passed in the environment.
        loaded: Names of the modules that the interpreter itself loaded.
        path: The ``sys.path`` of the interpreter.
        root: Directory of the runner.
        keep_private: Function that receives the modules that only the debugger uses, or None.

    Returns:
        The function that starts tracing.
    """
    channel = Channel(driven["descriptors"][0])
    traces = move_high(driven["descriptors"][1])
    start = channel.receive()
    if start is None:
        os._exit(1)
    faulthandler.register(start["trace_signal"], file=traces, all_threads=True, chain=False)
    debugger = _make_debugger(channel, start, root)
    program = _Program(start, driven["flags"], debugger)
    # atexit runs functions in reverse order. This one must run after those that the program registers.
    atexit.register(program.report_end)
    first = main_program.first_entry(start["kind"], start["target"])
    sys.path[:] = path if first is None else [first] + path
    private = main_program.forget_modules(loaded, _KEPT)
    if keep_private is not None:
        keep_private(private)
    sys.path[:] = path
    _install_hooks(debugger)
    if start["is_pytest"]:
        pytest_plugin.connect(debugger)
    _call_at_shutdown(program.end)
    return lambda: debugger.begin(program.begin)


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
    return debugger


def _install_hooks(debugger):
    """Make ``breakpoint()`` and the functions of ``pdb`` use this debugger."""

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


def _call_at_shutdown(function):
    """Make the interpreter call the function when the main module has ended, before it waits for threads."""
    if hasattr(threading, "_register_atexit"):
        threading._register_atexit(function)
        return
    original = threading._shutdown

    def shutdown():
        function()
        original()

    threading._shutdown = shutdown


class _Program(object):
    def __init__(self, start, flags, debugger):
        self._start = start
        self._flags = flags
        self._debugger = debugger
        self._main = None
        self._ended = False

    def begin(self, frame):
        """Called with the frame of the main module before its first line runs."""
        start, debugger = self._start, self._debugger
        code = frame.f_code
        # Only the id is stored. A reference to the dict would keep the interpreter from clearing the variables.
        self._main = id(frame.f_globals)
        self._restore()
        if start["is_pytest"]:
            sys.argv[1:] = pytest_plugin.arguments(start["argv"], os.environ)
        if debugger.has_stopped:
            # The program has stopped in a package that the module needs. Another stop at the start is not useful.
            debugger.record_file(code.co_filename)
        elif not start["is_pytest"] and debugger.owners.of(code.co_filename) == PROGRAM:
            debugger.record_file(code.co_filename)
            debugger.stop_in(code)
        else:
            debugger.stop_before(frame)

    def _restore(self):
        """Undo the changes of ``sys`` that were needed to enter the debugger."""
        started_by = getattr(sys.modules.get("sitecustomize"), "__file__", None)
        if started_by and self._debugger.owners.of(started_by) == HIDDEN:
            del sys.modules["sitecustomize"]
        if hasattr(sys, "orig_argv"):
            sys.orig_argv[:] = self._start["orig_argv"]
        if "-I" in self._flags and sys.version_info < (3, 11):
            own = os.path.dirname(os.path.realpath(self._start["target"]))
            sys.path[:] = sys.path[1:] if sys.path[0] == own else sys.path

    def end(self):
        """Called when the main module has ended.

        Stops at the place of an uncaught exception, if there is one. Then only breakpoints stop the program, for
        example in exit handlers.
        """
        if self._ended:
            return
        self._ended = True
        debugger = self._debugger
        debugger.tracing_lost = bool(debugger.breaks) and sys.gettrace() is not debugger.tracer
        debugger.first_code = debugger.main_frame = None
        debugger.stop_at_breakpoints()
        # The interpreter sets these for an uncaught exception. Other code may set them for a caught exception. The
        # traceback of an uncaught exception begins at a frame without a caller and contains the main module's frame.
        error, trace = getattr(sys, "last_value", None), getattr(sys, "last_traceback", None)
        if trace is not None and trace.tb_frame.f_back is None and self._passes_main(trace):
            debugger.post_mortem(error, trace)

    def _passes_main(self, trace):
        while trace is not None:
            if id(trace.tb_frame.f_globals) == self._main and trace.tb_frame.f_code.co_name == "<module>":
                return True
            trace = trace.tb_next
        return False

    def report_end(self):
        """Send the last message, after the program's own exit handlers."""
        self.end()
        debugger = self._debugger
        message = debugger.state()
        message["type"] = "end"
        message["output"], message["cut"] = debugger.answer.take(debugger.limit)
        message["notices"] = message["notices"] + breakpoints.explain_misses(debugger, debugger.tracing_lost)
        debugger.channel.send(message)
        # The interpreter clears the debugger's modules after this, and the trace function would fail.
        threading.settrace(None)
        sys.settrace(None)
