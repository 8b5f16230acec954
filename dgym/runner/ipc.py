"""Removes the System V objects and POSIX message queues of an IPC namespace, which outlive their processes.

The containers of a pod share the IPC namespace. Programs in the verifier could open objects that the sandbox left.
"""

import os

_QUEUES = "/dev/mqueue"
_SYSTEM_V = "/proc/sysvipc"
_IPC_RMID = 0
# The table below /proc/sysvipc, its column with the identifier, and the C function that removes an object.
_KINDS = (("shm", "shmid", "shmctl"), ("sem", "semid", "semctl"), ("msg", "msqid", "msgctl"))
_SHM_DEST = 0o1000
_MACHINE = 0xEFFFFFFF
"""Inode of the initial IPC namespace. It is the same on every Linux machine."""


def clear():
    """Remove all objects of the container's IPC namespace.

    Removes nothing in the initial namespace, whose objects belong to the machine, or if this process is not PID 1. A
    removed segment with attached processes is destroyed when they end. No other process can attach to it by its key.

    Returns:
        The number of objects that were removed, and the number that are left.
    """
    if _is_host_namespace():
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


def _is_host_namespace():
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
        return  # the caller counts the objects as left
    for function, ident in objects:
        call = getattr(library, function)
        if function == "semctl":
            call(ident, 0, _IPC_RMID)
        else:
            call(ident, _IPC_RMID, None)


def _objects():
    """Returns the names of the queues, and a pair of removing function and identifier for each System V object."""
    try:
        queues = os.listdir(_QUEUES)
    except OSError:
        queues = []
    found = []
    for table, column, function in _KINDS:
        found.extend((function, int(row[column])) for row in _rows(table) if not _is_marked_for_removal(row))
    return queues, found


def _is_marked_for_removal(row):
    return "shmid" in row and int(row["perms"], 8) & _SHM_DEST


def _rows(table):
    try:
        with open(os.path.join(_SYSTEM_V, table)) as lines:
            columns = lines.readline().split()
            return [dict(zip(columns, line.split())) for line in lines]  # noqa: B905 - Python 3.6 has no strict
    except OSError:
        return []
