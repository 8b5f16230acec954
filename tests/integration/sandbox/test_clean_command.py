"""Tests of ``dgym clean``: it removes the leftovers of killed runs, but not files that are in use."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

DEADLINE = 90.0

# A process that owns a sandbox without isolation. The tests kill it.
OWNER = """
import asyncio, sys
from dgym.sandbox import SandboxSpec
from dgym.sandbox.local._provider import LocalProvider

async def main():
    sandbox = await LocalProvider(SandboxSpec(python=sys.executable), kind="none").sandbox()
    print(sandbox._prepared.directory.path, sandbox.main_process, flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


@pytest.fixture
def machine_state(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "tmp").mkdir()
    return {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}


@pytest.fixture
def clean(machine_state, tmp_path):
    """Run ``dgym clean`` with a PATH that has no container engine."""
    environment = {**machine_state, "PATH": str(tmp_path / "bin")}

    def run(*arguments):
        dgym = Path(sys.executable).with_name("dgym")
        return subprocess.run(
            [dgym, "clean", *arguments],
            env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False,
        )  # fmt: skip

    return run


def make_old(path):
    os.utime(path, (0, 0), follow_symlinks=False)


def test_leftovers_of_a_killed_process_are_removed_and_those_of_a_live_process_kept(machine_state, clean):
    owners = [
        subprocess.Popen([sys.executable, "-c", OWNER], env=machine_state, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    with owners[0] as living, owners[1] as dying:
        (kept, _), (left, runner) = [owner.stdout.readline().split() for owner in owners]
        # A stopped runner does not notice the death of its owner, so it does not exit.
        os.kill(int(runner), signal.SIGSTOP)
        dying.kill()
        dying.wait(DEADLINE)
        assert Path(left).is_dir()
        for path in (kept, left):
            make_old(path)
        os.kill(int(runner), signal.SIGKILL)
        done = clean()
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [f"removed directory {Path(left).name}"]
        assert not Path(left).exists()
        assert Path(kept).is_dir()
        assert clean().stdout == "nothing was left behind\n"
        living.kill()


def test_an_engine_that_was_named_must_answer(clean):
    done = clean("--engine", "podman")
    assert done.returncode == 1
    assert "podman is not installed" in done.stderr
    assert clean("--engine", "crate").returncode == 2


def test_an_engine_that_does_not_answer_is_mentioned(machine_state, tmp_path, clean):
    program = tmp_path / "bin" / "docker"
    program.write_text("#!/bin/sh\necho 'cannot connect' >&2\nexit 1\n")
    program.chmod(0o755)
    done = clean()
    assert done.returncode == 0
    assert "containers were not searched: docker does not answer: cannot connect" in done.stderr
