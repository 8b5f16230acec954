"""Take the agent's changes out of its sandbox: what changed, what of it may travel, and both versions of each file."""

import stat
from collections.abc import Sequence

import msgspec

from dgym.sandbox import ManifestEntry, Sandbox
from dgym.session.preparation import Baseline
from dgym.workspace.changes import Refusal, compare, refuse
from dgym.workspace.files import FileVersion
from dgym.workspace.patch import write_patch
from dgym.workspace.paths import encode_path

MAXIMUM_FILE_BYTES = 16 * 1024**2
MAXIMUM_TOTAL_BYTES = 256 * 1024**2


class Change(msgspec.Struct, frozen=True):
    """One path before and after; None where it did not or does not exist."""

    old: FileVersion | None
    new: FileVersion | None


class ChangeSet(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the agent changed that may travel to the verifier, and what was refused and why."""

    changes: dict[str, Change]
    refused: Sequence[Refusal] = ()

    @property
    def new_versions(self) -> dict[str, FileVersion | None]:
        """What the verifier's workspace must hold; None: deleted."""
        return {path: change.new for path, change in self.changes.items()}

    @property
    def patch(self) -> bytes:
        """The changes as ``git apply`` takes them."""
        return write_patch({path: (change.old, change.new) for path, change in self.changes.items()})


async def collect(sandbox: Sandbox, pristine: Sandbox, baseline: Baseline) -> ChangeSet:
    """Compare ``sandbox`` with ``baseline``; originals are read from ``pristine``, which no agent touched."""
    after = await sandbox.manifest()
    allowed, refused = refuse(compare(baseline.manifest, after), baseline.policy)
    changes: dict[str, Change] = {}
    refusals = list(refused)
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
        changes[path] = Change(old=await _version(pristine, path, before), new=new)
    return ChangeSet(changes=changes, refused=refusals)


async def _version(sandbox: Sandbox, path: str, entry: ManifestEntry | None) -> FileVersion | None:
    if entry is None:
        return None
    if entry.type == "symlink":
        return FileVersion(encode_path(entry.target), is_symlink=True)
    return FileVersion(await sandbox.read_file(path, limit=MAXIMUM_FILE_BYTES), stat.S_IMODE(entry.mode))
