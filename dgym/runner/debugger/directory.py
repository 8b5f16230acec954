"""The private directory of one debugged shell command, which the runner and the programs of the command share.

It holds the hooks that starting interpreters find (``hook`` on PYTHONPATH, ``bin`` on PATH), the claim file of the
program that is debugged, and the socket and the pipe that this program connects to.
"""

import os

HOOK = "hook"
PROGRAMS = "bin"
CLAIM = "claimed"
SOCKET = "socket"
TRACES = "traces"
_PASSED = "passed"
_LONGEST_LINE = 200
_LINES = 5


def is_unclaimed(session):
    """Whether no program is debugged yet in the session, and the session has not ended."""
    return os.path.isdir(session) and not os.path.exists(os.path.join(session, CLAIM))


def record_passed(session, words):
    """Record a program that is not debugged, for the message when there is no other."""
    line = " ".join([os.path.basename(words[0])] + words[1:]).replace("\n", " ")[:_LONGEST_LINE]
    try:
        with open(os.path.join(session, _PASSED), "a") as stream:
            stream.write(line.encode("ascii", "backslashreplace").decode("ascii") + "\n")
    except OSError:
        pass


def cleaned(environment, session):
    """The environment without the session's entries."""
    environment = dict(environment)
    for variable, entry in (("PATH", PROGRAMS), ("PYTHONPATH", HOOK)):
        entries = environment.get(variable, "").split(os.pathsep)
        kept = [each for each in entries if each != os.path.join(session, entry)]
        if len(kept) < len(entries):
            environment[variable] = os.pathsep.join(kept)
            if not kept:
                del environment[variable]
    if environment.get("_", "").startswith(session):
        del environment["_"]  # bash puts the path of each program there
    return environment


def passed_programs(session):
    """The first programs that were not debugged."""
    try:
        with open(os.path.join(session, _PASSED)) as stream:
            return [line for line in (stream.readline().strip() for _ in range(_LINES)) if line]
    except (OSError, ValueError):
        return []


def at_directory(directory, operation, name):
    """Call ``operation`` with a short path of ``name`` in the directory: a socket's path has at most 107 bytes."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        return operation("/proc/self/fd/%d/%s" % (descriptor, name))
    finally:
        os.close(descriptor)
