"""Tests of the record of a cluster: its remains are removed, also after a reboot, and those of others are kept."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from hack.cluster import local, machine
from hack.cluster.machine import ClusterError

EARLIER = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def test_a_process_that_runs_is_found_again(state: Path) -> None:
    begun = local.begin(state, [])
    assert begun.running() is None
    begun.with_process(os.getpid()).write(state)
    found = local.read(state)
    assert found is not None
    assert found.running() == os.getpid()


def test_a_process_of_an_earlier_life_of_the_machine_is_not_the_one_that_has_its_id_now(state: Path) -> None:
    begun = local.begin(state, []).with_process(os.getpid())
    assert replace(begun, boot=EARLIER).running() is None
    assert replace(begun, started="1").running() is None


def test_the_record_of_an_older_version_still_names_its_process(state: Path) -> None:
    state.mkdir()
    old = {"pid": os.getpid(), "started": machine.start_time(os.getpid()), "made": [], "tunables": {}}
    (state / local.FILE).write_text(json.dumps(old))
    found = local.read(state)
    assert found is not None
    assert found.running() == os.getpid()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"pid": 1}'])
def test_an_incomplete_record_is_ignored(state: Path, text: str) -> None:
    state.mkdir()
    (state / local.FILE).write_text(text)
    assert local.read(state) is None
    local.remove(state)
    assert not state.exists()


def test_directories_that_were_made_go_unless_others_use_them_by_now(state: Path, tmp_path: Path) -> None:
    points = [tmp_path / name for name in ("there", "made", "used", "gone")]
    points[0].mkdir()
    begun = local.begin(state, points)
    assert all(point.is_dir() for point in points)
    (points[2] / "networks").mkdir()
    points[3].rmdir()
    begun.undo()
    assert [point.name for point in points if point.exists()] == ["there", "used"]


def test_settings_are_put_back_but_not_those_of_an_earlier_life_of_the_machine(state: Path, tmp_path: Path) -> None:
    panic = tmp_path / "kernel" / "panic"
    panic.parent.mkdir()
    panic.write_text("1")
    begun = local.begin(state, [], tmp_path)
    panic.write_text("10")
    replace(begun, boot=EARLIER).undo(tmp_path)
    assert panic.read_text() == "10"
    begun.undo(tmp_path)
    assert panic.read_text() == "1"


def test_the_state_is_removed_with_its_record_last(state: Path) -> None:
    local.begin(state, [])
    (state / "lib").mkdir()
    (state / "lib" / "layer").touch()
    (state / "link").symlink_to(state.parent)
    local.remove(state)
    local.remove(state)
    assert list(state.parent.iterdir()) == []


def test_a_directory_without_the_state_of_a_cluster_is_not_removed(state: Path) -> None:
    (state / "thesis").mkdir(parents=True)
    with pytest.raises(ClusterError, match=r"not the state of a cluster.*DGYM_CLUSTER_STATE"):
        local.remove(state)
    assert (state / "thesis").is_dir()


def test_a_state_with_only_a_temporary_record_is_removed(state: Path) -> None:
    state.mkdir()
    (state / f"{local.FILE}.new").touch()
    local.remove(state)
    assert not state.exists()
