"""Outcomes of attacks, written by each process of pytest."""

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
    """A plugin of pytest: the outcome of each test that plays an attack, a line of JSON.

    A test that has begun and whose process died before its end is ``unfinished``.
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
    """The ids that the test's markers name."""
    return [attack for mark in item.iter_markers("attack") for attack in mark.args]


def register(config: pytest.Config) -> None:
    """Record what this process runs, where the environment asks for it."""
    if directory := os.environ.get(DIRECTORY):
        config.pluginmanager.register(Recorder(Path(directory)), "dgym-attacks")


def place_of(module: str) -> str:
    """Where the tests of a module play attacks."""
    return next((place for prefix, place in PLACES.items() if module.startswith(prefix)), "laptop")


def read(directory: Path) -> list[dict[str, Any]]:
    """The results of one or several runs: a row for each attack and module.

    ``tests`` are the ways in which it was tried, ``runs`` how often the least tried of them was; ``failed`` counts
    those that failed or did not end in any run, ``skipped`` those that no run tried.
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
