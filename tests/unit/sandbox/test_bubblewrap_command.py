"""Tests of the bubblewrap command line: the paths that the sandbox sees, and the paths that are refused."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgym.errors import ManifestError
from dgym.sandbox.local import _bubblewrap
from dgym.sandbox.local._bubblewrap import Layout, check_workspace, command_line, write_etc
from dgym.sandbox.local._interpreter import Interpreter

SEGMENTS = st.sampled_from(
    ["workspace", "usr", "src", "etc", "tmp", "home", "agent", "opt", "dgym", "proc", "lib", "a b"]
)


@pytest.fixture(autouse=True)
def _every_option_known(monkeypatch):
    monkeypatch.setattr(_bubblewrap, "_options", lambda: "--size --disable-userns")


@pytest.fixture
def layout(tmp_path):
    def make(workspace="/workspace", **fields):
        (tmp_path / "w").mkdir()
        return Layout(workspace=tmp_path / "w", workspace_inside=workspace, etc=write_etc(tmp_path), **fields)

    return make


def mounts(arguments, option):
    return [arguments[i + 2] for i, argument in enumerate(arguments) if argument == option]


@pytest.mark.parametrize(
    "path", ["workspace", "/", "/usr", "/etc", "/etc/x", "/proc/1", "/dev", "/home", "/opt", "/opt/dgym/x", "/tmp",
             "/a/../b", "/a/", "//a", ""],
)  # fmt: skip
def test_refuses_a_workspace_that_hides_what_the_sandbox_needs(path):
    with pytest.raises(ManifestError, match="workingDirectory"):
        check_workspace(path)


@pytest.mark.parametrize("path", ["/workspace", "/testbed", "/usr/src/app", "/home/agent/repo", "/root", "/tmp/repo"])
def test_accepts_the_places_images_use(path):
    check_workspace(path)


@given(st.lists(SEGMENTS, min_size=1, max_size=4))
def test_an_accepted_workspace_never_covers_a_mount_of_the_sandbox(segments):
    path = "/" + "/".join(segments)
    try:
        check_workspace(path)
    except ManifestError:
        return
    for needed in ("/usr", "/proc", "/dev", "/etc", "/tmp", _bubblewrap.HOME_INSIDE, _bubblewrap.RUNNER_INSIDE):
        assert not Path(needed).is_relative_to(path)


def test_only_the_workspace_is_writable(layout):
    assert mounts(command_line(layout()), "--bind") == ["/workspace"]


def test_a_workspace_below_a_system_directory_leaves_its_neighbours_visible(layout):
    arguments = command_line(layout("/usr/src/app"))
    shown = mounts(arguments, "--ro-bind")
    assert "/usr" not in shown
    assert "/usr/bin" in shown
    assert mounts(arguments, "--bind") == ["/usr/src/app"]


def test_an_interpreter_in_a_home_is_shown_without_the_home(layout, tmp_path):
    prefix = tmp_path / "home" / "versions" / "3.9"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin" / "python").touch()
    python = str(prefix / "bin" / "python")
    shown = mounts(command_line(layout(interpreter=interpreter(python, prefix))), "--ro-bind")
    assert str(prefix) in shown
    assert str(tmp_path / "home") not in shown


def test_a_prefix_that_holds_the_home_is_refused(layout, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home" / "me"))
    with pytest.raises(ManifestError, match="home directory"):
        command_line(layout(interpreter=interpreter(str(tmp_path / "home/bin/python"), tmp_path / "home")))


def test_a_linked_prefix_is_visible_under_both_names(layout, tmp_path):
    real = tmp_path / "cpython-3.12.4"
    (real / "bin").mkdir(parents=True)
    (real / "bin" / "python3.12").touch()
    linked = tmp_path / "cpython-3.12"
    linked.symlink_to(real.name)
    arguments = command_line(layout(interpreter=interpreter(str(linked / "bin" / "python3.12"), linked)))
    assert str(real) in mounts(arguments, "--ro-bind")
    assert ["--symlink", real.name, str(linked)] in [arguments[i : i + 3] for i in range(len(arguments))]


def test_packages_of_dgym_in_visible_directories_are_hidden(layout, tmp_path):
    prefix = tmp_path / "venv"
    package = prefix / "lib" / "python3.11" / "site-packages" / "dgym"
    package.mkdir(parents=True)
    arguments = command_line(layout(interpreter=interpreter(str(prefix / "bin/python"), prefix)))
    assert str(package) in [arguments[i + 1] for i, argument in enumerate(arguments) if argument == "--tmpfs"]


def test_names_of_the_machine_stay_outside(tmp_path):
    texts = "".join(file.read_text() for file in write_etc(tmp_path).iterdir())
    assert "agent:x:1000" in texts
    assert Path("/etc/hostname").read_text().strip() not in texts.split() if Path("/etc/hostname").exists() else True


def interpreter(executable, prefix):
    return Interpreter(
        executable=executable,
        version=(3, 12, 4),
        cache_tag="cpython-312",
        prefixes=(str(prefix),),
        base_executable=executable,
    )
