"""The first process of the cluster. All other processes of the cluster are its descendants.

It has its own PID, mount and network namespaces. When it is killed, the kernel kills every process in its PID namespace
and removes the mounts, interfaces and packet filter rules. Therefore no other clean-up is necessary.
"""

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

from hack.cluster import components, machine
from hack.cluster.components import Files
from hack.cluster.machine import ClusterError, make_cgroups, run, wait_until

ROOT = Path(__file__).parent.parent.parent
CLONE_NEWNS, CLONE_NEWNET, CLONE_NEWPID = 0x00020000, 0x40000000, 0x20000000
START_SECONDS = 90
# Directories that containerd, CNI and kubelet write to, even if other directories are configured.
MOUNT_POINTS = (Path("/var/lib/containerd"), Path("/var/lib/cni"), Path("/var/lib/kubelet"))


def unshare(flags: int) -> None:
    """Create namespaces. os.unshare is missing before Python 3.12."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags):
        error = ctypes.get_errno()
        raise ClusterError(f"no namespaces of our own: {os.strerror(error)} (root with CAP_SYS_ADMIN is needed)")


class Init:
    """Starts the components and reaps processes."""

    def __init__(self, files: Files, binaries: Path, report: int) -> None:
        self.files = files
        self.binaries = binaries
        self.report = report
        self.running: dict[int, str] = {}
        self.ended: dict[str, int] = {}
        self.commands: dict[str, list[str]] = {}
        self.stopped: set[str] = set()

    def say(self, word: str, text: str) -> None:
        """Write a line to the process that waits for the start."""
        os.write(self.report, f"{word} {text}\n".encode())

    def start(self, commands: dict[str, list[str]]) -> None:
        """Start programs, each with its own log."""
        for name, command in commands.items():
            self.say("step", f"starting {name}")
            self.commands[name] = command
            self._spawn(name)

    def _spawn(self, name: str) -> None:
        pid = os.fork()
        if pid == 0:
            self._become(name, self.commands[name])
        self.running[pid] = name

    def _become(self, name: str, command: list[str]) -> None:
        try:
            log = os.open(self.files.logs / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.setsid()
            os.chdir("/")
            path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/bin:/bin"
            environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
            os.execvpe(command[0], command, environment)
        except OSError as error:
            os.write(2, f"{command[0]}: {error}\n".encode())
        finally:
            os._exit(127)

    def note_ended(self, pid: int, status: int) -> None:
        """Record the exit code of a component. Orphaned processes of pods are ignored."""
        if name := self.running.pop(pid, None):
            self.ended[name] = os.waitstatus_to_exitcode(status)
            self._write_ended()

    def _write_ended(self) -> None:
        fresh = self.files.ended.with_suffix(".new")
        fresh.write_text(json.dumps(self.ended))
        fresh.replace(self.files.ended)

    def apply_stopped(self) -> None:
        """Kill the components that must be stopped, and start those that need not be stopped any more."""
        stopped = set(json.loads(self.files.stopped.read_text()))
        for pid, name in self.running.items():
            if name in stopped:
                # This component must remove its iptables rules, so it gets SIGTERM.
                os.kill(pid, signal.SIGTERM if name == components.POLICIES else signal.SIGKILL)
        for name in self.stopped - stopped:
            self.ended.pop(name, None)
            self._spawn(name)
        self.stopped = stopped
        self._write_ended()

    def check(self) -> None:
        """Raise an error if a component has ended during the start."""
        for pid in list(self.running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self.note_ended(ended, status)
        if self.ended:
            name, code = next(iter(self.ended.items()))
            raise ClusterError(f"{name} ended with exit code {code}")

    def wait(self, what: str, done: object) -> None:
        """Wait until ``done`` returns True. Fail if a component ends."""
        self.say("step", f"waiting for {what}")

        def condition() -> bool:
            self.check()
            assert callable(done)
            return bool(done())

        wait_until(condition, START_SECONDS, what)

    def up(self) -> None:
        """Start all components, and wait until the cluster is ready for pods."""
        mount(self.files.state)
        machine.configure_node()
        make_cgroups(components.CGROUP)
        client = self.files.client()
        self.start(components.first(self.files, self.binaries))
        self.wait("containerd", self.files.containerd_socket.exists)
        components.import_pause(self.files, self.binaries)
        self.wait("the API server", client.ready)
        self.start(components.second(self.files, self.binaries))
        self.start({"dns": [sys.executable, "-m", "hack.cluster.dns", str(self.files.state)]})
        self.start({components.POLICIES: [sys.executable, "-m", "hack.cluster.policies", str(self.files.state)]})
        components.create_objects(client, self.files)
        self.wait("the node", lambda: components.node_ready(client))

    def reap(self) -> None:
        """Reap processes forever. On SIGHUP, stop and start components."""
        signal.signal(signal.SIGHUP, lambda *_: self.apply_stopped())
        while True:
            self.note_ended(*os.waitpid(-1, 0))


def mount(state: Path) -> None:
    """Mount private versions of the usual directories, so that those of the machine do not change."""
    run("mount", "--make-rprivate", "/")
    run("mount", "-t", "proc", "proc", "/proc")
    resolver = Path("/etc/resolv.conf").resolve()
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    if not resolver.exists():
        resolver.parent.mkdir(parents=True, exist_ok=True)
        resolver.touch()
    # The machine's name servers cannot be reached. With this file, pulls of images fail at once, not after a timeout.
    run("mount", "--bind", state / "resolv.conf", resolver)
    run("mount", "--bind", state / "log", "/var/log")
    for point in MOUNT_POINTS:
        (state / "lib" / point.name).mkdir(exist_ok=True)
        run("mount", "--bind", state / "lib" / point.name, point)
    # Volumes of pods may need mount propagation.
    run("mount", "--make-rshared", "/")


def main() -> None:
    """Start the cluster of a state directory. Progress is written to the given file descriptor."""
    state, binaries, report = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    # The reader of this pipe recognises the end of this process by EOF, so the components must not inherit it.
    os.set_inheritable(report, False)
    init = Init(Files(state), binaries, report)
    unshare(CLONE_NEWPID)
    # The child waits until its PID is reported, because the network is connected to the machine by PID.
    known, tell = os.pipe()
    pid = os.fork()
    if pid:
        init.say("pid", str(pid))
        os.write(tell, b"\n")
        os._exit(0)
    os.close(tell)
    os.read(known, 1)
    os.close(known)
    try:
        os.setsid()
        unshare(CLONE_NEWNS | CLONE_NEWNET)
        init.say("namespaces", "made")
        init.up()
        init.say("ready", "")
    except BaseException as error:
        init.say("failed", str(error).replace("\n", "\\n"))
        raise
    os.close(report)
    os.chdir("/")
    init.reap()


if __name__ == "__main__":
    main()
