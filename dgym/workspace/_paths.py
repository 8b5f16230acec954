"""Normalised paths: POSIX, relative to the workspace.

All functions are purely lexical. Only code inside the sandbox can determine whether a symbolic link leads out of the
workspace. Callers request the real path there and pass it through :func:`normalize` again.
"""

import posixpath
from collections.abc import Mapping

from dgym.errors import PathError

PATH_LIMIT = 4096
"""Maximum number of bytes of a path (``PATH_MAX`` of Linux)."""


def normalize(path: str, workspace: str) -> str:
    """Return ``path`` relative to ``workspace`` ("." for the workspace itself).

    Args:
        path: Absolute inside the sandbox, or relative to the workspace.
        workspace: Absolute path of the workspace inside the sandbox.

    Raises:
        PathError: The path is empty, contains a NUL, is too long, cannot be a file name, or leaves the workspace.
    """
    if not path or path.isspace():
        raise PathError("the path is empty; give a path relative to the workspace, such as 'src/main.py'")
    if "\0" in path:
        raise PathError("the path contains a NUL character")
    if len(encode_path(path)) > PATH_LIMIT:
        raise PathError(f"the path is longer than {PATH_LIMIT} bytes")
    root = posixpath.normpath("/" + workspace.lstrip("/"))
    whole = posixpath.normpath(posixpath.join(root, path))
    if whole.startswith("//"):
        whole = whole[1:]
    if whole == root:
        return "."
    prefix = root if root.endswith("/") else root + "/"
    if not whole.startswith(prefix):
        raise PathError(f"{path!r} is outside the workspace; paths are relative to {root}")
    return whole[len(prefix) :]


def encode_path(path: str) -> bytes:
    """The bytes of a path in the file system. Undecodable bytes are represented as surrogate escapes in ``path``.

    Raises:
        PathError: The path cannot be encoded, so a file cannot have this name.
    """
    try:
        return path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise PathError(f"{path!r} cannot be the name of a file") from None


def decode_path(path: bytes) -> str:
    """The inverse of :func:`encode_path`."""
    return path.decode("utf-8", "surrogateescape")


_PASSED_OVER_BY_HFS = dict.fromkeys(
    [*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF], ""
)


def is_git_directory(part: str) -> bool:
    """Whether git refuses ``part`` of a path because some file system treats it as ``.git``.

    These are the rules of git with ``core.protectHFS`` and ``core.protectNTFS``. They ignore case and the code points
    that HFS+ ignores. For NTFS they also cover the short name, streams, and spaces or dots at the end.
    """
    if part.translate(_PASSED_OVER_BY_HFS).lower() == ".git":
        return True
    pieces = (piece.partition(":")[0] for piece in part.split("\\"))
    return any(piece.rstrip(" .").lower() in (".git", "git~1") for piece in pieces)


def ancestors(path: str) -> list[str]:
    """The directories above a normalised relative path, outermost first, without the workspace itself."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def resolve_link(path: str, target: str, links: Mapping[str, str]) -> str | None:
    """The path inside the tree to which the symbolic link at ``path`` leads, or None if it leads outside.

    An absolute target counts as outside, because sandbox and verifier may have the tree at different paths. A loop of
    links counts as inside, because the system refuses to follow it. The exception is a loop whose own target, read as
    text, leads outside: the link leads there until the other links of the loop have been created.

    Args:
        path: The path of the link.
        target: The target of the link.
        links: The targets of all symbolic links of the tree. A chain of links can lead outside although each single
            target does not.
    """
    stack = path.split("/")[:-1]
    pending = target.split("/")[::-1]
    if target.startswith("/"):
        return None
    hops = 0
    while pending:
        part = pending.pop()
        if part in ("", "."):
            continue
        if part == "..":
            if not stack:
                return None
            stack.pop()
            continue
        stack.append(part)
        onward = links.get("/".join(stack))
        if onward is None:
            continue
        hops += 1
        if onward.startswith("/"):
            return None
        if hops > 40:
            written = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
            return None if written.split("/")[0] == ".." else "/".join(stack)
        stack.pop()
        pending.extend(onward.split("/")[::-1])
    return "/".join(stack) or "."
