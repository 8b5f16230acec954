"""Tests that a process packs an unchanged directory once, and again after a change or when the tar is damaged."""

import hashlib
import os

import pytest

from dgym.api import SourceSpec
from dgym.workspace.sources import pack_source


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "repo"
    (root / "pkg/__pycache__").mkdir(parents=True)
    (root / "pkg/a.py").write_text("a = 1\n")
    (root / "pkg/b.py").write_text("b = 1\n")
    return root


@pytest.fixture
def settled(monkeypatch):
    """Treat files that were just written as settled."""
    monkeypatch.setattr("dgym.workspace.sources._pack._SETTLED_NS", -(10**10))


@pytest.fixture
def pack(tmp_path, root):
    async def run():
        """Return the tar and its inode. The inode changes when the source is packed again."""
        packed = await pack_source(SourceSpec(local_path="repo"), base=tmp_path, cache=tmp_path / "cache")
        assert hashlib.sha256(packed.read_bytes()).hexdigest() == packed.stem
        return packed, packed.stat().st_ino

    return run


async def test_an_unchanged_directory_is_not_packed_again(pack, root, settled):
    first, inode = await pack()
    os.utime(first, (1, 1))
    (root / "pkg/__pycache__/a.cpython-311.pyc").write_bytes(b"not delivered")
    assert await pack() == (first, inode)
    assert first.stat().st_mtime > 1


async def test_a_directory_that_changed_just_now_is_packed_again(pack):
    first, inode = await pack()
    again, other = await pack()
    assert again == first
    assert other != inode


def rewrite(root):
    """Write different content of the same size and modification time."""
    before = (root / "pkg/a.py").stat()
    (root / "pkg/a.py").write_text("a = 2\n")
    os.utime(root / "pkg/a.py", ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    "change",
    [
        rewrite,
        lambda root: (root / "pkg/a.py").chmod(0o755),
        lambda root: (root / "pkg/a.py").rename(root / "pkg/c.py"),
        lambda root: (root / "pkg/b.py").unlink(),
        lambda root: (root / "empty").mkdir(),
        lambda root: (root / "link").symlink_to("pkg/a.py"),
        lambda root: (root / "pkg/.dgym-results").touch(),
    ],
    ids=["content", "mode", "name", "removed", "directory", "link", "left out from now on"],
)
async def test_every_change_packs_it_again(pack, root, settled, change):
    first, _ = await pack()
    change(root)
    again, _ = await pack()
    assert again != first


async def test_a_tar_that_was_removed_or_damaged_is_made_again(pack, settled):
    first, inode = await pack()
    first.write_bytes(b"forged")
    again, other = await pack()
    assert again == first
    assert other != inode
    first.unlink()
    assert (await pack())[0] == first
