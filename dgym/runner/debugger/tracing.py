"""The trace function, which decides when the program stops.

``bdb`` traces every line of every function in a file that has a breakpoint. To slow the program down less, this module
traces a function only if one of its own lines has a breakpoint. The decision is made once for each code object. The
frames on the stack get their trace functions again when the breakpoints change.
"""

import bdb
import cmd
import dis
import os
import pdb  # noqa: T100 - only to know its file
import signal
import sys
import threading

from .breakpoints import lines_of_code
from .commands import evaluate

_NOTHING = frozenset()
_PAUSES = frozenset(dis.opmap[name] for name in ("YIELD_VALUE", "YIELD_FROM", "RESUME") if name in dis.opmap)
_REPEATED = [bytes([dis.opmap["YIELD_FROM"]])] if "YIELD_FROM" in dis.opmap else []
_GENERATOR = 0x20 | 0x80 | 0x200  # inspect.CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR

HIDDEN = 0  # the debugger itself
HARNESS = 1  # test runners and the import system; stepping does not stop in them
LIBRARY = 2
PROGRAM = 3  # the workspace and the debugged program

_INSTALLED = ("/site-packages/", "/dist-packages/")
_HARNESS_PARTS = ("/_pytest/", "/pluggy/", "/pytest/", "/pytest_", "/xdist/")
_HARNESS_ENDS = ("/pytest.py", "/runpy.py", "/importlib/__init__.py", "/bin/pytest", "/bin/py.test")
_UNITTEST_ENDS = tuple(
    "/unittest/%s.py" % name for name in ("case", "suite", "runner", "main", "loader", "async_case", "__main__")
)


