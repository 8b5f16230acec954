"""The provider of sandboxes on this machine: under bubblewrap or, without isolation, as plain processes.

Both start the same runner as a pod, and are connected to it by an inherited socket pair.
"""

import asyncio
import logging
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from dgym.errors import DgymError, SandboxLost, SandboxStartFailed
from dgym.sandbox._cache import compiled_runner
from dgym.sandbox._client import RunnerClient
from dgym.sandbox._protocol import RunResult, SandboxProvider, SandboxSpec
from dgym.sandbox.local import _bubblewrap
from dgym.sandbox.local._bubblewrap import bubblewrap_problem, bubblewrap_works
from dgym.sandbox.local._environments import ensure_environment
from dgym.sandbox.local._interpreter import Interpreter, inspect_interpreter, resolve_python
from dgym.sandbox.local._overlay import CARGO_HOME, ProjectLayer, relocated, write_cargo_home, write_overlay
from dgym.sandbox.local._process import RunnerProcess, descendants, kill_leftovers
from dgym.sandbox.local._resources import ControlGroup, PrivateDirectory, remove_abandoned

__all__ = ["LocalProvider", "LocalSandbox", "bubblewrap_works"]

Kind = Literal["bubblewrap", "none"]

_log = logging.getLogger(__name__)
_START_SECONDS = 60.0
_POLITE_SECONDS = 10.0
_GROUP_SECONDS = 2.0
_LOOK_SECONDS = 0.005
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""Exit status of a killed program, and of a shell whose program was killed."""
_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


class LocalProvider(SandboxProvider):
    """Starts sandboxes on this machine.

    Args:
        spec: Specification of the sandboxes.
        kind: "bubblewrap", or "none" for plain processes of this user.
        project: The installed project. Each sandbox gets a separate overlay with its files.
    """

    def __init__(self, spec: SandboxSpec, *, kind: Kind = "bubblewrap", project: ProjectLayer | None = None) -> None:
        self._spec = spec
        self._kind = kind
        self._project = project

    async def sandbox(self) -> "LocalSandbox":
        """Start a sandbox, the agent's or the verifier."""
        python = self._spec.python or await ensure_environment(())
        preparation = _Preparation(lambda: self._prepare(python))
        try:
            return await _start(await asyncio.to_thread(preparation.make), self._spec)
        except BaseException:
            await asyncio.to_thread(preparation.abandon)
            raise

    verifier = sandbox

    def _prepare(self, python: str) -> "_Prepared":
        kind = self._kind
        if kind == "bubblewrap":
            _require_bubblewrap()
        _remove_abandoned_once()
        interpreter = inspect_interpreter(resolve_python(python))
        if kind == "bubblewrap":
            _bubblewrap.check_workspace(self._spec.workspace)
        runner = compiled_runner(interpreter.executable, interpreter.cache_tag)
        directory = PrivateDirectory.make()
        group = ControlGroup.make(directory.path.name, self._spec.limits)
        prepared = _Prepared(kind, directory, interpreter, runner, group, self._project)
        try:
            if self._project is not None:
                write_overlay(
                    prepared.overlay,
                    prepared.overlay_inside,
                    interpreter,
                    prepared.build_interpreter,
                    self._project.tools,
                )
                if (rust := self._project.rust) is not None:
                    crates = _bubblewrap.CRATES_INSIDE if rust.crates and kind == "bubblewrap" else rust.crates
                    write_cargo_home(prepared.overlay, prepared.overlay_inside, rust, crates)
            prepared.launch = (_under_bubblewrap if kind == "bubblewrap" else _launch_unisolated)(prepared, self._spec)
        except BaseException:
            prepared.remove()
            raise
        return prepared


