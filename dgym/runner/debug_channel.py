"""The debugged program's end of the connection to its debugger."""

import fcntl
import os
import resource

from debug_wire import Decoder, encode

_HIGH = 900


def out_of_reach(descriptor):
    """Move a descriptor to where programs that close or reuse low numbers do not find it."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    lowest = _HIGH if limit == resource.RLIM_INFINITY or limit > _HIGH + 16 else max(limit - 16, 10)
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, lowest)
    os.close(descriptor)
    return moved


class Channel(object):
    """Frames to and from the host. Silent in forked children and when the program took the descriptor."""

    def __init__(self, descriptor):
        self._descriptor = out_of_reach(descriptor)
        self._identity = self._look()
        self._pid = os.getpid()
        self._decoder = Decoder()

    def _look(self):
        try:
            found = os.fstat(self._descriptor)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def usable(self):
        """Whether the descriptor is still ours."""
        return os.getpid() == self._pid and self._look() == self._identity

    def send(self, message):
        """Send one frame; False when nobody listens."""
        if not self.usable():
            return False
        data = memoryview(encode(message))
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:
            return False
        return True

    def receive(self):
        """The next frame, or None when there will be none."""
        while True:
            message = self._decoder.next()
            if message is not None:
                return message
            try:
                data = os.read(self._descriptor, 65536) if self.usable() else b""
            except OSError:
                data = b""
            if not data:
                return None
            self._decoder.feed(data)
