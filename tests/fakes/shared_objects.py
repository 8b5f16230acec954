"""Programs that leave objects in an IPC namespace under names that others know, and that look for them there.

They call the C library: Python has no other way to System V objects and message queues.
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
"""Leaves two segments of shared memory, a set of semaphores, a queue of System V and two of POSIX."""

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
"""Prints how many of them are found."""
