"""Call a function without the runner's frames on its stack.

Code that walks the stack inside the function (``f_back``, ``inspect.stack``, ``traceback``) finds a given frame of the
program as the caller. The thread must not be traced before the call: from Python 3.12 on, a trace function would get
that frame in place of the runner's.

Python has no function for this. The interpreter links a new frame to the current frame of the thread state, and
``ctypes`` replaces the pointer to that frame during the call. The pointer is replaced only if its value is the address
of the frame that reads it, which proves that the location is correct. Otherwise (another implementation or version, a
Python without ``ctypes``) the function is called as usual, and the runner's frames are on its stack.
"""

import functools
import sys

try:
    import ctypes  # not imported later, because a module of the program may have this name
except Exception:  # missing, or forbidden to allocate executable memory
    ctypes = None

_KNOWN = ctypes is not None and sys.implementation.name == "cpython" and (3, 6) <= sys.version_info[:2] <= (3, 13)
_OWN_FRAMES = sys.version_info >= (3, 11)  # the interpreter has frames that are separate from the frame objects
_HEADER = object.__basicsize__
_STATE_WORDS = 32


def call_from(frame, function, *arguments):
    """Returns ``function(*arguments)``, with ``frame`` as the caller, or without a caller if ``frame`` is None."""
    # functools.partial calls the function from C. A function that Python code calls is linked to the frame of that
    # code, and not to the current frame of the thread state.
    call = functools.partial(function, *arguments)
    current = _current_frame()
    if current is None or current.value != _address(sys._getframe()):
        return call()
    finished = None if frame is None else _end_link(frame)
    own, other = ctypes.c_void_p(current.value), _address(frame)
    place = ctypes.c_void_p(ctypes.addressof(current))
    if frame is None and sys.version_info >= (3, 12):
        # If the function has started tracing, the interpreter reads the current frame as soon as an exception reaches
        # this function, before ``finally`` restores the pointer.
        call = _ending_with(call, functools.partial(ctypes.memmove, place, ctypes.addressof(own), ctypes.sizeof(own)))
    calls = [call]
    del call
    try:
        current.value = other
        return calls.pop()()
    finally:
        current.value = own.value
        place.value = ctypes.addressof(own)  # makes a later call of ``end`` harmless, if the object is still referenced
        if finished is not None:
            _unlink(finished, frame)


def _ending_with(call, end):
    """Returns a callable that calls ``call``, and calls ``end`` when it is freed.

    C code frees it as soon as the call has ended.
    """
    members = {"__slots__": (), "__call__": staticmethod(call), "__del__": staticmethod(end)}
    found = type("Call", (), members)()
    # The program may keep a reference to every object that gc.get_objects() returns. This object must be freed.
    ctypes.pythonapi.PyObject_GC_UnTrack(ctypes.py_object(found))
    return found


def _end_link(frame):
    """Set the pointer from a finished frame to its frame object.

    The interpreter clears this pointer when a frame finishes. Code that walks the stack to that frame would create a
    second frame object, and both objects would free the frame's variables.

    Returns:
        The pointer as a ``c_void_p``, or None if the frame is still running.
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
    """Returns the address with which a thread state refers to this frame, or None for None."""
    if frame is None:
        return None
    # In a frame object, the address of the interpreter's frame follows the object header and f_back.
    return _word(id(frame) + _HEADER, 1).value if _OWN_FRAMES else id(frame)


def _word(address, index):
    return ctypes.c_void_p.from_address(address + index * ctypes.sizeof(ctypes.c_void_p))


def _current_frame():
    """Returns the pointer to the current frame in this thread's state, or None if its location is not known."""
    if not _KNOWN:
        return None
    get_state = ctypes.pythonapi.PyThreadState_Get
    get_state.restype = ctypes.c_void_p
    state = get_state()
    if sys.version_info < (3, 11):
        return _word(state, 3)  # after two pointers to other thread states and one to the interpreter state
    if sys.version_info < (3, 13):
        # After those three pointers and seven ints, there is a pointer to a structure. In 3.11, the structure has one
        # more word before the pointer to the frame.
        words = 3 + -(-7 * ctypes.sizeof(ctypes.c_int) // ctypes.sizeof(ctypes.c_void_p))
        return _word(_word(state, words).value, 1 if sys.version_info < (3, 12) else 0)
    own = _address(sys._getframe())
    for index in range(_STATE_WORDS):
        word = ctypes.c_void_p.from_address(state + index * ctypes.sizeof(ctypes.c_void_p))
        if word.value == own:
            return word
    return None
