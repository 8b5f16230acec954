"""Fixtures: contexts of pods for a real API server, and processes that run as the users of a pod."""

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dgym_operator.settings import Settings
from tests.support.pod_context import pod_context

GROUP = 10000


@pytest.fixture(scope="session")
def make_context():
    """A function that returns a pod context with local images, in the namespace ``default``."""
    settings = Settings(sandbox_image="localhost/sandbox:1", sidecar_image="localhost/sidecar:1")
    return functools.partial(pod_context, namespace="default", settings=settings)


@pytest.fixture(scope="session")
def python():
    """An interpreter that every user may run. The interpreter of the tests may be in a private home directory."""
    for path in (sys.executable, shutil.which("python3", path="/usr/local/bin:/usr/bin")):
        if path is not None and _is_open(Path(path).resolve()):
            return str(Path(path).resolve())
    pytest.skip("no Python that other users may run")


def _is_open(path):
    return all(each.stat().st_mode & 0o001 for each in (path, *path.parents))


@pytest.fixture
def as_user():
    """Command prefix that runs the command after it as a user of the pod's group, without privileges of root."""
    if os.geteuid() != 0:
        pytest.skip("only root can start processes of other users")

    def prefix(user):
        become = (
            "import os, sys; os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[1]));"
            "os.execvp(sys.argv[3], sys.argv[3:])"
        )
        return [sys.executable, "-I", "-S", "-c", become, str(user), str(GROUP)]

    return prefix


@pytest.fixture
def open_directory():
    """A directory that every user can read and write, as an emptyDir: ``open_directory(name)``.

    It is not below pytest's temporary directory, because pytest makes that directory private at the start of each run.
    """
    with tempfile.TemporaryDirectory(prefix="dgym-render-") as parent:
        Path(parent).chmod(0o755)

        def make(name):
            directory = Path(parent, name)
            directory.mkdir()
            if os.geteuid() == 0:
                os.chown(directory, 0, GROUP)
            directory.chmod(0o2777)
            return directory

        yield make


@pytest.fixture
def installed(open_directory):
    """The directory of a runner, as the init container installs it."""
    directory = open_directory("runner")
    command = [sys.executable, "-m", "dgym.sidecar.install", str(directory), str(open_directory("etc"))]
    subprocess.run(command, check=True, timeout=90)
    return directory
