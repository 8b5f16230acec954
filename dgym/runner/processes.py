"""Every process the runner starts: started tagged and limited, watched, reaped by one thread, killed without leftovers.

Three ways find what a command left behind, because each alone lets some escape: its process group, its tag in
/proc/*/environ, and the orphans that the kernel hands to the runner (PR_SET_CHILD_SUBREAPER, or being PID 1).
"""

import os
import resource
import signal
import subprocess
import threading
import time

from . import proctree

TAG = "DGYM_TAG"
_INIT = 1
# On a desktop a user's own threads count against RLIMIT_NPROC too: this much is left to them, and the watchdog
# enforces the real bound. The limit only slows a fork bomb between two checks of the watchdog.
_NPROC_HEADROOM = 4096
# Seconds that a start waits for the reaper to collect an earlier command's zombies, which count as processes.
_ROOM_SECONDS = 5.0
_ROOM_PAUSE = 0.01
# How long processes that were killed with their command may take to end.
_ENDING_SECONDS = 0.5
# The most that ending everything may take, and the pause between two attempts.
_KILL_SECONDS = 10.0
_KILL_PAUSE = 0.001
# Seconds between SIGXCPU, which names the cause, and SIGKILL, which cannot be ignored.
_CPU_WARNING = 2
# The share of the memory limit that commands may use together.
_SHARE = 0.9
# How fast a program can fill memory: the next check comes before the room left could be used up at this rate.
_BYTES_PER_SECOND = 2e9
_SHORTEST, _LONGEST = 0.02, 0.25
# Exit status of a runner of which a thread failed.
_THREAD_FAILED = 72
# The status of a program that was killed, and that of a shell which ran one.
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)


class Entry(object):
    """One process that the runner started: ``done`` is set once it is reaped, ``ended_by`` names what killed it.

    ``out_of_memory`` says that the kernel killed it, or a program that a shell waited for, for want of memory.
    """

    def __init__(self, popen, tag, memory_kills):
        self.popen = popen
        self.tag = tag
        self.done = threading.Event()
        self.ended_by = None
        self.out_of_memory = False
        self.memory_kills = memory_kills


