"""Bounded capture: the head and the tail of whatever a program writes, however much that is."""

MARK = b"\n[... %d bytes cut ...]\n"


class HeadAndTail(object):
    """Keeps the first and the last half of ``limit`` bytes and counts what fell between."""

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
