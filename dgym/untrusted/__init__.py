"""Reads untrusted files, and parses untrusted text in a process with resource limits.

A parser that reads hostile text can use all memory or hours of time, and it would block the event loop of this process.
``ask`` therefore runs a program of dgym on such texts, with limits of memory, time and output. If the program does not
finish with a text, its answer is None.
"""

import contextlib
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final

TEXT_LIMIT: Final = 512 * 1024
"""Maximum size in bytes of a configuration file. Ordinary files are much smaller."""

_SECONDS = 10.0
"""Time limit for all texts of one call."""
_DEATHS = 3
"""Number of texts that may crash the program before the remaining texts are skipped."""
_ANSWER_BYTES = 8 * 1024**2
_ESCAPES = "surrogateescape"
_BOUNDS = Path(__file__).with_name("bounds.py")
_FORMATS = Path(__file__).with_name("formats_program.py")


def open_regular(path: Path, *, root: Path | None = None, limit: int | None = None) -> IO[bytes]:
    """Open an untrusted file for reading. It does not block, unlike opening a named pipe.

    Args:
        path: Path of the file.
        root: Symbolic links must not lead out of this directory. None: the file itself must not be a symbolic link.
        limit: Maximum size of the file in bytes.

    Raises:
        OSError: The file is missing, not a regular file, too large, or a symbolic link that leads out of ``root``.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    place = path
    # A file directly in ``root`` cannot lead out of it unless it is a link.
    if root is not None and (path.parent != root or path.is_symlink()):
        try:
            place = path.resolve()
        except RuntimeError:
            raise OSError(f"{path} is a loop of symbolic links") from None
        if not place.is_relative_to(root.resolve()):
            raise OSError(f"{path} leads out of {root}")
    # The type is checked before the file is opened, because opening a device can have side effects.
    if not stat.S_ISREG(os.lstat(place).st_mode):
        raise OSError(f"{path} is not a regular file")
    file = os.fdopen(os.open(place, flags | os.O_NOFOLLOW), "rb")
    found = os.fstat(file.fileno())
    if not stat.S_ISREG(found.st_mode) or (limit is not None and found.st_size > limit):
        file.close()
        why = f"has {found.st_size:,} bytes, more than {limit:,}" if limit is not None else "is not a regular file"
        raise OSError(f"{path} {why}")
    return file


def read_regular(path: Path, *, root: Path | None = None, limit: int = TEXT_LIMIT) -> bytes:
    """Return the contents of an untrusted file; see ``open_regular``.

    Raises:
        OSError: The file cannot be opened, or it has more than ``limit`` bytes.
    """
    with open_regular(path, root=root, limit=limit) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(f"{path} has more than {limit:,} bytes")
    return data


def parse_toml(data: bytes) -> dict[str, Any] | None:
    """Parse a TOML document. Dates are returned as text.

    Returns:
        The tables; None if the document is invalid or larger than ``TEXT_LIMIT``, or exceeds the limits of the parser.
    """
    return parse_toml_documents([data])[0]


def parse_toml_documents(documents: Sequence[bytes]) -> list[dict[str, Any] | None]:
    """Parse several TOML documents in one process; see ``parse_toml``."""
    return _parse("toml", documents)


def parse_ini(data: bytes) -> dict[str, Any] | None:
    """Return the options of each section of an INI file; None as in ``parse_toml``."""
    return _parse("ini", [data])[0]


def _parse(form: str, documents: Sequence[bytes]) -> list[dict[str, Any] | None]:
    parsed: list[dict[str, Any] | None] = [None if data.strip() else {} for data in documents]
    read = [index for index, data in enumerate(documents) if data.strip() and len(data) <= TEXT_LIMIT]
    requests = [[form, documents[index].decode("utf-8-sig", _ESCAPES)] for index in read]
    for index, answer in zip(read, ask(_FORMATS, requests) if requests else (), strict=True):
        parsed[index] = answer if isinstance(answer, dict) else None
    return parsed


def ask(program: Path, requests: Sequence[Any]) -> list[Any]:
    """Call the function ``answer`` of a program for each request, in a process with resource limits.

    Requests and answers are JSON. The program must use only the standard library. Blocks for up to 10 s.

    Returns:
        The answers. An answer is None if the program failed, crashed or had no time left.
    """
    deadline = time.monotonic() + _SECONDS
    answers: list[Any] = []
    for _ in range(_DEATHS):
        answers += _answers(program, requests[len(answers) :], deadline - time.monotonic())
        if len(answers) == len(requests):
            return answers
        answers.append(None)
        if len(answers) == len(requests):
            return answers
    return [*answers, *[None] * (len(requests) - len(answers))]


def _answers(program: Path, requests: Sequence[Any], seconds: float) -> list[Any]:
    """Run the program and return its answers until it ended or its time was up."""
    if seconds <= 0:
        return []
    text = "".join(f"{json.dumps(request)}\n" for request in requests)
    command = [sys.executable, "-I", "-S", "-B", str(_BOUNDS), str(program)]
    try:
        done = subprocess.run(
            command, input=text.encode(), capture_output=True, env={}, cwd="/", timeout=seconds, check=False
        )
        output = done.stdout
    except subprocess.TimeoutExpired as ended:
        output = ended.stdout or b""
    answers = []
    for line in output[:_ANSWER_BYTES].split(b"\n")[:-1]:
        with contextlib.suppress(ValueError, RecursionError):
            answers.append(json.loads(line))
            continue
        break
    return answers
