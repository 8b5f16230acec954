"""Exact versions for a list of requirements, from the package index and without installing anything.

Only wheels are considered, as when the environment is made: no code of a package runs. uv is used where it is on PATH,
else pip.
"""

import asyncio
import hashlib
import importlib.util
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from dgym.decoding import DECODE_ERRORS
from dgym.errors import SetupFailed
from dgym.sandbox.cache import cache_directory
from dgym.sandbox.local.environments import UNREACHABLE, installer_environment

_SECONDS = 180.0
_TRIES = 10
_LINES_SHOWN = 6
_OUTPUT_BYTES = 8 * 1024**2
_ERRORS_BYTES = 16 * 1024
_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_PINNED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*==[^\s;\\]+)")
_NOT_FOUND = re.compile(
    r"No matching distribution found for ([A-Za-z0-9._-]+)"
    r"|Because (?:only )?([A-Za-z0-9._-]+?)(?:[<>=!~]=?\S+)? (?:was not found|has no (?:usable )?(?:wheels|versions))"
    r"|Because there (?:are|is) no versions? of ([A-Za-z0-9._-]+)"
)
_CONFLICT = re.compile(r"conflicting dependencies|ResolutionImpossible|No solution found|incompatible", re.IGNORECASE)


class Pinned(msgspec.Struct, frozen=True, kw_only=True):
    """``name==version`` of everything to install, and the requirements that were left out with the reason."""

    lines: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...] = ()


async def known_pins(sources: Sequence[Sequence[str]], *, python_version: str | None = None) -> Pinned:
    """As ``pin_requirements``, with the answer kept in the cache: an unchanged repository keeps its environment.

    Raises:
        SetupFailed: As ``pin_requirements``.
    """
    asked = [list(map(list, sources)), python_version or [*sys.version_info[:3], sys.executable]]
    path = cache_directory() / "pins" / f"{hashlib.sha256(msgspec.json.encode(asked)).hexdigest()[:32]}.json"
    with suppress(OSError, *DECODE_ERRORS):
        return msgspec.json.decode(path.read_bytes(), type=Pinned)
    pinned = await pin_requirements(sources, python_version=python_version)
    await asyncio.to_thread(_keep, path, pinned)
    return pinned


def _keep(path: Path, pinned: Pinned) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(msgspec.json.encode(pinned))
    Path(file.name).replace(path)


async def pin_requirements(sources: Sequence[Sequence[str]], *, python_version: str | None = None) -> Pinned:
    """The versions that an installation of all ``sources`` takes, with everything that they require.

    Args:
        sources: Lists of requirements. A later list that contradicts earlier ones is left out as a whole, and so is a
            single requirement that has no wheel.
        python_version: Such as 3.9; by default the one that runs dgym.

    Raises:
        SetupFailed: The index cannot be reached, or nothing can be resolved.
    """
    lists = [[line.strip() for line in source if line.strip()] for source in sources]
    left_out: list[tuple[str, str]] = []
    for _ in range(_TRIES):
        lines = list(dict.fromkeys(line for source in lists for line in source))
        if not lines:
            return Pinned(lines=(), left_out=tuple(left_out))
        status, output = await _resolve(lines, python_version)
        if status == 0:
            return Pinned(lines=tuple(_pins(output)), left_out=tuple(left_out))
        names = {_normal(name) for found in _NOT_FOUND.findall(output) for name in found if name}
        # uv names a requirement whose older versions have no wheels, too, where the newest is in a conflict.
        named = [line for line in lines if _normal(line) in names]
        absent = [line for line in named if (await _resolve([line], python_version))[0] != 0]
        why = "the index has no wheel of it for this Python"
        if not absent and not UNREACHABLE.search(output):
            failing = await _failing(lists, python_version)
            absent = failing if len(failing) < len(lines) else []
            why = "the index lacks a wheel for this Python, of it or of one of its requirements"
        if absent:
            lists = [[line for line in source if line not in absent] for source in lists]
            left_out += [(line, why) for line in absent]
        elif _CONFLICT.search(output) and sum(map(bool, lists)) > 1:
            last = max(number for number, source in enumerate(lists) if source)
            left_out += [(line, "it contradicts the other requirements") for line in lists[last]]
            lists[last] = []
        else:
            break
    shown = "\n".join([line for line in output.splitlines() if line.strip()][-_LINES_SHOWN:])
    raise SetupFailed(f"the requirements could not be resolved\n{shown}")


async def _failing(lists: Sequence[Sequence[str]], python_version: str | None) -> list[str]:
    """The requirements that cannot be installed even alone."""
    failing = []
    for source in filter(None, lists):
        if (await _resolve(source, python_version))[0] != 0:
            failing += [line for line in source if (await _resolve([line], python_version))[0] != 0]
    return failing


def _normal(line: str) -> str:
    match = _NAME.match(line)
    return re.sub(r"[-_.]+", "-", match[1]).lower().rstrip("-") if match else ""


def _pins(output: str) -> list[str]:
    """The pins in the report of pip or in the text of uv."""
    if output.lstrip().startswith("{"):
        report = json.loads(output)
        found = [item["metadata"] for item in report["install"]]
        return sorted((f"{item['name']}=={item['version']}" for item in found), key=str.lower)
    return [match[1] for line in output.splitlines() if (match := _PINNED.match(line))]


async def _resolve(lines: Sequence[str], python_version: str | None) -> tuple[int, str]:
    """The exit status of the installer, and its answer or its errors."""
    uv = shutil.which("uv")
    version = ["--python-version", python_version] if python_version else []
    with tempfile.TemporaryDirectory(prefix="dgym-resolve-") as home:
        wanted, answer = Path(home) / "wanted.txt", Path(home) / "answer"
        wanted.write_text("".join(f"{line}\n" for line in lines))
        if uv is not None:
            command = [uv, "pip", "compile", "--quiet", "--only-binary", ":all:", "--no-header", "--no-annotate"]
            command += [*(version or ["--python", sys.executable]), "--output-file", str(answer), str(wanted)]
        elif importlib.util.find_spec("pip") is not None:
            command = [sys.executable, "-I", "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-input"]
            command += ["--only-binary", ":all:", "--disable-pip-version-check", "--retries", "1", "--quiet"]
            command += [*version, "--report", str(answer), "--requirement", str(wanted)]
        else:
            raise SetupFailed("neither uv nor pip is there to resolve requirements; install uv")
        status, errors = await _run(command, home)
        if status != 0:
            return status, errors
        return 0, answer.read_bytes()[:_OUTPUT_BYTES].decode("utf-8", "replace")


async def _run(command: Sequence[str], home: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=installer_environment(home),
        cwd=home,
    )
    try:
        async with asyncio.timeout(_SECONDS):
            output, _ = await process.communicate()
    except TimeoutError:
        raise SetupFailed(f"the requirements could not be resolved within {_SECONDS:g} s") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return process.returncode or 0, output[-_ERRORS_BYTES:].decode("utf-8", "replace")
