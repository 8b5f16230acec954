"""A commit as R2E-Gym stores it, JSON of files, hunks and lines, written as a patch again.

The fields are those of the column ``parsed_commit_content``: ``file_diffs[].header.file.path``,
``hunks[].descriptor.{old_range, new_range, section}`` and ``hunks[].line_group.all_lines[].{content, type}``.
"""

from collections.abc import Collection

import msgspec

from dgym.benchmarks.datasets.adapter import RowError
from dgym.decoding import DECODE_ERRORS
from dgym.errors import PatchError
from dgym.workspace.patches import parse_patch

_FIELD = "parsed_commit_content"
_PREFIXES = {"context": " ", "added": "+", "deleted": "-", "note": "\\ "}


class _Range(msgspec.Struct):
    start: int
    length: int | None = None

    def __str__(self) -> str:
        return f"{self.start},{1 if self.length is None else self.length}"


class _Descriptor(msgspec.Struct):
    old_range: _Range
    new_range: _Range
    section: str | None = None


class _Line(msgspec.Struct):
    content: str
    type: str


class _LineGroup(msgspec.Struct):
    all_lines: list[_Line]


class _Hunk(msgspec.Struct):
    descriptor: _Descriptor
    line_group: _LineGroup


class _File(msgspec.Struct):
    path: str


class _Header(msgspec.Struct):
    file: _File


class _FileDiff(msgspec.Struct):
    header: _Header
    hunks: list[_Hunk] | None = None
    is_binary_file: bool = False


class _Commit(msgspec.Struct):
    file_diffs: list[_FileDiff]


def patch_of(content: str, paths: Collection[str]) -> str:
    """The patch of the commit's text files; ``paths`` chooses some of them, empty: all but those of tests.

    Raises:
        RowError: The content is no commit, or what it says is no patch.
    """
    try:
        commit = msgspec.json.decode(content, type=_Commit)
    except DECODE_ERRORS as error:
        raise RowError(f"{_FIELD}: {error}") from None
    chosen = [each for each in commit.file_diffs if _is_chosen(each, paths)]
    patch = "".join(_section(each) for each in chosen)
    try:
        parse_patch(patch.encode())
    except PatchError as error:
        raise RowError(f"{_FIELD} makes no patch: {error}") from None
    return patch


def _is_chosen(diff: _FileDiff, paths: Collection[str]) -> bool:
    path = diff.header.file.path
    is_source = path in paths if paths else not any(part.startswith("test") for part in path.split("/"))
    return is_source and not diff.is_binary_file and bool(diff.hunks)


def _section(diff: _FileDiff) -> str:
    path, hunks = diff.header.file.path, diff.hunks or []
    old, new = f"a/{path}", f"b/{path}"
    lines = [f"diff --git {old} {new}"]
    if hunks[0].descriptor.old_range.start == 0:
        lines, old = [*lines, "new file mode 100644"], "/dev/null"
    elif hunks[0].descriptor.new_range.start == 0:
        lines, new = [*lines, "deleted file mode 100644"], "/dev/null"
    lines += [f"--- {old}", f"+++ {new}"]
    for hunk in hunks:
        section = (hunk.descriptor.section or "").strip()
        lines.append(f"@@ -{hunk.descriptor.old_range} +{hunk.descriptor.new_range} @@ {section}".rstrip())
        lines += [_line(line) for line in hunk.line_group.all_lines]
    return "\n".join(lines) + "\n"


def _line(line: _Line) -> str:
    if line.type not in _PREFIXES:
        raise RowError(f"{_FIELD} has a line of type {line.type!r}; known are {', '.join(_PREFIXES)}")
    return _PREFIXES[line.type] + line.content
