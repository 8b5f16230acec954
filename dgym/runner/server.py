"""The runner's server: receives requests, runs their operations on worker threads and sends the answers."""

import errno
import os
import queue
import threading
import traceback

from . import configuration
from . import execution
from . import files
from . import ipc
from . import processes
from . import trees
from .connection import FrameError, Invalid, Request, RequestError
from .descriptors import spool

_ACTIVATE_OUTPUT = 16 * 1024
MAX_PENDING = 64
_MAX_WORKERS = 40
# At most this number of idle threads is kept, because each thread needs memory.
_IDLE_WORKERS = 4
# Operations that run programs. A program may cause this process to end, so the start of these operations is reported.
_PROGRAMS = ("run", "shell", "debug")


class Server(object):
    """Serves one client on one connection."""

    def __init__(self, connection, table):
        self._connection = connection
        self._table = table
        self._operations = Operations(table)
        self._pending = {}
        self._lock = threading.Lock()
        self._queue = queue.Queue()
        self._workers = 0
        self._idle = 0
        self._backlog = 0

    def serve(self):
        """Serve until the client sends ``exit`` or closes the connection. Raises ``FrameError``."""
        while True:
            frame = self._connection.receive()
            if frame is None or frame[0].get("op") == "exit":
                return
            self._dispatch(*frame)

    def end(self):
        """Kill every process and remove the private directory. Returns True if no process is left."""
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
            raise FrameError("a request without id, or credit that is not a number")
        with self._lock:
            request = self._pending.get(ident)
        if op in ("body", "credit", "cancel"):
            # A request is unknown here if it was answered before its last frame arrived.
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
            # Workers are counted here, under the lock, so that an idle worker is not counted for two requests.
            if self._idle:
                self._idle -= 1
            elif self._workers < _MAX_WORKERS and self._start_worker():
                self._workers += 1
            else:
                self._backlog += 1
        self._queue.put(request)

    def _start_worker(self):
        """Start a worker thread.

        Returns False if a command has used up the task limit of the control group. The next free worker then takes the
        request. Raises RuntimeError without any worker.
        """
        try:
            processes.start_thread(self._work, "worker")
        except RuntimeError:
            if not self._workers:
                raise
            return False
        return True

    def _work(self):
        while True:
            try:
                self._answer(self._queue.get())
            except ConnectionError:
                return  # the main loop also fails to read, and ends this process
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
            if request.op in _PROGRAMS:
                request.acknowledge()
            self._operations.handle(request)
        except Exception as problem:
            error = describe(problem)
        with self._lock:
            del self._pending[request.ident]
        if error is not None:
            request.fail(error)


def describe(problem):
    """Returns the protocol's error object for an exception."""
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


