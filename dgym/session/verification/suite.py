"""The suite of the untouched repository: the tests that count, remembered between the episodes of a task."""

import contextlib
import hashlib
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from dgym.decoding import DECODE_ERRORS
from dgym.sandbox import EntrypointResult

_PASSED = frozenset({"passed", "xpassed", "xfailed"})

Fact = Literal["runs", "passes"]
"""``runs``: the environment can run the tests. ``passes``: everything that counts passes already."""


class ExpectedTests(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The suite of the untouched repository: every id that counts and its outcome there ("" when it never ended).

    Ids that were skipped there do not count.
    """

    outcomes: dict[str, str] = {}
    collection_errors: tuple[str, ...] = ()

    @property
    def all_pass(self) -> bool:
        """Whether there are tests and all of them are known to pass."""
        return bool(self.outcomes) and all(outcome in _PASSED for outcome in self.outcomes.values())


def expected_tests(run: EntrypointResult, marks: EntrypointResult | None = None) -> ExpectedTests:
    """The suite of the untouched repository.

    Args:
        run: The suite as it ran there.
        marks: The same with setups only, when ``run`` did not end: it shows which of the rest would be skipped.
    """
    outcomes: dict[str, str] = {}
    errors: list[str] = []
    for result in (marks, run):
        if result is None or result.report is None:
            continue
        for test in result.report.collected:
            outcomes.setdefault(test, "")
        found = result.report.outcomes.items()
        outcomes.update({test: outcome for test, outcome in found if result is run or outcome == "skipped"})
        errors.extend(result.report.collection_errors)
    counted = {test: outcome for test, outcome in outcomes.items() if outcome != "skipped"}
    return ExpectedTests(outcomes=counted, collection_errors=tuple(dict.fromkeys(errors)))


def named_tests(identifiers: Iterable[str]) -> ExpectedTests:
    """The tests a task names, in its order, each once."""
    return ExpectedTests(outcomes=dict.fromkeys(identifiers, ""))


class SuiteCache(msgspec.Struct, frozen=True):
    """Remembers the suite of a task's untouched repository, and facts about it, as small files in ``directory``.

    ``key`` must change with everything that can change the suite: the task, its sources, its interpreter.
    """

    directory: Path
    key: str

    def get(self) -> ExpectedTests | None:
        """The suite, if it is known and readable."""
        try:
            return msgspec.json.decode(self._path("json").read_bytes(), type=ExpectedTests)
        except (OSError, *DECODE_ERRORS):
            return None

    def put(self, expected: ExpectedTests) -> None:
        """Remember the suite; a full or read-only disk only costs time later."""
        with contextlib.suppress(OSError):
            self.directory.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.directory, delete=False) as file:
                file.write(msgspec.json.encode(expected))
            Path(file.name).replace(self._path("json"))

    def knows(self, fact: Fact) -> bool:
        """Whether a fact is remembered."""
        return self._path(fact).exists()

    def set(self, fact: Fact, *, holds: bool) -> None:
        """Remember a fact, or forget it."""
        with contextlib.suppress(OSError):
            self.directory.mkdir(parents=True, exist_ok=True)
            path = self._path(fact)
            path.touch() if holds else path.unlink(missing_ok=True)

    def _path(self, suffix: str) -> Path:
        name = hashlib.sha256(f"1:{self.key}".encode()).hexdigest()
        return self.directory / f"{name}.{suffix}"
