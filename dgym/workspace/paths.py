"""One spelling for every path: relative to the workspace, POSIX, normalised.

Purely lexical. Whether a symbolic link leads out of the workspace is only known inside the sandbox: callers ask for
the real path there and pass it through :func:`normalize` again.
"""

import posixpath
from collections.abc import Mapping

from dgym.errors import PathError

PATH_LIMIT = 4096
"""Bytes in a path: Linux's PATH_MAX."""


def normalize(path: str, workspace: str) -> str:
    """Give ``path`` relative to ``workspace`` ("." for the workspace itself).

    Args:
        path: absolute inside the sandbox, or relative to the workspace.
        workspace: absolute path of the workspace inside the sandbox.

    Raises:
        PathError: the path is empty, holds a NUL, is too long, cannot be a file name, or leaves the workspace.
    """
    if not path or path.isspace():
        raise PathError("the path is empty; give one relative to the workspace, such as 'src/main.py'")
    if "\0" in path:
        raise PathError("the path holds a NUL character")
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
    """The bytes of a path as the file system has them (undecodable bytes travel as surrogate escapes)."""
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
    """Whether git refuses ``part`` of a path, as some file system of its users takes it for ``.git``.

    These are the rules of git with ``core.protectHFS`` and ``core.protectNTFS``: letters of either case, code points
    that HFS+ passes over, and for NTFS the short name, streams, and blanks or dots at the end.
    """
    if part.translate(_PASSED_OVER_BY_HFS).lower() == ".git":
        return True
    pieces = (piece.partition(":")[0] for piece in part.split("\\"))
    return any(piece.rstrip(" .").lower() in (".git", "git~1") for piece in pieces)


def ancestors(path: str) -> list[str]:
    """The directories above a normalised relative path, outermost first, the workspace itself left out."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def resolve_link(path: str, target: str, links: Mapping[str, str]) -> str | None:
    """Where the symbolic link at ``path`` leads inside the tree, or None when it leaves it.

    ``links`` maps every symbolic link of the tree to its target, so that a chain of innocent links that leaves
    together is seen. Absolute targets leave: sandbox and verifier need not have the tree at the same place. A loop
    stays inside, since following it fails there and nowhere else, unless its text leads outside: before the rest of
    the loop is there, it is only text.
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
