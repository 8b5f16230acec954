"""Tests of ``dgym lock``, with an index of generated wheels."""

import sys

import pytest

from tests.support.command import dgym as run_dgym
from tests.support.wheels import PYTEST, write_index, write_wheel

TASK = """\
# A task.
apiVersion: dgym.dev/v1alpha1
kind: DebugTask
metadata: {name: calc}
spec:
  entrypoint: python check.py  # fails
  environment:
    requirements:
      # What the program needs.
      - acme
      - pytest>=1   # for the tests

    # The repository is no package.
    install: none
  source:
    files:
      - {path: check.py, content: "import acme"}
"""


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    directory = tmp_path_factory.mktemp("index")
    variables = write_index(directory, PYTEST)
    write_wheel(directory, "acme", "1.0", requires=["beta<2"])
    write_wheel(directory, "beta", "1.5")
    write_wheel(directory, "beta", "2.0")
    return {**variables, "XDG_CACHE_HOME": str(directory / "cache")}


@pytest.fixture
def dgym(tmp_path, index, monkeypatch):
    for name, value in index.items():
        monkeypatch.setenv(name, value)

    def command(*arguments):
        return run_dgym(*arguments, cwd=tmp_path)

    return command


def test_a_locked_task_has_versions_and_hashes_and_its_comments(dgym, tmp_path):
    task = tmp_path / "task.yaml"
    task.write_text(TASK)
    done = dgym("lock", "task.yaml")
    assert done.returncode == 0, done.stderr
    assert "calc: 7 requirements with hashes, in task.yaml" in done.stdout
    locked = task.read_text()
    comments = (
        "# A task.",
        "# fails",
        "# What the program needs.",
        "# for the tests",
        "# The repository is no package.",
    )
    assert [kept for kept in (*comments, "install: none") if kept not in locked] == []
    for name in ("acme==1.0 --hash=sha256:", "beta==1.5 --hash=sha256:", "pytest=="):
        assert name in locked
    assert f'python: "{sys.version_info[0]}.{sys.version_info[1]}"' in locked
    assert dgym("validate", "task.yaml").returncode == 0
    assert dgym("lock", "task.yaml").returncode == 0
    assert task.read_text() == locked, "a locked task is locked again to the same"


def test_run_names_tasks_that_are_not_locked_and_runs_them(dgym, tmp_path):
    (tmp_path / "task.yaml").write_text(TASK)
    arguments = ("run", "task.yaml", "--agent", "solution", "--sandbox", "none")
    before = dgym(*arguments)
    assert "Not locked: calc; dgym lock MANIFEST writes exact versions and hashes into it." in before.stderr
    assert dgym("lock", "task.yaml").returncode == 0
    assert "Not locked" not in dgym(*arguments, "--force").stderr


WITHOUT_REQUIREMENTS = TASK[: TASK.index("  environment:")] + TASK[TASK.index("  source:") :]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (WITHOUT_REQUIREMENTS, "nothing was locked"),
        (WITHOUT_REQUIREMENTS + "  environment: {requirements: [acme]}\n", "cannot be changed line by line"),
        (TASK.replace("- acme", "- no-such-thing"), "'no-such-thing' cannot be locked"),
    ],
    ids=["none", "flow", "absent"],
)
def test_requirements_that_cannot_be_locked_are_reported_with_the_reason(dgym, tmp_path, text, reason):
    task = tmp_path / "task.yaml"
    task.write_text(text)
    done = dgym("lock", "task.yaml")
    assert done.returncode != 0
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
    assert task.read_text() == text
