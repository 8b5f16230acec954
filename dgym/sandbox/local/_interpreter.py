"""The Python interpreters of this machine: how to find one for a task, and which directories it needs to start.

Each interpreter is run to report its prefixes, because pyenv shims, uv's managed builds, conda environments and
distribution packages arrange their files differently.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from dgym.errors import ManifestError

OLDEST = (3, 6)
"""The oldest version of Python that the runner supports."""

_QUESTIONS = """
import json, os, sys
# Without site, older Pythons do not detect that they belong to a virtual environment.
above = os.path.dirname(os.path.dirname(os.path.abspath(sys.executable)))
own = [above] if os.path.isfile(os.path.join(above, "pyvenv.cfg")) else []
print(json.dumps({
    "executable": sys.executable,
    "version": list(sys.version_info[:3]),
    "tag": sys.implementation.cache_tag,
    "prefixes": own + [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix],
    "base": getattr(sys, "_base_executable", None) or sys.executable,
}))
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python interpreter.

    Attributes:
        executable: Absolute path. Symbolic links are not resolved, because a virtual environment is found by the path
            of its link.
        cache_tag: ``sys.implementation.cache_tag``.
        prefixes: Directories that the interpreter needs.
        base_executable: The interpreter from which a virtual environment was created.
    """

    executable: str
    version: tuple[int, ...]
    cache_tag: str
    prefixes: tuple[str, ...]
    base_executable: str

    @property
    def bin_directory(self) -> Path:
        """Directory of the interpreter and of the console scripts of its packages."""
        return Path(self.executable).parent

    @property
    def is_named_python(self) -> bool:
        """True if the file ``python`` in its directory is this interpreter."""
        named = self.bin_directory / "python"
        return named.exists() and named.samefile(self.executable)


def resolve_python(path: str) -> str:
    """Find the interpreter for ``--python PATH``.

    Args:
        path: An interpreter, the directory of a virtual environment, or a command on PATH.

    Returns:
        The absolute path of the interpreter. Symbolic links are not resolved.

    Raises:
        ManifestError: The interpreter does not exist, does not start, or is older than Python 3.6.
    """
    return inspect_interpreter(str(_locate(path))).executable


def find_version(version: str) -> str:
    """Find an interpreter on this machine with a version such as "3.9" or "3.9.18".

    Raises:
        ManifestError: None was found. The message lists the searched places and how to install one.
    """
    wanted = tuple(map(int, version.split(".")))
    for path in _of_version(version):
        with suppress(ManifestError):
            if inspect_interpreter(str(path)).version[: len(wanted)] == wanted:
                return str(path)
    install = f"uv python install {version}" if shutil.which("uv") else f"pyenv install {version}"
    raise ManifestError(
        f"environment.python: Python {version} is not installed on this machine; install it with '{install}', or name "
        f"an interpreter with --python PATH; looked for python{version}, python3 and 'py -{version}' on PATH, and in "
        f"{_pyenv_versions()} and {_uv_versions()}"
    )


def _of_version(version: str) -> Iterator[Path]:
    """Yield paths where an interpreter of this version may be, beginning with the interpreter that runs dgym."""
    minor = ".".join(version.split(".")[:2])
    yield Path(sys.executable)
    for name in (f"python{minor}", "python3", "python"):
        if (found := shutil.which(name)) is not None:
            yield Path(found)
    for directory, pattern in ((_pyenv_versions(), f"{version}*"), (_uv_versions(), f"cpython-{version}*")):
        for found_version in sorted(directory.glob(pattern), key=_numbers, reverse=True):
            if (found_version / "bin" / "python3").is_file():
                yield found_version / "bin" / "python3"
    yield from _by_launcher(minor)


def _by_launcher(minor: str) -> Iterator[Path]:
    """Yield the interpreter that the launcher ``py`` starts for a version."""
    if (launcher := shutil.which("py")) is not None:
        command = [launcher, f"-{minor}", "-I", "-S", "-c", "import sys; print(sys.executable)"]
        with suppress(OSError, subprocess.SubprocessError):
            answer = subprocess.run(
                command, capture_output=True, timeout=60, check=True, stdin=subprocess.DEVNULL, text=True
            )
            yield Path(answer.stdout.strip())


def _numbers(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"[0-9]+", path.name)]


def _pyenv_versions() -> Path:
    return Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"


def _uv_versions() -> Path:
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv" / "python")


def inspect_interpreter(executable: str) -> Interpreter:
    """Run an interpreter to determine its version and directories. The result is cached until its file changes.

    Raises:
        ManifestError: It does not exist, does not start, or is older than Python 3.6.
    """
    try:
        changed = Path(executable).stat().st_mtime_ns
    except OSError as error:
        raise ManifestError(f"python {executable!r} cannot be used: {error.strerror}") from None
    return _inspect(executable, changed)


def _locate(path: str) -> Path:
    given = Path(path).expanduser()
    if given.is_dir():
        for name in ("bin/python", "bin/python3"):
            if os.access(given / name, os.X_OK):
                return (given / name).absolute()
        raise ManifestError(
            f"python {path!r} is a directory without bin/python; name an interpreter, or the directory of a virtual "
            f"environment (python -m venv {path})"
        )
    if given.is_file() and os.access(given, os.X_OK):
        return given.absolute()
    found = shutil.which(path) if os.sep not in path else None
    if found is None:
        raise ManifestError(
            f"python {path!r} is neither an interpreter nor the directory of a virtual environment; name one of the "
            "two, such as /usr/bin/python3 or .venv"
        )
    return Path(found).absolute()


@lru_cache(maxsize=64)
def _inspect(executable: str, _changed: int) -> Interpreter:
    try:
        answer = subprocess.run(
            # -S, because a ``.pth`` file of an untrusted package would otherwise run code here, outside the sandbox.
            [executable, "-I", "-S", "-c", _QUESTIONS],
            capture_output=True,
            timeout=60,
            check=True,
            stdin=subprocess.DEVNULL,
        )
        facts = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        output = getattr(error, "stderr", None) or b""
        why = output.decode("utf-8", "replace").strip().partition("\n")[0][:200] or str(error)
        raise ManifestError(f"python {executable!r} is not an interpreter of Python 3.6 or later: {why}") from None
    version = tuple(facts["version"])
    if version < OLDEST:
        found = ".".join(map(str, version))
        raise ManifestError(f"python {executable!r} is Python {found}; tasks run under Python 3.6 or later")
    return Interpreter(
        executable=str(Path(facts["executable"] or executable).absolute()),
        version=version,
        cache_tag=facts["tag"],
        prefixes=tuple(dict.fromkeys(facts["prefixes"])),
        base_executable=facts["base"],
    )
