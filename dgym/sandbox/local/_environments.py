"""Virtual environments for tasks. They are created once for each list of requirements and kept in the cache.

They are created outside the sandbox, which has no network, and are mounted read-only in it. They do not contain dgym. A
virtual environment contains its own path, so it is built at its final path. It is used only after its marker file is
written.

The requirements of a task are not trusted. Only wheels are installed, because the build of a source distribution runs
its code; the caller can allow builds. The installer gets only the listed variables of the user. Installed packages are
not executed outside the sandbox; a ``.pth`` file in a wheel is code too.
"""

import asyncio
import hashlib
import importlib.util
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
from dgym.locks import hold_lock, whole_in_thread
from dgym.sandbox._cache import cache_directory
from dgym.sandbox.local._interpreter import Interpreter, inspect_interpreter, resolve_python

_READY = ".dgym-ready"
_LOCK_SECONDS = 1800.0
_BUILD_SECONDS = 1800.0
_LINES_SHOWN = 15
_LAYOUT = 1
"""Increased when environments that an older dgym built must not be used any more."""

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
"""Variables of the user that an installer needs. ``UV_INDEX…``, ``UV_DEFAULT_INDEX`` etc. are passed on too."""
_INDEX = re.compile(r"UV_(DEFAULT_|EXTRA_)?INDEX(_\w+)?")
_PIP_FILES = (".pip/pip.conf", "Library/Application Support/pip/pip.conf")
"""Configuration files of pip below the home directory, other than those in the configuration directory."""

Progress = Callable[[str], None]


async def ensure_environment(
    requirements: Sequence[str],
    *,
    python: str | None = None,
    build_requirements: bool = False,
    with_pytest: bool = True,
    progress: Progress | None = None,
) -> str:
    """Return the path of a virtual environment with these requirements and pytest. It is built if it is not cached.

    Args:
        requirements: Requirements as on the command line of pip. Options and paths are refused.
        python: Interpreter of the environment; default: the interpreter that runs dgym.
        build_requirements: Build source distributions and ``name @ URL``, which runs their code outside the sandbox.
            By default only wheels from an index are installed.
        with_pytest: False for an environment that only builds projects. Without requirements it has the pip that is
            bundled with Python.
        progress: Called with each line of progress.

    Raises:
        ManifestError: A requirement is not valid or names a URL, or ``python`` is not an interpreter.
        SetupFailed: The environment could not be built. The message ends with the last lines of the installer.
    """
    wanted = _checked(requirements)
    interpreter = await asyncio.to_thread(lambda: inspect_interpreter(resolve_python(python or sys.executable)))
    bare = with_pytest and not wanted and bool(pytest_distributions(interpreter))
    if with_pytest and not any(requirement_name(requirement) == "pytest" for requirement in wanted):
        wanted = [*wanted, "pytest"]
    contents = pytest_distributions(interpreter) if bare else wanted
    # ``python -m venv`` may install an old setuptools that satisfies the requirements but has no editable mode.
    upgrade = ["--upgrade"] if wanted and not with_pytest else []
    path = cache_directory() / "environments" / _digest(interpreter, [*upgrade, *contents])
    notify = progress or (lambda _: None)
    if not _is_ready(path):
        async with hold_lock(
            path.with_name(f"{path.name}.lock"),
            waiting=lambda: notify("waiting for another process that builds the same environment"),
            timeout_seconds=_LOCK_SECONDS,
            error=SetupFailed,
        ):
            if not _is_ready(path):
                if not build_requirements:
                    _refuse_direct(requirements)
                installed = [] if bare else [*upgrade, *wanted]
                copied = pytest_distributions(interpreter) if bare else ()
                await _build(path, interpreter, installed, copied, notify, build_requirements)
    return str(path)