class Tracing(bdb.Bdb):
    """The part of the debugger that decides where to stop."""

    def start_tracing(self, workspace, owners):
        """Initialise the state. ``begin`` starts tracing."""
        self.workspace = workspace
        self.directory = os.getcwd()  # before Python 3.9, the file name of a script is relative to this directory
        self.owners = owners
        self.pid = os.getpid()
        self.first_code = None
        self.main_frame = None
        self._main_begun = False
        self.currentbp = 0
        self._threads = threading.local()
        self._stepping_thread = self._thread()
        # Caller and result of the generator that was stepped in, after it has returned.
        self._left = self._result = None
        self._raised = False  # True while an exception leaves the generator that is stepped in
        self.stopped_at = None
        self.tracing_lost = False
        self._lines = {}  # id(code): (code, lines with breakpoints); hashing a code object is slow
        self.traced_files = set()
        self._seen_breaks = None
        self._paths = {}
        self._make_trace()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.enter_child)

    def begin(self, begin_main):
        """Start tracing, and stop only at breakpoints.

        ``begin_main`` is called with the frame of the main module before its first line runs.
        """
        self.reset()
        # The main module's frame has no caller. For bdb, a stopframe of None means any frame, so a placeholder is used.
        self.botframe = _new_frame()
        self.stop_at_breakpoints()
        main = vars(sys.modules["__main__"])

        def wait(frame, event, arg):
            if event == "call" and frame.f_globals is main and frame.f_code.co_name == "<module>":
                self._main_begun = True
                self.tracer = self.trace
                sys.settrace(self.tracer)
                self.main_frame = frame
                begin_main(frame)
                if sys.gettrace() is None:
                    return None
            return self.trace(frame, event, arg)

        self.tracer = wait
        threading.settrace(self.trace)
        sys.settrace(self.tracer)

    def stop_at_breakpoints(self):
        """Stop only at breakpoints."""
        self._set_stopinfo(self.botframe, None, -1)

    def enter_child(self):
        """Called in a forked child, which does not stop and only reports the first breakpoint that it reaches."""
        self.first_code = None
        if self.breaks:
            self.stop_at_breakpoints()
        else:
            self.detach()

    def detach(self):
        """Stop debugging in this process."""
        sys.settrace(None)
        threading.settrace(None)
        self.breaks.clear()
        self._lines.clear()

    def canonic(self, filename):
        """Returns the resolved path of a file, relative to the directory in which the program started."""
        path = self._paths.get(filename)
        if path is None:
            path = filename
            if not (filename.startswith("<") and filename.endswith(">")):
                path = os.path.realpath(os.path.join(self.directory, filename))
            self._paths[filename] = path
        return path

    def _make_trace(self):
        known = self._lines
        lines_wanted = self.lines_wanted
        this_thread = self._thread
        dispatch = self.trace_dispatch

        def consider(frame, event, arg):
            self.enterframe = frame
            # Old interpreters report a stale line number while a frame has a trace function that is not called.
            return trace if dispatch(frame, event, arg) and sys.gettrace() is not None else None

        def trace(frame, event, arg):
            stopframe = self.stopframe
            if stopframe is None:
                if this_thread() is self._stepping_thread:
                    return consider(frame, event, arg)
            elif event == "call" and (frame is stopframe or (self._left is not None and self._in_program(frame))):
                return trace
            elif frame is stopframe or frame is self.returnframe or event == "exception":
                return consider(frame, event, arg)
            if event == "call":
                entry = known.get(id(frame.f_code))
                lines = lines_wanted(frame.f_code) if entry is None else entry[1]
                return trace if lines else None
            if event == "line":
                entry = known.get(id(frame.f_code))
                lines = lines_wanted(frame.f_code) if entry is None else entry[1]
                if frame.f_lineno in lines:
                    return consider(frame, event, arg)
            return trace

        # Plugins such as pytest-timeout detect a debugger by the module of the trace function.
        trace.__module__ = "bdb"
        self.trace = trace

    def _thread(self):
        """Returns an object that identifies this thread. Thread ids are reused after a thread has ended."""
        try:
            return self._threads.this
        except AttributeError:
            self._threads.this = object()
            return self._threads.this

    def _in_program(self, frame):
        return self.owners.of(frame.f_code.co_filename) == PROGRAM

    def lines_wanted(self, code):
        """Returns the lines of a code object that have breakpoints, or all its lines if it is ``first_code``."""
        entry = self._lines.get(id(code))
        if entry is None:
            self.traced_files.add(code.co_filename)
            if code is self.first_code:
                lines = lines_of_code(code)
            else:
                numbers = self.breaks.get(self.canonic(code.co_filename))
                lines = lines_of_code(code).intersection(numbers) if numbers else _NOTHING
            entry = self._lines[id(code)] = (code, lines)
        return entry[1]

    def stop_in(self, code):
        """Stop once, at the first line of this code object that runs."""
        self._lines.pop(id(self.first_code), None)
        self._lines.pop(id(code), None)
        self.first_code = code

    # called by bdb

    def break_anywhere(self, frame):
        return bool(self.lines_wanted(frame.f_code))

    def _set_stopinfo(self, *arguments, **more):
        self._left = self._result = None
        self._raised = False
        bdb.Bdb._set_stopinfo(self, *arguments, **more)

    def dispatch_exception(self, frame, arg):
        internal = arg[0] in (StopIteration, GeneratorExit)
        if frame is self.stopframe and not (internal and arg[2] is None):
            self._raised = True
        if internal and self._left is not None:
            awaits = self._in_program(frame) and getattr(arg[1], "value", arg[1]) is self._result
            if frame is self._left or awaits:
                self.user_exception(frame, arg)
                return self.trace_dispatch
        if internal and self.stopframe is not None and frame is not self.stopframe:
            # While a generator is stepped in, bdb would also stop at each StopIteration of other generators.
            return self.trace_dispatch
        return bdb.Bdb.dispatch_exception(self, frame, arg)

    def dispatch_line(self, frame):
        self._raised = False
        return bdb.Bdb.dispatch_line(self, frame)

    def dispatch_return(self, frame, arg):
        if frame is self.stopframe and frame.f_code.co_flags & _GENERATOR:
            if self._raised or not _pauses(frame, arg):
                self._leave_generator(frame, arg)
            return self.trace_dispatch
        found = bdb.Bdb.dispatch_return(self, frame, arg)
        if frame is self.main_frame:
            self.stop_at_breakpoints()
        return found

    def set_return(self, frame):
        """Stop when this frame returns."""
        bdb.Bdb.set_return(self, frame)
        if self.stopframe is None:
            self._set_stopinfo(self.botframe, frame)

    def _leave_generator(self, frame, result):
        """Stop in the caller of a generator that returns. A generator that yields may later have another caller.

        The stop is at the StopIteration, if the interpreter reports it (since 3.10 it does not in a ``for`` loop). The
        caller of a task is an event loop, so the stop is where the program awaits the task, or after the loop.
        """
        caller = below = frame.f_back
        while below is not None and self.owners.of(below.f_code.co_filename) == LIBRARY:
            below = below.f_back
        if below is None or not self._in_program(below):
            self.set_step()
            return
        self._set_stopinfo(below, None)
        self._left, self._result = caller, result
        self._arm_stack(caller, True)

    def stop_here(self, frame):
        if not bdb.Bdb.stop_here(self, frame) or self.owners.of(frame.f_code.co_filename) == HIDDEN:
            return False
        return frame is self.stopframe or frame is self.stopped_at or self.owners.steppable(frame)

    def break_here(self, frame):
        if frame.f_lineno not in self.lines_wanted(frame.f_code):
            return False
        if frame.f_code is self.first_code:
            self.stop_in(None)
            self.currentbp = 0
            return True
        number = self._effective(frame)
        self.currentbp = number or 0
        return bool(number)

    def _effective(self, frame):
        """Returns the number of the first breakpoint that stops the program on this line, or None.

        In bdb, breakpoints after the first effective breakpoint of a line do not count a hit. Here, all of them do.
        """
        where = (self.canonic(frame.f_code.co_filename), frame.f_lineno)
        numbers = []
        for breakpoint_ in list(bdb.Breakpoint.bplist.get(where, ())):
            if breakpoint_.enabled and self._count_hit(breakpoint_, frame):
                numbers.append(breakpoint_.number)
                breakpoint_.stops = getattr(breakpoint_, "stops", 0) + 1
                if breakpoint_.temporary:
                    place = "%s:%d" % (self.relative(breakpoint_.file), breakpoint_.line)
                    self.clear_bpbynumber(str(breakpoint_.number))
                    self.message("Deleted breakpoint %d at %s" % (breakpoint_.number, place))
        return numbers[0] if numbers else None

    def _count_hit(self, breakpoint_, frame):
        """Count a hit of the breakpoint. Returns True if the program stops there."""
        breakpoint_.hits += 1
        if breakpoint_.cond:
            try:
                if not evaluate(breakpoint_.cond, frame, frame.f_locals):
                    return False
            except Exception as error:
                text = "%s: %s" % (type(error).__name__, error)
                self.error("the condition of breakpoint %d failed: %s" % (breakpoint_.number, text))
                return True
        if breakpoint_.ignore > 0:
            breakpoint_.ignore -= 1
            return False
        return True

    # after a stop

    def arm(self, frame):
        """Set the trace functions of the frames on the stack for the next command. Called at the end of a stop."""
        self._stepping_thread = self._thread()
        self.stopped_at = frame
        self._refresh_lines()
        if not self.tracing_needed():
            _disarm_stack(frame)
            return
        self._arm_stack(frame, self._stepping())
        if self.breaks:
            for other in list(sys._current_frames().values()):
                self._arm_stack(other, False)

    def tracing_needed(self):
        """Returns True if the program must run under the trace function."""
        return bool(self.breaks) or self._stepping() or self.first_code is not None or not self._main_begun

    def _stepping(self):
        # For ``return`` in a generator, pdb sets stopframe, but leaves stoplineno at -1.
        return self.stoplineno != -1 or self.stopframe not in (None, self.botframe)

    def _arm_stack(self, frame, stepping):
        while frame is not None:
            if frame.f_trace is None and (stepping or self.lines_wanted(frame.f_code)):
                if self.owners.of(frame.f_code.co_filename) != HIDDEN:
                    frame.f_trace = self.trace
            frame = frame.f_back

    def _refresh_lines(self):
        current = {name: tuple(lines) for name, lines in self.breaks.items()}
        if current != self._seen_breaks:
            self._seen_breaks = current
            self._lines.clear()

    def set_continue(self):
        self.stop_at_breakpoints()
        if not self.tracing_needed():
            sys.settrace(None)

    def set_trace(self, frame=None):
        """Stop at the next line of the caller. Implements ``breakpoint()`` and ``pdb.set_trace()``."""
        frame = frame or sys._getframe().f_back
        if os.getpid() != self.pid:
            return
        self.enterframe = frame
        self.set_step()
        self.arm(frame)
        sys.settrace(self.tracer)

    def break_once(self, code):
        """Stop at the first line of a function that is about to be called."""
        self.stop_in(code)
        if sys.gettrace() is None:
            sys.settrace(self.tracer)


