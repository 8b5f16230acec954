"""The changes between two manifests, and the decision which of them leave the sandbox.

A change is refused if its path or a directory above it is protected. It is also refused if it would remove a protected
path below it: replacing ``tests/`` by a symbolic link does not match ``test_*.py``, but replaces every test.
"""

import stat
from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

import msgspec

from dgym.sandbox import ManifestEntry
from dgym.workspace._paths import ancestors, resolve_link
from dgym.workspace._policy import Policy, is_policy_file, is_version_control

ChangeKind = Literal["added", "modified", "mode", "deleted"]


class FileChange(msgspec.Struct, frozen=True, kw_only=True):
    """One path that differs. ``before`` is None if the path is new, ``after`` is None if it was deleted."""

    path: str
    before: ManifestEntry | None
    after: ManifestEntry | None

    @property
    def kind(self) -> ChangeKind:
        """The kind of change; "mode" when only the executable bit differs."""
        if self.before is None:
            return "added"
        if self.after is None:
            return "deleted"
        return "mode" if _content(self.before) == _content(self.after) else "modified"


class Changes(msgspec.Struct, frozen=True):
    """All changes, ordered by path. ``links`` maps the symbolic links that exist afterwards to their targets."""

    items: tuple[FileChange, ...] = ()
    links: dict[str, str] = {}

    @property
    def paths(self) -> tuple[str, ...]:
        """The path of every change."""
        return tuple(change.path for change in self.items)

    def __bool__(self) -> bool:
        return bool(self.items)


class Refusal(NamedTuple):
    """A refused change and the reason, as text for people. A ``path`` that ends with a slash is a whole directory."""

    path: str
    why: str


def compare(before: Mapping[str, ManifestEntry], after: Mapping[str, ManifestEntry]) -> Changes:
    """The changes from ``before`` to ``after``. As in git, only the executable bit of a mode is compared."""
    items = tuple(
        FileChange(path=path, before=before.get(path), after=after.get(path))
        for path in sorted(before.keys() | after.keys())
        if _identity(before.get(path)) != _identity(after.get(path))
    )
    return Changes(items, {path: entry.target for path, entry in after.items() if entry.type == "symlink"})


def _content(entry: ManifestEntry) -> tuple[str, str]:
    return entry.type, entry.target if entry.type == "symlink" else entry.sha256


def _identity(entry: ManifestEntry | None) -> tuple[str, str, bool] | None:
    if entry is None:
        return None
    return *_content(entry), entry.type == "file" and bool(entry.mode & stat.S_IXUSR)


def refuse(
    changes: Changes, policy: Policy, delivered: Collection[str] = (), built: Collection[str] = ()
) -> tuple[Changes, list[Refusal]]:
    """Divide changes into those that leave the sandbox and those that are refused.

    Args:
        changes: All changes.
        policy: The policy of the task.
        delivered: Files of the original repository. As in git, ``.gitignore`` does not apply to their changes. If
            ``.gitignore`` names such a file, its change comes after the other changes, because the size of a patch is
            limited and build output must not displace edits.
        built: Files that the installation of the project wrote. Their changes are always refused.
    """
    lost = _protected_directories(changes, policy)
    allowed: list[FileChange] = []
    refused: dict[str, str] = {}
    for change in changes.items:
        is_new = change.path not in delivered
        why = _why_refused(change, changes.links, policy, is_new=is_new) or lost.get(change.path)
        if why is None and change.path in built:
            why = _BUILT
        if why is None:
            allowed.append(change)
        elif why is _NOT_SOURCE:
            refused.setdefault(_topmost_excluded(change.path, policy), why)
        else:
            refused[change.path] = why
    allowed.sort(key=lambda change: policy.excluded_from_patch(change.path))
    return Changes(tuple(allowed), changes.links), [Refusal(path, why) for path, why in sorted(refused.items())]


_BUILT = "the build of the project writes it"
_NOT_SOURCE = "it is generated or named by .gitignore"


def _why_refused(change: FileChange, links: Mapping[str, str], policy: Policy, *, is_new: bool) -> str | None:
    path, after = change.path, change.after
    # A link may lead to a directory, so patterns for directories apply to it too.
    as_directory = after is not None and after.type == "symlink"
    if is_policy_file(path):
        return "policy files cannot be changed"
    if policy.ignored(path) or (as_directory and policy.ignored(path, True)):
        return "it is hidden by .debugignore"
    if policy.read_only(path) or (as_directory and policy.read_only(path, True)):
        return "it is read-only"
    if is_version_control(path):
        return _NOT_SOURCE
    if is_new and (policy.excluded_from_patch(path) or (as_directory and policy.excluded_from_patch(path, True))):
        return _NOT_SOURCE
    types = {entry.type for entry in (change.before, after) if entry is not None}
    if "unnamed" in types:
        return "its name is not UTF-8"
    if "other" in types:
        return "it is or was neither a file nor a symbolic link"
    if after is not None and after.type == "symlink" and resolve_link(path, after.target, links) is None:
        return f"the symbolic link leads outside the workspace ({after.target})"
    return None


def _protected_directories(changes: Changes, policy: Policy) -> dict[str, str]:
    """The directories above deleted protected paths, with the reason why a change that replaces one is refused."""
    return {
        above: f"{change.path} below it is protected"
        for change in changes.items
        if change.after is None and policy.read_only(change.path)
        for above in ancestors(change.path)
    }


def _topmost_excluded(path: str, policy: Policy) -> str:
    for directory in ancestors(path):
        if policy.excluded_from_patch(directory, True):
            return directory + "/"
    return path
