"""The runner's main loop: frames in, operations on worker threads, answers out; at the end no process is left."""

import errno
import queue
import threading
import traceback

from . import files
from . import operations
from .connection import FrameError, Request, RequestError

MAX_PENDING = 64
_MAX_WORKERS = 40
# Threads beyond these end when they find nothing to do: each keeps some memory.
_IDLE_WORKERS = 4


class Server(object):
    """Serves one client on one connection."""

    def __init__(self, connection, table):
        self._connection = connection
        self._table = table
        self._operations = operations.Operations(table)
        self._pending = {}
        self._lock = threading.Lock()
        self._queue = queue.Queue()
        self._workers = 0
        self._idle = 0
        self._backlog = 0

    def serve(self):
        """Serve until the client sends ``exit`` or closes the connection."""
        while True:
            frame = self._connection.receive()
            if frame is None or frame[0].get("op") == "exit":
                return
            self._dispatch(*frame)

    def end(self):
        """Kill every process and remove the private directory; True once no process is left."""
        self._connection.silence()
        clean = self._table.kill_all()
        if self._operations.scratch:
            try:
                files.remove(self._operations.scratch)
            except OSError:
                pass
        return clean

    def _dispatch(self, header, payload):
        ident, op = header.get("id"), header.get("op")
        if not isinstance(ident, int) or not isinstance(header.get("count", 1), int):
            raise FrameError("a request without id, or credit that is no number")
        with self._lock:
            request = self._pending.get(ident)
        if op in ("body", "credit", "cancel"):
            # A request that has been answered meanwhile: the frame crossed the answer on its way.
            if request is not None:
                self._continue(request, op, header, payload)
            return
        if request is not None:
            raise FrameError("request %d is in use" % ident)
        self._begin(Request(self._connection, ident, op, header.get("args") or {}, payload, header.get("more")))

    def _continue(self, request, op, header, payload):
        if op == "body":
            request.feed(payload, bool(header.get("more")))
        elif op == "credit":
            request.grant(header.get("count", 1))
        else:
            request.cancel()

    def _begin(self, request):
        with self._lock:
            if len(self._pending) >= MAX_PENDING:
                raise FrameError("more than %d requests at once" % MAX_PENDING)
            self._pending[request.ident] = request
            # Each request is assigned to a worker here, under the lock, so that no idle worker is counted twice.
            if self._idle:
                self._idle -= 1
            elif self._workers < _MAX_WORKERS and self._start_worker():
                self._workers += 1
            else:
                self._backlog += 1
        self._queue.put(request)

    def _start_worker(self):
        """False when a command has used up the tasks of the control group: the next free worker takes the request."""
        try:
            threading.Thread(target=self._work, daemon=True).start()
        except RuntimeError:
            if not self._workers:
                raise
            return False
        return True

    def _work(self):
        while True:
            try:
                self._answer(self._queue.get())
            except OSError:
                return  # the client is gone; the main loop ends this process
            with self._lock:
                if self._backlog:
                    self._backlog -= 1
                elif self._idle >= _IDLE_WORKERS:
                    self._workers -= 1
                    return
                else:
                    self._idle += 1

    def _answer(self, request):
        error = None
        try:
            self._operations.handle(request)
        except Exception as problem:
            error = describe(problem)
        with self._lock:
            del self._pending[request.ident]
        if error is not None:
            request.fail(error)


def describe(problem):
    """An exception as the protocol's error object."""
    if isinstance(problem, RequestError):
        return {"type": problem.kind, "message": str(problem)[:16384]}
    if isinstance(problem, OSError):
        return {
            "type": "os",
            "errno": problem.errno or errno.EIO,
            "message": problem.strerror or str(problem),
            "path": files.printable(problem.filename) if isinstance(problem.filename, (str, bytes)) else "",
        }
    text = "".join(traceback.format_exception(type(problem), problem, problem.__traceback__))
    return {"type": "internal", "message": text[-16384:]}
