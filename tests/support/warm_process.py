"""Process that has imported modules and forks processes for tests, which would otherwise import them each time."""

import json
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import Self

_SERVE = """
import array, json, os, socket, sys

requests = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, int(sys.argv[1]))
while True:
    data, ancillary, _, _ = requests.recvmsg(262144, socket.CMSG_SPACE(4))
    if not data:
        break
    message = json.loads(data.decode())
    if not ancillary:
        requests.send(json.dumps(os.waitpid(*message)).encode())
        continue
    descriptor = array.array("i", ancillary[0][2])[0]
    pid = os.fork()
    if pid == 0:
        requests.close()
        os.environ.clear()
        os.environ.update(message)
        start(descriptor)
    os.close(descriptor)
    requests.send(json.dumps([pid, 0]).encode())
"""
"""Runs under Python 3.6 too. A message with a descriptor forks a process. A message without one waits for a process."""


class WarmProcess:
    """Forks processes. Each has its own environment variables.

    Args:
        python: The command of the interpreter, with its options.
        program: Python code that imports the modules and defines ``start(descriptor)``, which must not return.
        environment: Environment variables of the process that forks. None: those of this process.
    """

    def __init__(self, python: Sequence[str], program: str, environment: Mapping[str, str] | None = None) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [*python, "-c", program + _SERVE, str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environment
            )

    def fork(self, descriptor: int, environment: Mapping[str, str]) -> int:
        """Start a process that calls ``start`` with a copy of the descriptor. Returns its process id."""
        socket.send_fds(self._requests, [json.dumps(dict(environment)).encode()], [descriptor])
        return self._answer()[0]

    def waitpid(self, pid: int, options: int = 0) -> tuple[int, int]:
        """Call ``os.waitpid`` for a forked process and return its result. ``os.WNOHANG`` does not wait for its end."""
        self._requests.send(json.dumps([pid, options]).encode())
        return self._answer()

    def _answer(self) -> tuple[int, int]:
        answer = self._requests.recv(64)
        assert answer, "the process that forks has ended"
        pid, status = json.loads(answer)
        return pid, status

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.close()
        self._process.wait(90)
