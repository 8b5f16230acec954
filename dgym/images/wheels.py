"""The wheels of an image: resolved and downloaded once, locked with their hashes, and kept in the cache."""

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from dgym.api import split_hashes
from dgym.errors import SetupFailed
from dgym.locks import only_one, whole_in_thread
from dgym.sandbox.container import call
from dgym.sandbox.local import Interpreter, cache_directory, installer_environment, requirement_name

LOCK = "requirements.txt"
_SECONDS = 1800.0
_NEWEST_GLIBC = 36
"""The C library of Debian 12, the oldest Debian that Python's own images have."""
_LAYOUT = 1
_NO_WHEEL = re.compile(r"no matching distribution|could not find a version", re.IGNORECASE)

Progress = Callable[[str], None]


async def locked_wheels(requirements: Sequence[str], interpreter: Interpreter, progress: Progress) -> Path:
    """A directory with wheels for ``requirements`` and the lock ``requirements.txt``, which has their hashes.

    The same requirements give the same wheels as long as the cache has them, so that an image is not built twice.

    Args:
        requirements: As pip takes them, checked by the caller. One with hashes gets a wheel that has one of these.
        interpreter: An interpreter of the version that the image has: markers are evaluated under it.
        progress: Called with each line of pip.

    Raises:
        SetupFailed: A requirement has no wheel or one with another hash, or the index cannot be reached.
    """
    wanted = sorted(set(requirements))
    described = json.dumps([_LAYOUT, wanted, interpreter.version[:2], os.uname().machine])
    path = cache_directory() / "wheels" / hashlib.sha256(described.encode()).hexdigest()[:20]
    if (path / LOCK).is_file():
        return path
    async with only_one(
        path.with_name(f"{path.name}.lock"),
        waiting=lambda: progress("waiting for another process that downloads the same wheels"),
        timeout_seconds=_SECONDS,
        error=SetupFailed,
    ):
        if not (path / LOCK).is_file():
            await _download(wanted, interpreter, path, progress)
    return path


async def _download(wanted: Sequence[str], interpreter: Interpreter, path: Path, progress: Progress) -> None:
    shutil.rmtree(path, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="download-", dir=path.parent) as scratch:
        pip, wheels = Path(scratch, "pip"), Path(scratch, "wheels")
        uv = shutil.which("uv")
        with_pip = [uv, "venv", "--quiet", "--seed", "--python"] if uv else [interpreter.executable, "-m", "venv"]
        make = [*with_pip, *([interpreter.executable] if uv else []), str(pip)]
        await _run(make, "an environment with pip cannot be made", scratch, progress)
        plain = sorted({split_hashes(requirement)[0] for requirement in wanted})
        progress(f"downloading wheels of {', '.join(plain)}")
        version = ".".join(map(str, interpreter.version[:2]))
        download = [
            *(str(pip / "bin" / "python"), "-I", "-m", "pip", "download", "--no-input", "--progress-bar", "off"),
            *("--disable-pip-version-check", "--only-binary", ":all:", "--python-version", version),
            *_platforms(os.uname().machine),
            *("--dest", str(wheels), "--", *plain),
        ]
        await _run(download, "requirements: their wheels cannot be downloaded", scratch, progress)

        def keep() -> None:
            lock = lock_of(wheels)
            _check_hashes(wanted, lock)
            (wheels / LOCK).write_text(lock)
            wheels.rename(path)

        await whole_in_thread(keep)


def _check_hashes(wanted: Sequence[str], lock: str) -> None:
    """Refuse wheels whose hashes are not among those that the requirements allow."""
    found = {requirement_name(line): split_hashes(line.rstrip()) for line in lock.splitlines()}
    for requirement in wanted:
        pin, (_, allowed) = requirement_name(requirement), split_hashes(requirement)
        if allowed and pin in found and found[pin][1].isdisjoint(allowed):
            plain, (digest,) = found[pin]
            raise SetupFailed(
                f"requirements: the wheel of {plain} has the hash sha256:{digest}, which the manifest does not have; "
                "do not use it unless you know why it differs, and compare with what dgym init writes today"
            )


def lock_of(wheels: Path) -> str:
    """The lock of a directory of wheels: a line for each, with its hash, in the order of the names."""
    lines = []
    for wheel in sorted(wheels.glob("*.whl")):
        name, version = wheel.name.split("-")[:2]
        with wheel.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        lines.append(f"{name.lower().replace('_', '-')}=={version} --hash=sha256:{digest}\n")
    return "".join(lines)


def _platforms(machine: str) -> list[str]:
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(_NEWEST_GLIBC, 4, -1)]
    tags += [f"manylinux2014_{machine}", f"linux_{machine}"]
    return [argument for tag in tags for argument in ("--platform", tag)]


async def _run(command: Sequence[str], failure: str, home: str, progress: Progress) -> None:
    answer = await call(command[0], command[1:], _SECONDS, progress, environment=installer_environment(home))
    if answer.status != 0:
        remedy = (
            "an image is made of wheels only; name a version that has one, or build the wheel yourself and name its "
            "directory in PIP_FIND_LINKS; "
            if _NO_WHEEL.search(answer.errors)
            else ""
        )
        raise SetupFailed(f"{failure}: {remedy}{answer.why}")
