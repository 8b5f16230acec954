"""Call a function with the runner's frames taken out of its stack.

Code that walks the stack inside the function (``f_back``, ``inspect.stack``, ``traceback``) finds a given frame of the
program as the caller. The thread must not be traced before the call: from Python 3.12 on, a trace function would get
that frame in place of the runner's.

Python has no function for this. The interpreter links a new frame to the current frame of the thread state, and
``ctypes`` replaces the pointer to that frame during the call. The pointer is replaced only if its value is the address
of the frame that reads it, which proves that it is the right word. Otherwise (another implementation or version, a
Python without ``ctypes``) the function is called as usual, and the runner's frames are on its stack.
"""

import functools
import sys

try:
    import ctypes  # here, because later a module of the program may have this name
except Exception:  # missing, or forbidden to allocate executable memory
    ctypes = None

_KNOWN = ctypes is not None and sys.implementation.name == "cpython" and (3, 6) <= sys.version_info[:2] <= (3, 13)
_OWN_FRAMES = sys.version_info >= (3, 11)  # the interpreter's frames are not the objects that Python code sees
_HEADER = object.__basicsize__
_STATE_WORDS = 32


def call_from(frame, function, *arguments):
    """The result of ``function(*arguments)``, called as if by ``frame``, or by nothing if ``frame`` is None."""
    # partial calls it from C: a function that Python code calls is linked to this frame, not to the current one.
    call = functools.partial(function, *arguments)
    current = _current_frame()
    if current is None or current.value != _address(sys._getframe()):
        return call()
    finished = None if frame is None else _end_link(frame)
    own, other = ctypes.c_void_p(current.value), _address(frame)
    place = ctypes.c_void_p(ctypes.addressof(current))
    if frame is None and sys.version_info >= (3, 12):
        # If the function has begun to trace, the interpreter looks for the current frame as soon as an exception
        # arrives here: before ``finally``.
        call = _ending_with(call, functools.partial(ctypes.memmove, place, ctypes.addressof(own), ctypes.sizeof(own)))
    calls = [call]
    del call
    try:
        current.value = other
        return calls.pop()()
    finally:
        current.value = own.value
        place.value = ctypes.addressof(own)  # should anything have kept the object that is called
        if finished is not None:
            _unlink(finished, frame)


def _ending_with(call, end):
    """An object to call, which calls ``end`` when it is freed: by C code alone, as soon as the call has ended."""
    members = {"__slots__": (), "__call__": staticmethod(call), "__del__": staticmethod(end)}
    found = type("Call", (), members)()
    # Code that keeps all objects that the garbage collector shows must not keep this one.
    ctypes.pythonapi.PyObject_GC_UnTrack(ctypes.py_object(found))
    return found


def _end_link(frame):
    """Set the pointer from a finished frame to its frame object, and return its word; None if the frame is running.

    The interpreter clears this pointer when a frame finishes. Code that then walks to the frame would make a second
    frame object, and both objects would free the frame's variables.
    """
    if not _OWN_FRAMES:
        return None
    link = _word(_address(frame), 5 if sys.version_info < (3, 12) else 6)
    if link.value is not None:
        return None
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(frame))
    link.value = id(frame)
    return link


def _unlink(link, frame):
    link.value = None
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(frame))


def _address(frame):
    """The address by which a thread state refers to this frame; None for None."""
    if frame is None:
        return None
    # A frame object begins with its header and f_back; the address of the interpreter's frame follows.
    return _word(id(frame) + _HEADER, 1).value if _OWN_FRAMES else id(frame)


def _word(address, index):
    return ctypes.c_void_p.from_address(address + index * ctypes.sizeof(ctypes.c_void_p))


def _current_frame():
    """The word of this thread's state that points to the current frame; None if its place is not known."""
    if not _KNOWN:
        return None
    get_state = ctypes.pythonapi.PyThreadState_Get
    get_state.restype = ctypes.c_void_p
    state = get_state()
    if sys.version_info < (3, 11):
        return _word(state, 3)  # after the states of other threads, and the interpreter
    if sys.version_info < (3, 13):
        # After those and seven int: a structure, which begins with one more word in 3.11.
        words = 3 + -(-7 * ctypes.sizeof(ctypes.c_int) // ctypes.sizeof(ctypes.c_void_p))
        return _word(_word(state, words).value, 1 if sys.version_info < (3, 12) else 0)
    own = _address(sys._getframe())
    for index in range(_STATE_WORDS):
        word = ctypes.c_void_p.from_address(state + index * ctypes.sizeof(ctypes.c_void_p))
        if word.value == own:
            return word
    return None
