"""Tests of the cluster's machine: kernel settings, control groups, processes and the command line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hack.cluster import build, machine
from hack.cluster.cli import main
from hack.cluster.machine import ClusterError


def test_settings_of_the_kernel_are_put_back(tmp_path: Path) -> None:
    (tmp_path / "vm").mkdir()
    (tmp_path / "kernel").mkdir()
    (tmp_path / "vm/overcommit_memory").write_text("0\n")
    (tmp_path / "kernel/panic").write_text("1\n")
    before = machine.read_tunables(tmp_path)
    (tmp_path / "vm/overcommit_memory").write_text("1\n")
    machine.restore_tunables(before, tmp_path)
    assert machine.read_tunables(tmp_path) == before == {"vm/overcommit_memory": "0", "kernel/panic": "1"}


def test_groups_are_made_in_every_hierarchy_and_removed_with_those_below(tmp_path: Path) -> None:
    for name in ("memory", "cpuset"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").touch()
    (tmp_path / "cpu").symlink_to("memory")
    machine.make_cgroups("mine", tmp_path)
    (tmp_path / "memory/mine/pod").mkdir()
    assert (tmp_path / "cpuset/mine").is_dir()
    machine.remove_cgroups("mine", tmp_path)
    machine.remove_cgroups("mine", tmp_path)
    assert not list(tmp_path.glob("*/mine"))


def test_version_2_has_one_hierarchy_whose_controllers_are_passed_on(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    (tmp_path / "cgroup.subtree_control").touch()
    machine.make_cgroups("mine", tmp_path)
    assert (tmp_path / "mine").is_dir()
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu +memory"


def test_a_process_is_its_id_and_its_start() -> None:
    assert machine.start_time(os.getpid())
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert machine.start_time(child.pid) is None, "ended, though nobody has asked how"
    assert machine.start_time(child.pid) is None


def test_the_output_of_a_failed_command_is_in_the_message() -> None:
    with pytest.raises(ClusterError, match="`sh -c echo no >&2; exit 3` failed: no"):
        machine.run("sh", "-c", "echo no >&2; exit 3")


def test_binaries_of_envtest_are_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    assert build.find_binary("etcd") is None
    for directory in (build.binaries_directory(), tmp_path):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "etcd").touch(mode=0o755)
        assert build.find_binary("etcd") == directory / "etcd"


def test_commands_print_paths_and_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("DGYM_CLUSTER_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("E2E_CLUSTER", "local")
    assert main(["path"]) == 0
    assert main(["status"]) == 3
    assert main(["audit-log"]) == 0
    assert main(["load", "a:1"]) == 1
    assert main(["build", "nonsense"]) == 1
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        str(build.binaries_directory()),
        "local: not running",
        str(tmp_path / "state/audit.log"),
    ]
    assert "`make cluster-up` starts it" in captured.err
    assert "not one of ours: nonsense" in captured.err
