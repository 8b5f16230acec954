"""File descriptors: moved out of the reach of programs, written to completely, filled for a command to read."""

import fcntl
import os

# Programs close or reuse low numbers that they do not know; a limit on open files may forbid the highest place.
_LOWEST = (900, 200, 3)


def duplicate_high(descriptor):
    """``descriptor`` once more, close-on-exec, where a program that closes or reuses low numbers does not meet it."""
    for lowest in _LOWEST:
        try:
            return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, lowest)
        except (OSError, ValueError):
            continue
    return descriptor


def move_high(descriptor):
    """Move ``descriptor`` to such a place; returns its new number."""
    moved = duplicate_high(descriptor)
    if moved != descriptor:
        os.close(descriptor)
    return moved


def write_all(descriptor, data):
    """Write all of ``data``; raises ``OSError``."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def spool(chunks, directory):
    """Standard input for a command: an unlinked file, so that neither side waits for the other. None when empty."""
    descriptor = None
    for chunk in chunks:
        if descriptor is None:
            path = os.path.join(directory, "stdin-%s" % os.urandom(6).hex())
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            os.unlink(path)
        write_all(descriptor, chunk)
    if descriptor is not None:
        os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
