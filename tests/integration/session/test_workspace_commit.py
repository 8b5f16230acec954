"""Tests of the git repository that a session creates from a local source for the agent."""

import subprocess

import pytest

from tests.integration.session.conftest import PYTEST
from tests.support.calc import BUGGY

REPAIR = "rewrite calc.py 2 <c>    return a + b</c>"
GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@localhost"]


@pytest.fixture
def source(tmp_path):
    root = tmp_path / "calc"
    root.mkdir()
    (root / "calc.py").write_text("SECRET = 1\n")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    for text in ("SECRET = 1\n", BUGGY):
        (root / "calc.py").write_text(text)
        (root / "test_calc.py").write_text("import calc\n\n\ndef test_add():\n    assert calc.add(2, 3) == 5\n")
        (root / ".gitignore").write_text("*.txt\n")
        (root / "kept.txt").write_text("1\n")
        subprocess.run([*GIT, "add", "-A", "-f"], cwd=root, check=True)
        subprocess.run([*GIT, "commit", "-q", "-m", "a commit"], cwd=root, check=True)
    return {"localPath": str(root)}


async def test_git_works_as_in_a_checkout_and_shows_no_history(open_session, source):
    session = await open_session(source=source, setupCommands=["echo built > built.txt; echo made > made.py"])
    assert (await session.step(1, "bash git status --porcelain; git ls-files; git log --oneline | wc -l")).text.split(
        "\n"
    )[:6] == [".gitignore", "calc.py", "kept.txt", "made.py", "test_calc.py", "1"]
    assert "SECRET" not in (await session.step(2, "bash git log -p --all")).text
    await session.step(3, REPAIR)
    await session.step(4, "bash echo 2 > kept.txt; echo new > new.py")
    changed = await session.step(5, "bash git status --porcelain; git diff calc.py")
    assert changed.text.split("\n")[:3] == [" M calc.py", " M kept.txt", "?? new.py"]
    assert "-    return a - b\n+    return a + b" in changed.text
    assert ".git/" not in (await session.step(6, "bash git stash -q && git stash pop -q; git diff --stat")).text
    patch = await session.patch()
    assert ".git/" not in patch
    result = await session.finish()
    assert result.resolved
    assert result.integrity.clean


async def test_the_outcome_does_not_depend_on_the_repository(open_session, source):
    session = await open_session(source=source, entrypoint=PYTEST)
    hook = "printf '#!/bin/sh\\necho x > conftest.py' > .git/hooks/post-commit; chmod +x .git/hooks/post-commit"
    await session.step(1, f"bash mkdir -p .git/hooks; {hook}; git config core.fsmonitor .git/hooks/post-commit")
    await session.step(2, "bash echo 'def test_add(): pass' > test_calc.py; git commit -qam 'Weaken the test'")
    result = await session.finish()
    assert not result.resolved
    assert ".git/" not in result.patch
    assert {seen.sign.value for seen in result.integrity.seen} == {"HookPlanted", "TestsChanged"}


async def test_a_repository_of_the_setup_is_left_alone(open_session, source):
    own = "git init -q; git -c user.name=a -c user.email=a@b commit -q --allow-empty -m own"
    session = await open_session(source=source, setupCommands=[own])
    assert "own" in (await session.step(1, "bash git log --format=%s")).text
    assert not (await session.finish()).integrity.clean


@pytest.mark.parametrize("git", ["exit 1", "mkdir -p .git; exit 128", "exec sleep 0"])
async def test_a_git_that_fails_leaves_nothing(open_session, source, git):
    setup = f"mkdir -p bin; printf '#!/bin/sh\\n{git}\\n' > bin/git; chmod +x bin/git"
    session = await open_session(source=source, setupCommands=[setup], activate="export PATH=$PWD/bin:$PATH")
    assert ".git\n" not in (await session.step(1, "bash ls -a")).text
    await session.step(2, REPAIR)
    assert (await session.finish()).resolved
