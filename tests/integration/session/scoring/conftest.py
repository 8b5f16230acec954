"""Fixtures: the entrypoint wrapper in a plain process, and a real verifier that scores changes."""

import asyncio
import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

import dgym.runner
from dgym.sandbox import RunResult, SandboxSpec, run_entrypoint
from dgym.sandbox.local import LocalProvider
from dgym.session.scoring import score_changes as score_in
from dgym.workspace.patches import FileVersion
from tests.fakes.plans import make_plan
from tests.support.bare_python import bare_python

RUNNER = Path(dgym.runner.__file__).parent
DEADLINE = 90.0


class PlainProcess:
    """The part of a sandbox that ``run_entrypoint`` uses, without a runner. It is fast and supports any interpreter."""

    def __init__(self, workspace, python, environment):
        self.workspace = str(workspace)
        self._python = python
        self._environment = environment

    async def run(self, command, *, stdin, timeout_seconds, output_limit, report):
        return await asyncio.to_thread(self._run, command, stdin)

    def _run(self, command, stdin):
        reading, writing = os.pipe()
        pieces = []
        reader = threading.Thread(target=_drain, args=(reading, pieces))
        reader.start()
        try:
            done = subprocess.run(
                ["/bin/sh", "-c", command],
                input=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=self.workspace,
                env={
                    "PATH": f"{Path(self._python).parent}:/usr/bin:/bin",
                    "HOME": self.workspace,
                    "TMPDIR": str(Path(self.workspace).parent),
                    "LANG": "C.UTF-8",
                    "PYTHONDONTWRITEBYTECODE": "1",
                    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                    "DGYM_RUNNER": str(RUNNER),
                    "DGYM_REPORT_FD": str(writing),
                    **self._environment,
                },
                pass_fds=[writing],
                timeout=DEADLINE,
                check=False,
            )
        finally:
            os.close(writing)
            reader.join()
        return RunResult(
            exit_status=done.returncode, ended_by="exit", output=done.stdout, report=b"".join(pieces), cwd=None
        )


def _drain(descriptor, pieces):
    while piece := os.read(descriptor, 65536):
        pieces.append(piece)
    os.close(descriptor)


def write_files(directory, files):
    for path, text in files.items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


@pytest.fixture
def run_plain(tmp_path):
    """Run an entrypoint in a workspace with these files, under a bare interpreter or ``python``, without a sandbox."""

    async def run(files, entrypoint="python -m pytest -q", *, python=None, fill=None, environment=None, **options):
        workspace = tmp_path / "workspace"
        shutil.rmtree(workspace, ignore_errors=True)
        workspace.mkdir()
        write_files(workspace, files)
        if fill is not None:
            fill(workspace)
        process = PlainProcess(workspace, python or bare_python(), environment or {})
        return await run_entrypoint(process, entrypoint, timeout_seconds=DEADLINE, **options)

    return run


@pytest.fixture
async def open_verifier():
    """``await open_verifier(files)``: a verifier with these files, as after the setup of a task."""
    opened = []

    async def open_one(files, *, kind="auto", **environment):
        variables = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment}
        provider = LocalProvider(SandboxSpec(python=bare_python(), environment=variables), kind=kind)
        sandbox = await provider.verifier()
        opened.append(sandbox)
        for path, text in files.items():
            await sandbox.write_file(path, text.encode())
        return sandbox

    yield open_one
    for sandbox in opened:
        await sandbox.stop()


@pytest.fixture
def score(open_verifier):
    """Score ``changed`` (text, None for deleted, "-> target" for a link) against a repository of ``files``."""

    async def score_changes(files, changed, entrypoint="python -m pytest -q", *, open_untouched=None, **plan):
        verifier = await open_verifier(files)
        plan.setdefault("timeout_seconds", DEADLINE)
        versions = {path: version(value) for path, value in changed.items()}
        return await score_in(verifier, make_plan(entrypoint, versions, **plan), open_untouched)

    return score_changes


def version(value):
    if not isinstance(value, str):
        return value
    return FileVersion(value.removeprefix("-> ").encode(), is_symlink=value.startswith("-> "))


@pytest.fixture
def as_versions():
    return lambda files: {path: version(value) for path, value in files.items()}
