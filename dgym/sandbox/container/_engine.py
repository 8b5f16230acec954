"""docker and podman through their command lines: which one is available, which limits it enforces, and its calls.

The command line is the only interface that both have on all systems, also in front of a virtual machine. It uses the
daemon, socket and configuration that the user has set up.
"""

import asyncio
import hashlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from dgym.decoding import DECODE_ERRORS
from dgym.errors import SandboxStartFailed
from dgym.locks import hold_lock
from dgym.sandbox._cache import cache_directory
from dgym.sandbox._protocol import EngineName

Flavor = Literal["docker", "podman"]

ORDER: tuple[Flavor, ...] = ("podman", "docker")
_INFO_SECONDS = 30.0
_OUTPUT_BYTES = 16 * 1024**2
_LINE_BYTES = 1024**2
_LINES_SHOWN = 10


@dataclass(frozen=True)
class EngineOutput:
    """The result of a program run."""

    status: int
    output: str
    errors: str

    @property
    def why(self) -> str:
        """The last lines of standard error (or of the output), for an error message."""
        lines = [line for line in (self.errors or self.output).strip().splitlines() if line.strip()]
        return "\n".join(lines[-_LINES_SHOWN:]) or f"exit status {self.status}"


@dataclass(frozen=True, kw_only=True)
class Engine:
    """An available container engine.

    Attributes:
        program: Path of its program.
        flavor: The actual engine: the program ``docker`` may be podman's emulation.
        memory: Whether it can limit memory. A rootless engine often cannot enforce all limits.
        processes: Whether it can limit the number of processes.
        cpus: Whether it can limit the number of processors.
        selinux: Whether files of this machine need an SELinux label before a container can read them.
    """

    program: str
    flavor: Flavor
    memory: bool = True
    processes: bool = True
    cpus: bool = True
    selinux: bool = False

    async def call(
        self, *arguments: str, timeout_seconds: float = 60.0, on_line: Callable[[str], None] | None = None
    ) -> EngineOutput:
        """Run the engine's program. ``on_line`` is called with each line of output.

        Raises:
            SandboxStartFailed: It did not end in time or could not be started.
        """
        return await call(self.program, arguments, timeout_seconds, on_line)


_answered: dict[EngineName, Engine] = {}
"""Cached, because ``podman info`` takes longer than the start of a container.

Failures are not cached: an engine may be started later.
"""


async def find_engine(name: EngineName = "auto") -> Engine:
    """Return the engine of that name or, with "auto", the first of podman and docker that answers.

    Raises:
        SandboxStartFailed: No engine answers. The message has the reason for each.
    """
    if name not in _answered:
        _answered[name] = await (_ask_all() if name == "auto" else _ask(name))
    return _answered[name]


async def _ask_all() -> Engine:
    problems = []
    for candidate in ORDER:
        try:
            return await _ask(candidate)
        except SandboxStartFailed as error:
            problems.append(str(error))
    raise SandboxStartFailed(f"no container engine answers: {'; '.join(problems)}")


async def call(
    program: str,
    arguments: Sequence[str],
    timeout_seconds: float,
    on_line: Callable[[str], None] | None = None,
    environment: Mapping[str, str] | None = None,
) -> EngineOutput:
    """Run a program until it ends. Its process group is killed on timeout and if the call is cancelled.

    ``environment`` replaces the environment variables of this process.

    Raises:
        SandboxStartFailed: It did not end in time or could not be started.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=_LINE_BYTES,
            env=environment,
        )
    except OSError as error:
        raise SandboxStartFailed(f"{program} cannot be run: {error.strerror}") from error
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(timeout_seconds):
            output, errors = await asyncio.gather(_read(process.stdout, on_line), _read(process.stderr, on_line))
            status = await process.wait()
    except TimeoutError:
        shown = " ".join((os.path.basename(program), *arguments[:2]))  # noqa: PTH119 - a program's name, not a path
        raise SandboxStartFailed(f"{shown} did not end within {timeout_seconds:g} s") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            await process.wait()
    return EngineOutput(status, output, errors)


async def _read(stream: asyncio.StreamReader, on_line: Callable[[str], None] | None) -> str:
    """Read a stream until it ends. Only its first 16 MiB are returned."""
    kept: list[str] = []
    size = 0
    while raw := await _line(stream):
        line = raw.decode("utf-8", "replace")
        size += len(line)
        if size <= _OUTPUT_BYTES:
            kept.append(line)
        if on_line is not None and line.strip():
            on_line(line.rstrip())
    return "".join(kept)


async def _line(stream: asyncio.StreamReader) -> bytes:
    try:
        return await stream.readuntil(b"\n")
    except asyncio.IncompleteReadError as end:
        return end.partial
    except asyncio.LimitOverrunError as error:
        return await stream.readexactly(error.consumed)


async def _ask(name: Flavor) -> Engine:
    program = shutil.which(name)
    if program is None:
        raise SandboxStartFailed(f"{name} is not installed")
    answer = await call(program, ("info", "--format", "{{json .}}"), _INFO_SECONDS)
    try:
        facts = msgspec.json.decode(answer.output, type=dict[str, Any])
    except DECODE_ERRORS:
        raise SandboxStartFailed(f"{name} does not answer: {answer.why}") from None
    errors = facts.get("ServerErrors")
    if errors or answer.status != 0:
        raise SandboxStartFailed(f"{name} does not answer: {' '.join(map(str, errors or [answer.why]))}")
    return engine_from_facts(program, facts)


def engine_from_facts(program: str, facts: dict[str, Any]) -> Engine:
    """Create an engine from the output of ``info``, which distinguishes podman from docker whatever the program's name.

    Raises:
        SandboxStartFailed: docker runs Windows containers.
    """
    host = facts.get("host")
    if isinstance(host, dict):
        security = host.get("security") or {}
        # Without cgroups v2 a rootless podman ignores all limits and writes a warning for each.
        bounded = not (security.get("rootless") and host.get("cgroupVersion") == "v1")
        controllers = set(host.get("cgroupControllers") or ()) if bounded else set()
        return Engine(
            program=program,
            flavor="podman",
            memory="memory" in controllers,
            processes="pids" in controllers,
            cpus="cpu" in controllers,
            selinux=bool(security.get("selinuxEnabled")),
        )
    if facts.get("OSType", "linux") != "linux":
        raise SandboxStartFailed("docker runs Windows containers; switch it to Linux containers")
    return Engine(
        program=program,
        flavor="docker",
        memory=bool(facts.get("MemoryLimit")),
        processes=bool(facts.get("PidsLimit")),
        cpus=bool(facts.get("CPUCfsQuota") or facts.get("CpuCfsQuota")),
        selinux=any("selinux" in str(option) for option in facts.get("SecurityOptions") or ()),
    )


DEFAULT_IMAGE = "localhost/dgym/sandbox-python:0.1.0"
"""The image of tasks that do not name an image.

