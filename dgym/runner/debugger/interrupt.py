"""Stops a running program on a signal, whatever it does: loops, sleep, locks, waits for other processes.

The handler opens the command loop itself. Merely asking for a stop at the next line would wait for the sleep to end.
"""

import os
import signal
import sys
import threading

from .tracing import HIDDEN

_STARTERS = ("/debugger/program.py", "/debugger/driver.py")  # below every frame of the program


def install(debugger, number):
    """Have signal ``number`` interrupt the program, or the command that is being evaluated."""

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
    # Handlers run in the main thread only; the command runs in another one, stopped at a breakpoint of its own.
    try:
        import ctypes

        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(KeyboardInterrupt))
    except (ImportError, AttributeError):
        pass


def _stop(debugger, frame):
    program_frame = _below_debugger(debugger, frame)
    if program_frame is not frame:
        # The trace function is at work: the program stops at its next line.
        debugger.set_step()
        debugger.arm(program_frame or frame)
        return
    sys.settrace(None)
    debugger.enterframe = frame
    debugger.interaction(frame, None)
    if debugger.tracing_needed():
        sys.settrace(debugger.trace)


def _below_debugger(debugger, frame):
    """``frame`` itself, or the program's frame in which the debugger's own code was called."""
    found = frame
    walk = frame
    while walk is not None:
        filename = walk.f_code.co_filename
        if debugger.owners.of(filename) == HIDDEN and not filename.endswith(_STARTERS):
            found = walk.f_back
        walk = walk.f_back
    return found
