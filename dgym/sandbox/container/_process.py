"""An attached container: the engine's program, which transports the frames of the runner, and its command line.

Also the removal of both.
"""

import asyncio
import csv
import hashlib
import io
import logging
import os
import platform
import secrets
import socket
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from dgym.errors import ManifestError, SandboxLost, SandboxStartFailed
from dgym.locks import acquire, try_acquire
from dgym.sandbox._protocol import SandboxLimits
from dgym.sandbox.container._engine import Engine, Image, lock_directory

_log = logging.getLogger(__name__)
_ERROR_BYTES = 64 * 1024
_DETACH_SECONDS = 10.0
_REMOVE_SECONDS = 60.0
_LOOK_SECONDS = 0.1
PREFIX = "dgym-"
_SUFFIX = ".lock"
_YOUNG_SECONDS = 60.0
LABEL = "dev.dgym.sandbox"
RUNNER_INSIDE = "/opt/dgym/runner"
RUN_INSIDE = "/run/dgym"
USER = "1000:1000"
"""The user that runs programs if the image's user is root."""
SPARE_PROCESSES = 64
"""Added for the runner's threads: the engine counts tasks, but ``SandboxLimits.processes`` are processes."""
SPARE_BYTES = 64 * 1024**2
"""Added for the runner, so that its watchdog kills the largest command before the kernel's OOM killer chooses."""
_RUN_BYTES = 64 * 1024**2
_WORKSPACE_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "SETGID", "SETUID")
# Compatible with all versions of Python that the runner supports. After the exec the process has no capabilities:
# the change to an ordinary user drops them, and with no_new_privs they cannot be regained from the bounding set.
_LAUNCHER = """
import grp, os, pwd, shutil, sys

wanted, workspace = sys.argv[1:3]
user, _, group = wanted.partition(":")
try:
    entry = pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user)
except KeyError:
    if not user.isdigit():
        sys.exit("the image has no user %r" % user)
    entry = None
uid = int(user) if entry is None else entry.pw_uid
gid = 0 if entry is None else entry.pw_gid
if group:
    gid = int(group) if group.isdigit() else grp.getgrnam(group).gr_gid
home = "/home/agent" if entry is None else entry.pw_dir
if entry is None:
    try:
        with open("/etc/passwd", "a") as file:
            file.write("agent:x:%d:%d::%s:/bin/sh\\n" % (uid, gid, home))
        os.makedirs(home, exist_ok=True)
        os.chown(home, uid, gid)
    except OSError:
        pass
os.makedirs(workspace, exist_ok=True)
for name in os.listdir(workspace):
    path = os.path.join(workspace, name)
    shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.remove(path)
os.chown(workspace, uid, gid)
os.setgroups([])
os.setgid(gid)
os.setuid(uid)
os.environ["HOME"] = home
os.chdir("/")
os.execv(sys.executable, [sys.executable] + sys.argv[3:])
"""


class Ownership:
    """The name of one container, and the lock that its owner holds as long as it lives."""

    def __init__(self) -> None:
        self.name = f"{PREFIX}{secrets.token_hex(8)}"
        self._path = lock_directory() / f"{self.name}{_SUFFIX}"
        self._lock = acquire(self._path)

    def release(self) -> None:
        """Remove the lock once the container is removed. Idempotent."""
        if self._lock >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1


