"""Recording of outcomes of attacks by each process of pytest, and reading of the records."""

import json
import os
import uuid
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DIRECTORY = "DGYM_ATTACKS"
PLACES = {"tests/e2e/cluster/": "pod", "tests/e2e/podman/": "container", "tests/e2e/unisolated/": "no sandbox"}


class Recorder:
    """Pytest plugin that writes the outcome of each test with an attack, as a line of JSON.

    If the process dies during a test, the test's outcome is ``unfinished``.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._file = directory / f"{uuid.uuid4().hex}.jsonl"
        self._outcomes: dict[str, str] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Observe the report of a phase of a test."""
        report = yield
        attacks = attacks_of(item)
        if attacks:
            self._observe(item, attacks, report)
        return report

    def _observe(self, item: pytest.Item, attacks: list[str], report: pytest.TestReport) -> None:
        if report.when == "setup":
            self._write(item, attacks, "unfinished")
        worst = self._outcomes.get(item.nodeid, "passed")
        self._outcomes[item.nodeid] = "failed" if "failed" in (worst, report.outcome) else max(worst, report.outcome)
        if report.when == "teardown":
            self._write(item, attacks, self._outcomes.pop(item.nodeid))

    def _write(self, item: pytest.Item, attacks: list[str], outcome: str) -> None:
        module = item.path.relative_to(item.config.rootpath).as_posix()
        line = {"attacks": attacks, "module": module, "test": item.nodeid, "outcome": outcome}
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def attacks_of(item: pytest.Item) -> list[str]:
    """The ids of attacks in the test's markers."""
    return [attack for mark in item.iter_markers("attack") for attack in mark.args]


def register(config: pytest.Config) -> None:
    """Register the recorder if ``DGYM_ATTACKS`` is set."""
    if directory := os.environ.get(DIRECTORY):
        config.pluginmanager.register(Recorder(Path(directory)), "dgym-attacks")


def place_of(module: str) -> str:
    """The place where the tests of a module run attacks."""
    return next((place for prefix, place in PLACES.items() if module.startswith(prefix)), "laptop")


def read(directory: Path) -> list[dict[str, Any]]:
    """The results of one or several runs, with a row for each attack and module.

    ``tests`` is the number of tests, ``runs`` the lowest number of passed runs of a test. ``failed`` is the number of
    tests that failed or did not finish in any run, ``skipped`` the number of tests that were skipped in all runs.
    """
    outcomes: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for file in sorted(directory.glob("*.jsonl")):
        last = {line["test"]: line for line in map(json.loads, file.read_text("utf-8").splitlines())}
        for line in last.values():
            for attack in line["attacks"]:
                outcomes[attack, line["module"]][line["test"]].append(line["outcome"])
    return [_row(attack, module, tests) for (attack, module), tests in sorted(outcomes.items())]


def _row(attack: str, module: str, tests: dict[str, list[str]]) -> dict[str, Any]:
    bad = [name for name, seen in tests.items() if {"failed", "unfinished"} & set(seen)]
    skipped = [name for name, seen in tests.items() if name not in bad and "passed" not in seen]
    tried = [seen.count("passed") for name, seen in tests.items() if name not in (*bad, *skipped)]
    return {
        "attack": attack,
        "place": place_of(module),
        "module": module,
        "tests": len(tests),
        "runs": min(tried, default=0),
        "failed": len(bad),
        "skipped": len(skipped),
    }
