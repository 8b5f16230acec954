"""Tests of suites that cannot run: a broken environment raises SetupFailed, and a bug in the code is scored."""

import pytest

from dgym.errors import SandboxLost, SetupFailed
from dgym.session.scoring import SuiteCache
from tests.support.calc import BUGGY, FIXED

REPAIRED = {"calc.py": FIXED}
TEST = "import calc\n\n\ndef test_add():\n    assert calc.add(2, 3) == 5\n"
FILES = {"calc.py": BUGGY, "test_calc.py": TEST}
NAMED = {"fail_to_pass": ("test_calc.py::test_add",)}
NEEDS_PACKAGE = {**FILES, "conftest.py": "import absent_package\n"}


@pytest.fixture
def score_with_doubt(open_verifier, score):
    async def score_changes(files, changed, entrypoint="python -m pytest -q", **plan):
        return await score(files, changed, entrypoint, open_untouched=lambda: open_verifier(files), **plan)

    return score_changes


@pytest.mark.parametrize(
    ("files", "entrypoint", "plan", "cause"),
    [
        (NEEDS_PACKAGE, "python -m pytest -q", NAMED, "No module named 'absent_package'"),
        ({**FILES, "pytest.ini": "[pytest]\naddopts = --absent"}, "true && python -m pytest -q", {}, "--absent"),
        ({"calc.py": BUGGY}, "python -m pytest -q", {}, "no test was collected"),
        (FILES, "./absent-program", {}, "./absent-program"),
    ],
    ids=["conftest", "option", "no-tests", "no-program"],
)
async def test_the_environment_is_not_counted(score_with_doubt, files, entrypoint, plan, cause):
    with pytest.raises(SetupFailed, match="environment cannot run the tests") as failure:
        await score_with_doubt(files, REPAIRED, entrypoint, **plan)
    assert cause in str(failure.value).splitlines()[-1]


async def test_a_bug_that_breaks_the_collection_counts(score_with_doubt):
    files = {**FILES, "calc.py": "def add(a, b)\n"}
    outcome = await score_with_doubt(files, {"notes.txt": "nothing\n"}, **NAMED)
    assert (outcome.score, outcome.max_score) == (0, 1)


async def test_an_agent_that_breaks_the_collection_gets_its_outcome_and_the_answer_is_remembered(
    score_with_doubt, tmp_path
):
    cached = {**NAMED, "cache": SuiteCache(tmp_path, "task")}
    breaking = {"calc.py": "import absent_package\n"}
    for files in (FILES, NEEDS_PACKAGE):
        outcome = await score_with_doubt(files, breaking, **cached)
        assert (outcome.score, outcome.max_score) == (0, 1)


async def test_an_unchanged_repository_needs_no_other_sandbox(score):
    with pytest.raises(SetupFailed, match="absent_package"):
        await score(NEEDS_PACKAGE, {}, **NAMED)


async def test_a_doubted_environment_is_checked_with_the_untouched_repository_first(score):
    with pytest.raises(SetupFailed, match="absent_package"):
        await score(NEEDS_PACKAGE, REPAIRED, doubted=True, **NAMED)
    outcome = await score(FILES, REPAIRED, doubted=True, **NAMED)
    assert outcome.resolved


async def test_with_one_verifier_a_note_reports_the_omitted_check(score):
    async def none_left():
        raise SandboxLost("this pod has one verifier, and it was used")

    outcome = await score(NEEDS_PACKAGE, REPAIRED, open_untouched=none_left, **NAMED)
    assert not outcome.resolved
    assert "a second verifier" in outcome.notes[-1]
