"""A repository with files that are read-only and files that are hidden, and an agent that may use every tool."""

import shutil

import msgspec
import pytest

import dgym
from dgym.api import DebugTask

FILES = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "checks/check.py": "import calc\nassert calc.add(1, 2) == 3\n",
    "checks/deep/data.txt": "kept\n",
    "secret/answer.txt": "forty-two\n",
    "keys.txt": "key\n",
    ".debugreadonly": "checks/\nlocked_*.txt\n",
    ".debugignore": "secret/\nkeys.txt\n",
    "locked_a.txt": "locked\n",
    "package/.debugreadonly": "*.cfg\n",
    "package/settings.cfg": "debug = no\n",
    "package/code.py": "x = 1\n",
}
PROTECTED = ("checks/", "locked_", "secret/", "keys.txt", ".debug", "package/settings.cfg")


@pytest.fixture(params=["bubblewrap", "none"])
def kind(request):
    if request.param == "bubblewrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    return request.param


@pytest.fixture
async def open_environment():
    """``await open_environment(kind)``: an environment after its reset, closed at the end of the test."""
    opened = []

    async def open_one(kind="bubblewrap"):
        if kind == "bubblewrap" and shutil.which("bwrap") is None:
            kind = "none"
        source = {"files": [{"path": path, "content": text} for path, text in FILES.items()]}
        spec = {"source": source, "entrypoint": "python check.py", "readOnlyPatterns": ["extra.txt"]}
        spec["scoring"] = {"hiddenFiles": [{"path": "check.py", "content": FILES["checks/check.py"]}]}
        task = msgspec.convert({"metadata": {"name": "policy"}, "spec": spec}, DebugTask)
        environment = dgym.AsyncRepoEnv(task, sandbox=kind, max_steps=200)
        opened.append(environment)
        await environment.reset()
        return environment

    yield open_one
    for environment in opened:
        await environment.close()


@pytest.fixture
def paths_of():
    """The paths that a patch touches."""

    def read(patch):
        heads = [line.split(" b/", 1)[1] for line in patch.splitlines() if line.startswith("diff --git ")]
        return sorted(heads)

    return read


@pytest.fixture
def protected():
    return PROTECTED
