"""Move files into the verifier's workspace and keep copies of those that must be put back."""

import errno
import hashlib
import io
import re
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import IO

from dgym.errors import PatchError, VerifierFailed
from dgym.sandbox import FileStat, ManifestEntry, Sandbox
from dgym.session.verification.protection import ADDED_TESTS, Protection
from dgym.workspace import ancestors
from dgym.workspace.patches import FileVersion, apply_patch, patched_paths

_CHUNK_BYTES = 256 * 1024
_COPY_SECONDS = 600.0
_IN_MEMORY_BYTES = 8 * 1024**2
_OVERLAY_FILES = 100_000
_OVERLAY_DEPTH = 64
_PERMISSIONS = 0o777

# Only the workspace's contents are copied: the workspace itself may be a mount point that belongs to another user.
_COPY = r"""
copy_into() { find . -mindepth 1 -maxdepth 1 -exec sh -c 'cp -a "$@" "$0/"' "$1" {} +; }
empty() {
  find "$1" -mindepth 1 -type d ! -perm -700 -exec chmod u+rwx {} \;
  find "$1" -mindepth 1 -maxdepth 1 -exec rm -rf {} +
}
"""
_SAVE = _COPY + 'umask 077; d=$(mktemp -d) && copy_into "$d" && printf %s "$d"'
_RESTORE = _COPY + 'w=$PWD; empty . && cd "$DGYM_COPY" && copy_into "$w" && empty . && rmdir "$DGYM_COPY"'


async def write_versions(sandbox: Sandbox, versions: Mapping[str, FileVersion | None]) -> None:
    """Write the version of every path; None removes it.

    Each path is removed first, so that nothing is ever written through a link.
    """
    if not versions:
        return
    await sandbox.remove(sorted(versions))
    present = {path: version for path, version in versions.items() if version is not None}
    if present:
        await sandbox.put_archive(_chunks(_tar(present)))


async def read_versions(
    sandbox: Sandbox, manifest: Mapping[str, ManifestEntry], paths: Iterable[str]
) -> dict[str, FileVersion]:
    """The present versions of those ``paths`` that exist."""
    versions = {}
    for path in paths:
        entry = manifest.get(path)
        if entry is None:
            continue
        if entry.type == "symlink":
            data = entry.target.encode("utf-8", "surrogateescape")
            versions[path] = FileVersion(data, 0o777, is_symlink=True)
        else:
            versions[path] = FileVersion(await sandbox.read_file(path), entry.mode)
    return versions


async def patched_versions(sandbox: Sandbox, patch: str) -> dict[str, FileVersion | None]:
    """The files in ``sandbox`` after ``patch``; None: deleted.

    Raises:
        PatchError: It does not apply.
    """
    versions = await read_versions(sandbox, await sandbox.manifest(), patched_paths(patch))
    return apply_patch(patch, versions.get)


async def apply_test_patch(sandbox: Sandbox, patch: str) -> dict[str, FileVersion | None]:
    """Apply the task's ``testPatch``; returns the files it changed (None: deleted).

    Raises:
        VerifierFailed: It does not apply, which is the task's fault.
    """
    try:
        versions = await patched_versions(sandbox, patch)
        await write_versions(sandbox, versions)
    except PatchError as error:
        raise VerifierFailed(f"scoring.testPatch does not apply: {error}") from None
    return versions


class WorkspaceCopy:
    """The whole workspace set aside inside the verifier, while nothing but trusted code runs there."""

    def __init__(self, sandbox: Sandbox, place: str) -> None:
        self._sandbox = sandbox
        self._place = place

    @classmethod
    async def save(cls, sandbox: Sandbox) -> "WorkspaceCopy":
        """Copy the workspace to a temporary directory."""
        result = await sandbox.run(_SAVE, timeout_seconds=_COPY_SECONDS)
        if result.exit_status != 0:
            raise VerifierFailed(f"the workspace could not be set aside: {result.text.strip()[-500:]}")
        return cls(sandbox, result.text.rpartition("\n")[2])

    async def restore(self) -> None:
        """Restore the workspace from the copy, and delete the copy."""
        environment = {"DGYM_COPY": self._place}
        result = await self._sandbox.run(_RESTORE, environment=environment, timeout_seconds=_COPY_SECONDS)
        if result.exit_status != 0:
            raise VerifierFailed(f"the workspace could not be restored: {result.text.strip()[-500:]}")