class ProcessTable(object):
    """Starts, awaits and kills processes. One per runner: its reaper is the only caller of waitpid."""

    def __init__(self):
        self.token = os.urandom(8).hex()
        self._memory_kills = proctree.find_memory_kills()
        self._rlimits = [_below_hard_limit(resource.RLIMIT_CORE, 0)]
        self._entries = {}
        self._count = 0
        self._orphans_killed = 0
        self._closed = False
        # Held while a process is started, so that the reaper cannot reap it before it is registered.
        self._lock = threading.Lock()
        self._started = threading.Condition(self._lock)
        start_thread(self._reap, "reaper")

    def set_limits(self, limits):
        """Set the resource limits of commands started from now on."""
        bounds = [
            (resource.RLIMIT_CPU, limits.cpu_seconds),
            (resource.RLIMIT_FSIZE, limits.file_size_bytes),
            (resource.RLIMIT_NPROC, limits.processes and limits.processes + _NPROC_HEADROOM),
            # Twice the bound, since reserved memory counts here: this stops one allocation that would be complete
            # before the watchdog's next check.
            (resource.RLIMIT_DATA, limits.memory_bytes and 2 * limits.memory_bytes),
        ]
        self._rlimits[1:] = [_below_hard_limit(which, value) for which, value in bounds if value]

    def spawn(self, argv, *, env, cwd, pass_fds=(), stdin=None, stdout=None, stderr=None):
        """Start a process in a session and process group of its own; raises OSError as ``subprocess.Popen`` does."""
        limits = self._rlimits

        def prepare():
            # Runs in the child after fork: plain C calls only, since other threads' locks are copied as they were.
            for which, bounds in limits:
                try:
                    resource.setrlimit(which, bounds)
                except (OSError, ValueError):
                    pass

        def start(tag):
            return subprocess.Popen(
                argv,
                env=dict(env, **{TAG: tag}),
                cwd=cwd,
                pass_fds=pass_fds,
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=stdout,
                stderr=stderr,
                close_fds=True,
                start_new_session=True,
                preexec_fn=prepare,
            )

        deadline = time.monotonic() + _ROOM_SECONDS
        while True:
            try:
                return self._register(start)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_ROOM_PAUSE)

    def _register(self, start):
        with self._lock:
            if self._closed:
                raise OSError("the runner is shutting down")
            self._count += 1
            tag = "%s.%d" % (self.token, self._count)
            memory_kills = self._memory_kills()
            popen = start(tag)
            self._entries[popen.pid] = Entry(popen, tag, memory_kills)
            # When the machine runs out of memory the command goes before the runner does. Written from here: until it
            # executes a program, a child of a process that is not dumpable may not open the file.
            proctree.prefer_for_oom_kill(popen.pid)
            popen.dgym_entry = self._entries[popen.pid]
            self._started.notify_all()
        return popen

    def wait(self, popen, timeout=None):
        """The exit status (negative: a signal), or None when it still runs after ``timeout`` seconds."""
        return popen.returncode if popen.dgym_entry.done.wait(timeout) else None

    def kill_group(self, popen, grace=1.0):
        """Terminate a command and all that it started: SIGTERM to its group, then SIGKILL to all that is left of it."""
        entry = popen.dgym_entry
        family = self._family(popen)
        if grace and not entry.done.is_set() and proctree.send_group(popen.pid, signal.SIGTERM):
            entry.done.wait(grace)
        family.update(self._family(popen))
        proctree.send_group(popen.pid, signal.SIGKILL)
        proctree.kill_all_of(lambda: self._strays(entry.tag, family))
        entry.done.wait(5)

    def end_group(self, popen):
        """Kill what is left of the group of a command that has ended: background jobs end with their command."""
        proctree.send_group(popen.pid, signal.SIGKILL)

    def running(self):
        """The entries of the processes that have been started and not reaped."""
        with self._lock:
            return list(self._entries.values())

    def wait_until_busy(self):
        """Return at once while anything runs below the runner, else once a process is started."""
        while not proctree.child_lookup()(os.getpid()):
            with self._started:
                if not self._entries:
                    self._started.wait()

    def alive(self):
        """Process ids of everything that descends from this runner or carries its tag, zombies left out.

        As the first process of a PID namespace, the runner has all of the namespace's processes.
        """
        return [pid for pid in self._everything() if proctree.is_alive(pid)]

    def end_all(self):
        """Kill everything that runs; returns the number of orphans killed, and whether no process is left."""
        deadline = time.monotonic() + _ENDING_SECONDS
        while _has_children() and time.monotonic() < deadline:
            time.sleep(_KILL_PAUSE)
        before = self._orphans_killed
        clean = self._kill_everything()
        with self._lock:
            return self._orphans_killed - before, clean

    def _kill_everything(self):
        if os.getpid() == _INIT:
            # One signal to every process of the namespace: a program that forks continuously cannot escape.
            proctree.send(-1, signal.SIGKILL)
        deadline = time.monotonic() + _KILL_SECONDS
        while proctree.kill_all_of(self.alive) and time.monotonic() < deadline:
            # A program that forks and ends continuously may escape every scan of /proc. As long as a descendant is
            # left, this process has a child: one system call that finds none proves that there is none.
            if not _has_children():
                return True
            time.sleep(_KILL_PAUSE)
        return False

    def kill_all(self):
        """Kill everything and refuse to start more; True once no process is left."""
        with self._lock:
            self._closed = True
        clean = self._kill_everything()
        deadline = time.monotonic() + 5
        for entry in self.running():
            entry.done.wait(max(0.0, deadline - time.monotonic()))
        return clean

    def _everything(self):
        if os.getpid() == _INIT:
            return {pid for pid in proctree.all_pids() if pid != _INIT}
        found = set(proctree.descendants(os.getpid()))
        for pid in proctree.all_pids():
            if pid not in found and pid != os.getpid():
                tag = proctree.environment_value(pid, TAG)
                if tag is not None and tag.partition(".")[0] == self.token:
                    found.add(pid)
        return found

    def _family(self, popen):
        if popen.dgym_entry.done.is_set():
            return {}
        return {pid: proctree.start_time(pid) for pid in proctree.descendants(popen.pid)}

    def _strays(self, tag, family):
        # An orphan without the runner's tag has emptied its environment to hide. Which command it belongs to cannot be
        # known, so it is killed with any.
        with self._lock:
            # While a process is started it has no tag yet, and is not registered. Stopped then, it would keep the lock.
            lookup = proctree.child_lookup()
            orphans = set(lookup(os.getpid())).difference(self._entries)
        found = set()
        for pid in self._everything():
            carried = proctree.environment_value(pid, TAG) or ""
            known = carried.partition(".")[0] == self.token
            if carried == tag or (pid in orphans and not known):
                found.add(pid)
                found.update(proctree.descendants(pid, lookup))
            elif pid in family and family[pid] == proctree.start_time(pid):
                found.add(pid)
        return [pid for pid in found if proctree.is_alive(pid)]

    def _reap(self):
        while True:
            try:
                # Without reaping: the kernel must not reuse the pid before its Popen is registered under the lock.
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            except ChildProcessError:
                with self._started:
                    if not self._entries:
                        self._started.wait()
                continue
            with self._lock:
                self._collect(ended.si_pid)

    def _collect(self, pid):
        try:
            reaped, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return
        entry = self._entries.pop(pid, None) if reaped else None
        if entry is not None:
            entry.popen.returncode = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            # A program that fills the memory faster than the watchdog looks is the kernel's to kill.
            if entry.popen.returncode in _KILLED:
                entry.out_of_memory = self._memory_kills() > entry.memory_kills
            entry.done.set()
        elif reaped and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            self._orphans_killed += 1


