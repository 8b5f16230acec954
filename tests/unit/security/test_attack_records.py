"""Tests of the outcomes of attack tests: they are recorded, merged and shown on a page."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.attacks.every import FAMILIES as PROGRAMS
from tests.security import __main__ as page
from tests.security import records
from tests.security.catalog import ATTACKS, CONTAINER, FAMILIES, LAPTOP, PLACES, Attack
from tests.support.plain_python import NO_PLUGINS

MODULE = "tests/unit/security/test_attack_records.py"
ATTACK = Attack("the score", "anything", (LAPTOP,))


def lines(*outcomes: tuple[str, str]) -> str:
    entries = ({"attacks": ["files"], "module": MODULE, "test": test, "outcome": outcome} for test, outcome in outcomes)
    return "".join(json.dumps(entry) + "\n" for entry in entries)


def row(**counts: int) -> dict[str, object]:
    return {
        "attack": "files",
        "place": LAPTOP,
        "module": MODULE,
        "tests": 0,
        "runs": 0,
        "failed": 0,
        "skipped": 0,
        **counts,
    }


def test_each_way_counts_once_and_each_run_of_it(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(("one", "unfinished"), ("one", "passed"), ("two", "passed")))
    (tmp_path / "b.jsonl").write_text(lines(("one", "passed"), ("two", "passed")))
    assert records.read(tmp_path) == [row(tests=2, runs=2)]


def test_a_test_that_failed_once_or_did_not_end_counts_as_failed(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(("one", "passed"), ("two", "unfinished")))
    (tmp_path / "b.jsonl").write_text(lines(("one", "failed"), ("three", "passed")))
    assert records.read(tmp_path) == [row(tests=3, runs=1, failed=2)]


def test_a_test_that_was_always_skipped_counts_as_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(("one", "skipped")))
    assert records.read(tmp_path) == [row(tests=1, skipped=1)]


@pytest.mark.parametrize(
    ("counts", "shown"),
    [
        ([{"tests": 3, "runs": 1}], "stopped: 3"),
        ([{"tests": 3, "runs": 3}, {"tests": 2, "runs": 4}], "stopped: 5, 3 runs"),
        ([{"tests": 3, "runs": 1, "skipped": 1}], "**skipped: 1 of 3**"),
        ([{"tests": 3, "failed": 2, "skipped": 1}], "**failed: 2 of 3**"),
        ([], "**not run**"),
    ],
)
def test_a_cell_shows_the_results_of_an_attack(counts: list[dict[str, int]], shown: str) -> None:
    assert page.cell(ATTACK, LAPTOP, [row(**each) for each in counts]) == shown


def test_a_place_that_has_nothing_to_attack_is_empty() -> None:
    assert page.cell(ATTACK, "pod", []) == ""


def test_only_what_was_stopped_or_marked_everywhere_is_finished() -> None:
    assert "files (laptop): not run" in page.unfinished({})
    rows = [row(tests=1, runs=1) | {"attack": name, "place": place} for name in ATTACKS for place in PLACES]
    assert page.unfinished(page.cells_of(rows)) == []
    assert "files (laptop): failed: 1 of 1" in page.unfinished(page.cells_of([row(tests=1, failed=1), *rows[4:]]))


def test_a_run_replaces_the_cells_of_its_places() -> None:
    attack = ATTACKS["files"]
    rows = [[attack.against, attack.tries, "stopped: 9", "stopped: 8", "", ""], ["", "gone", *"1234"]]
    kept = page.cells_of_page(rows)
    assert kept == dict(zip((("files", place) for place in PLACES), rows[0][2:], strict=True))
    now = kept | page.cells_of([row(tests=2, runs=1)])
    assert now["files", LAPTOP] == "stopped: 2"
    assert now["files", CONTAINER] == "stopped: 8"
    assert now["machinery", LAPTOP] == "**not run**"


def test_catalog_markers_and_page_agree() -> None:
    rows = page.SECTION.rows()
    assert list(page.disagreements(rows)) == []
    assert page.written(page.cells_of_page(rows)) == page.SECTION.read()
    (found,) = page.disagreements(rows[1:])
    assert "the rows of docs/attacks.md" in found


def test_every_program_is_of_a_family_of_the_catalog() -> None:
    assert set(FAMILIES) == set(PROGRAMS)
    assert set(FAMILIES) <= set(ATTACKS)


def test_the_place_follows_from_the_module() -> None:
    assert records.place_of("tests/e2e/cluster/shared/test_isolation.py") == "pod"
    assert records.place_of("tests/e2e/podman/test_programs.py") == "container"
    assert records.place_of("tests/integration/session/spoof/test_spoof_attacks.py") == "laptop"


TESTS = """
import pytest
pytestmark = pytest.mark.attack("files")
def test_stopped(): pass
def test_not_stopped(): raise ValueError
def test_not_tried(): pytest.skip("no program")
@pytest.fixture
def left():
    yield
    raise ValueError
def test_that_leaves_something(left): pass
"""


def test_pytest_leaves_its_outcomes(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.security.records import register as pytest_configure\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = attack(id): plays it\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    environment = {**os.environ, **NO_PLUGINS, "PYTHONPATH": str(records.ROOT), "PYTEST_ADDOPTS": ""}
    environment[records.DIRECTORY] = str(tmp_path / "records")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout or "2 passed" in done.stdout, done.stdout + done.stderr
    (found,) = records.read(tmp_path / "records")
    assert found == row(tests=4, runs=1, failed=2, skipped=1) | {"module": "test_it.py"}
