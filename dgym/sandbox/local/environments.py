"""Virtual environments for tasks, made once for each list of requirements and kept in the cache.

They are made outside the sandbox, which has no network, and shown to it read-only. Nothing of dgym is in them. A
virtual environment contains its own path, so it is built in its final place and used only once its marker is written.

A task's requirements are not trusted. Only wheels are installed: a source distribution runs code of its own when it is
built, which the caller has to ask for. The installer gets an environment of its own, without the user's variables, and
nothing that was installed is executed outside the sandbox: a ``.pth`` file in a wheel is code too.
"""

import asyncio
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

from dgym.api import split_hashes
from dgym.errors import ManifestError, SetupFailed
from dgym.locks import only_one, whole_in_thread
from dgym.sandbox.cache import cache_directory
from dgym.sandbox.local.interpreter import Interpreter, inspect_interpreter, resolve_python

__all__ = ["cache_directory", "ensure_environment", "resolve_python"]

_READY = ".dgym-ready"
_LOCK_SECONDS = 1800.0
_BUILD_SECONDS = 1800.0
_LINES_SHOWN = 15
_LAYOUT = 1
"""Raised when environments built by an older dgym must not be used any more."""

_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\s*(\[[\w\s,.-]*\])?\s*([<>=!~(;@].*)?")
UNREACHABLE = re.compile(
    r"name resolution|failed to establish a new connection|network is unreachable|connection refused|dns error"
    r"|error sending request|could not connect|connection timed out|failed to lookup|proxyerror|newconnectionerror",
    re.IGNORECASE,
)
_NO_WHEEL = re.compile(
    r"no matching distribution|no usable wheels|no wheels|only-binary|no-build|building source distributions",
    re.IGNORECASE,
)
_UNEXPECTED = re.compile(r"hash mismatch|do not match the hashes|--?require-hashes|no trusted hash", re.IGNORECASE)
_PASSED_ON = frozenset(
    {
        *("PATH", "TZ", "NETRC", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
        *("PIP_CONFIG_FILE", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_PROXY"),
        *("PIP_TRUSTED_HOST", "PIP_CERT", "PIP_CLIENT_CERT", "PIP_RETRIES", "PIP_TIMEOUT", "PIP_DEFAULT_TIMEOUT"),
        *("PIP_CONSTRAINT", "PIP_PRE", "PIP_CACHE_DIR", "PIP_NO_CACHE_DIR", "PIP_KEYRING_PROVIDER"),
        *("UV_CONFIG_FILE", "UV_NO_CONFIG", "UV_CACHE_DIR", "UV_NO_CACHE", "UV_NATIVE_TLS", "UV_SYSTEM_CERTS"),
        *("UV_FIND_LINKS", "UV_OFFLINE", "UV_INSECURE_HOST", "UV_HTTP_TIMEOUT", "UV_HTTP_RETRIES"),
        *("UV_CONSTRAINT", "UV_PRERELEASE", "UV_EXCLUDE_NEWER", "UV_KEYRING_PROVIDER", "UV_PYTHON_INSTALL_DIR"),
    }
)
"""Variables of the user that an installer needs; ``UV_INDEX…``, ``UV_DEFAULT_INDEX`` and the like are passed on too."""
_INDEX = re.compile(r"UV_(DEFAULT_|EXTRA_)?INDEX(_\w+)?")
_PIP_FILES = (".pip/pip.conf", "Library/Application Support/pip/pip.conf")
"""Where pip looks below the home directory, besides the configuration directory."""

Progress = Callable[[str], None]


async def ensure_environment(
    requirements: Sequence[str],
    *,
    python: str | None = None,
    build_requirements: bool = False,
    with_pytest: bool = True,
    progress: Progress | None = None,
) -> str:
    """The path of a virtual environment with these requirements and pytest, built if it is not in the cache.

    Args:
        requirements: as pip takes them on its command line; options and paths are refused.
        python: the interpreter it is made from; by default the one that runs dgym.
        build_requirements: build source distributions and ``name @ URL``, which runs their code outside the sandbox.
            By default only wheels of an index are installed.
        with_pytest: False for an environment that only builds projects; without requirements it has Python's own pip.
        progress: called with each line of progress.

    Raises:
        ManifestError: a requirement is not one or names a URL, or ``python`` is not an interpreter.
        SetupFailed: it could not be built; the message ends with the last lines of the installer.
    """
    wanted = _checked(requirements)
    interpreter = await asyncio.to_thread(lambda: inspect_interpreter(resolve_python(python or sys.executable)))
    bare = with_pytest and not wanted and bool(pytest_distributions(interpreter))
    if with_pytest and not any(requirement_name(requirement) == "pytest" for requirement in wanted):
        wanted = [*wanted, "pytest"]
    contents = pytest_distributions(interpreter) if bare else wanted
    # ``python -m venv`` installs an old setuptools, which satisfies most builds and cannot install in editable mode.
    upgrade = ["--upgrade"] if wanted and not with_pytest else []
    path = cache_directory() / "environments" / _digest(interpreter, [*upgrade, *contents])
    tell = progress or (lambda _: None)
    if not _is_ready(path):
        async with only_one(
            path.with_name(f"{path.name}.lock"),
            waiting=lambda: tell("waiting for another process that builds the same environment"),
            timeout_seconds=_LOCK_SECONDS,
            error=SetupFailed,
        ):
            if not _is_ready(path):
                if not build_requirements:
                    _refuse_direct(requirements)
                installed = [] if bare else [*upgrade, *wanted]
                copied = pytest_distributions(interpreter) if bare else ()
                await _build(path, interpreter, installed, copied, tell, build_requirements)
    return str(path)


def _checked(requirements: Sequence[str]) -> list[str]:
    checked = [requirement.strip() for requirement in requirements]
    for index, line in enumerate(checked):
        requirement, _ = split_hashes(line)
        before_url = requirement.partition("@")[0]
        # Installers take "tmp/project" for a directory, and "https://…" for what to build, without any option.
        if _REQUIREMENT.fullmatch(requirement) is None or "/" in before_url or "\\" in requirement:
            raise ManifestError(
                f"requirements[{index}]: {requirement!r} is not a requirement; write a name with an optional version, "
                "such as 'numpy>=1.26'"
            )
    return sorted(set(checked))


def _refuse_direct(requirements: Sequence[str]) -> None:
    for index, requirement in enumerate(requirements):
        if "@" in requirement:
            raise ManifestError(
                f"requirements[{index}]: {requirement!r} names a URL, whose code would run on this machine, outside "
                "the sandbox, when it is built; name a released version instead, or, if you trust it, allow it with "
                "--build-requirements"
            )


def requirement_name(requirement: str) -> str:
    """The normalized name (PEP 503) that a requirement begins with."""
    match = _NAME.match(requirement)
    return re.sub(r"[-_.]+", "-", match.group(1)).lower() if match else ""


def _digest(interpreter: Interpreter, contents: Sequence[str]) -> str:
    base = str(Path(interpreter.base_executable).resolve())
    described = json.dumps([_LAYOUT, base, interpreter.version, list(contents)])
    return hashlib.sha256(described.encode()).hexdigest()[:20]


def _is_ready(path: Path) -> bool:
    """True for a finished environment whose interpreter still exists."""
    return (path / _READY).is_file() and os.access(path / "bin" / "python", os.X_OK)


async def _build(
    path: Path,
    interpreter: Interpreter,
    requirements: Sequence[str],
    copied: tuple[str, ...],
    tell: Progress,
    build_requirements: bool,
) -> None:
    await whole_in_thread(lambda: shutil.rmtree(path, ignore_errors=True))
    try:
        with tempfile.TemporaryDirectory(prefix="dgym-install-") as home:
            if requirements:
                named = [split_hashes(each)[0] for each in requirements if not each.startswith("-")]
                tell(f"installing {', '.join(named)}")
                if build_requirements:
                    tell("source distributions are built on this machine, outside the sandbox: their code runs here")
                else:
                    tell("from wheels only; source distributions are not built")
                await _install(path, interpreter, requirements, tell, home=home, build=build_requirements)
            else:
                make = [interpreter.executable, "-m", "venv", *(["--without-pip"] if copied else []), str(path)]
                await run_installer(make, "a virtual environment", tell, home=home)
                await whole_in_thread(lambda: copy_distributions(copied, path))
            # By the interpreter outside, without its packages: nothing that was installed begins to run here.
            compiler = [interpreter.executable, "-I", "-S", "-m", "compileall", "-q", str(path / "lib")]
            # Files that do not compile are some packages' tests of broken files, so its status does not matter.
            with suppress(SetupFailed):
                await run_installer(compiler, "the environment could not be compiled", lambda _: None, home=home)
    except BaseException:
        await whole_in_thread(lambda: shutil.rmtree(path, ignore_errors=True))
        raise
    (path / _READY).touch()


async def _install(
    path: Path, interpreter: Interpreter, requirements: Sequence[str], tell: Progress, *, home: str, build: bool
) -> None:
    python = str(path / "bin" / "python")
    uv = shutil.which("uv")
    wheels = [] if build else ["--only-binary", ":all:"]
    hashed = [each for each in requirements if split_hashes(each)[1]]
    rest = [each for each in requirements if each not in hashed]
    steps = [rest] if rest else []
    if hashed:
        # Hashes are options of a line in a file, not of a command. What the project itself requires besides has none.
        listed, versions = Path(home) / "requirements.txt", Path(home) / "constraints.txt"
        listed.write_text("".join(f"{each}\n" for each in hashed))
        versions.write_text("".join(f"{requirement_name(each)}=={_version(each)}\n" for each in hashed))
        steps = [["--require-hashes", "--requirement", str(listed)]]
        steps += [["--constraint", str(versions), *rest]] if rest else []
        if rest:
            tell(f"installing without hashes, because the manifest does not list them: {', '.join(rest)}")
    if uv is not None:
        make = [uv, "venv", "--quiet", "--python", interpreter.executable, str(path)]
        install = [uv, "pip", "install", *wheels, "--python", python]
    else:
        make = [interpreter.executable, "-m", "venv", str(path)]
        quiet = ["--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--no-compile"]
        install = [python, "-I", "-m", "pip", "install", *quiet, *wheels]
    await run_installer(make, "the virtual environment could not be made", tell, home=home)
    remedy = (
        ""
        if build
        else (
            "no wheel of a requirement was found; name a version that has one, make an environment yourself (--python "
            "PATH), or, if you trust its code to run on this machine, build it with --build-requirements; "
        )
    )
    for step in steps:
        command = [*install, *step]
        await run_installer(command, "requirements: they could not be installed", tell, home=home, no_wheel=remedy)


def _version(pin: str) -> str:
    """The version in ``name[extra]==version; marker --hash=…``."""
    return split_hashes(pin)[0].partition("==")[2].partition(";")[0].strip()


def installer_environment(home: str) -> dict[str, str]:
    """The variables of an installer: the user's index, proxies and certificates, and none of the others."""
    user = Path.home()
    environment = {name: value for name, value in os.environ.items() if name in _PASSED_ON or _INDEX.fullmatch(name)}
    for name, directory in (("XDG_CONFIG_HOME", ".config"), ("XDG_CACHE_HOME", ".cache")):
        environment[name] = os.environ.get(name) or str(user / directory)
    files = [("PIP_CONFIG_FILE", user / file) for file in _PIP_FILES] + [("NETRC", user / ".netrc")]
    for name, file in files:
        if name not in environment and file.is_file():
            environment[name] = str(file)
    # Links into the cache of uv would be dangling inside, and its files would be open to programs without a sandbox.
    return {**environment, "HOME": home, "TMPDIR": home, "LANG": "C.UTF-8", "UV_LINK_MODE": "copy"}


async def run_installer(
    command: Sequence[str],
    failure: str,
    tell: Progress,
    *,
    home: str,
    no_wheel: str = "",
    more: Mapping[str, str] | None = None,
) -> list[str]:
    """Run one program of an installation, passing on its lines, the last of which are returned.

    It runs in ``/`` with ``installer_environment`` and ``more``, and does not outlive a cancelled wait.

    Raises:
        SetupFailed: It could not be started, failed or did not end in time.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**installer_environment(home), **(more or {})},
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
        raise SetupFailed(_explain(failure, f"did not end within {_BUILD_SECONDS:g} s", lines, no_wheel)) from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if status != 0:
        raise SetupFailed(_explain(failure, f"{Path(command[0]).name} ended with status {status}", lines, no_wheel))
    return lines


async def _follow(process: asyncio.subprocess.Process, lines: list[str], tell: Progress) -> None:
    assert process.stdout is not None
    async for raw in process.stdout:
        line = raw.decode("utf-8", "replace").rstrip()
        if line:
            lines.append(line)
            del lines[:-200]
            tell(line)


def _explain(failure: str, end: str, lines: Sequence[str], no_wheel: str) -> str:
    shown = "\n".join(lines[-_LINES_SHOWN:])
    cause = ""
    if any(UNREACHABLE.search(line) for line in lines):
        cause = "the package index cannot be reached (is there a network?); "
    elif any(_UNEXPECTED.search(line) for line in lines):
        cause = (
            "the index has a file whose hash is not in the manifest, or something needed has no line there; do not use "
            "the file unless you know why it differs, and compare with what dgym init writes today; "
        )
    elif any(_NO_WHEEL.search(line) for line in lines):
        cause = no_wheel
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