class LocalSandbox(RunnerClient):
    """A running sandbox on this machine."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, process: RunnerProcess, prepared: "_Prepared"
    ) -> None:
        super().__init__(reader, writer)
        self._process = process
        self._prepared = prepared
        self._stopping: asyncio.Task[None] | None = None

    @property
    def kind(self) -> Kind:
        """Kind of the sandbox: "bubblewrap" or "none"."""
        return self._prepared.kind

    @property
    def main_process(self) -> int:
        """Id, on this machine, of the process whose end terminates the sandbox."""
        return self._process.main_process

    @property
    def overlay(self) -> str:
        """See ``Sandbox.overlay``."""
        return "" if self._prepared.project is None else self._prepared.overlay_inside

    async def install_project(self) -> Collection[str]:
        """Unpack the files of the installed project; see ``Sandbox.install_project``."""
        project = self._prepared.project
        if project is None or project.archives is None:
            return ()
        places = tuple(zip(project.places, (self.workspace, self.overlay), strict=True))

        async def unpack(archive: Path, path: str) -> None:
            if any(old != new for old, new in places):
                target = self._prepared.directory.path / archive.name
                archive = await asyncio.to_thread(relocated, archive, target, places)
            await self.put_archive(chunks_of(archive), path=path)

        filled = [
            (archive, path)
            for archive, path in zip(project.archives, (".", self.overlay), strict=True)
            if archive.stat().st_size
        ]
        await asyncio.gather(*(unpack(archive, path) for archive, path in filled))
        return project.built

    async def _command(
        self, op: str, arguments: dict[str, Any], stdin: bytes = b"", *, limit: int, deadline: float
    ) -> RunResult:
        """Run a command, and detect here that the kernel killed it because of the memory limit.

        Under bubblewrap the runner cannot read the control group.
        """
        group = self._prepared.group
        before = group.memory_kills() if group else 0
        result = await super()._command(op, arguments, stdin, limit=limit, deadline=deadline)
        if group and result.ended_by == "exit" and result.exit_status in _KILLED and group.memory_kills() > before:
            return msgspec.structs.replace(result, ended_by="memory")
        return result

    async def stop(self) -> None:
        """Terminate all processes in the sandbox, then remove the workspace. Idempotent."""
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop())
        # Shielded, so that a cancelled caller does not interrupt it and leave processes and files behind.
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        if self.kind == "bubblewrap":
            await self._process.kill()
            await self._close()
        else:
            known = await asyncio.to_thread(descendants, self._process.main_process)
            await self._close()
            await self._process.ended(_POLITE_SECONDS)
            await self._process.kill()
            left = await kill_leftovers(self._prepared.directory.path, known)
            if left:
                _log.warning("processes %s of a sandbox could not be killed", left)
        await asyncio.to_thread(self._prepared.remove)

    async def _close(self) -> None:
        try:
            await asyncio.wait_for(self.close(), _POLITE_SECONDS)
        except (DgymError, OSError, TimeoutError) as error:
            _log.debug("the runner ended before the request to exit: %s", error)


class _Launch(NamedTuple):
    """How a runner is started.

    Attributes:
        prefix: Command line of bubblewrap; empty without it.
        runner: Command line of the runner.
        environment: Environment variables of the runner.
        inside: Specification of the sandbox, with paths inside the sandbox.
    """

    prefix: list[str]
    runner: list[str]
    environment: dict[str, str]
    inside: SandboxSpec


@dataclass
class _Prepared:
    """The resources of a sandbox on this machine, which are created before its runner starts."""

    kind: Kind
    directory: PrivateDirectory
    interpreter: Interpreter
    runner: Path
    group: ControlGroup | None
    project: ProjectLayer | None = None
    launch: _Launch = field(init=False)

    @property
    def overlay(self) -> Path:
        """Path of the overlay on this machine."""
        return self.directory.path / "environment"

    @property
    def overlay_inside(self) -> str:
        """Path of the overlay inside the sandbox."""
        return _bubblewrap.OVERLAY_INSIDE if self.kind == "bubblewrap" else str(self.overlay)

    @property
    def build_interpreter(self) -> Interpreter:
        """Interpreter of the environment that has the project's build requirements."""
        return self.interpreter if self.project is None else inspect_interpreter(self.project.build_python)

    @property
    def python_inside(self) -> str:
        """Path inside the sandbox of the interpreter for the task's programs."""
        return self.interpreter.executable if self.project is None else f"{self.overlay_inside}/bin/python"

    def remove(self) -> None:
        """Remove all resources. The control group needs retries: a dead process is counted for a moment longer."""
        self.directory.remove()
        end = time.monotonic() + _GROUP_SECONDS
        while self.group is not None and not self.group.remove() and time.monotonic() < end:
            time.sleep(_LOOK_SECONDS)


class _Preparation:
    """Prepares a sandbox in a thread. A thread cannot be cancelled: if it is abandoned, it removes its resources."""

    def __init__(self, prepare: Callable[[], _Prepared]) -> None:
        self._prepare = prepare
        self._lock = threading.Lock()
        self._prepared: _Prepared | None = None
        self._abandoned = False

    def make(self) -> _Prepared:
        """Prepare the sandbox. If the preparation was abandoned meanwhile, its resources are removed."""
        prepared = self._prepare()
        with self._lock:
            self._prepared, abandoned = prepared, self._abandoned
        if abandoned:
            prepared.remove()
        return prepared

    def abandon(self) -> None:
        """Remove the resources, now or when the thread has finished."""
        with self._lock:
            prepared, self._abandoned = self._prepared, True
        if prepared is not None:
            prepared.remove()


async def _start(prepared: _Prepared, spec: SandboxSpec) -> LocalSandbox:
    prefix, runner, environment, inside = prepared.launch
    process = await RunnerProcess.start(prefix, runner, environment, deadline_seconds=_START_SECONDS)
    try:
        if prepared.group is not None:
            prepared.group.add(process.main_process)
        reader, writer = await process.connect()
        sandbox = LocalSandbox(reader, writer, process, prepared)
    except BaseException:
        await process.kill()
        raise
    try:
        # ``activate`` may take minutes; the runner has a separate deadline for it.
        await asyncio.wait_for(sandbox.configure(inside), None if spec.activate else _START_SECONDS)
    except (SandboxLost, TimeoutError, OSError) as error:
        output = process.error_output() or str(error) or type(error).__name__
        await sandbox.stop()
        raise SandboxStartFailed(f"the runner did not start: {output}") from error
    except BaseException:
        await sandbox.stop()
        raise
    return sandbox