def _checked(requirements: Sequence[str]) -> list[str]:
    checked = [requirement.strip() for requirement in requirements]
    for index, line in enumerate(checked):
        requirement, _ = split_hashes(line)
        before_url = requirement.partition("@")[0]
        # Installers treat "tmp/project" as a directory and "https://…" as a project to build.
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
    """Return the normalized name (PEP 503) at the start of a requirement; "" if it does not begin with a name."""
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
    notify: Progress,
    build_requirements: bool,
) -> None:
    await whole_in_thread(lambda: shutil.rmtree(path, ignore_errors=True))
    try:
        with tempfile.TemporaryDirectory(prefix="dgym-install-") as home:
            if requirements:
                named = [split_hashes(each)[0] for each in requirements if not each.startswith("-")]
                notify(f"installing {', '.join(named)}")
                if build_requirements:
                    notify("source distributions are built on this machine, outside the sandbox: their code runs here")
                else:
                    notify("from wheels only; source distributions are not built")
                await _install(path, interpreter, requirements, notify, home=home, build=build_requirements)
            else:
                make = [interpreter.executable, "-m", "venv", *(["--without-pip"] if copied else []), str(path)]
                await run_installer(make, "a virtual environment", notify, home=home)
                await whole_in_thread(lambda: copy_distributions(copied, path))
            # With the base interpreter and -S, so that no installed code is run outside the sandbox.
            compiler = [interpreter.executable, "-I", "-S", "-m", "compileall", "-q", str(path / "lib")]
            # The exit status is ignored: some packages contain invalid files for their tests.
            with suppress(SetupFailed):
                await run_installer(compiler, "the environment could not be compiled", lambda _: None, home=home)
    except BaseException:
        await whole_in_thread(lambda: shutil.rmtree(path, ignore_errors=True))
        raise
    (path / _READY).touch()


async def _install(
    path: Path, interpreter: Interpreter, requirements: Sequence[str], notify: Progress, *, home: str, build: bool
) -> None:
    python = str(path / "bin" / "python")
    uv = shutil.which("uv")
    wheels = [] if build else ["--only-binary", ":all:"]
    hashed = [each for each in requirements if split_hashes(each)[1]]
    rest = [each for each in requirements if each not in hashed]
    steps = [rest] if rest else []
    if hashed:
        # Hashes can be given only in a file, not on the command line. Other dependencies of the project have no hashes.
        listed, versions = Path(home) / "requirements.txt", Path(home) / "constraints.txt"
        listed.write_text("".join(f"{each}\n" for each in hashed))
        versions.write_text("".join(f"{requirement_name(each)}=={_version(each)}\n" for each in hashed))
        steps = [["--require-hashes", "--requirement", str(listed)]]
        steps += [["--constraint", str(versions), *rest]] if rest else []
        if rest:
            notify(f"installing without hashes, because the manifest does not list them: {', '.join(rest)}")
    if uv is not None:
        make = [uv, "venv", "--quiet", "--python", interpreter.executable, str(path)]
        install = [uv, "pip", "install", *wheels, "--python", python]
    else:
        pip = pip_for(interpreter, python)
        make = [interpreter.executable, "-m", "venv", *(["--without-pip"] if pip else []), str(path)]
        quiet = ["--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--no-compile"]
        install = [*(pip or [python, "-I", "-m", "pip"]), "install", *quiet, *wheels]
    await run_installer(make, "the virtual environment could not be created", notify, home=home)
    remedy = (
        ""
        if build
        else (
            "no wheel of a requirement was found; name a version that has a wheel, create an environment yourself "
            "(--python PATH), or, if you trust its code to run on this machine, build it with --build-requirements; "
        )
    )
    for step in steps:
        command = [*install, *step]
        await run_installer(command, "requirements: they could not be installed", notify, home=home, no_wheel=remedy)


