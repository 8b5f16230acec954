"""The agent's changes: both versions of each changed file, read from the sandboxes, and the changes refused."""

import asyncio
import stat
from collections.abc import Mapping, Sequence

import msgspec

from dgym.sandbox import ManifestEntry, Sandbox
from dgym.session.preparation import Baseline
from dgym.workspace import Changes, Refusal, compare, encode_path, refuse
from dgym.workspace.patches import FileVersion, write_patch

MAXIMUM_FILE_BYTES = 16 * 1024**2
MAXIMUM_TOTAL_BYTES = 32 * 1024**2
MAXIMUM_CHANGED_FILES = 25_000
MAXIMUM_PATH_BYTES = 8 * 1024**2


class ChangeSet(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's changes that may reach the verifier, and those that were refused.

    ``changes``: by path the file before and after; None where it did not or does not exist. ``unscorable``: why nothing
    can be scored, such as too many changes; ``changes`` is empty then.
    """

    changes: dict[str, tuple[FileVersion | None, FileVersion | None]]
    refused: Sequence[Refusal] = ()
    unscorable: str = ""

    @property
    def new_versions(self) -> dict[str, FileVersion | None]:
        """The files to write into the verifier's workspace; None: deleted."""
        return {path: new for path, (_, new) in self.changes.items()}

    @property
    def patch(self) -> bytes:
        """The changes as ``git apply`` takes them."""
        return write_patch(self.changes)


async def collect(sandbox: Sandbox, pristine: Sandbox, baseline: Baseline) -> ChangeSet:
    """Compare ``sandbox`` with ``baseline``; originals are read from ``pristine``, which no agent touched."""
    try:
        after = await sandbox.manifest()
    except OSError as error:
        # Too many files, or programs that take the memory or the disk to list them: the agent's doing.
        return ChangeSet(changes={}, unscorable=f"the workspace's files cannot be listed: {error.strerror or error}")
    # Deciding about hundreds of thousands of files takes seconds, in which other calls want their answers.
    allowed, refusals = await asyncio.to_thread(_divide, baseline, after)
    excess = _excess(allowed.paths)
    if excess:
        return ChangeSet(changes={}, refused=refusals, unscorable=excess)
    changes: dict[str, tuple[FileVersion | None, FileVersion | None]] = {}
    total = 0
    for path in allowed.paths:
        before, entry = baseline.manifest.get(path), after.get(path)
        size = max(version.size if version is not None else 0 for version in (before, entry))
        if size > MAXIMUM_FILE_BYTES or total + size > MAXIMUM_TOTAL_BYTES:
            refusals.append(Refusal(path, f"it is too large to carry ({size:,} bytes)"))
            continue
        try:
            new = await _version(sandbox, path, entry)
        except OSError as error:
            # Without permissions, or changed by a program that still runs: the agent's doing, never a fault of ours.
            refusals.append(Refusal(path, f"it cannot be read ({error.strerror or error})"))
            continue
        total += size
        changes[path] = (await _version(pristine, path, before), new)
    return ChangeSet(changes=changes, refused=refusals)


def _divide(baseline: Baseline, after: Mapping[str, ManifestEntry]) -> tuple[Changes, list[Refusal]]:
    return refuse(compare(baseline.manifest, after), baseline.policy)


def _excess(paths: Sequence[str]) -> str:
    if len(paths) > MAXIMUM_CHANGED_FILES:
        return f"{len(paths):,} files were changed; at most {MAXIMUM_CHANGED_FILES:,} are carried to the verifier"
    size = sum(len(encode_path(path)) for path in paths)
    if size > MAXIMUM_PATH_BYTES:
        return f"the paths of the changed files have {size:,} bytes; at most {MAXIMUM_PATH_BYTES:,} are carried"
    return ""


async def _version(sandbox: Sandbox, path: str, entry: ManifestEntry | None) -> FileVersion | None:
    if entry is None:
        return None
    if entry.type == "symlink":
        return FileVersion(encode_path(entry.target), is_symlink=True)
    return FileVersion(await sandbox.read_file(path, limit=MAXIMUM_FILE_BYTES), stat.S_IMODE(entry.mode))
