"""Which rows are meant: by their ids, or by their fields."""

import difflib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from dgym.errors import ManifestError


def select(
    rows: Sequence[Mapping[str, Any]], key: str, filters: Sequence[str] = (), limit: int | None = None
) -> list[Mapping[str, Any]]:
    """The rows that meet every filter, at most ``limit``.

    A filter is a list of ids with commas, each perhaps with ``*``, or ``FIELD=PATTERN``.

    Raises:
        ManifestError: An id or a field does not exist, or nothing is left.
    """
    found = list(rows)
    for one in filters:
        found = _filtered(found, rows, key, one)
    if not found:
        raise ManifestError(f"--filter {' '.join(filters)}: no instance is left" if filters else "there is no instance")
    return found if limit is None else found[:limit]


def _filtered(
    found: list[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], key: str, text: str
) -> list[Mapping[str, Any]]:
    field, equals, pattern = text.partition("=")
    if equals:
        known = sorted({name for row in rows for name in row})
        if field not in known:
            raise ManifestError(f"--filter {text}: rows have no field {field!r}; they have {', '.join(known)}")
        return [row for row in found if fnmatchcase(str(row.get(field, "")), pattern)]
    wanted = [one.strip() for one in text.split(",") if one.strip()]
    identifiers = [str(row[key]) for row in rows]
    for one in wanted:
        if not any(fnmatchcase(identifier, one) for identifier in identifiers):
            near = difflib.get_close_matches(one, identifiers, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {len(identifiers)}, such as {identifiers[0]!r}"
            raise ManifestError(f"--filter {text}: there is no instance {one!r}; {hint}")
    return [row for row in found if any(fnmatchcase(str(row[key]), one) for one in wanted)]
