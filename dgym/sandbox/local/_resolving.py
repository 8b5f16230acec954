"""Resolves a list of requirements to exact versions and hashes, without installing packages.

Only wheels are considered, as when the environment is created, so that no code of a package runs. uv is used if it is
on PATH, else pip.
"""

import asyncio
import hashlib
import importlib.util
import json
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from dgym.decoding import DECODE_ERRORS
from dgym.errors import SetupFailed
from dgym.sandbox._cache import cache_directory
from dgym.sandbox.local._environments import UNREACHABLE, installer_environment, requirement_name

_SECONDS = 180.0
_TRIES = 10
_LINES_SHOWN = 6
_OUTPUT_BYTES = 8 * 1024**2
_ERRORS_BYTES = 16 * 1024
_PINNED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*==[^\s;\\]+)")
_PLATFORMS = (
    ("x86_64-unknown-linux-gnu", [f"manylinux_2_{minor}_x86_64" for minor in range(40, 4, -1)]),
    ("aarch64-unknown-linux-gnu", [f"manylinux_2_{minor}_aarch64" for minor in range(40, 16, -1)]),
    ("aarch64-apple-darwin", ["macosx_15_0_arm64"]),
    ("x86_64-apple-darwin", ["macosx_15_0_x86_64"]),
)
"""The platforms on which tasks run, by their names in uv and in pip."""
_NOT_FOUND = re.compile(
    r"No matching distribution found for ([A-Za-z0-9._-]+)"
    r"|Because (?:only )?([A-Za-z0-9._-]+?)(?:[<>=!~]=?\S+)? (?:was not found|has no (?:usable )?(?:wheels|versions))"
    r"|Because there (?:are|is) no versions? of ([A-Za-z0-9._-]+)"
)
_REMEDY = "make an environment that has it, and run with --python PATH"
_CONFLICT = re.compile(r"conflicting dependencies|ResolutionImpossible|No solution found|incompatible", re.IGNORECASE)


class Pinned(msgspec.Struct, frozen=True, kw_only=True):
    """Resolved requirements.

    Attributes:
        lines: ``name==version`` of all packages to install.
        left_out: Requirements that were left out, each with the reason.
        hashes: Whether each line has the hashes of its wheels, for this machine, and for Linux and macOS on x86-64 and
            ARM.
    """

    lines: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    hashes: bool = False


