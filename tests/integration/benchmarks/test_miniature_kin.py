"""Tests with miniatures of other benchmarks: the gold patch resolves a task, and an empty patch does not."""

import subprocess

import pytest

from dgym.benchmarks.datasets import ImageNames, load_adapter, make_tasks
from dgym.env import AsyncRepoEnv, Opening, check_task
from tests.support.bare_python import bare_python
from tests.support.kin import FILE, exercises, harbor_tasks, live_rows, r2e_rows, smith_rows
from tests.support.miniature import git, make_repository

RUN_TESTS = f"python -m pytest -rA -p no:cacheprovider {FILE}\n"


@pytest.fixture(scope="module")
def mini(tmp_path_factory):
    root = tmp_path_factory.mktemp("mini")
    return root, make_repository(root)


def task_of(adapter, row, checkout=None):
    (task,) = make_tasks("mini", "test", [load_adapter(adapter).row(row, ImageNames())], checkout)
    return task


def tree(root, commit):
    """A checkout of the miniature at a commit."""
    target = root / f"tree-{commit[:12]}"
    target.mkdir()
    archive = git(root / "mini__coins", "archive", "--format=tar", f"--output={target}.tar", commit)
    assert archive == ""
    subprocess.run(["tar", "-xf", f"{target}.tar", "-C", str(target)], check=True)
    return target


@pytest.fixture
def assert_sound():
    """A function that checks that the gold patch resolves a task and that an empty patch does not."""

    async def check(task):
        found = await check_task(task, Opening(python=bare_python()), repeats=1)
        assert (found.problems, found.passes) == ((), False)

    return check


async def test_swesmith_and_r2e_gym(mini, assert_sound):
    root, rows = mini
    whole = tree(root, rows[1]["base_commit"])
    await assert_sound(task_of("swesmith", smith_rows(rows)[0], lambda _row: str(whole)))
    (whole / "run_tests.sh").write_text(RUN_TESTS)
    broken = dict(rows[0])
    row = r2e_rows([broken])[0]
    module = git(root / "mini__coins", "show", f"{broken['base_commit']}:coins/money.py")
    (whole / "coins" / "money.py").write_text(module)
    await assert_sound(task_of("r2egym", row, lambda _row: str(whole)))


async def test_live_with_a_parser_that_is_code(mini, assert_sound):
    root, rows = mini
    checkout = tree(root, rows[2]["base_commit"])
    await assert_sound(task_of("swebench-live", live_rows(rows)[2], lambda _row: str(checkout)))


async def test_an_exercise_and_a_task_of_harbor(tmp_path, assert_sound):
    (row,) = load_adapter("exercism").rows(exercises(tmp_path / "exercism"))
    await assert_sound(task_of("exercism", row))
    first, *_ = load_adapter("harbor").rows(harbor_tasks(tmp_path / "harbor"))
    async with AsyncRepoEnv(task_of("harbor", first), tools=["bash"], python=bare_python()) as env:
        await env.reset()
        assert (await env.finish()).tests == {"reward": "failed"}
        await env.reset()
        await env.step({"tool": "bash", "arguments": {"command": "sed -i 's/number$/number * 2/' money.py"}})
        solved = await env.finish()
    assert solved.resolved, solved.message
