"""Tests of sandbox directories: they are private, can always be removed, and are not left behind."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

import pytest

from dgym.sandbox import _cache
from dgym.sandbox._cache import cache_directory, compiled_runner
from dgym.sandbox.local import _resources
from dgym.sandbox.local._interpreter import inspect_interpreter
from dgym.sandbox.local._resources import PrivateDirectory, remove_abandoned, remove_tree


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_directory_is_private(temporary):
    directory = PrivateDirectory.make()
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    assert directory.workspace.is_dir()
    directory.remove()


def test_removal_may_be_repeated(temporary):
    directory = PrivateDirectory.make()
    directory.remove()
    directory.remove()
    assert list(temporary.iterdir()) == []


def test_workspaces_of_one_name_lie_in_directories_of_random_names(temporary):
    first, second = PrivateDirectory.make(), PrivateDirectory.make()
    assert first.workspace.name == second.workspace.name == "workspace"
    assert first.workspace.parent.name != second.workspace.parent.name
    assert first.workspace.is_relative_to(first.path)
    first.remove()
    second.remove()
    assert list(temporary.iterdir()) == []


def test_on_ext4_the_directory_has_the_attribute_top_of_hierarchy(temporary):
    if _attributes(temporary) is None:
        pytest.skip("there is no ext4 below the temporary files, or no lsattr")
    directory = PrivateDirectory.make()
    assert "T" in (_attributes(directory.path) or "")
    assert "T" not in (_attributes(directory.workspace.parent) or "")
    directory.remove()


def test_a_place_is_near_a_removed_workspace_for_some_minutes(tmp_path, monkeypatch):
    inode, now = tmp_path.stat().st_ino, time.monotonic()
    for removed, near in (((inode, now), True), ((inode, now - 301), False), ((inode + 10**6, now), False)):
        monkeypatch.setattr(_resources, "_removed", [removed])
        assert _resources._is_near_removed(tmp_path) is near


def test_a_removed_workspace_is_recorded_and_a_near_place_is_used_if_none_is_far(temporary, monkeypatch):
    monkeypatch.setattr(_resources, "_removed", deque())
    monkeypatch.setattr(_resources, "_REGION_INODES", 2**64)
    first = PrivateDirectory.make()
    place = first.workspace.parent.stat().st_ino
    first.remove()
    assert [inode for inode, _ in _resources._removed] == [place]
    second = PrivateDirectory.make()
    assert [path.name for path in second.path.glob("files-*")] == [second.workspace.parent.name]
    second.remove()


def test_a_workspace_needs_no_attributes_of_its_file_system(temporary, monkeypatch):
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("there is no other file system")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        monkeypatch.setattr(tempfile, "tempdir", elsewhere)
        directory = PrivateDirectory.make()
        assert directory.workspace.is_dir()
        directory.remove()


def test_a_tree_without_permissions_is_removed(tmp_path):
    tree = tmp_path / "tree"
    (tree / "closed" / "inner").mkdir(parents=True)
    (tree / "closed" / "inner" / "file").write_text("x")
    (tree / "closed" / "inner").chmod(0)
    (tree / "closed").chmod(0o500)
    remove_tree(tree)
    assert not tree.exists()


def test_removes_a_tree_deeper_than_any_path_may_be_long(tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    here = os.open(tree, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=here)
        deeper = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    remove_tree(tree)
    assert not tree.exists()


def test_a_link_out_of_the_tree_is_removed_and_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "link").symlink_to(outside)
    remove_tree(tree)
    assert (outside / "kept").exists()


def test_directories_of_killed_processes_are_removed_and_those_in_use_kept(temporary):
    script = (
        "import os, sys, tempfile; tempfile.tempdir = sys.argv[1]\n"
        "from dgym.sandbox.local._resources import PrivateDirectory\n"
        "PrivateDirectory.make(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(temporary)], check=False)
    (left,) = temporary.iterdir()
    used = PrivateDirectory.make()
    old = time.time() - 3600
    for path in (left, used.path):
        os.utime(path, (old, old))
    removed = []
    remove_abandoned(removed.append)
    assert removed == [left.name]
    assert list(temporary.iterdir()) == [used.path]
    used.remove()


def test_a_directory_just_made_is_not_taken_for_abandoned(temporary):
    (temporary / f"dgym-{os.getuid()}-young").mkdir()
    (temporary / f"dgym-{os.getuid()}-young" / "lock").touch()
    remove_abandoned()
    assert (temporary / f"dgym-{os.getuid()}-young").exists()


def test_cache_follows_the_xdg_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "dgym"


def test_cache_of_a_user_without_a_home_is_private(temporary, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert stat.S_IMODE(cache_directory().stat().st_mode) == 0o700


def test_the_runner_is_copied_with_bytecode_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = tmp_path / "runner"
    (source / "inner").mkdir(parents=True)
    (source / "__main__.py").write_text("print(1)\n")
    (source / "inner" / "part.py").write_text("x = 1\n")
    monkeypatch.setattr(_cache, "RUNNER_SOURCE", source)
    _cache.runner_digest.cache_clear()
    try:
        interpreter = inspect_interpreter(sys.executable)
        first = compiled_runner(interpreter.executable, interpreter.cache_tag)
        assert sorted(path.suffix for path in first.rglob("*") if path.is_file()) == [".py", ".py", ".pyc", ".pyc"]
        assert compiled_runner(interpreter.executable, interpreter.cache_tag) == first
        assert sorted(path.name for path in first.parent.iterdir()) == [first.name]
    finally:
        _cache.runner_digest.cache_clear()
    shutil.rmtree(first)
    assert Path(source).exists()


def _attributes(directory: Path) -> str | None:
    """Return the attributes of a directory as lsattr(1) shows them, or None if it is not on ext4."""
    stat_program, lsattr = shutil.which("stat"), shutil.which("lsattr")
    if stat_program is None or lsattr is None:
        return None
    kind = subprocess.run([stat_program, "-f", "-c", "%T", directory], capture_output=True, text=True, check=False)
    if "ext" not in kind.stdout:
        return None
    shown = subprocess.run([lsattr, "-d", directory], capture_output=True, text=True, check=False)
    return shown.stdout.split()[0] if shown.returncode == 0 else None
