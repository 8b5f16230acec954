"""Commands: one run to its end, with bounded output and a timeout, and a persistent shell for many.

Background jobs may hold the pipes of a command; its end does not wait for them.

The persistent shell is a fresh bash per call that restores and saves its state. One long-lived bash would die or hang
on ``exit``, ``set -e``, ``exec`` or closed descriptors. Here each call sources a snapshot (directory, umask, options,
variables, functions, aliases), evaluates the command, and writes the next snapshot, also from an EXIT trap. A snapshot
counts only when its last line was written; else the one before stays.
"""

import os
import select
import threading
import time

from .descriptors import HeadAndTail, move_high
from .files import find_program, remove
from .processes import start_thread


REPORT_LIMIT = 16 * 1024 * 1024
MAX_OUTPUT = 16 * 1024 * 1024
_POLL_SECONDS = 0.05
# How long the pipes of a command that has ended may be silent, and held by its background processes, before they are
# closed: on a busy machine the last member of a pipeline runs late.
_QUIET_SECONDS = 0.25
_LINGER_SECONDS = 1.0


class Job(object):
    """One command from start to result."""

    def __init__(self, table, timeout, limit, cancelled=None):
        self._table = table
        self._timeout = timeout
        self._cancelled = cancelled or threading.Event()
        self._sinks = {}
        self._output = HeadAndTail(min(limit, MAX_OUTPUT))
        self._report = _Report()
        self._killed = None
        self._ended_by = None

    def run(self, argv, env, cwd, stdin=None, report=False):
        """Run ``argv``; returns the fields of the result, the output and the report.

        ``stdin`` (a descriptor or None) is closed here once the command has it, since every command could read it below
        /proc of this process.
        """
        begin = time.monotonic()
        try:
            popen = self._start(argv, env, cwd, stdin, report)
        except (OSError, ValueError, IndexError) as error:
            self._close()
            return _never_started(argv, cwd, error)
        finally:
            if stdin is not None:
                os.close(stdin)
        try:
            self._attend(popen, begin + self._timeout)
        finally:
            self._table.end_group(popen)
            self._drain()
            self._close()
        text, cut = self._output.finish()
        entry = popen.dgym_entry
        result = {
            "exit_status": popen.returncode,
            "ended_by": entry.ended_by or self._ended_by or ("memory" if entry.out_of_memory else "exit"),
            "truncated_bytes": cut,
            "duration_seconds": time.monotonic() - begin,
        }
        return result, text, self._report.value()

    def _start(self, argv, env, cwd, stdin, report):
        reading, writing = os.pipe()
        self._sinks[reading] = self._output
        ends = [writing]
        try:
            if report:
                report_reading, report_writing = os.pipe()
                self._sinks[report_reading] = self._report
                ends.append(move_high(report_writing))
                env = dict(env, DGYM_REPORT_FD=str(ends[1]))
            return self._table.spawn(
                argv, env=env, cwd=cwd, pass_fds=tuple(ends[1:]), stdin=stdin, stdout=writing, stderr=writing
            )
        finally:
            for end in ends:
                os.close(end)

    def _attend(self, popen, deadline):
        """Read until the command has ended and its pipes are closed, or held only by background processes."""
        done = popen.dgym_entry.done
        linger_until = quiet_until = None
        while True:
            more = False
            if self._sinks:
                more = self._read_some(_POLL_SECONDS)
            else:
                done.wait(_POLL_SECONDS)
            now = time.monotonic()
            if done.is_set():
                linger_until = linger_until or now + _LINGER_SECONDS
                if more or quiet_until is None:
                    quiet_until = now + _QUIET_SECONDS
                if not self._sinks or now > min(quiet_until, linger_until):
                    break
            elif self._killed is None:
                if self._cancelled.is_set():
                    self._kill(popen, "killed")
                elif now >= deadline:
                    self._kill(popen, "timeout")
            elif self._killed.is_set():
                break
        if self._killed is not None:
            self._killed.wait()

    def _kill(self, popen, why):
        self._ended_by = why
        self._killed = threading.Event()
        try:
            # In a thread of its own, since a program that writes while it terminates must find a reader.
            start_thread(self._kill_group, "killer", popen, 1.0)
        except RuntimeError:
            # The command has used up the tasks of its control group: no thread, hence no reader and no grace.
            self._kill_group(popen, 0)

    def _kill_group(self, popen, grace):
        try:
            self._table.kill_group(popen, grace)
        finally:
            self._killed.set()

    def _read_some(self, timeout):
        poller = select.poll()
        for descriptor in self._sinks:
            poller.register(descriptor, select.POLLIN)
        ready = poller.poll(timeout * 1000)
        for descriptor, _ in ready:
            data = os.read(descriptor, 64 * 1024)
            if data:
                self._sinks[descriptor].write(data)
            else:
                del self._sinks[descriptor]
                os.close(descriptor)
        return bool(ready)

    def _drain(self):
        until = time.monotonic() + _LINGER_SECONDS
        while self._sinks and self._read_some(0) and time.monotonic() < until:
            pass

    def _close(self):
        for descriptor in self._sinks:
            os.close(descriptor)
        self._sinks.clear()