class ContainerProcess:
    """One attached container.

    Attributes:
        name: Name of the container.
        answered: True if its runner has answered, which proves that the container exists.
    """

    def __init__(self, engine: Engine, ownership: Ownership, process: asyncio.subprocess.Process) -> None:
        self.name = ownership.name
        self.answered = False
        self._engine = engine
        self._ownership = ownership
        self._process = process
        self._errors = bytearray()
        self._reading = asyncio.get_running_loop().create_task(self._read_errors())

    @classmethod
    async def start(
        cls, engine: Engine, ownership: Ownership, arguments: Sequence[str]
    ) -> tuple["ContainerProcess", socket.socket]:
        """Start the engine's program. Returns it and the socket to the container's standard input and output.

        Raises:
            SandboxStartFailed: The program could not be started.
        """
        ours, theirs = socket.socketpair()
        try:
            # In a new session, so that Ctrl-C in the terminal interrupts only this process.
            process = await asyncio.create_subprocess_exec(
                engine.program,
                *arguments,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except BaseException as error:
            ours.close()
            if isinstance(error, OSError):
                raise SandboxStartFailed(f"{engine.program} cannot be run: {error.strerror}") from error
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        return cls(engine, ownership, process), ours

    async def error_output(self) -> str:
        """Return the standard error of the engine and the runner. Waits up to 10 s for the program to end."""
        await asyncio.wait([self._reading], timeout=_DETACH_SECONDS)
        return self._errors.decode("utf-8", "replace").strip()

    async def remove(self) -> None:
        """Kill and remove the container, and return when its removal is confirmed. Idempotent.

        Raises:
            SandboxLost: The engine did not remove it in time. A later cleanup removes it.
        """
        try:
            try:
                await remove_container(self._engine, self.name)
            finally:
                await self._detach()
            if not self.answered:
                # A cancelled start may have created the container after the first removal.
                await remove_container(self._engine, self.name)
        except SandboxStartFailed as error:
            raise SandboxLost(f"container {self.name} could not be removed: {error}") from None
        self._ownership.release()

    async def _detach(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), _DETACH_SECONDS)
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, 9)
            await self._process.wait()
        # Helper processes of the engine may keep standard error open after it has ended.
        await asyncio.wait([self._reading], timeout=_DETACH_SECONDS)
        self._reading.cancel()

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        while chunk := await self._process.stderr.read(_ERROR_BYTES):
            self._errors += chunk[: _ERROR_BYTES - len(self._errors)]


async def remove_container(engine: Engine, name: str) -> None:
    """Kill and remove a container with its anonymous volumes. It is not an error if the container does not exist.

    Raises:
        SandboxStartFailed: The container still exists after a minute, or the engine does not answer.
    """
    at_once = ("--time", "0") if engine.flavor == "podman" else ()
    end = time.monotonic() + _REMOVE_SECONDS
    while True:
        removed = await engine.call("rm", "--force", "--volumes", *at_once, name)
        if removed.status == 0 or await _is_unknown(engine, name):
            return
        if time.monotonic() > end:
            raise SandboxStartFailed(removed.why)
        _log.debug("container %s still exists: %s", name, removed.why)
        await asyncio.sleep(_LOOK_SECONDS)


async def _is_unknown(engine: Engine, name: str) -> bool:
    found = await engine.call("ps", "--all", "--quiet", "--filter", f"name=^{name}$")
    return found.status == 0 and not found.output.strip()


_cleaned: set[str] = set()


async def remove_abandoned_containers(engine: Engine) -> list[str]:
    """Remove the containers of this user and machine whose owners are dead, and return their names.

    Raises:
        SandboxStartFailed: The engine does not answer, or a container cannot be removed.
    """
    existing = await _own_containers(engine)
    abandoned = [name for name in existing if is_abandoned(name)]
    for name in abandoned:
        await remove_container(engine, name)
        forget(name)
    return abandoned


async def remove_abandoned_once(engine: Engine) -> None:
    """Call ``remove_abandoned_containers`` once per process and engine. Errors are logged, not raised."""
    if engine.program in _cleaned:
        return
    _cleaned.add(engine.program)
    try:
        for name in await remove_abandoned_containers(engine):
            _log.info("removed container %s, which a terminated process left behind", name)
    except SandboxStartFailed as error:
        _log.warning("abandoned containers could not be removed: %s", error)


async def remove_unused_locks(engines: Iterable[Engine]) -> None:
    """Remove the locks of dead processes for which none of these engines has a container."""
    existing: set[str] = set()
    for engine in engines:
        existing.update(await _own_containers(engine))
    forget_unused(existing)


async def _own_containers(engine: Engine) -> list[str]:
    found = await engine.call(
        "ps", "--all", "--filter", f"label={LABEL}={scope()}", "--format", "{{.Names}}", timeout_seconds=30.0
    )
    if found.status != 0:
        raise SandboxStartFailed(found.why)
    return [name for name in found.output.split() if name.startswith(PREFIX)]


def scope() -> str:
    """Return the value of the label of this user's containers on this machine. An engine may serve other users too."""
    described = f"{platform.node()}\0{os.getuid()}\0{lock_directory().resolve()}"
    return hashlib.sha256(described.encode()).hexdigest()[:16]


def is_abandoned(name: str) -> bool:
    """Return whether the owner of a container of this scope is dead."""
    try:
        lock = try_acquire(lock_directory() / f"{name}{_SUFFIX}", create=False)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    if lock is None:
        return False
    os.close(lock)
    return True


