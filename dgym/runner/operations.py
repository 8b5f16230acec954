"""The operations of the protocol, one method each."""

import errno
import os
import sys
import threading

from . import configuration
from . import execution
from . import files
from . import trees
from . import watchdog
from .connection import Invalid
from .descriptors import spool

VERSION = 1
_ACTIVATE_OUTPUT = 16 * 1024


class Operations(object):
    """The operations on one configured workspace. Methods named ``do_<op>`` take a request and answer it."""

    def __init__(self, table):
        self._table = table
        self._configuration = None
        self._shell = None
        self._trees = None
        self._debugger = None
        self._debugging = threading.Lock()

    @property
    def scratch(self):
        """The private directory to remove at the end; None before ``configure``."""
        return self._configuration.scratch if self._configuration else None

    def handle(self, request):
        """Execute one request and answer it."""
        method = getattr(self, "do_%s" % request.op, None)
        if method is None:
            raise Invalid("there is no operation %r" % (request.op,))
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
        watchdog.Watchdog(self._table, bounds).start()
        self._shell = execution.Shell(self._table, config)
        self._trees = trees.Trees(self._table, config)
        if activate:
            config.environment = configuration.activated_environment(activate, self._run_with_report)
        request.answer(
            {
                "version": VERSION,
                "python": "%d.%d.%d" % sys.version_info[:3],
                "pid": os.getpid(),
                "token": self._table.token,
                "workspace": workspace,
                "runner_directory": configuration.RUNNER_DIRECTORY,
                "scratch": scratch,
                "environment": {files.printable(k): files.printable(v) for k, v in config.environment.items()},
            }
        )

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

    def do_unpack(self, request, path):
        self._trees.unpack(self._configuration.path(path), request.body())
        request.answer({})

    def do_pack(self, request):
        self._trees.pack(request.body(), request.send_chunk)
        request.answer({})

    def do_debug(self, request, **fields):
        with self._debugging:
            if self._debugger is None:
                # Only here, since most of its memory is needed only by episodes that debug.
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

    @staticmethod
    def _send(request, chunks):
        for chunk in chunks:
            request.send_chunk(chunk)
        request.answer({})
