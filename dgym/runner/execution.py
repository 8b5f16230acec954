"""Run commands with bounded output and a timeout, and a persistent shell.

A background job may keep the pipes of its command open. The command ends without waiting for it.

The persistent shell starts a new bash for each call. One long-lived bash would die or hang on ``exit``, ``set -e``,
``exec`` or closed descriptors. Each call sources a snapshot (directory, umask, options, variables, functions, aliases),
evaluates the command, and writes the next snapshot, also from an EXIT trap. A snapshot is used only if its last line is
complete; otherwise the previous snapshot is kept.
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
# Background processes may keep the pipes of a finished command open. The pipes are closed after _QUIET_SECONDS without
# output, and after _LINGER_SECONDS in any case. They are not closed at once, because on a busy machine the last process
# of a pipeline may still have to write.
_QUIET_SECONDS = 0.25
_LINGER_SECONDS = 1.0


class Job(object):
    """One execution of a command. ``limit`` is the size of the captured output in bytes, ``timeout`` is in seconds."""

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
        """Run ``argv`` to its end.

        ``stdin`` is a descriptor or None. It is closed as soon as the command has started. While it is open, other
        commands could read it below /proc of this process.

        Returns:
            The fields of the result, the output, and the bytes written to the report descriptor.
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
            self._read_until_end(popen, begin + self._timeout)
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

    def _read_until_end(self, popen, deadline):
        """Read until the command has ended and its pipes are closed or kept open only by background processes."""
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
            # This thread must continue to read: a program may write while it handles SIGTERM.
            start_thread(self._kill_group, "killer", popen, 1.0)
        except RuntimeError:
            # The command has used up the task limit of its control group, so a thread cannot be started. Nobody reads
            # during the kill, so a grace period would be useless.
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
    """Collects the bytes of the report descriptor up to ``REPORT_LIMIT``, and drops the rest."""

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
    """Returns the arguments that run a shell line with bash, or with /bin/sh if bash is not installed."""
    return [find_program("bash", environment) or "/bin/sh", "-c", line]


_END = b"# end of the snapshot\n"
_MAX_STATE = 8 * 1024 * 1024

# Runs inside the user's shell and must work with any option of it. It opens files by name, because descriptors may be
# closed. It uses >|, because noclobber may be set. It uses only builtins, because PATH may be broken. The options come
# last in the snapshot, so that they do not affect how the rest is restored.
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

# The command is evaluated on the first line, so that bash reports line numbers relative to the command.
_DRIVER = (
    '{ __dgym_new=$1; __dgym_save=$2; __dgym_command=$3; . "$4"; set --; '
    'trap \'{ [ -n "${__dgym_saved-}" ] || eval "$__dgym_save"; } 2>/dev/null\' EXIT; } 2>/dev/null; '
    'eval "$__dgym_command"\n'
    '{ __dgym_status=$?; eval "$__dgym_save"; } 2>/dev/null\n'
    'exit "$__dgym_status"'
)


class Shell(object):
    """The persistent shell of a runner. Concurrent calls run one after another."""

    def __init__(self, table, configuration):
        self._table = table
        self._configuration = configuration
        self._state = os.path.join(configuration.scratch, "state", "shell")
        self._one_at_a_time = threading.Lock()

    def run(self, command, timeout, limit, cancelled):
        """Run a command.

        Returns:
            The fields of the result as in ``Job.run``, with the shell's last directory as ``cwd``, and the output.
        """
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
        # Linux limits a single argument to 128 KiB, so a longer command is read from a file.
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