async def known_pins(sources: Sequence[Sequence[str]], *, python_version: str | None = None) -> Pinned:
    """Return the cached result of ``pin_requirements``, so that an unchanged repository keeps its environment.

    Raises:
        SetupFailed: See ``pin_requirements``.
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
    """Resolve all requirements of ``sources`` and their dependencies.

    Args:
        sources: Lists of requirements. If a later list conflicts with earlier lists, the whole list is left out. A
            requirement without a wheel is left out alone.
        python_version: A version such as 3.9; default: the version of the interpreter that runs dgym.

    Raises:
        SetupFailed: The package index cannot be reached, or the requirements cannot be resolved.
    """
    lists = [[line.strip() for line in source if line.strip()] for source in sources]
    left_out: list[tuple[str, str]] = []
    for _ in range(_TRIES):
        lines = list(dict.fromkeys(line for source in lists for line in source))
        if not lines:
            return Pinned(lines=(), left_out=tuple(left_out))
        status, output = await _resolve(lines, python_version)
        if status == 0:
            pins = _pins(output)
            hashes = await _hashes(pins, output, python_version)
            whole = all(hashes.get(requirement_name(pin)) for pin in pins)
            if whole:
                pins = [" ".join([pin, *sorted(hashes[requirement_name(pin)])]) for pin in pins]
            return Pinned(lines=tuple(pins), left_out=tuple(left_out), hashes=whole)
        names = {requirement_name(name).rstrip("-") for found in _NOT_FOUND.findall(output) for name in found if name}
        # If the newest version is in a conflict, uv also names requirements whose older versions have no wheels.
        named = [line for line in lines if requirement_name(line) in names]
        absent = [line for line in named if (await _resolve([line], python_version))[0] != 0]
        why = f"the index has no wheel of it for this Python; {_REMEDY}"
        if not absent and not UNREACHABLE.search(output):
            failing = await _failing(lists, python_version)
            absent = failing if len(failing) < len(lines) else []
            why = f"the index lacks a wheel for this Python, of it or of one of its requirements; {_REMEDY}"
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
    """Return the requirements that cannot be resolved even alone."""
    failing = []
    for source in filter(None, lists):
        if (await _resolve(source, python_version))[0] != 0:
            failing += [line for line in source if (await _resolve([line], python_version))[0] != 0]
    return failing


def _pins(output: str) -> list[str]:
    """Return the pins in pip's report or uv's output."""
    if _is_report(output):
        report = json.loads(output)
        found = [item["metadata"] for item in report["install"]]
        return sorted((f"{item['name']}=={item['version']}" for item in found), key=str.lower)
    return [match[1] for line in output.splitlines() if (match := _PINNED.match(line))]


async def _hashes(pins: Sequence[str], output: str, python_version: str | None) -> dict[str, set[str]]:
    """Return the ``--hash`` options for the wheels of each pin, by normalized name. Pins may lack hashes.

    ``output`` is the output of the resolution. The report of pip has the hashes of this machine's wheels.
    """
    if _is_report(output):
        here = _wheels(0, output)
    else:
        here = _wheels(*await _resolve(pins, python_version, wheels=("", "")))
    every = [here]
    special = {name for name, files in here.items() if not all(file.endswith("-any.whl") for file, _ in files)}
    if special:
        # If one requirement has no wheel for a platform, the task cannot be installed on it, so no hashes are needed.
        wanted = [pin for pin in pins if requirement_name(pin) in special]
        asked = (_resolve(wanted, python_version, wheels=platform) for platform in _PLATFORMS)
        every += [_wheels(*answer) for answer in await asyncio.gather(*asked)]
    found: dict[str, set[str]] = {}
    for platform in every:
        for name, files in platform.items():
            found.setdefault(name, set()).update(f"--hash=sha256:{digest}" for _, digest in files if digest)
    return found


def _is_report(output: str) -> bool:
    """True for pip's output (JSON), False for uv's output."""
    return output.lstrip().startswith("{")


def _wheels(status: int, output: str) -> dict[str, list[tuple[str, str]]]:
    """Return URLs or paths of wheels with their SHA-256, by normalized package name, from pip's report or uv's lock."""
    if status != 0:
        return {}
    found: dict[str, list[tuple[str, str]]] = {}
    if _is_report(output):
        for item in json.loads(output)["install"]:
            file = item["download_info"]
            archive = file.get("archive_info", {})
            # pip before 23.1 writes "hash": "sha256=…".
            digest = archive.get("hashes", {}).get("sha256") or archive.get("hash", "").partition("sha256=")[2]
            found[requirement_name(item["metadata"]["name"])] = [(file["url"].partition("#")[0], digest)]
    else:
        for package in tomllib.loads(output).get("packages", []):
            files = [(file.get("url") or file.get("path") or "", file.get("hashes", {})) for file in package["wheels"]]
            found[requirement_name(package["name"])] = [(file, known.get("sha256", "")) for file, known in files]
    return found


async def _resolve(
    lines: Sequence[str], python_version: str | None, *, wheels: tuple[str, Sequence[str]] | None = None
) -> tuple[int, str]:
    """Run uv or pip. Returns its exit status, and its result or errors.

    With ``wheels``, a platform by its names in uv and in pip, the result has only the files of the requirements and not
    their dependencies. Empty names stand for this machine.
    """
    uv = shutil.which("uv")
    version = ["--python-version", python_version] if python_version else []
    with tempfile.TemporaryDirectory(prefix="dgym-resolve-") as home:
        wanted, answer = Path(home) / "wanted.txt", Path(home) / ("pylock.toml" if uv and wheels else "answer")
        wanted.write_text("".join(f"{line}\n" for line in lines))
        if uv is not None:
            command = [uv, "pip", "compile", "--quiet", "--only-binary", ":all:", "--no-header", "--no-annotate"]
            if wheels is not None:
                command += ["--no-deps", "--format", "pylock.toml"]
                command += ["--python-platform", wheels[0]] if wheels[0] else []
            command += [*(version or ["--python", sys.executable]), "--output-file", str(answer), str(wanted)]
        elif importlib.util.find_spec("pip") is not None:
            command = [sys.executable, "-I", "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-input"]
            command += ["--only-binary", ":all:", "--disable-pip-version-check", "--retries", "1", "--quiet"]
            if wheels is not None:
                command += ["--no-deps", *(word for tag in wheels[1] for word in ("--platform", tag))]
            # Older versions of pip require a target with these options. A dry run does not write to it.
            command += ["--target", home] if version or (wheels and wheels[1]) else []
            command += [*version, "--report", str(answer), "--requirement", str(wanted)]
        else:
            raise SetupFailed("neither uv nor pip is installed to resolve requirements; install uv")
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