class Operations(object):
    """The operations on a workspace. Each method ``do_<op>`` executes a request and answers it."""

    def __init__(self, table):
        self._table = table
        self._configuration = None
        self._shell = None
        self._trees = None
        self._changed = None
        self._debugger = None
        self._debugging = threading.Lock()

    @property
    def scratch(self):
        """The private directory, or None before ``configure``."""
        return self._configuration.scratch if self._configuration else None

    def handle(self, request):
        """Execute one request and answer it. Raises ``Invalid`` and the exceptions of the operation."""
        method = getattr(self, "do_%s" % request.op, None)
        if method is None:
            raise Invalid("unknown operation %r" % (request.op,))
        if self._configuration is None and request.op != "configure":
            raise Invalid("configure comes first")
        method(request, **request.args)

    def do_configure(self, request, workspace, environment, activate, python, limits, inherit):
        if self._configuration is not None:
            raise Invalid("configured already")
        bounds = configuration.Limits(**limits)
        scratch = configuration.make_scratch()
        os.makedirs(workspace, exist_ok=True)
        base = configuration.base_environment(scratch, python, inherit, environment)
        config = self._configuration = configuration.Configuration(workspace, base, scratch)
        self._table.set_limits(bounds)
        self._trees = trees.Trees(self._table, config)
        processes.Watchdog(self._table, bounds).start()
        self._shell = execution.Shell(self._table, config)
        self._changed = trees.ChangedPaths(workspace)
        if activate:
            config.environment = configuration.activated_environment(activate, self._run_with_report)
        request.answer({"pid": os.getpid(), "workspace": workspace, "scratch": scratch})

    def _run_with_report(self, line, timeout):
        environment = self._configuration.environment
        job = execution.Job(self._table, timeout, _ACTIVATE_OUTPUT)
        argv = execution.shell_argv(line, environment)
        return job.run(argv, environment, self._configuration.workspace, report=True)

    def do_run(self, request, command, cwd, environment, timeout, limit, report):
        config = self._configuration
        env = dict(config.environment, **environment)
        argv = execution.shell_argv(command, env) if isinstance(command, str) else command
        directory = config.path(cwd or "")
        stdin = spool(request.body(), os.path.join(config.scratch, "state"))
        job = execution.Job(self._table, timeout, limit, request.cancelled)
        result, text, reported = job.run(argv, env, directory, stdin, report)
        result["output_bytes"] = len(text)
        request.answer(result, text + reported)

    def do_shell(self, request, command, timeout, limit):
        result, text = self._shell.run(command, timeout, limit, request.cancelled)
        result["output_bytes"] = len(text)
        request.answer(result, text)

    def do_stat(self, request):
        request.answer([files.describe(self._configuration.path(path), path) for path in request.names()])

    def do_list(self, request, path, depth, limit):
        request.answer(files.list_directory(self._configuration.path(path), depth, limit))

    def do_read(self, request, path, limit):
        descriptor, size = files.open_regular(self._configuration.path(path), limit)
        chunks = files.read_chunks(descriptor, limit)
        if size <= 64 * 1024:
            request.answer({}, b"".join(chunks))
        else:
            self._send(request, chunks)

    def do_write(self, request, path, mode):
        files.write_atomically(self._configuration.path(path), request.body(), mode)
        request.answer({})
        if self._debugger is not None and self._debugging.acquire(False):
            try:
                self._debugger.prepare()
            finally:
                self._debugging.release()

    def do_remove(self, request):
        root = os.path.realpath(self._configuration.workspace)
        for path in request.names():
            absolute = self._configuration.path(path)
            if (root + "/").startswith(absolute.rstrip("/") + "/"):
                raise OSError(errno.EBUSY, "the workspace itself cannot be removed", path)
            files.remove(absolute)
        request.answer({})

    def do_manifest(self, request, limit):
        descriptor = self._trees.manifest(limit)
        self._send(request, files.read_chunks(descriptor, os.fstat(descriptor).st_size))

    def do_changed(self, request, limit):
        self._send(request, self._changed.lines(limit))

    def do_digest(self, request, begin, limit):
        sha256, paths = ("", self._changed.begin(limit)) if begin else self._changed.digest(limit)
        request.answer({"sha256": sha256, "paths": paths})

    def do_unpack(self, request, path):
        self._trees.unpack(self._configuration.path(path), request.body())
        request.answer({})

    def do_pack(self, request, path):
        self._trees.pack(self._configuration.path(path), request.body(), request.send_chunk)
        request.answer({})

    def do_debug(self, request, **fields):
        with self._debugging:
            if self._debugger is None:
                # Imported on first use to save memory in episodes that do not debug.
                from .debugger.host import DebugHost

                self._debugger = DebugHost(self._configuration, self._table)
            answer = self._debugger.handle(stdin=b"".join(request.body()), **fields)
        request.answer(answer)

    def do_processes(self, request):
        request.answer(sorted(self._table.alive()))

    def do_end_processes(self, request):
        count, clean = self._table.end_all()
        if not clean:
            raise OSError(errno.EBUSY, "processes are left that cannot be killed")
        request.answer(count)

    def do_clear_ipc(self, request):
        removed, left = ipc.clear()
        request.answer({"removed": removed, "left": left})

    @staticmethod
    def _send(request, chunks):
        for chunk in chunks:
            request.send_chunk(chunk)
        request.answer({})
