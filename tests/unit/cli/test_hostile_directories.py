"""Tests of untrusted directories: commands end at once despite devices, pipes, links and sparse files in them."""

import asyncio
import os
import resource

import pytest
from click.testing import CliRunner

from dgym.cli.app import cli
from dgym.results import Record, StoredResult, TrajectoryHeader, episode_path, open_library
from dgym.wire import EndReason, Observation, Step
from tests.support.calc import BUGGY

pytestmark = pytest.mark.attack("openers")

ENDLESS = 40 * 1024**3


def pipe(path):
    os.mkfifo(path)


def device(path):
    path.symlink_to("/dev/zero")


def sparse(path):
    path.touch()
    os.truncate(path, ENDLESS)


def outward(path):
    path.symlink_to(__file__)


def folder(path):
    path.mkdir()


KINDS = [pipe, device, sparse, outward, folder]


@pytest.fixture(autouse=True)
def small_memory():
    """Limit the address space, so that reading a whole sparse file fails before it fills the machine's memory."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (8 * 1024**3, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture
def attempt(tmp_path):
    record = Record.new(tmp_path / "results", episode_path("local", "e", "d"))
    record.begin(TrajectoryHeader(episode="e", task="t", manifest="bundled:mini_nightmare"))
    record.write(Step(seq=0, call=None, observation=Observation(text="x", tool="reset")))
    asyncio.run(record.finish(StoredResult(resolved=True, reason=EndReason.RESOLVED, episode="e", task="t")))
    return tmp_path / "results/local/e/d/1"


def run(*arguments):
    done = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


@pytest.mark.parametrize("name", ["result.json", "trajectory.jsonl", "patch.diff"])
@pytest.mark.parametrize("kind", KINDS)
def test_results_of_strangers_are_read_as_regular_files_of_bounded_size(attempt, kind, name, tmp_path):
    (attempt / name).unlink(missing_ok=True)
    kind(attempt / name)
    assert run("report", tmp_path / "results").exit_code == 0
    story = run("results", tmp_path / "results", "--story")
    replay = run("replay", attempt / "trajectory.jsonl")
    if name == "trajectory.jsonl":
        assert "cannot read the trajectory" in replay.output
        assert "cannot read the trajectory" in story.output or "does not contain an episode" in story.output


async def _known(library):
    await library.refresh()
    return [(entry.path, await library.read(entry, 1, "trajectory.jsonl", 1000)) for entry in library.entries.values()]


@pytest.mark.parametrize("name", ["result.json", "trajectory.jsonl"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_page_lists_a_strangers_results(attempt, kind, name, tmp_path):
    (attempt / name).unlink()
    kind(attempt / name)
    ((path, text),) = asyncio.run(_known(open_library(str(tmp_path / "results"))))
    assert path.endswith("local/e/d")
    if name == "trajectory.jsonl":
        assert (text or b"").strip(b"\0") == b""


@pytest.mark.parametrize(
    "name", ["setup.cfg", "pyproject.toml", "tox.ini", "setup.py", "requirements.txt", "tests/a.py"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_init_reads_a_strangers_repository_as_regular_files_of_bounded_size(kind, name, tmp_path, monkeypatch):
    root = tmp_path / "repo"
    (root / "tests").mkdir(parents=True)
    (root / "calc.py").write_text(BUGGY)
    (root / "tests/test_calc.py").write_text("import calc\n\n\ndef test_add():\n    assert calc.add(2, 3) == 5\n")
    kind(root / name)
    monkeypatch.chdir(tmp_path)
    assert run("init", "repo").exit_code == 0
    assert (tmp_path / "repo.yaml").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_migrate_reads_a_configuration_as_a_regular_file_of_bounded_size(kind, tmp_path):
    kind(tmp_path / "config.yaml")
    done = run("migrate", tmp_path / "config.yaml")
    assert done.exit_code == 2
    assert "cannot be read" in done.output or "is a directory" in done.output
