"""Tests of commits from untrusted repositories: their files are exported, but their programs do not run."""

import shutil
import subprocess
from types import SimpleNamespace

import pytest

from dgym.benchmarks.datasets._adapter import Checkouts
from dgym.errors import ManifestError


def git(directory, *arguments):
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True).stdout.strip()


def commit(directory, *options):
    directory.mkdir(parents=True)
    git(directory, "init", "-q", *options)
    (directory / "a.py").write_text("x = 1\n")
    (directory / ".gitattributes").write_text("*.py filter=evil ident\n")
    git(directory, "add", "-A")
    git(directory, "commit", "-qm", "one")
    (directory / "a.py").write_text("x = 2\n")
    git(directory, "commit", "-qam", "two")
    return git(directory, "rev-parse", "HEAD")


@pytest.fixture
def export(tmp_path):
    def export(revision, repository="o/n"):
        row = SimpleNamespace(instance="o__n-1", repository=repository, revision=revision)
        return tmp_path.__class__(Checkouts(tmp_path / "repositories", tmp_path / "out")(row))

    return export


@pytest.mark.attack("foreign-repository")
def test_programs_of_a_foreign_repository_do_not_run(export, tmp_path):
    root = tmp_path / "repositories/o/n"
    revision = commit(root)
    for name in ("filter.evil.smudge", "filter.evil.process", "core.fsmonitor", "core.sshCommand"):
        git(root, "config", name, f"touch {tmp_path}/ran; cat")
    git(root, "config", "filter.evil.required", "true")
    hook = root / ".git/hooks/post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    shutil.rmtree(root / ".git/refs")
    assert (export(revision) / "a.py").read_text() == "x = 2\n"
    assert (export(revision + "^") / "a.py").read_text() == "x = 1\n"
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", ["bare", "sha256", "worktree", 'odd "name":\\'])
def test_every_kind_of_repository_has_its_commits(export, tmp_path, kind):
    origin, root = tmp_path / "origin", tmp_path / "repositories/o/n"
    root.parent.mkdir(parents=True)
    revision = commit(origin, *(["--object-format=sha256"] if kind == "sha256" else []))
    if kind == "worktree":
        git(origin, "worktree", "add", "-q", "--detach", str(root))
    elif kind == "bare":
        git(tmp_path, "clone", "-q", "--bare", str(origin), str(root))
    elif kind == "sha256":
        origin.rename(root)
    else:
        origin.rename(root.parent / kind)
        root.symlink_to(root.parent / kind)
    assert (export(revision) / "a.py").read_text() == "x = 2\n"


@pytest.mark.parametrize(
    ("revision", "message"), [("HEAD", "not the hash"), ("--help", "not the hash"), ("a" * 40, "a")]
)
def test_other_revisions_are_refused(export, tmp_path, revision, message):
    commit(tmp_path / "repositories/o/n")
    with pytest.raises(ManifestError, match=message):
        export(revision)
