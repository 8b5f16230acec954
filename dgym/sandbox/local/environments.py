"""Virtual environments for tasks, made once for each list of requirements and kept in the cache.

They are made outside the sandbox, which has no network, and shown to it read-only. Nothing of dgym is in them. A
virtual environment knows its own path, so it is built where it will stay and counts only once its marker is written.
"""

import asyncio
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

from dgym.errors import ManifestError, SetupFailed
from dgym.sandbox.cache import cache_directory
from dgym.sandbox.local.interpreter import Interpreter, inspect_interpreter, resolve_python
from dgym.sandbox.locks import only_one, whole_in_thread

__all__ = ["cache_directory", "ensure_environment", "resolve_python"]

_READY = ".dgym-ready"
_LOCK_SECONDS = 1800.0
_BUILD_SECONDS = 1800.0
_LINES_SHOWN = 15
_LAYOUT = 1
"""Raised when environments built by an older dgym must not be used any more."""

_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_UNREACHABLE = re.compile(
    r"name resolution|failed to establish a new connection|network is unreachable|connection refused|dns error"
    r"|error sending request|could not connect|connection timed out|failed to lookup|proxyerror|newconnectionerror",
    re.IGNORECASE,
)
_UNWANTED = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_REQUIRE_VIRTUALENV")

Progress = Callable[[str], None]


async def ensure_environment(
    requirements: Sequence[str], *, python: str | None = None, progress: Progress | None = None
) -> str:
    """The path of a virtual environment with these requirements and pytest, built if it is not in the cache.

    Args:
        requirements: as pip takes them on its command line; options and paths are refused.
        python: the interpreter it is made from; by default the one that runs dgym.
        progress: is told what is being done, a line at a time.

    Raises:
        ManifestError: a requirement is not one, or ``python`` is not an interpreter.
        SetupFailed: it could not be built; the message ends with the last lines of the installer.
    """
    wanted = _checked(requirements)
    interpreter = await asyncio.to_thread(lambda: inspect_interpreter(resolve_python(python or sys.executable)))
    bare = not wanted and bool(pytest_distributions(interpreter))
    if not any(_name(requirement) == "pytest" for requirement in wanted):
        wanted = [*wanted, "pytest"]
    contents = pytest_distributions(interpreter) if bare else wanted
    path = cache_directory() / "environments" / _digest(interpreter, contents)
    tell = progress or (lambda _: None)
    if not _is_ready(path):
        async with only_one(
            path.with_name(f"{path.name}.lock"),
            waiting=lambda: tell("waiting for another process that builds the same environment"),
            timeout_seconds=_LOCK_SECONDS,
            error=SetupFailed,
        ):
            if not _is_ready(path):
                await _build(path, interpreter, [] if bare else wanted, tell)
    return str(path)


def _checked(requirements: Sequence[str]) -> list[str]:
    checked = [requirement.strip() for requirement in requirements]
    for index, requirement in enumerate(checked):
        if _NAME.match(requirement) is None or "\n" in requirement:
            raise ManifestError(
                f"requirements[{index}]: {requirement!r} is not a requirement; write a name with an optional version, "
                "such as 'numpy>=1.26', or 'name @ https://…'"
            )
    return sorted(set(checked))


def _name(requirement: str) -> str:
    match = _NAME.match(requirement)
    return re.sub(r"[-_.]+", "-", match.group(1)).lower() if match else ""


def _digest(interpreter: Interpreter, contents: Sequence[str]) -> str:
    base = str(Path(interpreter.base_executable).resolve())
    described = json.dumps([_LAYOUT, base, interpreter.version, list(contents)])
    return hashlib.sha256(described.encode()).hexdigest()[:20]


def _is_ready(path: Path) -> bool:
    """True for a finished environment whose interpreter still exists."""
    return (path / _READY).is_file() and os.access(path / "bin" / "python", os.X_OK)


async def _build(path: Path, interpreter: Interpreter, requirements: Sequence[str], tell: Progress) -> None:
    await whole_in_thread(lambda: shutil.rmtree(path, ignore_errors=True))
    try:
        if requirements:
            tell(f"installing {', '.join(requirements)}")
            await _install(path, interpreter, requirements, tell)
        else:
            await _run(
                [interpreter.executable, "-m", "venv", "--without-pip", str(path)], "a virtual environment", tell
            )
            await whole_in_thread(lambda: copy_distributions(pytest_distributions(interpreter), path))
            python = str(path / "bin" / "python")
            await _run(
                [python, "-I", "-m", "compileall", "-q", str(path / "lib")], "pytest could not be compiled", tell
            )
    except BaseException:
        await whole_in_thread(lambda: shutil.rmtree(path, ignore_errors=True))
        raise
    (path / _READY).touch()


