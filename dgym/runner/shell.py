"""A persistent shell: a fresh bash per call that restores and saves its state.

One long-lived bash would die or hang on ``exit``, ``set -e``, ``exec`` or closed descriptors. Here each call sources a
snapshot (directory, umask, options, variables, functions, aliases), evaluates the command, and writes the next
snapshot, also from an EXIT trap. A snapshot counts only when its last line was written; else the one before stays.
"""

import os
import threading

from .execution import Job
from .files import find_program, remove

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
        """Run a command; like ``execution.Job.run``, with the directory the shell ended in."""
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
