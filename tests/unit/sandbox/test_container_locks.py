"""Who owns a container: whoever holds its lock, while they live."""

import os
import subprocess
import sys

import pytest

from dgym.sandbox import locks


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def make_old(name):
    os.utime(locks.directory() / f"{name}.lock", (0, 0))


def test_a_container_is_owned_until_its_owner_says_that_it_is_gone():
    ownership = locks.Ownership()
    assert not locks.is_abandoned(ownership.name)
    ownership.release()
    ownership.release()
    assert locks.is_abandoned(ownership.name)
    assert not list(locks.directory().iterdir())


def test_a_container_is_abandoned_once_its_owner_is_dead():
    script = "import os; from dgym.sandbox.locks import Ownership; print(Ownership().name, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=-1, stdout=-1, text=True) as owner:
        name = owner.stdout.readline().strip()
        assert not locks.is_abandoned(name)
        owner.kill()
    assert locks.is_abandoned(name)
    locks.forget(name)
    assert not list(locks.directory().iterdir())


def test_locks_without_a_container_go_once_they_are_old_and_free():
    held = locks.Ownership()
    for name in ("dgym-young", "dgym-old", "dgym-existing"):
        (locks.directory() / f"{name}.lock").touch()
    for name in (held.name, "dgym-old", "dgym-existing"):
        make_old(name)
    locks.forget_unused({"dgym-existing"})
    left = {path.stem for path in locks.directory().iterdir()}
    assert left == {held.name, "dgym-young", "dgym-existing"}
    held.release()


def test_a_lock_that_is_no_file_is_left_alone(tmp_path):
    (locks.directory() / "dgym-link.lock").symlink_to(tmp_path / "elsewhere")
    assert not locks.is_abandoned("dgym-link")


def test_another_cache_is_another_scope(tmp_path, monkeypatch):
    mine = locks.scope()
    assert locks.scope() == mine
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert locks.scope() != mine
