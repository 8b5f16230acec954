"""Tests of the built wheel: types, the recorded commit, and the tasks of the demo."""

import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
USER = ROOT / "tests" / "fakes" / "typed_user.py"


def run(*command, cwd):
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=100)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The interpreter of an environment with dgym from its wheel and dependencies from the tests' environment."""
    wheels, environment = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("environment")
    built = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels), cwd=ROOT)
    assert built.returncode == 0, built.stderr
    venv.create(environment, symlinks=True)
    (site,) = environment.glob("lib/python*/site-packages")
    (wheel,) = wheels.glob("dgym-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (site / "this-environment.pth").write_text(sysconfig.get_path("purelib"))
    return environment / "bin" / "python"


@pytest.mark.thorough
def test_a_typed_program_passes_mypy_strict(installed, tmp_path):
    shutil.copy(USER, tmp_path / "user.py")
    # Without the option mypy uses the configuration of a parent directory.
    mypy = (sys.executable, "-m", "mypy", "--strict", "--python-executable", str(installed), "--config-file=")
    checked = run(*mypy, "user.py", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    # This checks that the types are not Any, which is compatible with every type.
    (tmp_path / "user.py").write_text("from dgym import RepoEnv\nRepoEnv(1, max_steps='many')\n")
    refused = run(*mypy, "user.py", cwd=tmp_path)
    assert refused.stdout.count("[arg-type]") == 2, refused.stdout


def test_the_commit_is_recorded(installed, tmp_path):
    head = run("git", "rev-parse", "HEAD", cwd=ROOT)
    if head.returncode:
        pytest.skip("not a git checkout")
    code = "from dgym.episodes._player import dgym_commit; print(dgym_commit())"
    found = run(str(installed), "-c", code, cwd=tmp_path)
    assert found.stdout.strip().removesuffix("-dirty") == head.stdout.strip(), found.stderr


EPISODES = """
apiVersion: dgym.dev/v1alpha1
kind: EpisodeSet
metadata: {name: two}
spec:
  tasks: [{name: formula}, {name: sheet-undo}]
  template:
    agent: {name: replay, parameters: {trajectory: "package:dgym.benchmarks.mini_nightmare"}}
"""


def test_tasks_of_the_demo_are_resolved_from_the_wheel_alone(installed, tmp_path):
    # ``make release-check`` runs all ten tasks, with the dependencies that pip installs.
    (tmp_path / "two.yaml").write_text(EPISODES)
    where = run(str(installed), "-c", "import dgym, dgym_operator; print(dgym.__file__)", cwd=tmp_path)
    assert where.stdout.startswith(str(installed.parents[1])), where.stderr
    command = (
        str(installed),
        "-c",
        "from dgym.cli import main; main()",
        "run",
        "two.yaml",
        "--results",
        "results",
        "--sandbox",
        "none",
    )
    played = run(*command, cwd=tmp_path)
    assert "2 episodes: 2 resolved" in played.stdout, played.stdout + played.stderr
