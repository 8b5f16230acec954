"""The debugger's host inside the runner: starts the program when a command needs it, and answers every command.

Each request contains the session's breakpoints, and each answer returns them, so that they outlive the program.
"""

import os
import time

from ..descriptors import HeadAndTail, spool
from ..launch import LaunchRefused
from . import parsing
from .process import INTERRUPT, TRACEBACK, Program, describe, make_start
from .takeover import ShellLaunch, choose
from .wire import breakpoint_fields

_GRACE_SECONDS = 2.0
_SPARE_OUTPUT = 8192
_IN_A_CHILD = (
    "Breakpoint %d at %s:%d was reached by a child process, where the program does not stop; to debug the child's "
    "work, give a command that does it without a child as the entrypoint."
)


class _Reply(object):
    """Collects the answer to a request."""

    def __init__(self, timeout_seconds, output_limit):
        self.deadline = time.monotonic() + timeout_seconds
        self.limit = output_limit
        self.notices = []
        self.written = HeadAndTail(output_limit)
        self.output = []
        self.cut = 0
        self.failed = False
        self.started = False

    def take(self, message):
        """Add an answer of the debugger inside the program."""
        self.output.append(message["output"])
        self.cut += message["cut"]
        self.failed = self.failed or message["failed"]
        self.notices.extend(message["notices"])

    def result(self, state, breakpoints, **more):
        """Returns the fields of ``DebugResult``."""
        output = "".join(self.output)
        self.written.reduce(max(self.limit - len(output.encode("utf-8", "replace")), self.limit // 4))
        program_output, cut = self.written.text()
        return dict(
            {"refused": False, "interrupted": False},
            state=state,
            output=output,
            program_output=program_output,
            truncated_bytes=self.cut + cut,
            breakpoints=breakpoints,
            notices=self.notices,
            failed=self.failed,
            **more,
        )

    def share(self):
        """Returns how many bytes of the limit the debugger's own answer may use. The program's output gets the rest."""
        return self.limit * 3 // 4


class DebugHost(object):
    """Debugs one program at a time."""

    def __init__(self, config, processes):
        self._config = config
        self._workspace = os.path.realpath(config.workspace)
        self._processes = processes
        self._program = None
        self._spare = None
        self._outdated = None
        self._entrypoint = None
        self._stdin = b""
        self._files = {}
        self._lost = []
        self._breakpoints = []
        self._next_number = 1
        self._changed = False
        self._named = None
        self._listing = False
        self._ended = False

    def handle(self, command, entrypoint, breakpoints, timeout_seconds, output_limit, restart, listing, stdin):
        """Run one command. The parameters are the fields of ``DebugRequest``; returns the fields of ``DebugResult``."""
        self._receive_breakpoints(breakpoints)
        self._listing = listing
        reply = _Reply(timeout_seconds, output_limit)
        command = command.strip("\r\n")
        refused = parsing.refusal(command)
        if refused:
            return self._refused(reply, refused)
        word = parsing.first_word(command)
        alone = len(command.strip().splitlines()) == 1 and ";;" not in command
        if alone and word in parsing.LEAVING:
            return self._leave(reply)
        if self._program is None or entrypoint != self._entrypoint:
            try:
                choose(entrypoint, self._config.environment, self._workspace)
            except LaunchRefused as error:
                return self._refused(reply, str(error))
        kept = self._drop_outdated(reply, entrypoint, stdin, restart)
        self._entrypoint, self._stdin = entrypoint, stdin
        restarting = alone and word in parsing.RESTARTING
        if restarting and kept is None:
            self._drop()
        first = self._program is None
        if first:
            answer = self._start(reply)
            if kept is not None:
                answer = self._decide(kept, answer)
            if restarting or answer["refused"] or answer["state"] != "stopped":
                return answer
            if answer["interrupted"]:
                answer["output"] += "The program did not begin in time; the command was not run."
                return answer
            reply.output, reply.cut, reply.started = [], 0, False
        return self._command(reply, command, first)

    # the table of breakpoints

    def _receive_breakpoints(self, given):
        table = [breakpoint_fields(entry) for entry in given]
        for entry in table:
            self._next_number = max(self._next_number, entry["number"] + 1)
        self._changed = table != self._breakpoints
        self._breakpoints = table

    def _record_state(self, message):
        """Store the state that every message of the program contains."""
        self._breakpoints = message["breakpoints"]
        self._next_number = max(self._next_number, message["next_number"])
        self._files.update((path, (changed, size)) for path, changed, size in message["files"])
        self._lost = message["lost"]

    # starting and ending

    def _drop_outdated(self, reply, entrypoint, stdin, restart):
        """End the program if it is outdated, and add the reason to the notices.

        A program of another entrypoint is not ended but returned with its state, because the new entrypoint may be
        refused.
        """
        program = self._program
        files, self._outdated = self._outdated or self._files, None
        if program is None and not files:
            if self._ended:
                reply.notices.append("The program was started again.")
            return None
        status = None if program is None else program.status
        changed = _changed(files)
        why = None
        if status is not None:
            why = "The program had ended while it was stopped (%s); it was started again." % describe(status)
        elif entrypoint != self._entrypoint:
            why = "The program was started again with another entrypoint."
        elif stdin != self._stdin:
            why = "The program was started again with another standard input."
        elif changed:
            names = [os.path.relpath(path, self._workspace) for path in changed]
            why = "The program was started again because %s changed." % ", ".join(names)
        elif restart:
            why = "The program was started again."
        if why:
            reply.notices.append(why)
            if status is None and entrypoint != self._entrypoint:
                self._named = entrypoint
                if program is not None:
                    kept = program, self._entrypoint, self._stdin, self._files, self._lost, self._changed
                    self._program, self._files = None, {}
                    return kept
            self._drop()
        return None

    def _decide(self, kept, answer):
        """Restore the previous program if the new entrypoint was refused, else end it."""
        if not answer["refused"]:
            kept[0].kill()
            return answer
        self._program, self._entrypoint, self._stdin, self._files, self._lost, self._changed = kept
        return dict(answer, state="stopped", notices=["The program that was stopped before stays as it is."])

    def _drop(self, ended=False):
        program, self._program = self._program, None
        if program is not None:
            program.kill()
        self._files = {}
        self._ended = ended

    def _start(self, reply):
        if self._lost:
            reply.notices.append("Not kept over the restart: %s." % ", ".join(self._lost))
            self._lost = []
        try:
            launch = choose(self._entrypoint, self._config.environment, self._workspace)
            settings = self._settings(launch, reply.share())
            program = self._take_spare(launch) or self._spawn(launch, reply.limit)
        except (LaunchRefused, OSError) as error:
            return self._refused(reply, str(error))
        self._program = program
        self._ended = False
        self._changed = False
        reply.started = True
        answer = self._await(reply, lambda: program.begin(settings, reply.deadline))
        if not answer["refused"]:
            self._name(program.started_command, reply)
        return answer

    def _spawn(self, launch, limit):
        stdin = spool([self._stdin] if self._stdin else [], os.path.join(self._config.scratch, "state"))
        return Program(self._processes, make_start(launch, self._config), self._workspace, limit, stdin)

    def prepare(self):
        """Called after a change of files. Ends an outdated program, and starts the process of the next run in advance.

        The process waits for its settings. It has read names of files in the workspace, but not their contents.
        """
        if self._entrypoint is None:
            return
        if self._program is not None and self._program.status is None:
            if not _changed(self._files):
                return
            self._outdated = self._files
            self._drop()
        try:
            launch = choose(self._entrypoint, self._config.environment, self._workspace)
            if isinstance(launch, ShellLaunch):
                return
            known = self._spare_key(launch)
            if self._spare is None or self._spare[0] != known or self._spare[1].status is not None:
                self._drop_spare()
                self._spare = known, self._spawn(launch, _SPARE_OUTPUT)
        except (LaunchRefused, OSError):
            pass  # the next command reports the error

    def _take_spare(self, launch):
        """Returns the process that was started in advance, if a new one would be started in the same way, else None."""
        if self._spare is None or isinstance(launch, ShellLaunch):
            return None
        known, program = self._spare
        if known != self._spare_key(launch) or program.status is not None:
            self._drop_spare()
            return None
        self._spare = None
        return program

    def _drop_spare(self):
        spare, self._spare = self._spare, None
        if spare is not None:
            spare[1].kill()

    def _spare_key(self, launch):
        """Returns everything on which the start of the process depends.

        This includes the names of modules in the workspace, because a new one may hide a module of the standard
        library. Other names do not count: a file that is being written has a temporary one for a moment.
        """
        environment = dict(self._config.environment, **launch.env)
        target = os.path.join(self._workspace, launch.target)
        places = [self._workspace, target, os.path.dirname(os.path.realpath(target))]
        for entry in environment.get("PYTHONPATH", "").split(os.pathsep):
            places.append(os.path.join(self._workspace, entry))
        modules = [_module_files(place) for place in places if os.path.isdir(place)]
        return launch.command(), environment, self._stdin, modules

    def _name(self, started_command, reply):
        """Add a notice with the program: at each start for a shell command, otherwise once for each entrypoint."""
        if started_command:
            reply.notices.append("Debugging %s, the first Python program of the command." % started_command)
        elif self._named != self._entrypoint:
            reply.notices.append("Debugging %s." % self._entrypoint.strip())
        self._named = self._entrypoint

    def _settings(self, launch, limit):
        settings = {
            "title": self._entrypoint.strip(),
            "workspace": self._workspace,
            "breakpoints": self._breakpoints,
            "next_number": self._next_number,
            "interrupt_signal": int(INTERRUPT),
            "trace_signal": int(TRACEBACK),
            "limit": limit,
            "listing": self._listing,
        }
        # The program of a shell command reports its own launch.
        return settings if isinstance(launch, ShellLaunch) else dict(settings, **launch.fields())

    # commands

    def _command(self, reply, command, first):
        program = self._program
        message = {"type": "command", "command": command, "limit": reply.share(), "breakpoints": None}
        message.update(listing=self._listing, first=first)
        if self._changed:
            message.update(breakpoints=self._breakpoints, next_number=self._next_number)
        answer = self._await(reply, lambda: program.exchange(message, reply.deadline))
        if answer.pop("restart", False):
            self._drop()
            return self._start(reply)
        return answer

    def _await(self, reply, step):
        """Wait with ``step`` until the program stops or ends, and interrupt it at the deadline. Returns the result."""
        program = self._program
        program.written = reply.written
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
        self._report_children(reply)
        if message is None:
            return self._end(reply)
        if message["type"] != "stop":
            self._drop()
            return reply.result("idle", self._breakpoints, restart=message["type"] == "restart")
        self._record_state(message)
        reply.take(message)
        fields = {name: message[name] for name in ("frame", "source", "source_start")}
        return reply.result("stopped", self._breakpoints, interrupted=interrupted, **fields)

    def _report_children(self, reply):
        hit = self._program.hit_by_children
        for entry in self._breakpoints:
            if entry["number"] in hit:
                reply.notices.append(_IN_A_CHILD % (entry["number"], entry["file"], entry["line"]))
        hit.clear()

    def _kill(self, reply):
        trace = self._program.traceback()
        self._drop(ended=True)
        reply.output.append("The command could not be interrupted; the program was killed.")
        if trace:
            reply.output.append("\nIt was here:\n%s" % trace)
        return reply.result("killed", self._breakpoints, interrupted=True)

    def _end(self, reply):
        program, status = self._program, self._program.status
        if program.unreached():
            return self._unreached(reply)
        if program.ending is not None:
            self._record_state(program.ending)
            reply.take(program.ending)
        else:
            reply.notices.extend(self._unreported_misses())
        self._drop(ended=True)
        if reply.started and not "".join(reply.output):
            reply.output.append("The program ended before the debugger's first stop; the command was not run.")
        return reply.result("ended" if status >= 0 else "killed", self._breakpoints, exit_status=status)

    def _unreached(self, reply):
        """Returns the result for a shell command without a program to debug, which is that of a refused entrypoint."""
        why = self._program.unreached()
        self._drop()
        return self._refused(reply, why)

    def _unreported_misses(self):
        """Returns notices about breakpoints without hits, if the program ended without running its exit handlers.

        This is the case after ``os._exit`` or a signal, because the program then sends no last message.
        """
        return [
            "Breakpoint %(number)d at %(file)s:%(line)d was not hit before the program's end." % entry
            for entry in self._breakpoints
            if entry["enabled"] and not entry["hits"] and not entry["condition"] and not entry["ignore_count"]
        ]

    def _leave(self, reply):
        self._drop()
        self._drop_spare()
        self._outdated = None
        self._lost = []
        reply.output.append("The debugger was left and the program ended.")
        return reply.result("idle", self._breakpoints)

    def _refused(self, reply, why):
        reply.output.append(why)
        reply.notices[:] = []
        return reply.result("idle" if self._program is None else "stopped", self._breakpoints, refused=True)


def _module_files(directory):
    """Returns the names in a directory that an import statement can mean."""
    return sorted(name for name in os.listdir(directory) if name.partition(".")[0].isidentifier())


def _changed(files):
    return [path for path, known in sorted(files.items()) if _stamp(path) != known]


def _stamp(path):
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
