"""Evaluates what the agent types in the current frame.

Two things that ``eval`` in a function's frame does not do: names of the function are visible inside comprehensions and
lambdas, and assignments to local variables stay, in every frame and however the program was stopped.
"""

import sys

_OPTIMIZED = 1  # inspect.CO_OPTIMIZED: the frame keeps its variables in slots, f_locals is a copy


def evaluate(expression, frame_globals, frame_locals):
    """The value of an expression."""
    code = compile(expression.strip(), "<string>", "eval")
    if frame_locals is frame_globals or not _nests(code):
        return eval(code, frame_globals, frame_locals)
    return eval(code, _merged(frame_globals, frame_locals), frame_locals)


def execute(statement, frame, frame_locals):
    """Run one statement; values of expressions go to ``sys.displayhook``."""
    code = compile(statement + "\n", "<stdin>", "single")
    frame_globals = frame.f_globals
    try:
        if frame_locals is frame_globals or not _nests(code):
            exec(code, frame_globals, frame_locals)
        else:
            _execute_merged(code, frame_globals, frame_locals)
    finally:
        if frame.f_code.co_flags & _OPTIMIZED and sys.version_info < (3, 13):
            _keep_locals(frame)


def _nests(code):
    return any(hasattr(constant, "co_code") for constant in code.co_consts)


def _merged(frame_globals, frame_locals):
    merged = dict(frame_globals)
    merged.update(frame_locals)
    return merged


def _execute_merged(code, frame_globals, frame_locals):
    merged = _merged(frame_globals, frame_locals)
    before = dict(merged)
    try:
        exec(code, merged, frame_locals)
    finally:
        absent = object()
        for name, value in merged.items():
            if before.get(name, absent) is not value and name != "__builtins__":
                frame_globals[name] = value


def _keep_locals(frame):
    # The interpreter copies f_locals back only for the frame whose trace function runs, and forgets changes as soon
    # as f_locals is read again.
    try:
        import ctypes

        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
    except (ImportError, AttributeError):
        pass
