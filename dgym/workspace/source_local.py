"""Repositories that are at hand: files written in a manifest, and directories of this machine."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from dgym.api.task import InlineFile
from dgym.errors import SourceFailed
from dgym.workspace.source_tree import TreeWriter, entry_path, left_out

_VIRTUAL_ENVIRONMENT = "pyvenv.cfg"
"""A directory with this file is an installation, whose links lead to this machine's interpreters."""


def write_files(files: tuple[InlineFile, ...], tree: TreeWriter) -> None:
    """Write the files of a manifest."""
    for file in files:
        path = entry_path(file.path, "source.files")
        try:
            data = file.data()
        except ValueError as error:
            raise SourceFailed(f"source.files: {file.path}: contentBase64 is not base64: {error}") from None
        tree.data(path, data, executable=bool(file.mode & stat.S_IXUSR))


def write_directory(root: Path, tree: TreeWriter) -> None:
    """Write a directory without following links, and without virtual environments."""
    if not root.is_dir():
        found = "is a file" if root.exists() else "does not exist"
        raise SourceFailed(f"{tree.source} {found}; give the directory of the repository")
    try:
        for path, entry in _walk(root, ""):
            _write_entry(path, entry, tree)
    except OSError as error:
        raise SourceFailed(f"{tree.source}: {error}") from error


def _walk(directory: Path, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    with os.scandir(directory) as scan:
        entries = sorted(scan, key=lambda entry: entry.name)
    if prefix and any(entry.name == _VIRTUAL_ENVIRONMENT for entry in entries):
        return
    for entry in entries:
        path = prefix + entry.name
        if left_out(entry.name):
            continue
        yield path, entry
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), path + "/")


def _write_entry(path: str, entry: os.DirEntry[str], tree: TreeWriter) -> None:
    if entry.is_symlink():
        tree.link(path, os.readlink(entry.path))  # noqa: PTH115 - the exact bytes; Path would tidy them
    elif entry.is_dir(follow_symlinks=False):
        tree.directory(path)
    elif entry.is_file(follow_symlinks=False):
        with os.fdopen(os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as stream:
            status = os.fstat(stream.fileno())
            tree.file(path, stream, status.st_size, executable=bool(status.st_mode & stat.S_IXUSR))
