"""The two things only the C library can do for us; either may be missing: not every Python has ctypes or glibc."""

_PR_SET_CHILD_SUBREAPER = 36
_M_ARENA_MAX = -8


def become_subreaper():
    """Have orphaned descendants handed to this process, not to init, so that none can leave our sight."""
    return _call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def share_one_heap():
    """Keep one heap for all threads: one for each costs more memory than the contention it saves is worth."""
    _call("mallopt", _M_ARENA_MAX, 1)


def _call(name, *arguments):
    try:
        import ctypes

        return getattr(ctypes.CDLL(None), name)(*arguments)
    except (ImportError, OSError, AttributeError):
        return None
