"""What keeps a sandbox from being prepared is the task's or its image's doing, and is said as that."""

import io
import tarfile

import pytest

from dgym.env import Opening
from dgym.errors import SetupFailed
from dgym.sandbox.local import LocalProvider
from dgym.session.preparation import prepare
from tests.integration.session.conftest import make_task


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
