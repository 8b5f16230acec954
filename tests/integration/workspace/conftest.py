"""Fixtures: real git in a clean environment, and a web server on the loopback interface."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.web import serve_directory

Git = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture(scope="session")
def git() -> Git:
    """A function that runs git in a directory and returns the completed process."""
    program = shutil.which("git")
    if program is None:
        pytest.skip("git is not installed")
    environment = {
        "PATH": os.environ["PATH"],
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_AUTHOR_NAME": "t",
        "GIT_AUTHOR_EMAIL": "t@example.org",
        "GIT_COMMITTER_NAME": "t",
        "GIT_COMMITTER_EMAIL": "t@example.org",
        "LC_ALL": "C.UTF-8",
    }

    def run(directory: Path, *arguments: str, stdin: bytes = b"", check: bool = True):
        done = subprocess.run(
            [program, *arguments], cwd=directory, input=stdin, env=environment, capture_output=True, timeout=60
        )
        assert not check or done.returncode == 0, done.stderr.decode("utf-8", "replace")
        return done

    return run


@pytest.fixture
def web(tmp_path):
    """A web server for a directory, on the loopback interface."""
    with serve_directory(tmp_path / "web") as server:
        yield server
