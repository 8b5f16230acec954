"""Which episodes a ``dgym run`` is to leave in a results directory: readers see how far it is.

The file ``.dgym-plan-<digest>.json`` stands in the directory's root. The same command writes the same file again.
"""

import hashlib
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from dgym.decoding import DECODE_ERRORS
from dgym.workspace.sources import RESULTS_MARKER

_NAME = re.compile(r"\.dgym-plan-[0-9a-f]{16}\.json")


class Planned(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The episodes of a run.

    ``sets`` maps the name of an EpisodeSet, empty for episodes of none, to the paths of its episodes' folders from the
    root of the results. ``began`` is in seconds since the epoch.
    """

    began: float
    sets: dict[str, tuple[str, ...]]


def is_plan(name: str) -> bool:
    """Whether a file of this name is a plan."""
    return _NAME.fullmatch(name) is not None


def write_plan(root: Path, sets: Mapping[str, Sequence[str]]) -> None:
    """Write the plan of a run that begins now.

    Raises:
        OSError: The directory cannot be written.
    """
    fixed = {name: tuple(paths) for name, paths in sets.items()}
    digest = hashlib.sha256(msgspec.json.encode(fixed, order="sorted")).hexdigest()[:16]
    root.mkdir(parents=True, exist_ok=True)
    (root / RESULTS_MARKER).touch()
    path = root / f".dgym-plan-{digest}.json"
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_bytes(msgspec.json.encode(Planned(began=round(time.time(), 3), sets=fixed)))
    temporary.replace(path)


def read_plan(data: bytes) -> Planned | None:
    """The plan in a file's bytes; None where it is none."""
    try:
        return msgspec.json.decode(data, type=Planned)
    except DECODE_ERRORS:
        return None
