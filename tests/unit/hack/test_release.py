"""Tests of a release: tars, bills of materials, checksums, pinned base images and pinned actions."""

import json
import os
import re
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

from hack.release.build import (
    IMAGES,
    Part,
    ReleaseError,
    bom,
    differences,
    export,
    packages_of_requirements,
    tree,
    write_bom,
    write_layout,
    write_tar,
)

ROOT = Path(__file__).parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
EPOCH = 1_700_000_000


def test_a_tar_does_not_depend_on_order_and_times(tmp_path):
    entries = {"b": b"2", "a/c": b"1", "a": None}
    write_tar(tmp_path / "one.tgz", entries, epoch=EPOCH, compressed=True)
    write_tar(tmp_path / "two.tgz", dict(reversed(entries.items())), epoch=EPOCH, compressed=True)
    assert (tmp_path / "one.tgz").read_bytes() == (tmp_path / "two.tgz").read_bytes()
    with tarfile.open(tmp_path / "one.tgz") as tar:
        members = tar.getmembers()
    assert [member.name for member in members] == ["a", "a/c", "b"]
    assert {(member.uid, member.gid, member.mtime) for member in members} == {(0, 0, EPOCH)}


def test_a_layout_has_the_same_bytes_wherever_it_lies(tmp_path):
    for name, time in (("one", 5), ("two", 500_000_000)):
        layout = tmp_path / name / "blobs"
        layout.mkdir(parents=True)
        for file in ("index.json", "blobs/x") if name == "one" else ("blobs/x", "index.json"):
            (tmp_path / name / file).write_text(file)
            (tmp_path / name / file).chmod(0o600 if name == "one" else 0o644)
            os.utime(tmp_path / name / file, (time, time))
        write_layout(tmp_path / f"{name}.tar", tmp_path / name, epoch=EPOCH)
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    assert tree(tmp_path / "one") == {"blobs": None, "blobs/x": b"blobs/x", "index.json": b"index.json"}


def test_differences_lists_the_differing_names():
    assert differences({"a": "1", "b": "2"}, {"a": "1", "b": "2"}) == []
    assert differences({"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "0", "d": "4"}) == ["b", "c", "d"]


def test_a_bill_of_materials_is_valid_and_does_not_depend_on_the_order(tmp_path):
    parts = packages_of_requirements((ROOT / "requirements" / "cli.txt").read_text("utf-8"))
    assert Part(name="pyyaml", version=_pinned("pyyaml"), purl=f"pkg:pypi/pyyaml@{_pinned('pyyaml')}") in parts
    subject = Part(name="dgym.whl", version="1", kind="library")
    write_bom(tmp_path / "one.json", subject, parts, digest="ab" * 32, epoch=EPOCH)
    assert json.loads((tmp_path / "one.json").read_text("utf-8")) == bom(
        subject, parts[::-1], digest="ab" * 32, epoch=EPOCH
    )


def test_a_bill_that_cyclonedx_does_not_take_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="not a bill of materials"):
        write_bom(tmp_path / "x", Part(name="x", version="1", kind="nonsense"), [], digest="ab" * 32, epoch=EPOCH)
    assert not (tmp_path / "x").exists()


def test_a_release_is_made_of_a_commit(tmp_path, git):
    git("init", "--quiet")
    file = tmp_path / "dgym" / "file"
    file.parent.mkdir()
    file.write_text("committed")
    git("add", "dgym")
    git("commit", "--quiet", "--message", "One")
    file.write_text("changed")
    with pytest.raises(ReleaseError, match="commit or stash first:\n M dgym/file"):
        export(tmp_path, tmp_path / "source")
    git("checkout", "--quiet", "dgym")
    assert export(tmp_path, tmp_path / "source") == int(git("log", "-1", "--format=%ct"))
    made = tmp_path / "source" / "dgym"
    assert (made / "file").read_text() == "committed"
    assert (made / "commit.txt").read_text().strip() == git("rev-parse", "HEAD").strip()


@pytest.fixture
def git(tmp_path):
    def run(*arguments):
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.com")
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    return run


def test_bases_are_named_by_their_digest():
    named = {}
    for name in IMAGES:
        text = (ROOT / "images" / name / "Dockerfile").read_text("utf-8")
        (base,) = re.findall(r"^ARG BASE=(.*)$", text, re.MULTILINE)
        assert re.fullmatch(r"python:3\.12(-slim)?@sha256:[0-9a-f]{64}", base), base
        assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) <= {"${BASE}", "dependencies"}
        named.setdefault("-slim" in base, set()).add(base)
    assert {slim: len(bases) for slim, bases in named.items()} == {True: 1, False: 1}


def test_actions_are_named_by_their_commit_and_each_version_once():
    used = [use for path in WORKFLOWS for use in re.findall(r"uses: (.*)", path.read_text("utf-8"))]
    assert used
    for use in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v[\d.]+", use), use
    assert len({use.partition("@")[0] for use in used}) == len(set(used))


def test_the_release_publishes_every_image():
    release = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8"))
    assert tuple(release["jobs"]["images"]["strategy"]["matrix"]["image"]) == IMAGES


def _pinned(name):
    (version,) = re.findall(rf"^{name}==(\S+)", (ROOT / "requirements" / "cli.txt").read_text("utf-8"), re.MULTILINE)
    return version
