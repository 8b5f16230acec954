"""Reads what a stranger may have written: files by one opener, formats in a process with bounds.

A parser of this process that meets hostile text can take all of its memory or hours of its time, and ends an event
loop's other work with it. ``ask`` runs a program of ours over such texts instead, with limits on memory, time and
output; a text that it does not survive has the answer None.
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
"""Bytes of a file that configures something: no honest one has more."""

_SECONDS = 10.0
"""For all texts of one call together."""
_DEATHS = 3
"""Texts that may end the program before the rest is given up."""
_ANSWER_BYTES = 8 * 1024**2
_ESCAPES = "surrogateescape"
_BOUNDS = Path(__file__).with_name("bounds.py")
_FORMATS = Path(__file__).with_name("formats_program.py")


def open_regular(path: Path, *, root: Path | None = None, limit: int | None = None) -> IO[bytes]:
    """Open a file that a stranger may have put there, without waiting for anybody.

    Args:
        path: The file.
        root: Symbolic links may not lead out of this directory; without it the file itself may not be a link.
        limit: Bytes that the file may have.

    Raises:
        OSError: It is missing, not a regular file, too large, or a link that leaves ``root``.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    if root is None:
        place = path
    else:
        try:
            place = path.resolve()
        except RuntimeError:
            raise OSError(f"{path} is a loop of symbolic links") from None
        if not place.is_relative_to(root.resolve()):
            raise OSError(f"{path} leads out of {root}")
    # What stands at the place is looked at first: to open a device can have effects.
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
    """The content of a file that a stranger may have put there; see ``open_regular``.

    Raises:
        OSError: It cannot be opened, or grew over ``limit`` since.
    """
    with open_regular(path, root=root, limit=limit) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(f"{path} has more than {limit:,} bytes")
    return data


def parse_toml(data: bytes) -> dict[str, Any] | None:
    """The tables of a TOML document, dates as text; None where it is not TOML, too large, or takes too much to read."""
    return parse_toml_documents([data])[0]


def parse_toml_documents(documents: Sequence[bytes]) -> list[dict[str, Any] | None]:
    """``parse_toml`` of each document, by one process for all."""
    return _parse("toml", documents)


def parse_ini(data: bytes) -> dict[str, Any] | None:
    """The options of each section of an INI file; None as for ``parse_toml``."""
    return _parse("ini", [data])[0]


def _parse(form: str, documents: Sequence[bytes]) -> list[dict[str, Any] | None]:
    parsed: list[dict[str, Any] | None] = [None if data.strip() else {} for data in documents]
    read = [index for index, data in enumerate(documents) if data.strip() and len(data) <= TEXT_LIMIT]
    requests = [[form, documents[index].decode("utf-8-sig", _ESCAPES)] for index in read]
    for index, answer in zip(read, ask(_FORMATS, requests) if requests else (), strict=True):
        parsed[index] = answer if isinstance(answer, dict) else None
    return parsed


def ask(program: Path, requests: Sequence[Any]) -> list[Any]:
    """Have the function ``answer`` of a program of ours answer each request; blocks for up to 10 s.

    Requests and answers are JSON, the program is of the standard library alone. The answer is None where the program
    failed, did not survive the request or had no time left.
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
    """The answers until the program ended, by itself or at its deadline."""
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
