"""Tests of memory groups in both cgroup versions: memory in use without the page cache, and out-of-memory kills."""

import os

import pytest

from dgym.runner import proctree
from dgym.sandbox.local._resources import ControlGroup

KILLS = {
    "memory.events": "low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\noom_group_kill 0\n",
    "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
}


@pytest.mark.parametrize(
    ("files", "statistics"),
    [
        (proctree._V2, "anon 600\nfile 400\ninactive_file 250\nactive_file 50\nkernel 3\n"),
        (proctree._V1, "cache 400\ninactive_file 1\ntotal_inactive_file 250\ntotal_active_file 50\n"),
    ],
    ids=["v2", "v1"],
)
def test_page_cache_does_not_count(tmp_path, files, statistics):
    (tmp_path / files[1]).write_text("1000\n")
    (tmp_path / "memory.stat").write_text(statistics)
    assert proctree.MemoryGroup(str(tmp_path), files, 2000).usage() == 700


def test_a_group_that_cannot_be_read_uses_nothing(tmp_path):
    assert proctree.MemoryGroup(str(tmp_path), proctree._V2, 2000).usage() == 0


def test_the_group_found_has_a_limit_and_holds_us():
    group = proctree.find_group()
    assert group is None or 0 < group.usage() <= group.limit


@pytest.mark.parametrize("name", KILLS)
def test_kills_because_of_the_memory_limit_are_counted(tmp_path, name):
    assert ControlGroup([tmp_path]).memory_kills() == 0
    assert proctree._memory_kills(str(tmp_path / name)) is None
    (tmp_path / name).write_text(KILLS[name])
    assert ControlGroup([tmp_path]).memory_kills() == 2
    assert proctree._memory_kills(str(tmp_path / name)) == 2


def test_this_process_is_measured_by_both_figures():
    quick, exact = proctree.resident_bytes(os.getpid()), proctree.proportional_bytes(os.getpid())
    assert quick > 1_000_000
    assert exact > 1_000_000
    assert proctree.resident_bytes(2**22 + 1) == 0


def test_a_process_is_found_below_its_parent_by_either_lookup():
    for lookup in (proctree._children_from_tasks, proctree._children_by_scan()):
        assert os.getpid() in proctree.descendants(os.getppid(), lookup)
    assert proctree.is_alive(os.getpid())
    assert not proctree.is_alive(2**22 + 1)
