"""Tests of container locks: the process that holds the lock owns the container."""

import os
import subprocess
import sys

import pytest

from dgym.sandbox.container._engine import lock_directory
from dgym.sandbox.container._process import Ownership, forget, forget_unused, is_abandoned, scope


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def make_old(name):
    os.utime(lock_directory() / f"{name}.lock", (0, 0))


def test_a_container_is_owned_until_its_owner_releases_it():
    owner = Ownership()
    assert not is_abandoned(owner.name)
    owner.release()
    owner.release()
    assert is_abandoned(owner.name)
    assert not list(lock_directory().iterdir())


def test_a_container_is_abandoned_once_its_owner_is_dead():
    script = "from dgym.sandbox.container._process import Ownership; print(Ownership().name, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=-1, stdout=-1, text=True) as owner:
        name = owner.stdout.readline().strip()
        assert not is_abandoned(name)
        owner.kill()
    assert is_abandoned(name)
    forget(name)
    assert not list(lock_directory().iterdir())


def test_locks_without_a_container_go_once_they_are_old_and_free():
    held = Ownership()
    for name in ("dgym-young", "dgym-old", "dgym-existing"):
        (lock_directory() / f"{name}.lock").touch()
    for name in (held.name, "dgym-old", "dgym-existing"):
        make_old(name)
    forget_unused({"dgym-existing"})
    left = {path.stem for path in lock_directory().iterdir()}
    assert left == {held.name, "dgym-young", "dgym-existing"}
    held.release()


def test_a_lock_that_is_not_a_file_is_ignored(tmp_path):
    (lock_directory() / "dgym-link.lock").symlink_to(tmp_path / "elsewhere")
    assert not is_abandoned("dgym-link")


def test_another_cache_is_another_scope(tmp_path, monkeypatch):
    mine = scope()
    assert scope() == mine
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert scope() != mine
