"""The debugger's part inside the runner: starts the program when a command needs it, and answers every command.

The session's breakpoints come with each request and go back with each answer, so that they outlive the program.
"""

import os
import time

from ..descriptors import spool
from ..launch import LaunchRefused
from ..output import HeadAndTail
from . import parsing
from .process import INTERRUPT, TRACEBACK, Program, describe
from .start import make_start
from .takeover import ShellLaunch, choose
from .wire import breakpoint_fields

_GRACE_SECONDS = 2.0


class _Reply(object):
    """What one request leads to."""

    def __init__(self, request):
        self.deadline = time.monotonic() + request["timeout_seconds"]
        self.limit = request["output_limit"]
        self.notices = []
        self.written = HeadAndTail(self.limit)
        self.output = []
        self.cut = 0
        self.started = False

    def result(self, state, breakpoints, **more):
        """The answer as ``DebugResult`` has it."""
        program_output, cut = self.written.text()
        answer = {
            "state": state,
            "output": "".join(self.output),
            "program_output": program_output,
            "truncated_bytes": self.cut + cut,
            "breakpoints": breakpoints,
            "notices": self.notices,
        }
        answer.update(more)
        return answer


class DebugHost(object):
    """Debugs one program at a time.

    ``config`` has ``workspace`` and ``environment``; ``spawn`` is the method of a ``ProcessTable``, whose other methods
    wait for the program and kill it.
    """

    def __init__(self, config, spawn):
        self._config = config
        self._processes = spawn.__self__
        self._program = None
        self._entrypoint = None
        self._stdin = b""
        self._files = {}
        self._lost = []
        self._breakpoints = []
        self._next_number = 1
        self._ended = False

    def handle(self, request, stdin=b""):
        """Run one command: fields of ``DebugRequest`` in, fields of ``DebugResult`` out."""
        self._take_breakpoints(request.get("breakpoints") or [])
        request = dict({"timeout_seconds": 60.0, "output_limit": 65536, "restart": False}, **request)
        request["stdin"] = stdin
        reply = _Reply(request)
        command = request["command"].strip("\r\n")
        refused = parsing.refusal(command)
        if refused:
            reply.output.append(refused)
            return self._idle_or_stopped(reply, refused=True)
        word = parsing.first_word(command)
        alone = len(command.strip().splitlines()) == 1 and ";;" not in command
        if alone and word in parsing.LEAVING:
            return self._leave(reply)
        if self._program is None or request["entrypoint"] != self._entrypoint:
            try:
                choose(request["entrypoint"], self._config.environment, os.path.realpath(self._config.workspace))
            except LaunchRefused as error:
                reply.output.append(str(error))
                return self._idle_or_stopped(reply, refused=True)
        self._forget_if_outdated(request, reply)
        if alone and word in parsing.RESTARTING:
            self._drop()
            return self._start(request, reply)
        if self._program is None:
            answer = self._start(request, reply)
            if answer["state"] != "stopped":
                return answer
            if answer["interrupted"]:
                answer["output"] += "The program did not begin in time; the command was not run."
                return answer
            reply.output, reply.cut, reply.started = [], 0, False
        return self._command(request, reply, command)

    def stop(self):
        """End the program, if there is one."""
        self._drop()

    # the table of breakpoints

    def _take_breakpoints(self, given):
        table = [breakpoint_fields(entry) for entry in given]
        for entry in table:
            self._next_number = max(self._next_number, entry["number"] + 1)
        self._changed = table != self._breakpoints
        self._breakpoints = table

    def _learn(self, message):
        """Keep what every message of the program tells."""
        self._breakpoints = message["breakpoints"]
        self._next_number = max(self._next_number, message["next_number"])
        self._files.update((path, (changed, size)) for path, changed, size in message["files"])
        self._lost = message["lost"]

    # starting and ending

    def _forget_if_outdated(self, request, reply):
        program = self._program
        if program is None:
            if self._ended:
                reply.notices.append("The program was started again.")
            return
        status = program.status
        changed = [path for path, known in sorted(self._files.items()) if _stamp(path) != known]
        why = None
        if status is not None:
            why = "The program had ended while it was stopped (%s); it was started again." % describe(status)
        elif request["entrypoint"] != self._entrypoint:
            why = "The program was started again with another entrypoint."
        elif request["stdin"] != self._stdin:
            why = "The program was started again with another standard input."
        elif changed:
            names = [os.path.relpath(path, os.path.realpath(self._config.workspace)) for path in changed]
            why = "The program was started again because %s changed." % ", ".join(names)
        elif request["restart"]:
            why = "The program was started again."
        if why:
            reply.notices.append(why)
            self._drop()

    def _drop(self):
        program, self._program = self._program, None
        if program is not None:
            program.kill()
        self._files = {}
        self._ended = False

    def _start(self, request, reply):
        if self._lost:
            reply.notices.append("Not kept over the restart: %s." % ", ".join(self._lost))
            self._lost = []
        workspace = os.path.realpath(self._config.workspace)
        try:
            launch = choose(request["entrypoint"], self._config.environment, workspace)
            start = make_start(launch, self._config)
            orders = self._orders(launch, request, workspace)
            stdin = spool([request["stdin"]] if request["stdin"] else [], os.path.join(self._config.scratch, "state"))
            program = Program(self._processes, start, orders, workspace, reply.limit, stdin)
        except (LaunchRefused, OSError) as error:
            reply.output.append(str(error))
            return reply.result("idle", self._breakpoints, refused=True)
        self._program = program
        self._entrypoint, self._stdin = request["entrypoint"], request["stdin"]
        self._ended = False
        self._changed = False
        reply.started = True
        answer = self._await(reply, lambda: program.begin(reply.deadline))
        if program.introduced:
            reply.notices.append("Debugging %s, the first Python program of the command." % program.introduced)
        return answer

    def _orders(self, launch, request, workspace):
        orders = {
            "title": request["entrypoint"].strip(),
            "workspace": workspace,
            "breakpoints": self._breakpoints,
            "next_number": self._next_number,
            "interrupt_signal": int(INTERRUPT),
            "trace_signal": int(TRACEBACK),
            "limit": request["output_limit"],
        }
        # The program of a shell command reports its own launch.
        return orders if isinstance(launch, ShellLaunch) else dict(orders, **launch.fields())

    # commands

    def _command(self, request, reply, command):
        program = self._program
        message = {"type": "command", "command": command, "limit": reply.limit, "breakpoints": None}
        if self._changed:
            message.update(breakpoints=self._breakpoints, next_number=self._next_number)
        answer = self._await(reply, lambda: program.exchange(message, reply.deadline))
        if answer.pop("restart", False):
            self._drop()
            return self._start(request, reply)
        return answer

    def _await(self, reply, step):
        program = self._program
        program.written, reply.written = reply.written, reply.written
        interrupted = False
        try:
            message = step()
        except TimeoutError:
            interrupted = True
            if program.unreached():
                return self._unreached(reply)
            program.interrupt()
            try:
                message = program.wait(time.monotonic() + _GRACE_SECONDS)
            except TimeoutError:
                return self._kill(reply)
        if message is None:
            return self._end(reply)
        if message["type"] != "stop":
            self._drop()
            return reply.result("idle", self._breakpoints, restart=message["type"] == "restart")
        return self._stopped(reply, message, interrupted)

    def _stopped(self, reply, message, interrupted):
        self._learn(message)
        reply.output.append(message["output"])
        reply.cut += message["cut"]
        reply.notices.extend(message["notices"])
        return reply.result(
            "stopped",
            self._breakpoints,
            frame=message["frame"],
            source=message["source"],
            source_start=message["source_start"],
            interrupted=interrupted,
        )

    def _kill(self, reply):
        trace = self._program.traceback()
        self._drop()
        self._ended = True
        reply.output.append("The command could not be interrupted; the program was killed.")
        if trace:
            reply.output.append("\nIt was here:\n%s" % trace)
        return reply.result("killed", self._breakpoints, interrupted=True)

    def _end(self, reply):
        program, status = self._program, self._program.status
        if program.unreached():
            return self._unreached(reply)
        if program.ending is not None:
            self._learn(program.ending)
            reply.output.append(program.ending["output"])
            reply.cut += program.ending["cut"]
            reply.notices.extend(program.ending["notices"])
        else:
            reply.notices.extend(self._without_report())
        self._drop()
        self._ended = True
        if reply.started and not "".join(reply.output):
            reply.output.append("The program ended before the debugger's first stop; the command was not run.")
        return reply.result("ended" if status >= 0 else "killed", self._breakpoints, exit_status=status)

    def _unreached(self, reply):
        """A shell command without a program to debug is like an entrypoint that was refused."""
        reply.output.append(self._program.unreached())
        self._drop()
        return reply.result("idle", self._breakpoints, refused=True)

    def _without_report(self):
        """What is known of breakpoints when the program left without its exit handlers (``os._exit``, a signal)."""
        missed = [
            "Breakpoint %(number)d at %(file)s:%(line)d was not hit before the program's end." % entry
            for entry in self._breakpoints
            if entry["enabled"] and not entry["hits"] and not entry["condition"] and not entry["ignore_count"]
        ]
        return missed

    def _leave(self, reply):
        self._drop()
        self._lost = []
        reply.output.append("The debugger was left and the program ended.")
        return reply.result("idle", self._breakpoints)

    def _idle_or_stopped(self, reply, refused):
        return reply.result("idle" if self._program is None else "stopped", self._breakpoints, refused=refused)


def _stamp(path):
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
