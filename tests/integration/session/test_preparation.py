"""Tests of failed preparations of a sandbox: the error names the cause in the task or its image."""

import io
import tarfile

import pytest

from dgym.env import Opening
from dgym.errors import SetupFailed
from dgym.sandbox.local import LocalProvider
from dgym.session._preparation import prepare
from tests.integration.session.conftest import FILES, make_task


@pytest.fixture
async def sandbox():
    provider = LocalProvider(await Opening().sandbox_spec(make_task()))
    opened = await provider.sandbox()
    yield opened
    await opened.stop()


async def test_a_repository_that_the_sandbox_cannot_write_fails_the_setup(sandbox, tmp_path):
    source = tmp_path / "source.tar"
    with tarfile.open(source, "w") as tar:
        entry = tarfile.TarInfo("n" * 300)
        entry.size = 1
        tar.addfile(entry, io.BytesIO(b"x"))
    with pytest.raises(SetupFailed, match="cannot be written into the workspace: File name too long"):
        await prepare(sandbox, make_task(), source)


ABSENT = "import absent_package\n\n\ndef test_add():\n    assert absent_package.add(2, 3) == 5\n"
COROUTINES = "import calc\n\n\nasync def test_add():\n    assert calc.add(2, 3) == 5\n"


@pytest.mark.parametrize(
    ("files", "cause"),
    [
        ({"test_calc.py": ABSENT}, "No module named 'absent_package'"),
        ({"conftest.py": "import absent_package\n"}, "No module named 'absent_package'"),
        ({"pytest.ini": "[pytest]\naddopts = --absent\n"}, "--absent"),
        ({"pytest.ini": "[pytest]\nrequired_plugins = pytest-absent\n"}, "pytest-absent"),
        ({"test_calc.py": COROUTINES}, "no plugin of pytest runs them; install pytest-asyncio"),
        (
            {"test_calc.py": COROUTINES, "requirements-dev.txt": "anyio\n"},
            "no plugin of pytest runs them; install anyio",
        ),
    ],
)
@pytest.mark.parametrize("scoring", [{}, {"failToPass": ["test_calc.py::test_add"]}])
async def test_an_environment_that_cannot_run_the_tests_fails_the_reset(open_session, files, cause, scoring):
    entrypoint = "python -m pytest -q -p no:asyncio -p no:anyio"
    session = await open_session(files={**FILES, **files}, entrypoint=entrypoint, scoring=scoring, reset=False)
    with pytest.raises(SetupFailed, match="the environment cannot run the tests") as failure:
        await session.reset(evaluate=True)
    assert cause in str(failure.value).splitlines()[-1]


@pytest.mark.parametrize(
    ("files", "scoring"),
    [
        ({"calc.py": "def add(a, b)\n"}, {}),
        ({"test_calc.py": "import calc, absent\n"}, {"hiddenFiles": [{"path": "absent.py", "content": ""}]}),
        ({"test_calc.py": ""}, {"hiddenFiles": [{"path": "test_more.py", "content": ""}]}),
        ({"test_calc.py": COROUTINES + FILES["test_calc.py"].replace("test_add", "test_sum")}, {}),
    ],
    ids=["syntax-error", "hidden-module", "hidden-tests", "some-run"],
)
async def test_a_bug_that_keeps_tests_from_running_does_not_fail_the_reset(open_session, files, scoring):
    entrypoint = "python -m pytest -q -p no:asyncio -p no:anyio"
    session = await open_session(files={**FILES, **files}, entrypoint=entrypoint, scoring=scoring, reset=False)
    await session.reset(evaluate=True)