class _Report(object):
    """The bytes of the report descriptor, up to the limit; the rest is read and dropped."""

    def __init__(self):
        self._data = bytearray()

    def write(self, data):
        self._data += data[: REPORT_LIMIT - len(self._data)]

    def value(self):
        return bytes(self._data)


def _never_started(argv, cwd, error):
    blamed = cwd if not os.path.isdir(cwd) else argv[0] if argv else ""
    message = "cannot run %s: %s\n" % (blamed, getattr(error, "strerror", None) or error)
    result = {"exit_status": None, "ended_by": "exit", "truncated_bytes": 0, "duration_seconds": 0.0}
    return result, message.encode("utf-8", "backslashreplace"), b""


def shell_argv(line, environment):
    """The argument list that runs a shell line: by bash where there is one, as a user's terminal does."""
    return [find_program("bash", environment) or "/bin/sh", "-c", line]


_END = b"# end of the snapshot\n"
_MAX_STATE = 8 * 1024 * 1024

# Runs inside the user's shell, whatever its options: writes by name (descriptors may be closed) with >| (noclobber),
# and only uses builtins (no fork, PATH may be broken). The options come last, so that none disturbs the restoring.
_SAVE = r"""
set +o >| "$__dgym_new.options"
set +eux +o noglob +o functrace +o errtrace
trap - DEBUG ERR RETURN
IFS= read -r -d '' __dgym_options < "$__dgym_new.options"
printf '%s' "$PWD" >| "$__dgym_new.cwd"
compgen -A variable >| "$__dgym_new.names"
{
  printf 'cd -- %q\n' "$PWD"
  umask -p
  shopt -p
  while IFS= read -r __dgym_v; do
    case $__dgym_v in
      BASH*|__dgym_*|DGYM_TAG|DGYM_REPORT_FD|_|PWD|SHLVL|SHELLOPTS|EUID|UID|PPID|FUNCNAME|DIRSTACK|GROUPS) ;;
      LINENO|RANDOM|SRANDOM|SECONDS|EPOCHSECONDS|EPOCHREALTIME|HISTCMD|PIPESTATUS) ;;
      *) declare -p -- "$__dgym_v" ;;
    esac
  done < "$__dgym_new.names"
  declare -f
  declare -Fx
  alias -p
  printf '%s\n' "$__dgym_options"
  printf '# end of the snapshot\n'
} >| "$__dgym_new"
__dgym_saved=1
"""

# The command is evaluated on the first line, so that the line numbers bash reports are the command's own.
_DRIVER = (
    '{ __dgym_new=$1; __dgym_save=$2; __dgym_command=$3; . "$4"; set --; '
    'trap \'{ [ -n "${__dgym_saved-}" ] || eval "$__dgym_save"; } 2>/dev/null\' EXIT; } 2>/dev/null; '
    'eval "$__dgym_command"\n'
    '{ __dgym_status=$?; eval "$__dgym_save"; } 2>/dev/null\n'
    'exit "$__dgym_status"'
)


class Shell(object):
    """The persistent shell of one runner. Calls queue."""

    def __init__(self, table, configuration):
        self._table = table
        self._configuration = configuration
        self._state = os.path.join(configuration.scratch, "state", "shell")
        self._one_at_a_time = threading.Lock()

    def run(self, command, timeout, limit, cancelled):
        """Run a command; like ``Job.run``, with the directory the shell ended in."""
        environment = self._configuration.environment
        bash = find_program("bash", environment) or "bash"
        new = self._state + ".new"
        job = Job(self._table, timeout, limit, cancelled)
        with self._one_at_a_time:
            remove(new)
            source = self._prepare(command)
            argv = [bash, "--noprofile", "--norc", "-c", _DRIVER, "bash", new, _SAVE, source, self._state]
            result, text, _ = job.run(argv, environment, self._directory())
            self._accept(new)
            result["cwd"] = self._directory()
        return result, text

    def _prepare(self, command):
        if not os.path.exists(self._state):
            with open(self._state, "wb") as stream:
                stream.write(b"shopt -s expand_aliases\n" + _END)
        # A single argument may have 128 KiB; longer commands are read from a file.
        if len(os.fsencode(command)) < 100 * 1024:
            return command
        path = self._state + ".command"
        with open(path, "wb") as stream:
            stream.write(os.fsencode(command))
        return 'eval "$(<%s)"' % path

    def _accept(self, new):
        try:
            size = os.stat(new).st_size
            with open(new, "rb") as stream:
                stream.seek(max(0, size - len(_END)))
                complete = stream.read() == _END
        except OSError:
            return
        if complete and size <= _MAX_STATE:
            os.rename(new, self._state)
            if os.path.exists(new + ".cwd"):
                os.rename(new + ".cwd", self._state + ".cwd")

    def _directory(self):
        try:
            with open(self._state + ".cwd", "rb") as stream:
                directory = os.fsdecode(stream.read(4096))
        except OSError:
            directory = ""
        return directory if os.path.isdir(directory) else self._configuration.workspace