def _new_frame():
    return sys._getframe()


def _pauses(frame, value):
    """Returns True if a generator's frame yields ``value`` and neither returns it nor ends with an exception."""
    if type(value).__name__ == "async_generator_wrapped_value":
        return False  # the caller awaits this value
    code, at = frame.f_code.co_code, frame.f_lasti
    # Before 3.11, in a generator that waits for another generator, f_lasti is before the YIELD_FROM that will be
    # repeated.
    return code[at] in _PAUSES or (code[at + 2 : at + 3] in _REPEATED)


def _disarm_stack(frame):
    while frame is not None:
        frame.f_trace = None
        frame = frame.f_back


class Owners(object):
    """Classifies files and caches the result. The class decides where stepping stops and what a stack trace shows."""

    def __init__(self, workspace, runner):
        self._workspace = os.path.join(workspace, "")
        self._directory = os.getcwd()
        self._runner = os.path.join(runner, "")
        self._known = dict.fromkeys((module.__file__ for module in (bdb, cmd, pdb)), HIDDEN)

    def claim(self, filename, kind):
        """Set the class of a file."""
        self._known[filename] = kind

    def of(self, filename):
        """Returns the class of a file: HIDDEN, HARNESS, LIBRARY or PROGRAM."""
        kind = self._known.get(filename)
        if kind is None:
            kind = self._known[filename] = self._classify(filename)
        return kind

    def _classify(self, filename):
        if filename.startswith(self._runner):
            return HIDDEN
        if filename.startswith("<frozen "):
            return HARNESS
        if filename.startswith("<doctest "):
            return PROGRAM
        installed = any(part in filename for part in _INSTALLED)
        if not installed and not filename.startswith("<") and self._inside(filename):
            return PROGRAM
        if any(part in filename for part in _HARNESS_PARTS) or filename.endswith(_HARNESS_ENDS + _UNITTEST_ENDS):
            return HARNESS
        return LIBRARY

    def _inside(self, filename):
        return os.path.realpath(os.path.join(self._directory, filename)).startswith(self._workspace)

    def steppable(self, frame):
        """Returns True if stepping may stop in this frame.

        This is the case in the program, and in libraries that the program called. It is not the case in libraries that
        a test runner called.
        """
        while frame is not None:
            kind = self.of(frame.f_code.co_filename)
            if kind != LIBRARY:
                return kind == PROGRAM
            frame = frame.f_back
        return False


