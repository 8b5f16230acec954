"""Functions for file descriptors, and bounded capture of output."""

import fcntl
import os


# Programs close or reuse low descriptor numbers. A limit on open files may forbid high numbers, so several are tried.
_LOWEST = (900, 200, 3)


def duplicate_high(descriptor):
    """Returns a close-on-exec duplicate of ``descriptor`` with a number that programs do not close or reuse.

    Returns ``descriptor`` itself if every attempt fails.
    """
    for lowest in _LOWEST:
        try:
            return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, lowest)
        except (OSError, ValueError):
            continue
    return descriptor


def move_high(descriptor):
    """Move ``descriptor`` to a high number, as in ``duplicate_high``, and return that number."""
    moved = duplicate_high(descriptor)
    if moved != descriptor:
        os.close(descriptor)
    return moved


def identity(descriptor):
    """Returns device and inode of the open file, or None if the descriptor is closed.

    A program may close a descriptor and open another file under the same number. Then the identity differs.
    """
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def write_all(descriptor, data):
    """Write all of ``data``; raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def spool(chunks, directory):
    """Write the chunks to an unlinked file, as standard input of a command.

    With a file, unlike a pipe, neither the command nor the runner waits for the other. Returns a descriptor at the
    start of the file, or None without chunks.
    """
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
    """Bounded capture of a program's output.

    Keeps the first ``limit / 2`` bytes and the last ``limit / 2`` bytes, and counts the bytes in between.
    """

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
        # Bytes that exceed the tail are not copied.
        self._dropped += max(0, len(data) - self._half)
        self._tail += data[-self._half :]
        # Trimming at each write would copy the tail each time. Trimming at twice the size keeps the cost linear.
        if len(self._tail) > 2 * self._half:
            self._trim()

    def finish(self):
        """Returns the captured bytes, with a mark between head and tail, and the number of bytes that were cut."""
        self._trim()
        if not self._dropped:
            return bytes(self._head + self._tail), 0
        head, tail = _without_partial_end(self._head), _without_partial_start(self._tail)
        cut = self._dropped + len(self._head) - len(head) + len(self._tail) - len(tail)
        return bytes(head + MARK % cut + tail), cut

    def reduce(self, limit):
        """Lower the limit to ``limit`` bytes; a higher limit has no effect."""
        self._trim()
        if self._dropped or len(self._head) + len(self._tail) > limit:
            self._half = min(self._half, max(1, limit // 2))
            self._tail[:0] = self._head[self._half :]
            del self._head[self._half :]
            self._trim()

    def text(self):
        """Like ``finish``, but decoded; bytes that are not UTF-8 are replaced."""
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
