"""Takes over the first Python program that a shell command starts: the process becomes the debugger's driver.

The program that creates the claim file is debugged; later ones run as if there were no debugger.
"""

import os
import socket

from .debug_directory import CLAIM, SOCKET, TRACES, at_directory, cleaned, note
from .debug_wire import FDS_VARIABLE, encode
from .launch_choice import LAUNCHER, PROGRAM, role, without_coverage

DRIVER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "debug_driver.py")

# tox gives its programs a new environment; versions 3 and 4 each have a variable that lets another variable through.
_TOX_PASSES_PYTHONPATH = {"TOX_TESTENV_PASSENV": "PYTHONPATH", "TOX_OVERRIDE": "testenv.pass_env+=PYTHONPATH"}


def consider(session, launch, environment):
    """Become the debugger's driver if ``launch`` is the program to debug; does not return then.

    Otherwise returns the environment that the program is to start with.
    """
    found = role(launch)
    if found == PROGRAM and _claim(session):
        _become_driver(session, without_coverage(launch), cleaned(environment, session))
    note(session, launch.command())
    return dict(_TOX_PASSES_PYTHONPATH, **environment) if found == LAUNCHER else cleaned(environment, session)


def _claim(session):
    try:
        os.close(os.open(os.path.join(session, CLAIM), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError:
        return False
    return True


def _become_driver(session, launch, environment):
    channel = socket.socket(socket.AF_UNIX)
    at_directory(session, channel.connect, SOCKET)
    channel.sendall(encode(dict(launch.fields(), type="hello")))
    traces = os.open(os.path.join(session, TRACES), os.O_WRONLY)
    descriptors = (channel.detach(), traces)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, True)
    environment[FDS_VARIABLE] = "%d,%d" % descriptors
    os.execve(launch.python, [launch.python] + launch.flags + [DRIVER], environment)
