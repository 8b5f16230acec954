"""Tests of archives: names and links cannot lead outside the directory of the unpacked archive."""

import io
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgym.runner import tree_worker
from dgym.runner.tree_worker import Unpacker, Unsafe, check_link, parts_of

_PART = st.sampled_from(["a", "b", "..", ".", "", "...", "a b"])


@settings(deadline=None)
@given(st.lists(_PART, min_size=1, max_size=6))
def test_accepted_names_stay_below_the_root(parts):
    name = "/".join(parts)
    try:
        found = parts_of(name)
    except Unsafe:
        assert name.startswith("/") or ".." in parts
    else:
        assert os.path.normpath("/".join(["/root", *found])).startswith("/root")


@settings(deadline=None)
@given(st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=3), st.lists(_PART, max_size=6))
def test_accepted_links_stay_below_the_root(link, parts):
    target = "/".join(parts)
    try:
        check_link(link, target)
    except Unsafe:
        return
    resolved = os.path.normpath("/".join(["/root", *link[:-1], target]))
    assert resolved == "/root" or resolved.startswith("/root/")


def unpack(root: Path, *members: tuple[str, bytes, str, bytes]) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, kind, link, content in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size, member.mode = kind, link, len(content), 0o4755
            archive.addfile(member, io.BytesIO(content))
    data.seek(0)
    with tarfile.open(fileobj=data, mode="r|") as archive:
        Unpacker(str(root)).extract(archive)


@pytest.mark.parametrize(
    "member",
    [
        ("../evil", tarfile.REGTYPE, "", b"x"),
        ("/evil", tarfile.REGTYPE, "", b"x"),
        ("link", tarfile.SYMTYPE, "../../evil", b""),
        ("link", tarfile.SYMTYPE, "/etc/passwd", b""),
        ("hard", tarfile.LNKTYPE, "../evil", b""),
        ("pipe", tarfile.FIFOTYPE, "", b""),
        ("device", tarfile.CHRTYPE, "", b""),
    ],
)
def test_members_that_lead_outside_are_refused(tmp_path, member):
    with pytest.raises(Unsafe):
        unpack(tmp_path / "root", member)


def test_files_are_not_written_through_existing_links(tmp_path):
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    (outside / "file").write_text("kept")
    (root / "directory").symlink_to(outside)
    (root / "file").symlink_to(outside / "file")
    unpack(root, ("directory/new", tarfile.REGTYPE, "", b"x"), ("file", tarfile.REGTYPE, "", b"y"))
    assert [path.name for path in outside.iterdir()] == ["file"]
    assert (outside / "file").read_text() == "kept"
    assert (root / "directory" / "new").read_bytes() == b"x"
    assert (root / "file").read_bytes() == b"y"


def test_set_user_id_bits_are_dropped_and_the_mode_is_kept(tmp_path):
    unpack(tmp_path, ("program", tarfile.REGTYPE, "", b"x"))
    assert (tmp_path / "program").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize(
    "headers",
    [{"size": "9" * 30}, {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}, {"mtime": "1e300"}],
    ids=["a size without end", "a sparse file without a map", "a time out of bounds"],
)
def test_invalid_headers_are_refused(headers, tmp_path):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("a")
        member.pax_headers = headers
        archive.addfile(member)
    with pytest.raises(Unsafe):
        tree_worker.unpack(str(tmp_path), io.BytesIO(out.getvalue()))
