"""Tests of virtual environments of tasks: complete, created once, and without dgym."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from dgym.errors import SetupFailed
from dgym.sandbox import SandboxSpec
from dgym.sandbox.local import LocalProvider, ensure_environment
from dgym.sandbox.local._environments import pytest_distributions
from dgym.sandbox.local._interpreter import inspect_interpreter


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # No index is reachable and retries are off, so every access to an index fails immediately.
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield Path(asyncio.run(ensure_environment(())))


def test_a_bare_environment_runs_pytest_without_a_network(bare, tmp_path):
    (tmp_path / "test_one.py").write_text("def test_one(): assert True\n")
    for command in (["bin/pytest"], ["bin/python", "-m", "pytest"]):
        ran = subprocess.run(
            [bare / command[0], *command[1:], "-q", "-p", "no:cacheprovider"],
            cwd=tmp_path,
            env={},
            capture_output=True,
            text=True,
            check=False,
        )
        assert "1 passed" in ran.stdout, ran.stdout + ran.stderr


def test_a_bare_environment_holds_nothing_of_dgym(bare):
    assert (
        subprocess.run([bare / "bin/python", "-I", "-c", "import dgym"], capture_output=True, check=False).returncode
        == 1
    )
    assert list(bare.rglob("*dgym*/*")) == []


def test_an_environment_contains_bytecode(bare):
    packages = next(bare.glob("lib/python*/site-packages"))
    assert list((packages / "_pytest" / "__pycache__").glob("*.pyc"))


async def test_concurrent_requests_build_an_environment_once(cache):
    reported: list[str] = []
    paths = await asyncio.gather(*(ensure_environment((), progress=reported.append) for _ in range(3)))
    assert len(set(paths)) == 1
    assert (Path(paths[0]) / ".dgym-ready").exists()
    assert sum("waiting for another process" in line for line in reported) == 2


async def test_an_unfinished_environment_is_built_again(cache):
    path = Path(await ensure_environment(()))
    (path / ".dgym-ready").unlink()
    (path / "bin" / "python").unlink()
    assert await ensure_environment(()) == str(path)
    assert (path / "bin" / "python").exists()


async def test_an_unreachable_package_index_is_reported(cache):
    reported: list[str] = []
    with pytest.raises(SetupFailed, match="package index cannot be reached"):
        await ensure_environment(["dgym-test-requirement==1"], progress=reported.append)
    assert reported[0] == "installing dgym-test-requirement==1, pytest"
    assert not any((path / ".dgym-ready").exists() for path in (cache / "dgym" / "environments").iterdir())


def test_pytest_is_not_copied_for_another_version_of_python(bare):
    interpreter = inspect_interpreter(str(bare / "bin" / "python"))
    assert pytest_distributions(interpreter)
    assert pytest_distributions(type(interpreter)(**{**vars(interpreter), "version": (3, 8, 1)})) == ()


async def test_the_environment_is_first_on_path(kind, bare):
    sandbox = await LocalProvider(SandboxSpec(python=str(bare)), kind=kind).sandbox()
    try:
        result = await sandbox.run("command -v python pytest; python -m pytest --version")
        assert result.text.splitlines()[:2] == [f"{bare}/bin/python", f"{bare}/bin/pytest"]
        assert result.exit_status == 0, result.text
    finally:
        await sandbox.stop()


async def test_an_interpreter_by_another_name_is_python_inside(open_sandbox, kind, tmp_path):
    link = tmp_path / "bin" / "python3.99"
    link.parent.mkdir()
    link.symlink_to(Path(sys.executable).resolve())
    sandbox = await open_sandbox(kind, python=str(link))
    result = await sandbox.run("python -c 'import sys; print(sys.version_info[:2])'")
    assert result.text == f"{sys.version_info[:2]}\n"
