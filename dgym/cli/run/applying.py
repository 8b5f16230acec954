"""``dgym run --apply``: put a result's patch into the repository it is for, after a question."""

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dgym.agents.console import printable
from dgym.errors import DgymError

if TYPE_CHECKING:
    from dgym.episodes.job import Job
    from dgym.results import StoredResult
    from dgym.workspace.patches import FileVersion


def offer_patches(jobs: "Sequence[Job]", results: "Sequence[StoredResult | None]") -> None:
    """Ask for each repository whether to apply a patch, resolved episodes first, until one is applied."""
    for root, candidates in _by_repository(jobs, results).items():
        for job, result, patch in candidates:
            click.echo(f"\n{job.episode}: {result.reason}, {result.score} of {result.max_score}. Its patch:", err=True)
            click.echo(printable(patch.decode("utf-8", "replace").rstrip("\n")), err=True)
            if _agreed(f"Apply it to {root}?"):
                changed = write_patch(root, patch)
                click.echo(f"Changed in {root}: {', '.join(changed)}", err=True)
                break


def write_patch(root: Path, patch: bytes) -> list[str]:
    """Change the files below ``root``; all of them or, where the patch does not fit, none.

    Raises:
        PatchError: The files are not those that the patch was made from.
    """
    from dgym.workspace.patches import apply_patch

    changes = apply_patch(patch, lambda path: _read(root, path))
    _refuse_outside(root, changes)
    for path, version in sorted(changes.items(), key=lambda item: item[1] is not None):
        _write(root / path, version)
    return sorted(changes)


def _by_repository(
    jobs: "Iterable[Job]", results: "Iterable[StoredResult | None]"
) -> "dict[Path, list[tuple[Job, StoredResult, bytes]]]":
    found: dict[Path, list[tuple[Job, StoredResult, bytes]]] = {}
    for job, result in zip(jobs, results, strict=True):
        source = job.task.spec.source
        if result is None or source is None or source.local_path is None:
            continue
        patch = _stored_patch(job)
        if patch:
            found.setdefault(Path(source.local_path), []).append((job, result, patch))
    for candidates in found.values():
        candidates.sort(key=lambda candidate: not candidate[1].resolved)
    return found


def _stored_patch(job: "Job") -> bytes:
    for attempt in reversed(job.folder.attempts()):
        if attempt.load() is not None:
            return attempt.patch.read_bytes() if attempt.patch.exists() else b""
    return b""


def _agreed(question: str) -> bool:
    try:
        return click.confirm(question, default=False, err=True)
    except click.Abort:
        click.echo("not applied", err=True)
        return False


def _read(root: Path, path: str) -> "FileVersion | None":
    from dgym.workspace.patches import FileVersion

    file = root / path
    try:
        mode = file.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(mode):
        return FileVersion(os.fsencode(file.readlink()), is_symlink=True)
    if not stat.S_ISREG(mode):
        return None
    return FileVersion(file.read_bytes(), mode=stat.S_IMODE(mode))


def _refuse_outside(root: Path, changes: "Mapping[str, FileVersion | None]") -> None:
    """A directory may have become a link to elsewhere since the repository was read."""
    real = root.resolve()
    for path in changes:
        parent = (root / path).parent.resolve()
        if parent != real and real not in parent.parents:
            raise DgymError(f"{root / path}: leads out of the repository; nothing was applied")


def _write(path: Path, version: "FileVersion | None") -> None:
    if version is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.dgym-{os.getpid()}")
    temporary.unlink(missing_ok=True)
    if version.is_symlink:
        temporary.symlink_to(os.fsdecode(version.data))
    else:
        temporary.write_bytes(version.data)
        temporary.chmod(_mode(path, version))
    temporary.replace(path)


def _mode(path: Path, version: "FileVersion") -> int:
    """The file's own mode; a patch knows of the executable bit alone."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return version.mode
    return mode | 0o111 if version.mode & stat.S_IXUSR else mode & ~0o111