def start_thread(target, name, *arguments):
    """Start a daemon thread of the runner. An exception that escapes it ends this process at once.

    Without a thread (a program has taken the runner's memory, say) requests would wait for answers until their
    deadlines. When the process ends, the client knows at once. Raises RuntimeError if no thread can be started.
    """
    threading.Thread(target=_run_or_exit, args=(target, arguments), name=name, daemon=True).start()


def _run_or_exit(target, arguments):
    try:
        target(*arguments)
    except BaseException:
        # Nothing is written: what would be needed for it may be what is missing.
        os._exit(_THREAD_FAILED)


def _has_children():
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _below_hard_limit(which, value):
    hard = resource.getrlimit(which)[1]
    ceiling = value + _CPU_WARNING if which == resource.RLIMIT_CPU else value
    if hard != resource.RLIM_INFINITY:
        value, ceiling = min(value, hard), min(ceiling, hard)
    return which, (value, ceiling)


class Watchdog(object):
    """Kills the command that would take the sandbox down: by its memory, at a share of the limit, or its processes.

    A leaking program is then the agent's failure with an answer, instead of the kernel's choice, which may be the
    runner.
    """

    def __init__(self, table, limits):
        self._table = table
        self._limits = limits
        self._group = proctree.find_group()

    def start(self):
        """Watch until the process ends."""
        start_thread(self._watch, "watchdog")

    def _watch(self):
        interval = self._check()
        while True:
            self._table.wait_until_busy()
            time.sleep(interval)
            interval = self._check()

    def _check(self):
        """Kill a command that exceeds a bound; returns the seconds until the next check."""
        lookup = proctree.child_lookup()
        units = {}
        for child in lookup(os.getpid()):
            units[child] = [child] + proctree.descendants(child, lookup)
        most = self._limits.processes
        if most and sum(len(pids) for pids in units.values()) > most:
            self._kill(max(units, key=lambda unit: len(units[unit])), units, "killed")
            return _SHORTEST
        return self._check_memory(units)

    def _check_memory(self, units):
        sizes = _sizes(units, proctree.resident_bytes)
        room = self._room(sizes)
        if room is not None and room < 0:
            # The quick figure counts pages shared after fork several times: measure exactly before killing.
            sizes = _sizes(units, proctree.proportional_bytes)
            room = self._room(sizes)
            if room < 0:
                self._kill(max(sizes, key=lambda unit: sizes[unit]), units, "memory")
                return _SHORTEST
        return _LONGEST if room is None else min(_LONGEST, max(_SHORTEST, room / _BYTES_PER_SECOND))

    def _room(self, sizes):
        """Bytes until the nearest bound; None without a bound."""
        own = sum(sizes.values())
        rooms = []
        if self._limits.memory_bytes:
            rooms.append(_SHARE * self._limits.memory_bytes - own)
        if self._group is not None:
            used = self._group.usage()
            # On a laptop the group is shared with others: their use is no reason to kill a command of the agent.
            if own >= used / 2:
                rooms.append(_SHARE * self._group.limit - used)
        return min(rooms) if rooms else None

    def _kill(self, unit, units, why):
        for entry in self._table.running():
            if entry.popen.pid == unit:
                entry.ended_by = why
                self._table.kill_group(entry.popen, grace=0)
                return
        proctree.kill_all_of(lambda: [pid for pid in units[unit] if proctree.is_alive(pid)])


def _sizes(units, measure):
    return {unit: sum(measure(pid) for pid in pids) for unit, pids in units.items()}
