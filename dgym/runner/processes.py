"""Starts, limits, watches, reaps and kills the runner's child processes and their descendants.

The processes that a command left are found in three ways: by its process group, by its tag in /proc/*/environ, and as
orphans whose new parent is the runner (which is a child subreaper or PID 1). Each way alone misses some processes.
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
# RLIMIT_NPROC counts all threads of the user, which on a desktop includes other programs. It is therefore raised by
# this number. The watchdog enforces the real limit, and RLIMIT_NPROC only slows a fork bomb between two checks.
_NPROC_HEADROOM = 4096
# Seconds for which a start is retried if the process limit is reached. Zombies of an earlier command count until they
# are reaped.
_ROOM_SECONDS = 5.0
_ROOM_PAUSE = 0.01
# Seconds to wait for processes that were killed with their command.
_ENDING_SECONDS = 0.5
# Time limit for killing all processes, and the pause between two attempts, in seconds.
_KILL_SECONDS = 10.0
_KILL_PAUSE = 0.001
# Seconds between SIGXCPU, which names the cause, and SIGKILL, which cannot be ignored.
_CPU_WARNING = 2
# Fraction of the memory limit that all commands together may use.
_SHARE = 0.9
# Highest assumed rate at which a program fills memory. The watchdog checks again before the remaining memory could be
# used up at this rate.
_BYTES_PER_SECOND = 2e9
_SHORTEST, _LONGEST = 0.02, 0.25
# Exit status of the runner after an exception in one of its threads.
_THREAD_FAILED = 72
# Exit status of a program that was killed by SIGKILL, and of a shell whose program was.
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)


class Entry(object):
    """One process that the runner started.

    Attributes:
        popen: The ``subprocess.Popen`` object.
        tag: Value of ``DGYM_TAG`` in the environment of the process.
        done: Event that is set when the process has been reaped.
        ended_by: Reason for which the watchdog killed the process, "killed" or "memory", else None.
        out_of_memory: True if the kernel's OOM killer killed the process, or a program for which a shell waited.
        memory_kills: Count of OOM kills in the control group before the start.
    """

    def __init__(self, popen, tag, memory_kills):
        self.popen = popen
        self.tag = tag
        self.done = threading.Event()
        self.ended_by = None
        self.out_of_memory = False
        self.memory_kills = memory_kills


class ProcessTable(object):
    """Starts processes, waits for them and kills them.

    A runner has only one table, because its reaper thread must be the only caller of waitpid.
    """

    def __init__(self):
        self.token = os.urandom(8).hex()
        self._memory_kills = proctree.find_memory_kills()
        self._rlimits = [_below_hard_limit(resource.RLIMIT_CORE, 0)]
        self._entries = {}
        self._count = 0
        self._orphans_killed = 0
        self._closed = False
        # Held during the start of a process. The reaper must not reap the process before it is registered.
        self._lock = threading.Lock()
        self._started = threading.Condition(self._lock)
        start_thread(self._reap, "reaper")

    def set_limits(self, limits):
        """Set the resource limits of commands that are started after this call."""
        bounds = [
            (resource.RLIMIT_CPU, limits.cpu_seconds),
            (resource.RLIMIT_FSIZE, limits.file_size_bytes),
            (resource.RLIMIT_NPROC, limits.processes and limits.processes + _NPROC_HEADROOM),
            # RLIMIT_DATA also counts reserved memory, so it is twice the limit. It prevents a single allocation that
            # would be complete before the watchdog's next check.
            (resource.RLIMIT_DATA, limits.memory_bytes and 2 * limits.memory_bytes),
        ]
        self._rlimits[1:] = [_below_hard_limit(which, value) for which, value in bounds if value]

    def spawn(self, argv, *, env, cwd, pass_fds=(), stdin=None, stdout=None, stderr=None):
        """Start a process in a new session and process group. Raises OSError like ``subprocess.Popen``."""
        limits = self._rlimits

        def prepare():
            # Runs in the child after fork. It must not take a lock, because another thread may have held it.
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
            # If memory runs out, the kernel must kill the command and not the runner. The parent writes the file,
            # because the child is not dumpable until it executes a program, and cannot open the file until then.
            proctree.prefer_for_oom_kill(popen.pid)
            popen.dgym_entry = self._entries[popen.pid]
            self._started.notify_all()
        return popen

    def wait(self, popen, timeout=None):
        """Returns the exit status (negative for a signal), or None if it still runs after ``timeout`` seconds."""
        return popen.returncode if popen.dgym_entry.done.wait(timeout) else None

    def kill_group(self, popen, grace=1.0):
        """Terminate a command and all processes that it started.

        Sends SIGTERM to its group, waits up to ``grace`` seconds, and sends SIGKILL to all remaining processes.
        """
        entry = popen.dgym_entry
        family = self._family(popen)
        if grace and not entry.done.is_set() and proctree.send_group(popen.pid, signal.SIGTERM):
            entry.done.wait(grace)
        family.update(self._family(popen))
        proctree.send_group(popen.pid, signal.SIGKILL)
        proctree.kill_all_of(lambda: self._find_orphans(entry.tag, family))
        entry.done.wait(5)

    def end_group(self, popen):
        """Kill the background jobs in the process group of a command that has ended."""
        proctree.send_group(popen.pid, signal.SIGKILL)

    def running(self):
        """Returns the entries of the processes that have not been reaped."""
        with self._lock:
            return list(self._entries.values())

    def wait_until_busy(self):
        """Wait until the runner has a child process. Returns immediately if it has one."""
        while not proctree.child_lookup()(os.getpid()):
            with self._started:
                if not self._entries:
                    self._started.wait()

    def alive(self):
        """Returns the ids of all processes that descend from this runner or have its tag, without zombies.

        If the runner is PID 1, these are all other processes of its PID namespace.
        """
        return [pid for pid in self._everything() if proctree.is_alive(pid)]

    def end_all(self):
        """Kill all processes.

        Returns:
            The number of orphans that were killed, and True if no process is left.
        """
        deadline = time.monotonic() + _ENDING_SECONDS
        while _has_children() and time.monotonic() < deadline:
            time.sleep(_KILL_PAUSE)
        before = self._orphans_killed
        clean = self._kill_all()
        with self._lock:
            return self._orphans_killed - before, clean

    def _kill_all(self):
        if os.getpid() == _INIT:
            # Process id -1 signals all processes of the namespace at once, including those of a fork bomb.
            proctree.send(-1, signal.SIGKILL)
        deadline = time.monotonic() + _KILL_SECONDS
        while proctree.kill_all_of(self.alive) and time.monotonic() < deadline:
            # Each scan of /proc may miss the processes of a program that forks and exits continuously. But this process
            # has a child as long as a descendant is left, so waitid proves that no descendant is left.
            if not _has_children():
                return True
            time.sleep(_KILL_PAUSE)
        return False

    def kill_all(self):
        """Kill all processes and refuse to start others. Returns True if no process is left."""
        with self._lock:
            self._closed = True
        clean = self._kill_all()
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

    def _find_orphans(self, tag, family):
        # An orphan without the runner's tag has cleared its environment. It cannot be attributed to a command, so it is
        # killed together with any command.
        with self._lock:
            # The lock excludes a process that is being started: it is not registered and has no tag, so it would be
            # stopped as an orphan, and the thread that starts it would keep the lock.
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
                # WNOWAIT does not reap. The kernel must not reuse the pid before the Popen is registered under the
                # lock.
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
            # A program may fill the memory between two checks of the watchdog. The kernel then kills it.
            if entry.popen.returncode in _KILLED:
                entry.out_of_memory = self._memory_kills() > entry.memory_kills
            entry.done.set()
        elif reaped and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            self._orphans_killed += 1


def start_thread(target, name, *arguments):
    """Start a daemon thread. An exception that leaves ``target`` ends this process immediately.

    If a thread ended alone, for example for lack of memory, requests would wait for answers until their deadlines. If
    the process ends, the client gets an error immediately.

    Raises:
        RuntimeError: The thread cannot be started.
    """
    threading.Thread(target=_run_or_exit, args=(target, arguments), name=name, daemon=True).start()


def _run_or_exit(target, arguments):
    try:
        target(*arguments)
    except BaseException:
        # Nothing is logged: after a MemoryError, logging could fail, too.
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
    """Kills a command that exceeds ``_SHARE`` of the memory limit, or the limit of processes.

    The agent then gets an answer that reports the reason. Otherwise the kernel's OOM killer could kill the runner.
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
        """Kill a command that exceeds a limit. Returns the seconds until the next check."""
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
            # The quick measurement counts pages that are shared after fork several times, so the exact one decides.
            sizes = _sizes(units, proctree.proportional_bytes)
            room = self._room(sizes)
            if room < 0:
                self._kill(max(sizes, key=lambda unit: sizes[unit]), units, "memory")
                return _SHORTEST
        return _LONGEST if room is None else min(_LONGEST, max(_SHORTEST, room / _BYTES_PER_SECOND))

    def _room(self, sizes):
        """Returns the bytes left until the nearest limit (negative if it is exceeded), or None without a limit."""
        own = sum(sizes.values())
        rooms = []
        if self._limits.memory_bytes:
            rooms.append(_SHARE * self._limits.memory_bytes - own)
        if self._group is not None:
            used = self._group.usage()
            # On a laptop, other programs share the control group. Their memory must not cause a command to be killed.
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
