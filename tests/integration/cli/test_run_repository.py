"""Tests of ``dgym run DIR`` and ``dgym check DIR`` without a manifest, in the environment that init proposes."""

import json
import os

import pytest

from tests.fakes.openai_server import Answer, Call, FakeOpenAI
from tests.support.command import dgym as run_dgym
from tests.support.wheels import HATCHLING, PYTEST, write_index

FILES = {
    "pyproject.toml": "[build-system]\nrequires = ['hatchling']\nbuild-backend = 'hatchling.build'\n"
    "[project]\nname = 'shop'\nversion = '1.2'\n"
    "[tool.pytest.ini_options]\nasyncio_mode = 'auto'\n",
    "requirements/tests.txt": "pytest\npytest-asyncio\n",
    "src/shop/__init__.py": "from importlib.metadata import version\n\n__version__ = version('shop')\n\n\n"
    "def add(a, b):\n    return a - b\n",
    "tests/test_shop.py": "import shop\n\n\nasync def test_add():\n    assert shop.add(2, 3) == 5\n\n\n"
    "def test_version():\n    assert shop.__version__ == '1.2'\n",
}
REPAIR = {"path": "src/shop/__init__.py", "start": 7, "end": 7, "new_code": "    return a + b"}
WALK = [
    {"tool": "eval", "arguments": {}},
    {"tool": "pdb", "arguments": {"command": "b src/shop/__init__.py:7"}},
    {"tool": "pdb", "arguments": {"command": "c"}},
    {"tool": "rewrite", "arguments": REPAIR},
    {"tool": "submit", "arguments": {}},
]


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """Environment variables for an index with the packages that the repository needs, and for a new cache."""
    names = (*PYTEST, "pytest-asyncio", "typing_extensions", *HATCHLING)
    variables = write_index(tmp_path_factory.mktemp("index"), names)
    return {**variables, "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}


@pytest.fixture
def dgym(index, tmp_path):
    def run(*arguments, **variables):
        return run_dgym(*arguments, cwd=tmp_path, environment={**os.environ, **index, **variables})

    return run


@pytest.fixture
def repository(tmp_path):
    def write(files=FILES, **changed):
        root = tmp_path / "shop"
        for name, text in {**files, **changed}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        (tmp_path / "walk.jsonl").write_text("\n".join(map(json.dumps, WALK)))
        return root

    return write


REPLAY = ("--agent", "replay", "-p", "agent.parameters.trajectory=walk.jsonl", "--output", "json")


@pytest.mark.parametrize("entrypoint", [(), ("--entrypoint", "python -m pytest -q")])
def test_a_repository_is_run_in_the_environment_that_init_proposes(dgym, repository, entrypoint):
    root = repository()
    done = dgym("run", str(root), *entrypoint, *REPLAY)
    assert done.returncode == 0, done.stdout + done.stderr
    (episode,) = json.loads(done.stdout)["episodes"]
    assert (episode["reason"], episode["score"], episode["maxScore"]) == ("Resolved", 2, 2)
    assert f"requirements from requirements/tests.txt, the repository itself installed{'' if entrypoint else ', '}" in (
        done.stderr
    )
    assert f"dgym init {root} writes this into a manifest" in done.stderr


def test_a_model_debugs_a_repository_as_the_readme_runs_it(dgym, repository, tmp_path):
    root = repository()
    script = [Answer(calls=(Call(call["tool"], call["arguments"]),)) for call in WALK]
    with FakeOpenAI(script=script).in_thread() as server:
        model = {"model": "x", "endpoint": server.url, "api_key": "k"}
        (tmp_path / "llm.yaml").write_text(json.dumps({"m": model}))
        done = dgym(
            *("run", str(root), "--entrypoint", "python -m pytest -q", "--agent", "debug_agent"),
            *("-p", "agent.model=m", "--llm-config", "llm.yaml", "--output", "json"),
        )
    assert done.returncode == 0, done.stdout + done.stderr
    (episode,) = json.loads(done.stdout)["episodes"]
    assert (episode["reason"], episode["score"], episode["maxScore"]) == ("Resolved", 2, 2)
    assert "return a - b" in str(server.received[3].body["messages"][-1])


def test_a_cached_environment_is_reused_without_the_package_index(dgym, repository):
    root = repository()
    assert dgym("run", str(root), *REPLAY).returncode == 0
    again = dgym("run", str(root), *REPLAY, "--force", PIP_FIND_LINKS="/nowhere", UV_FIND_LINKS="/nowhere")
    assert again.returncode == 0, again.stderr


def test_a_repository_is_checked_in_the_same_environment(dgym, repository):
    done = dgym("check", str(repository()), "--repeat", "1", "--output", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads(done.stdout)
    assert found["failToPass"] == ["tests/test_shop.py::test_add"]
    assert found["passToPass"] == ["tests/test_shop.py::test_version"]


def test_an_unavailable_requirement_is_reported_with_the_tests_that_need_it(dgym, repository):
    root = repository(
        **{"requirements/tests.txt": "pytest\npytest-asyncio\nnowhere\n", "tests/conftest.py": "import nowhere"}
    )
    done = dgym("run", str(root), *REPLAY)
    assert done.returncode == 1
    assert "left out: nowhere: the index has no wheel of it for this Python; make an environment" in done.stderr
    (episode,) = json.loads(done.stdout)["episodes"]
    assert episode["reason"] == "SetupFailed"
    assert "No module named 'nowhere'" in episode["message"]


def test_a_repository_without_tests_needs_an_entrypoint(dgym, repository):
    root = repository({"shop.py": "x = 1\n"})
    done = dgym("run", str(root), *REPLAY)
    assert done.returncode == 2
    assert "no tests were found; name the command that runs them: --entrypoint COMMAND" in done.stderr
