"""File descriptors: moved out of the reach of programs, written to completely, spooled for a command, captured."""

import fcntl
import os


# Programs close or reuse low numbers that they do not know; a limit on open files may forbid the highest.
_LOWEST = (900, 200, 3)


def duplicate_high(descriptor):
    """A duplicate of ``descriptor``, close-on-exec, numbered above those that programs close or reuse."""
    for lowest in _LOWEST:
        try:
            return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, lowest)
        except (OSError, ValueError):
            continue
    return descriptor


def move_high(descriptor):
    """Move ``descriptor`` to such a number; returns the number."""
    moved = duplicate_high(descriptor)
    if moved != descriptor:
        os.close(descriptor)
    return moved


def identity(descriptor):
    """The open file of a descriptor, to notice when the number stands for another one; None when it is closed."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


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


MARK = b"\n[... %d bytes cut ...]\n"


class HeadAndTail(object):
    """Bounded capture of what a program writes: the first and the last half of ``limit`` bytes; the rest is counted."""

    def __init__(self, limit):
        self._half = max(1, limit // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def write(self, data):
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        # Of more than the tail can hold only the end is copied.
        self._dropped += max(0, len(data) - self._half)
        self._tail += data[-self._half :]
        # Trimming only at twice the size makes the copying linear in what is written.
        if len(self._tail) > 2 * self._half:
            self._trim()

    def finish(self):
        """The kept bytes with the cut marked between head and tail, and how many bytes were cut."""
        self._trim()
        if not self._dropped:
            return bytes(self._head + self._tail), 0
        head, tail = _without_partial_end(self._head), _without_partial_start(self._tail)
        cut = self._dropped + len(self._head) - len(head) + len(self._tail) - len(tail)
        return bytes(head + MARK % cut + tail), cut

    def reduce(self, limit):
        """Keep at most ``limit`` bytes from now on, if that is less than before."""
        self._trim()
        if self._dropped or len(self._head) + len(self._tail) > limit:
            self._half = min(self._half, max(1, limit // 2))
            self._tail[:0] = self._head[self._half :]
            del self._head[self._half :]
            self._trim()

    def text(self):
        """Like ``finish``, as text: what is not UTF-8 is replaced."""
        kept, cut = self.finish()
        return kept.decode("utf-8", "replace"), cut

    def _trim(self):
        excess = len(self._tail) - self._half
        if excess > 0:
            del self._tail[:excess]
            self._dropped += excess


def _without_partial_end(data):
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            width = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if width > back else data
        if byte < 0x80:
            break
    return data


def _without_partial_start(data):
    for index in range(min(4, len(data))):
        if not 0x80 <= data[index] < 0xC0:
            return data[index:]
    return data
