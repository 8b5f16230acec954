"""Removal of what outlives its processes in an IPC namespace: System V objects and POSIX message queues.

The containers of a pod share the namespace. What a sandbox left there would be found by the programs of the verifier.
"""

import os

_QUEUES = "/dev/mqueue"
_SYSTEM_V = "/proc/sysvipc"
_IPC_RMID = 0
# The kernel's table, the column of the identifier, and the call that removes an object.
_KINDS = (("shm", "shmid", "shmctl"), ("sem", "semid", "semctl"), ("msg", "msqid", "msgctl"))
_SHM_DEST = 0o1000
_MACHINE = 0xEFFFFFFF
"""The number of the namespace that the kernel begins with, on every machine."""


def clear():
    """Remove all objects of this container's IPC namespace; returns how many were removed and how many are left.

    Elsewhere nothing is removed: the objects are the machine's. A segment that a process is attached to goes with that
    process. Nobody finds it by its key any more.
    """
    if _is_the_machines():
        return 0, 0
    before = _objects()
    queues, objects = before
    if os.getpid() != 1:
        return 0, _count(before)
    for name in queues:
        try:
            os.unlink(os.path.join(_QUEUES, name))
        except OSError:
            pass
    _remove(objects)
    left = _count(_objects())
    return max(0, _count(before) - left), left


def _is_the_machines():
    try:
        return os.stat("/proc/self/ns/ipc").st_ino == _MACHINE
    except OSError:
        return False


def _count(objects):
    return sum(len(each) for each in objects)


def _remove(objects):
    try:
        import ctypes

        library = ctypes.CDLL(None)
    except (ImportError, OSError):
        return  # They are counted as left.
    for function, ident in objects:
        call = getattr(library, function)
        if function == "semctl":
            call(ident, 0, _IPC_RMID)
        else:
            call(ident, _IPC_RMID, None)


def _objects():
    """Names of queues, and System V objects as pairs of the call that removes one and its identifier."""
    try:
        queues = os.listdir(_QUEUES)
    except OSError:
        queues = []
    found = []
    for table, column, function in _KINDS:
        found.extend((function, int(row[column])) for row in _rows(table) if not _goes_with_its_processes(row))
    return queues, found


def _goes_with_its_processes(row):
    return "shmid" in row and int(row["perms"], 8) & _SHM_DEST


def _rows(table):
    try:
        with open(os.path.join(_SYSTEM_V, table)) as lines:
            columns = lines.readline().split()
            return [dict(zip(columns, line.split())) for line in lines]  # noqa: B905 - Python 3.6 has no strict
    except OSError:
        return []
