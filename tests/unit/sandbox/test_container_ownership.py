"""The owner of a container is the process that holds its lock."""

import os
import subprocess
import sys

import pytest

from dgym.sandbox.container import ownership


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def make_old(name):
    os.utime(ownership.directory() / f"{name}.lock", (0, 0))


def test_a_container_is_owned_until_its_owner_says_that_it_is_gone():
    owner = ownership.Ownership()
    assert not ownership.is_abandoned(owner.name)
    owner.release()
    owner.release()
    assert ownership.is_abandoned(owner.name)
    assert not list(ownership.directory().iterdir())


def test_a_container_is_abandoned_once_its_owner_is_dead():
    script = "from dgym.sandbox.container.ownership import Ownership; print(Ownership().name, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=-1, stdout=-1, text=True) as owner:
        name = owner.stdout.readline().strip()
        assert not ownership.is_abandoned(name)
        owner.kill()
    assert ownership.is_abandoned(name)
    ownership.forget(name)
    assert not list(ownership.directory().iterdir())


def test_locks_without_a_container_go_once_they_are_old_and_free():
    held = ownership.Ownership()
    for name in ("dgym-young", "dgym-old", "dgym-existing"):
        (ownership.directory() / f"{name}.lock").touch()
    for name in (held.name, "dgym-old", "dgym-existing"):
        make_old(name)
    ownership.forget_unused({"dgym-existing"})
    left = {path.stem for path in ownership.directory().iterdir()}
    assert left == {held.name, "dgym-young", "dgym-existing"}
    held.release()


def test_a_lock_that_is_no_file_is_left_alone(tmp_path):
    (ownership.directory() / "dgym-link.lock").symlink_to(tmp_path / "elsewhere")
    assert not ownership.is_abandoned("dgym-link")


def test_another_cache_is_another_scope(tmp_path, monkeypatch):
    mine = ownership.scope()
    assert ownership.scope() == mine
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert ownership.scope() != mine