class SavedFiles:
    """Files of the verifier's workspace kept on the trusted side, while the agent's code may run in the verifier."""

    def __init__(self, sandbox: Sandbox, entries: Mapping[str, ManifestEntry], archive: IO[bytes]) -> None:
        self._sandbox = sandbox
        self._entries = entries
        self._archive = archive

    @classmethod
    async def save(cls, sandbox: Sandbox, entries: Mapping[str, ManifestEntry], archive: IO[bytes]) -> "SavedFiles":
        """Keep the files that ``entries`` describe in ``archive``."""
        if entries:
            async for chunk in sandbox.get_archive(sorted(entries)):
                archive.write(chunk)
        return cls(sandbox, entries, archive)

    async def restore(self, manifest: Mapping[str, ManifestEntry]) -> list[str]:
        """Put back whatever differs from the workspace that ``manifest`` describes; gives the paths."""
        differing = differing_files(self._entries, manifest)
        if differing:
            obstacles = [above for path in differing for above in ancestors(path) if above in manifest]
            await self._sandbox.remove(sorted({*differing, *obstacles}))
            self._archive.seek(0)
            await self._sandbox.put_archive(_chunks(self._archive))
        return differing


class SavedOverlay:
    """The overlay of a verifier kept on the trusted side, while the agent's code may run in the verifier.

    Build commands may write into the packages that the overlay has. The rest decides which programs run the tests and
    what they load: links to interpreters, scripts, metadata with entry points, ``.pth`` files and top-level modules.
    """

    def __init__(self, sandbox: Sandbox, entries: Mapping[str, FileStat], archive: IO[bytes]) -> None:
        self._sandbox = sandbox
        self._entries = entries
        self._archive = archive

    @classmethod
    async def save(cls, sandbox: Sandbox, archive: IO[bytes]) -> "SavedOverlay":
        """Keep the files of the overlay in ``archive``; of a sandbox without an overlay nothing is kept."""
        entries = await _overlay_files(sandbox)
        files = [path for path, entry in entries.items() if entry.type == "file"]
        if files:
            async for chunk in sandbox.get_archive(files, path=sandbox.overlay):
                archive.write(chunk)
        return cls(sandbox, entries, archive)

    async def restore(self, protection: Protection) -> list[str]:
        """Remove what the build may not add, and put back what it may not change; returns the hooks among the removed.

        A rebuild under another version writes new metadata of the project, which are not a hook.

        Raises:
            OSError: The overlay cannot be put back: there are too many files, or a link to an interpreter was changed.
        """
        if not self._entries:
            return []
        after = await _overlay_files(self._sandbox)
        before, links = self._entries, [path for path, entry in self._entries.items() if entry.type == "symlink"]
        packages = {_package(path) for path in before} - {""}

        def may_differ(path: str) -> bool:
            inside = path.partition("/site-packages/")[2]
            return _package(path) in packages and protection.why_dropped(inside) in (None, ADDED_TESTS)

        changed = [path for path in links if path not in after or after[path].target != before[path].target]
        if changed:
            raise OSError(errno.EPERM, f"links of the environment had been changed: {', '.join(sorted(changed)[:5])}")
        new = sorted(path for path in after if path not in before and not may_differ(path))
        restored = [path for path in before if path not in links and not may_differ(path)]
        await self._sandbox.remove([f"{self._sandbox.overlay}/{path}" for path in (*new, *restored)])
        self._archive.seek(0)
        with tarfile.open(fileobj=self._archive) as archive, tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as part:
            wanted = set(restored)
            with tarfile.open(fileobj=part, mode="w") as copy:
                for member in archive:
                    if member.name in wanted:
                        copy.addfile(member, archive.extractfile(member))
            part.seek(0)
            await self._sandbox.put_archive(_chunks(part), path=self._sandbox.overlay)
        projects = {project for path in before if (project := _project(path))}
        return [path for path in new if _project(path) not in projects and not path.endswith(".pyc")]