async def _install(path: Path, interpreter: Interpreter, requirements: Sequence[str], tell: Progress) -> None:
    python = str(path / "bin" / "python")
    uv = shutil.which("uv")
    if uv is not None:
        make = [uv, "venv", "--quiet", "--python", interpreter.executable, str(path)]
        install = [uv, "pip", "install", "--compile-bytecode", "--python", python, *requirements]
    else:
        make = [interpreter.executable, "-m", "venv", str(path)]
        quiet = ["--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
        install = [python, "-I", "-m", "pip", "install", *quiet, *requirements]
    await _run(make, "the virtual environment could not be made", tell)
    await _run(install, "the requirements could not be installed", tell)


async def _run(command: Sequence[str], failure: str, tell: Progress) -> None:
    """Run one program of the build, passing on its lines; it does not outlive a cancelled wait."""
    environment = {name: value for name, value in os.environ.items() if name not in _UNWANTED}
    # Links into the cache of uv would be dangling inside, and its files would be open to programs without a sandbox.
    environment["UV_LINK_MODE"] = "copy"
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=environment,
            cwd="/",
            limit=1024**2,
        )
    except OSError as error:
        raise SetupFailed(f"{failure}: {command[0]}: {error.strerror}") from error
    lines: list[str] = []
    try:
        async with asyncio.timeout(_BUILD_SECONDS):
            await _follow(process, lines, tell)
            status = await process.wait()
    except TimeoutError:
        raise SetupFailed(_explain(failure, f"did not end within {_BUILD_SECONDS:g} s", lines)) from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if status != 0:
        raise SetupFailed(_explain(failure, f"{Path(command[0]).name} ended with status {status}", lines))


async def _follow(process: asyncio.subprocess.Process, lines: list[str], tell: Progress) -> None:
    assert process.stdout is not None
    async for raw in process.stdout:
        line = raw.decode("utf-8", "replace").rstrip()
        if line:
            lines.append(line)
            del lines[:-200]
            tell(line)


def _explain(failure: str, end: str, lines: Sequence[str]) -> str:
    shown = "\n".join(lines[-_LINES_SHOWN:])
    cause = ""
    if any(_UNREACHABLE.search(line) for line in lines):
        cause = "the package index cannot be reached (is there a network?); "
    return f"{failure}: {cause}{end}\n{shown}".rstrip()


_NAMES = ("pytest", "iniconfig", "packaging", "pluggy", "pygments")


@cache
def pytest_distributions(interpreter: Interpreter) -> tuple[str, ...]:
    """``name==version`` of pytest and what it needs; nothing where they cannot be copied for ``interpreter``.

    What pytest needs depends on the version of Python, so only the version that runs dgym will do.
    """
    if interpreter.version[:2] != sys.version_info[:2]:
        return ()
    try:
        found = [metadata.distribution(name) for name in _NAMES]
    except metadata.PackageNotFoundError:
        return ()
    if not all(distribution.files for distribution in found):
        return ()
    return tuple(f"{name}=={distribution.version}" for name, distribution in zip(_NAMES, found, strict=True))


def copy_distributions(pinned: tuple[str, ...], environment: Path) -> None:
    """Copy installed distributions into a virtual environment, console scripts included."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = environment / "lib" / version / "site-packages"
    for pin in pinned:
        distribution = metadata.distribution(pin.partition("==")[0])
        for file in distribution.files or ():
            # Scripts lie above the packages and name their old interpreter: they are written anew below.
            if ".." in file.parts or "__pycache__" in file.parts or file.is_absolute():
                continue
            target = packages / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(Path(str(file.locate())), target)
        for script in distribution.entry_points.select(group="console_scripts"):
            _write_script(environment / "bin", script)


def _write_script(directory: Path, script: metadata.EntryPoint) -> None:
    path = directory / script.name
    path.write_text(
        f"#!{directory / 'python'}\n"
        "import sys\n\n"
        f"from {script.module} import {script.attr}\n\n"
        'if __name__ == "__main__":\n'
        f"    sys.exit({script.attr}())\n"
    )
    path.chmod(0o755)
