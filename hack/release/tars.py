"""Tars whose bytes follow from their contents: sorted, owned by root, with one time and two modes."""

import gzip
import io
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path


def tree(root: Path) -> dict[str, bytes | None]:
    """Every file below ``root`` with its content; None is a directory."""
    return {path.relative_to(root).as_posix(): None if path.is_dir() else path.read_bytes() for path in root.rglob("*")}


def write_tar(path: Path, entries: Mapping[str, bytes | None], *, epoch: int, compressed: bool) -> None:
    """Write ``entries`` as a tar; ``epoch`` is the time of everything in it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in sorted(entries):
            tar.addfile(*_member(name, entries[name], epoch))
    path.write_bytes(gzip.compress(out.getvalue(), mtime=epoch) if compressed else out.getvalue())


def write_layout(path: Path, layout: Path, *, epoch: int) -> None:
    """Write a directory with large files as an uncompressed tar, a file at a time."""
    with tarfile.open(path, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for file in _sorted(layout, layout.rglob("*")):
            member, _ = _member(file.relative_to(layout).as_posix(), None if file.is_dir() else b"", epoch)
            if file.is_dir():
                tar.addfile(member)
                continue
            member.size = file.stat().st_size
            with file.open("rb") as stream:
                tar.addfile(member, stream)


def _sorted(root: Path, paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: path.relative_to(root).as_posix())


def _member(name: str, data: bytes | None, epoch: int) -> tuple[tarfile.TarInfo, io.BytesIO | None]:
    member = tarfile.TarInfo(name)
    member.mtime, member.uname, member.gname = epoch, "root", "root"
    if data is None:
        member.type, member.mode = tarfile.DIRTYPE, 0o755
        return member, None
    member.mode, member.size = 0o644, len(data)
    return member, io.BytesIO(data)