def pip_for(interpreter: Interpreter, python: str) -> list[str]:
    """Return the command that runs dgym's own pip under ``python``, an environment of ``interpreter``.

    It is empty if dgym has no pip, or if the interpreter has another version of Python, which that pip may not support.
    ``python -m venv`` takes several seconds to install another pip.
    """
    if interpreter.version[:2] != sys.version_info[:2] or importlib.util.find_spec("pip") is None:
        return []
    return [sys.executable, "-I", "-m", "pip", "--python", python]


def _version(pin: str) -> str:
    """Return the version in ``name[extra]==version; marker --hash=…``."""
    return split_hashes(pin)[0].partition("==")[2].partition(";")[0].strip()


def installer_environment(home: str) -> dict[str, str]:
    """Return the variables of an installer: only those for the user's package index, proxies and certificates."""
    user = Path.home()
    environment = {name: value for name, value in os.environ.items() if name in _PASSED_ON or _INDEX.fullmatch(name)}
    for name, directory in (("XDG_CONFIG_HOME", ".config"), ("XDG_CACHE_HOME", ".cache")):
        environment[name] = os.environ.get(name) or str(user / directory)
    files = [("PIP_CONFIG_FILE", user / file) for file in _PIP_FILES] + [("NETRC", user / ".netrc")]
    for name, file in files:
        if name not in environment and file.is_file():
            environment[name] = str(file)
    # Links into uv's cache would be dangling inside a sandbox, and programs without isolation could change its files.
    return {**environment, "HOME": home, "TMPDIR": home, "LANG": "C.UTF-8", "UV_LINK_MODE": "copy"}


async def run_installer(
    command: Sequence[str],
    failure: str,
    notify: Progress,
    *,
    home: str,
    no_wheel: str = "",
    more: Mapping[str, str] | None = None,
) -> list[str]:
    """Run one program of an installation in ``/``, with the variables of ``installer_environment`` and ``more``.

    ``notify`` is called with each line of output. The program is killed if the call is cancelled.

    Returns:
        The last 200 lines of output.

    Raises:
        SetupFailed: The program could not be started, failed, or did not end in time.
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
            await _follow(process, lines, notify)
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


async def _follow(process: asyncio.subprocess.Process, lines: list[str], notify: Progress) -> None:
    assert process.stdout is not None
    async for raw in process.stdout:
        line = raw.decode("utf-8", "replace").rstrip()
        if line:
            lines.append(line)
            del lines[:-200]
            notify(line)


def _explain(failure: str, end: str, lines: Sequence[str], no_wheel: str) -> str:
    shown = "\n".join(lines[-_LINES_SHOWN:])
    cause = ""
    if any(UNREACHABLE.search(line) for line in lines):
        cause = "the package index cannot be reached (is there a network?); "
    elif any(_UNEXPECTED.search(line) for line in lines):
        cause = (
            "the index has a file whose hash is not in the manifest, or a required distribution is not listed there; "
            "do not use the file unless it is clear why it differs, and compare with the output of dgym init today; "
        )
    elif any(_NO_WHEEL.search(line) for line in lines):
        cause = no_wheel
    return f"{failure}: {cause}{end}\n{shown}".rstrip()


_NAMES = ("pytest", "iniconfig", "packaging", "pluggy", "pygments")


@cache
def pytest_distributions(interpreter: Interpreter) -> tuple[str, ...]:
    """Return ``name==version`` of pytest and its dependencies; empty if they cannot be copied for ``interpreter``.

    The dependencies of pytest depend on the version of Python, so it must have the version that runs dgym.
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
    """Copy installed distributions and their console scripts into a virtual environment."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = environment / "lib" / version / "site-packages"
    for pin in pinned:
        distribution = metadata.distribution(pin.partition("==")[0])
        for file in distribution.files or ():
            # Scripts are outside the package directory and name the old interpreter; they are written anew below.
            source, target = Path(str(file.locate())), packages / file
            if ".." in file.parts or file.is_absolute() or ("__pycache__" in file.parts and not source.exists()):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            # Bytecode is valid only if its source keeps the modification time.
            shutil.copy2(source, target)
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