def _project(path: str) -> str:
    """The distribution whose metadata or editable hook ``path`` is, without its version; "" if it is neither."""
    inside = path.partition("/site-packages/")[2]
    if inside.startswith("__editable__"):
        return re.split(r"[-_.]\d", inside.lstrip("_").removeprefix("editable").lstrip("_."))[0]
    top = inside.partition("/")[0]
    return top.partition("-")[0] if top.endswith(".dist-info") else ""


async def _overlay_files(sandbox: Sandbox) -> dict[str, FileStat]:
    if not sandbox.overlay:
        return {}
    entries = await sandbox.list_directory(sandbox.overlay, depth=_OVERLAY_DEPTH, limit=_OVERLAY_FILES)
    if len(entries) >= _OVERLAY_FILES:
        raise OSError(errno.E2BIG, f"the environment has more than {_OVERLAY_FILES:,} files")
    return {entry.path: entry for entry in entries if entry.type != "directory"}


def _package(path: str) -> str:
    """The directory in ``site-packages`` that holds ``path``; "" if there is none."""
    package, slash, _ = path.partition("/site-packages/")[2].partition("/")
    return package if slash and package != "__pycache__" else ""


def differing_files(entries: Mapping[str, ManifestEntry], manifest: Mapping[str, ManifestEntry]) -> list[str]:
    """The paths, sorted, that are not in ``manifest`` what they are in ``entries``."""
    return sorted(path for path, entry in entries.items() if not _same(entry, manifest.get(path)))


async def differing_versions(
    sandbox: Sandbox, manifest: Mapping[str, ManifestEntry], versions: Mapping[str, FileVersion | None]
) -> list[str]:
    """The paths, sorted, whose contents in ``sandbox`` are not those of ``versions``."""
    return sorted([path for path, version in versions.items() if not await _holds(sandbox, manifest, path, version)])


async def _holds(
    sandbox: Sandbox, manifest: Mapping[str, ManifestEntry], path: str, version: FileVersion | None
) -> bool:
    entry = manifest.get(path)
    if version is None:
        return entry is None
    if entry is None:
        # Caches are in no manifest.
        try:
            return await sandbox.read_file(path, limit=len(version.data)) == version.data
        except OSError:
            return False
    if version.is_symlink:
        return entry.type == "symlink" and entry.target.encode("utf-8", "surrogateescape") == version.data
    return entry.type == "file" and entry.sha256 == hashlib.sha256(version.data).hexdigest()


def _same(before: ManifestEntry, after: ManifestEntry | None) -> bool:
    return after is not None and (before.type, before.sha256, before.target, before.mode) == (
        after.type,
        after.sha256,
        after.target,
        after.mode,
    )


def _tar(versions: Mapping[str, FileVersion]) -> io.BytesIO:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8") as archive:
        for path in sorted(versions):
            version = versions[path]
            member = tarfile.TarInfo(path)  # Without a date it is as new as its extraction.
            if version.is_symlink:
                member.type = tarfile.SYMTYPE
                member.linkname = version.data.decode("utf-8", "surrogateescape")
                archive.addfile(member)
                continue
            member.size = len(version.data)
            member.mode = version.mode & _PERMISSIONS
            archive.addfile(member, io.BytesIO(version.data))
    buffer.seek(0)
    return buffer


async def _chunks(file: IO[bytes]) -> AsyncIterator[bytes]:
    while chunk := file.read(_CHUNK_BYTES):
        yield chunk