def forget(name: str) -> None:
    """Remove the lock of an abandoned container, after the container was removed."""
    (lock_directory() / f"{name}{_SUFFIX}").unlink(missing_ok=True)


def forget_unused(existing: set[str]) -> None:
    """Remove the locks of dead processes, except those of the containers in ``existing``."""
    young = time.time() - _YOUNG_SECONDS
    for path in lock_directory().glob(f"{PREFIX}*{_SUFFIX}"):
        name = path.name.removesuffix(_SUFFIX)
        with suppress(OSError):
            # A new file that is not locked yet looks abandoned.
            if name not in existing and path.lstat().st_mtime < young and is_abandoned(name):
                path.unlink()


@dataclass(frozen=True, kw_only=True)
class Container:
    """The parameters of one container.

    Attributes:
        scope: Value of the label ``LABEL``.
        runner: Directory of the runner's files on this machine.
        workspace: Path of the workspace in the container.
        delivered: True if the workspace is initially empty; False if the image has the repository.
        in_place: Run programs as the image's user even if ``delivered`` is true.
        cpus: Number of processors that may be used; None: all.
    """

    name: str
    scope: str
    image: Image
    runner: str
    workspace: str
    interpreter: str = "python3"
    delivered: bool = True
    in_place: bool = False
    limits: SandboxLimits = field(default_factory=SandboxLimits)
    cpus: float | None = None

    @property
    def user(self) -> str | None:
        """The user that runs programs in a delivered workspace; None: the image's user, without changing users."""
        if self.in_place or not self.delivered:
            return None
        return USER if self.image.is_root else self.image.user


def command_line(engine: Engine, container: Container) -> list[str]:
    """Return the arguments of the engine's program that run the container attached to the standard streams."""
    arguments = [
        *("run", "--rm", "--interactive", "--name", container.name, "--label", f"{LABEL}={container.scope}"),
        *("--pull", "never", "--log-driver", "none", "--no-healthcheck", "--sig-proxy=false"),
        *("--network", "none", "--hostname", "dgym", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        *("--workdir", "/", "--env", f"TMPDIR={RUN_INSIDE}"),
        *("--tmpfs", f"{RUN_INSIDE}:rw,nosuid,nodev,exec,size={_RUN_BYTES},mode=1777"),
        *_without_proxies(engine),
        *("--mount", _mount(engine, container.runner)),
        *_bounds(engine, container),
    ]
    runner = ["-I", "-S", "-B", f"{RUNNER_INSIDE}/__main__.py", "--stdio"]
    if container.user is not None:
        arguments += ["--user", "0:0"]
        for capability in _WORKSPACE_CAPABILITIES:
            arguments += ["--cap-add", capability]
        runner = ["-I", "-S", "-B", "-c", _LAUNCHER, container.user, container.workspace, *runner]
    return [*arguments, "--entrypoint", _program(container.interpreter), container.image.id, *runner]


def _without_proxies(engine: Engine) -> list[str]:
    """Return arguments that keep the user's proxy settings, which may contain passwords, out of the container."""
    if engine.flavor == "podman":
        return ["--http-proxy=false"]
    names = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY")
    # docker adds the variables from its configuration unless they are set.
    return [word for name in names for each in (name, name.lower()) for word in ("--env", f"{each}=")]


def _bounds(engine: Engine, container: Container) -> list[str]:
    """Return arguments for the limits that the engine can enforce. The runner's watchdog enforces the others."""
    limits = container.limits
    arguments: list[str] = []
    if engine.memory and limits.memory_bytes is not None:
        size = str(limits.memory_bytes + SPARE_BYTES)
        arguments += ["--memory", size, "--memory-swap", size]
    if engine.processes and limits.processes is not None:
        arguments += ["--pids-limit", str(limits.processes + SPARE_PROCESSES)]
    if engine.cpus and container.cpus is not None:
        arguments += ["--cpus", f"{container.cpus:g}"]
    return arguments


def _mount(engine: Engine, runner: str) -> str:
    fields = ["type=bind", f"source={runner}", f"target={RUNNER_INSIDE}", "readonly"]
    if engine.selinux and engine.flavor == "podman":
        fields.append("relabel=shared")
    written = io.StringIO()
    csv.writer(written, lineterminator="").writerow(fields)
    return written.getvalue()


def _program(interpreter: str) -> str:
    if interpreter.startswith(("[", "-")):
        raise ManifestError(f"interpreter {interpreter!r} is not the name or path of a program, such as python3")
    return interpreter
