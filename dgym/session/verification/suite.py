"""What is remembered of untouched repositories between the episodes of a task."""

import contextlib
import hashlib
import tempfile
from pathlib import Path
from typing import Literal

import msgspec

from dgym.session.verification.verdict import ExpectedTests

Fact = Literal["runs", "passes"]
"""``runs``: the environment can run the tests. ``passes``: everything that counts passes already."""


class ExpectedTestsCache:
    """Remembers the suites of untouched repositories, and facts about them, in a directory, one small file each.

    The empty digest stands for a task that is not to be remembered.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def get(self, digest: str) -> ExpectedTests | None:
        """The suite of the task with this digest, if it is known and readable."""
        if not digest:
            return None
        try:
            return msgspec.json.decode(self._path(digest).read_bytes(), type=ExpectedTests)
        except (OSError, msgspec.DecodeError):
            return None

    def put(self, digest: str, expected: ExpectedTests) -> None:
        """Remember a suite; a full or read-only disk only costs time later."""
        if not digest:
            return
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._directory, delete=False) as file:
                file.write(msgspec.json.encode(expected))
            Path(file.name).replace(self._path(digest))
        except OSError:
            return

    def knows(self, digest: str, fact: Fact) -> bool:
        """Whether a fact about the task with this digest is remembered."""
        return self._fact_path(digest, fact).exists() if digest else False

    def set(self, digest: str, fact: Fact, *, holds: bool) -> None:
        """Remember a fact, or forget it."""
        if not digest:
            return
        with contextlib.suppress(OSError):
            self._directory.mkdir(parents=True, exist_ok=True)
            path = self._fact_path(digest, fact)
            path.touch() if holds else path.unlink(missing_ok=True)

    def _path(self, digest: str) -> Path:
        return self._directory / f"{_name(digest)}.json"

    def _fact_path(self, digest: str, fact: Fact) -> Path:
        return self._directory / f"{_name(digest)}.{fact}"


def _name(digest: str) -> str:
    return hashlib.sha256(f"1:{digest}".encode()).hexdigest()