def interrupt_on_signal(debugger, number):
    """Install a handler of signal ``number`` that interrupts the program, or the command that is being evaluated.

    The handler itself starts the command loop. A stop at the next line would have to wait for the end of a sleep, a
    lock or another process.
    """

    def handle(_number, frame):
        if os.getpid() != debugger.pid:
            return
        if debugger.evaluating is not None:
            _interrupt_evaluation(debugger.evaluating)
        elif not debugger.interacting:
            _stop(debugger, frame)

    signal.signal(number, handle)


def _interrupt_evaluation(thread):
    if thread == threading.get_ident():
        raise KeyboardInterrupt
    # Signal handlers run only in the main thread, but the command runs in another thread.
    try:
        import ctypes

        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(KeyboardInterrupt))
    except (ImportError, AttributeError):
        pass


def _stop(debugger, frame):
    program_frame = _below_debugger(debugger, frame)
    if program_frame is not frame:
        # The signal arrived in the debugger's own code, so the program stops at its next line.
        debugger.set_step()
        debugger.arm(program_frame or frame)
        return
    sys.settrace(None)
    debugger.enterframe = frame
    debugger.interaction(frame, None)
    if debugger.tracing_needed():
        sys.settrace(debugger.tracer)


def _below_debugger(debugger, frame):
    """Returns the program's frame that called the debugger's own code, or ``frame`` if none did."""
    found = frame
    walk = frame
    while walk is not None:
        if debugger.owners.of(walk.f_code.co_filename) == HIDDEN:
            found = walk.f_back
        walk = walk.f_back
    return found