def _under_bubblewrap(prepared: _Prepared, spec: SandboxSpec) -> _Launch:
    interpreter, directory = prepared.interpreter, prepared.directory
    shims = _shims(prepared)
    memory = spec.limits.memory_bytes
    layout = _bubblewrap.Layout(
        workspace=directory.workspace,
        workspace_inside=spec.workspace,
        etc=_bubblewrap.write_etc(directory.path),
        runner=prepared.runner,
        shims=shims,
        overlay=None if prepared.project is None else prepared.overlay,
        build=prepared.build_interpreter,
        rust=None if prepared.project is None else prepared.project.rust,
        interpreter=interpreter,
        **({} if memory is None else {"tmp_bytes": min(memory, _bubblewrap.TMP_BYTES)}),
    )
    python = prepared.python_inside if shims is None else f"{_bubblewrap.SHIMS_INSIDE}/python"
    return _Launch(
        _bubblewrap.command_line(layout),
        _runner_command(interpreter, _bubblewrap.RUNNER_INSIDE),
        _environment(_bubblewrap.RUN_INSIDE),
        _inside(prepared, spec, python=python, home=_bubblewrap.HOME_INSIDE, tmp="/tmp"),  # noqa: S108 - its own
    )


def _launch_unisolated(prepared: _Prepared, spec: SandboxSpec) -> _Launch:
    interpreter, directory = prepared.interpreter, prepared.directory
    shims = _shims(prepared)
    # A copy, because these programs can change the runner's files, and the next sandbox must not use changed files.
    runner = shutil.copytree(prepared.runner, directory.path / "runner")
    python = prepared.python_inside if shims is None else str(shims / "python")
    return _Launch(
        [],
        _runner_command(interpreter, str(runner)),
        _environment(str(directory.path / "run")),
        _inside(
            prepared,
            msgspec.structs.replace(spec, workspace=str(directory.workspace)),
            python=python,
            home=str(directory.path / "home"),
            tmp=str(directory.path / "tmp"),
        ),
    )


def _runner_command(interpreter: Interpreter, directory: str) -> list[str]:
    return [interpreter.executable, "-I", "-S", "-B", f"{directory}/__main__.py"]


def _environment(scratch: str) -> dict[str, str]:
    """Return the runner's environment variables. Variables of this process are not inherited: they could hold API keys.

    The runner's temporary files are in a directory other than ``TMPDIR`` of the task's programs.
    """
    return {"PATH": _SYSTEM_PATH, "TMPDIR": scratch, "LANG": "C.UTF-8", "TZ": os.environ.get("TZ", "UTC")}


def _inside(prepared: _Prepared, spec: SandboxSpec, *, python: str, home: str, tmp: str) -> SandboxSpec:
    """Return the specification with the paths inside the sandbox.

    The paths of HOME and TMPDIR are fixed, so that two runs of an episode print the same output. Without bubblewrap,
    ``kill_leftovers`` recognises the sandbox's processes by their HOME.
    """
    with_rust = prepared.project is not None and prepared.project.rust is not None
    cargo = {"CARGO_HOME": f"{prepared.overlay_inside}/{CARGO_HOME}"} if with_rust else {}
    environment = {"HOME": home, "TMPDIR": tmp, **cargo, **spec.environment}
    return msgspec.structs.replace(spec, python=python, environment=environment)


def _shims(prepared: _Prepared) -> Path | None:
    """Create a directory in which ``python`` is the task's interpreter, if the interpreter's own directory has none."""
    interpreter = prepared.interpreter
    if interpreter.is_named_python or prepared.project is not None:
        return None
    shims = prepared.directory.path / "bin"
    shims.mkdir()
    for name in ("python", "python3"):
        (shims / name).symlink_to(interpreter.executable)
    return shims


async def chunks_of(path: Path) -> AsyncIterator[bytes]:
    """Yield the contents of a file in chunks, for ``put_archive``."""
    with path.open("rb") as file:
        while chunk := file.read(256 * 1024):
            yield chunk


async def remove_leftovers() -> list[str]:
    """Remove the directories, processes and control groups of dead dgym processes. Returns a description of each."""
    names: list[str] = []

    await asyncio.to_thread(remove_abandoned, names.append)
    for name in names:
        # A leftover process is recognised by its HOME, which is below the removed directory.
        await kill_leftovers(Path(tempfile.gettempdir(), name), set())
        ControlGroup.remove_named(name)
    return [f"directory {name}" for name in names]


@cache
def _remove_abandoned_once() -> None:
    # In a separate thread, so that the start of a sandbox does not wait for the removal of other directories.
    threading.Thread(
        target=remove_abandoned, args=(ControlGroup.remove_named,), name="remove-abandoned", daemon=True
    ).start()


def _require_bubblewrap() -> None:
    problem = bubblewrap_problem()
    if problem is not None:
        raise SandboxStartFailed(
            f"bubblewrap does not work on this machine ({problem}); install it, or podman or docker for the sandbox "
            "'container', or choose the sandbox 'none' for code you trust: its programs run without isolation and "
            "can access your files and the network"
        )