No registry serves ``localhost/``, so an image of this name is never pulled.
"""

PULL_SECONDS = 3600.0
_LOCAL = "localhost/"
_UNKNOWN = ("no such image", "no such object", "image not known", "not found")

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Image:
    """An image that the engine has.

    Attributes:
        name: Name by which it was requested.
        id: Digest of its configuration.
        user: User that runs its programs, as in the Dockerfile's ``USER``.
        digest: Digest of its manifest, which registries use. Equal to ``id`` if the image was never in a registry.
    """

    name: str
    id: str
    user: str
    digest: str = ""

    @property
    def is_root(self) -> bool:
        """True if the image's programs run as root by default."""
        return self.user.partition(":")[0] in ("", "0", "root")


async def ensure_image(engine: Engine, name: str, progress: Progress | None = None) -> Image:
    """Return the image of that name. It is pulled if the engine does not have it; other processes wait for the pull.

    Raises:
        SandboxStartFailed: The image does not exist or cannot be pulled.
    """
    image = await _inspect(engine, name)
    if image is not None:
        return image
    if name.startswith(_LOCAL):
        raise SandboxStartFailed(_how_to_build(engine, name))
    notify = progress or (lambda _: None)
    key = hashlib.sha256(f"{engine.program}\0{name}".encode()).hexdigest()[:20]
    async with hold_lock(
        lock_directory() / f"pull-{key}",
        waiting=lambda: notify(f"waiting for another process that pulls {name}"),
        timeout_seconds=PULL_SECONDS,
        error=SandboxStartFailed,
    ):
        image = await _inspect(engine, name)
        if image is None:
            await _pull(engine, name, notify)
            image = await _inspect(engine, name)
    if image is None:
        raise SandboxStartFailed(f"image {name!r} was pulled, but {engine.flavor} does not have it")
    return image


def lock_directory() -> Path:
    """Return the directory of the locks of pulls and of containers. It is created if necessary."""
    path = cache_directory() / "containers"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


async def _pull(engine: Engine, name: str, notify: Progress) -> None:
    notify(f"pulling {name} with {engine.flavor}")
    answer = await engine.call(
        "pull", "--", name, timeout_seconds=PULL_SECONDS, on_line=lambda line: notify(f"pulling {name}: {line}")
    )
    if answer.status != 0:
        raise SandboxStartFailed(f"image {name!r} cannot be pulled: {answer.why}")
    notify(f"pulled {name}")


async def _inspect(engine: Engine, name: str) -> Image | None:
    # After ``--``, because the name is from a manifest and must not be parsed as an option.
    answer = await engine.call("image", "inspect", "--format", "{{json .}}", "--", name)
    if answer.status == 0:
        return _image(name, answer)
    if any(words in answer.errors.lower() for words in _UNKNOWN):
        return None
    # This does not prove that the image is missing: the engine may have stopped, or the name may be invalid.
    raise SandboxStartFailed(f"{engine.flavor} did not report whether it has image {name!r}: {answer.why}")


def _image(name: str, answer: EngineOutput) -> Image:
    try:
        decoded = msgspec.json.decode(answer.output)
        # docker prints an object, podman a list with one object.
        facts: dict[str, Any] = decoded[0] if isinstance(decoded, list) else decoded
        config = facts.get("Config") or {}
        known = [str(one).rpartition("@")[2] for one in facts.get("RepoDigests") or ()]
        return Image(
            name=name,
            id=str(facts["Id"]),
            user=str(config.get("User") or ""),
            digest=known[0] if known else str(facts["Id"]),
        )
    except (*DECODE_ERRORS, LookupError, AttributeError, TypeError):
        raise SandboxStartFailed(
            f"the engine's answer about image {name!r} is invalid: {answer.output[:200]}"
        ) from None


def _how_to_build(engine: Engine, name: str) -> str:
    if name == DEFAULT_IMAGE:
        return (
            f"{engine.flavor} does not have dgym's own image {name}: build it with 'make images' in a checkout of "
            "dgym, or name an image that contains Python and pytest in the task's 'image'"
        )
    return f"{engine.flavor} does not have the image {name}, and an image of that name is never pulled; build it first"
