"""Tests of the copy of a repository out of an image, as the init container ``copy`` makes it."""

import os
import subprocess

import pytest

NO_INPUT, FAILED, NOT_READABLE = 66, 74, 77


@pytest.fixture
def targets(open_directory):
    return [open_directory("sandbox-copy"), open_directory("verifier-copy")]


@pytest.fixture
def copy(installed, targets, open_directory, python):
    """Run ``copy_tree.py`` and return the exit status and the termination message."""
    message = open_directory("log") / "message"
    message.write_text("")
    message.chmod(0o666)

    def run(source, prefix=()):
        arguments = ["--message", str(message), str(source), *map(str, targets)]
        command = [*prefix, python, "-I", "-S", "-B", str(installed / "copy_tree.py"), *arguments]
        done = subprocess.run(command, cwd="/", env={}, capture_output=True, text=True, timeout=90)
        assert done.stderr.strip() == message.read_text()
        return done.returncode, message.read_text()

    return run


@pytest.fixture
def repository(open_directory):
    """A repository with usual files and links, and with entries that a repository should not contain."""
    root = open_directory("testbed")
    (root / "package" / "empty").mkdir(parents=True)
    (root / "package" / "core.py").write_text("value = 1\n")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "frozen").write_bytes(bytes(range(256)) * 20_000)
    (root / "frozen").chmod(0o444)
    (root / b"na\xffme".decode("utf-8", "surrogateescape")).write_text("x")
    (root / "link").symlink_to("package/core.py")
    (root / "dangling").symlink_to("/nowhere/at all")
    (root / "directory-link").symlink_to("package")
    os.link(root / "package" / "core.py", root / "twin.py")
    os.mkfifo(root / "pipe")
    for path in (root / "package" / "core.py", root / "package"):
        os.utime(path, ns=(1_500_000_000_123_456_789, 1_500_000_000_123_456_789))
    return root


def test_both_targets_become_the_repository(copy, repository, targets):
    assert copy(repository) == (0, "")
    for target in targets:
        names = {os.fsencode(path.relative_to(target)) for path in target.rglob("*")}
        wanted = {os.fsencode(path.relative_to(repository)) for path in repository.rglob("*")} - {b"pipe"}
        assert names == wanted
        assert (target / "frozen").read_bytes() == (repository / "frozen").read_bytes()
        assert (target / "link").readlink().as_posix() == "package/core.py"
        assert (target / "dangling").readlink().as_posix() == "/nowhere/at all"
        assert (target / "directory-link").is_symlink()
        assert (target / "twin.py").samefile(target / "package" / "core.py")
    assert not (targets[0] / "twin.py").samefile(targets[1] / "twin.py")


def test_modes_and_times_are_kept_and_the_owner_may_write(copy, repository, targets):
    assert copy(repository) == (0, "")
    for name in ("package/core.py", "package"):
        assert (targets[0] / name).stat().st_mtime_ns == 1_500_000_000_123_456_789
    modes = {name: (targets[0] / name).stat().st_mode & 0o7777 for name in ("run.sh", "frozen", "package")}
    assert modes["run.sh"] == 0o755
    assert modes["frozen"] == 0o644
    assert modes["package"] & 0o700 == 0o700


def test_set_user_id_bits_are_removed(copy, repository, targets):
    (repository / "run.sh").chmod(0o6755)
    assert copy(repository) == (0, "")
    assert (targets[0] / "run.sh").stat().st_mode & 0o7777 == 0o755


def test_an_ordinary_user_copies_what_root_owns(copy, repository, targets, as_user):
    assert copy(repository, as_user(10001)) == (0, "")
    status = (targets[1] / "package" / "core.py").stat()
    assert (status.st_uid, status.st_gid) == (10001, 10000)


def test_a_file_that_may_not_be_read_is_named_with_the_remedy(copy, repository, as_user):
    (repository / "secret.key").write_text("x")
    (repository / "secret.key").chmod(0o600)
    status, message = copy(repository, as_user(10001))
    assert status == NOT_READABLE
    assert message.startswith(f"cannot read {repository}/secret.key: ")
    assert "podTemplate to 'baseline'" in message


def test_directories_that_may_not_be_read_are_counted(copy, repository, as_user):
    for name in ("one", "two", "three"):
        (repository / name).mkdir(mode=0o700)
    status, message = copy(repository, as_user(10001))
    assert status == NOT_READABLE
    assert " and 2 more: " in message


def test_a_repository_below_a_closed_directory_is_not_readable(copy, repository, open_directory, as_user):
    home = open_directory("home")
    repository.rename(home / "repository")
    home.chmod(0o700)
    status, message = copy(home / "repository", as_user(10001))
    assert status == NOT_READABLE
    assert message.startswith(f"cannot read {home}/repository: ")


@pytest.mark.parametrize("name", ["missing", "run.sh"])
def test_a_missing_directory_is_reported(copy, repository, name):
    status, message = copy(repository / name)
    assert status == NO_INPUT
    assert message.startswith(f"the image has no directory {repository}/{name}; set workingDirectory")


def test_other_errors_are_reported_with_the_path(copy, repository, targets):
    (targets[1] / "run.sh").write_text("in the way")
    status, message = copy(repository)
    assert status == FAILED
    assert f"copying {repository} out of the image failed: {targets[1]}/run.sh: File exists" in message


def test_the_message_fits_into_what_the_kubelet_keeps(copy, open_directory, as_user):
    directory = deep = open_directory("testbed")
    for _ in range(6):
        deep = deep / ("d" * 200)
        deep.mkdir()
    (deep / "closed").mkdir(mode=0o700)
    status, message = copy(directory, as_user(10001))
    assert status == NOT_READABLE
    assert len(message.encode()) <= 1024
    assert "ddd/closed: " in message
    assert "'baseline'" in message
