"""Programs that create objects with fixed names in an IPC namespace, and that look for these objects.

They call the C library, because Python has no API for System V objects and POSIX message queues.
"""

KEY = 0x6479676D
COUNT = 6

LEAVE = f"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
mq_open = getattr(libc, "mq_open", None) or ctypes.CDLL("librt.so.1", use_errno=True).mq_open
created = [
    libc.shmget({KEY}, 4096, 0o1666),
    libc.shmget({KEY} + 1, 4096, 0o1600),
    libc.semget({KEY}, 3, 0o1666),
    libc.msgget({KEY}, 0o1666),
    mq_open(b"/dgym", os.O_CREAT | os.O_RDWR, 0o666, None),
    mq_open(b"/" + b"x" * 200, os.O_CREAT | os.O_RDWR, 0o600, None),
]
assert min(created) >= 0, (created, os.strerror(ctypes.get_errno()))
"""
"""Creates two segments of shared memory, a set of semaphores, a System V message queue and two POSIX queues."""

FOUND = f"""
import ctypes, os
libc = ctypes.CDLL(None)
mq_open = getattr(libc, "mq_open", None) or ctypes.CDLL("librt.so.1").mq_open
found = [
    libc.shmget({KEY}, 0, 0), libc.shmget({KEY} + 1, 0, 0), libc.semget({KEY}, 0, 0), libc.msgget({KEY}, 0),
    mq_open(b"/dgym", os.O_RDWR), mq_open(b"/" + b"x" * 200, os.O_RDWR),
]
print("found", sum(each >= 0 for each in found))
"""
"""Prints the number of objects that are found."""
