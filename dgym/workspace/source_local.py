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

RESULTS_MARKER = ".dgym-results"
"""A directory with this file holds results of earlier runs, which are never part of a repository."""


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
    """Write a directory without following links."""
    if not root.is_dir():
        found = "is a file" if root.exists() else "does not exist"
        raise SourceFailed(f"{tree.source} {found}; give the directory of the repository")
    try:
        for path, entry in walk_repository(root):
            _write_entry(path, entry, tree)
    except OSError as error:
        raise SourceFailed(f"{tree.source}: {error}") from error


def walk_repository(root: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Every path of a repository that is delivered, in order, without following links.

    Version control, caches, bytecode, virtual environments and results of earlier runs are left out.
    """
    yield from _walk(root, "")


def _walk(directory: Path, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    with os.scandir(directory) as scan:
        entries = sorted(scan, key=lambda entry: entry.name)
    for entry in entries:
        is_directory = entry.is_dir(follow_symlinks=False)
        if left_out(entry.name) or (is_directory and _is_foreign(Path(entry.path))):
            continue
        yield prefix + entry.name, entry
        if is_directory:
            yield from _walk(Path(entry.path), f"{prefix}{entry.name}/")


def _is_foreign(directory: Path) -> bool:
    return any((directory / name).exists() for name in (_VIRTUAL_ENVIRONMENT, RESULTS_MARKER))


def _write_entry(path: str, entry: os.DirEntry[str], tree: TreeWriter) -> None:
    if entry.is_symlink():
        tree.link(path, os.readlink(entry.path))  # noqa: PTH115 - the exact bytes; Path would tidy them
    elif entry.is_dir(follow_symlinks=False):
        tree.directory(path)
    elif entry.is_file(follow_symlinks=False):
        with os.fdopen(os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as stream:
            status = os.fstat(stream.fileno())
            tree.file(path, stream, status.st_size, executable=bool(status.st_mode & stat.S_IXUSR))
