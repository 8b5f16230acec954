"""``.dgym-left-out.json`` of a results directory: how many tasks of a benchmark EpisodeSets leave out, and why."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from dgym.api import LEFT_OUT_ANNOTATION
from dgym.decoding import DECODE_ERRORS
from dgym.untrusted import read_regular

_FILE = ".dgym-left-out.json"

LeftOut = dict[str, dict[str, int]]
"""How many tasks are left out by reason (``Flaky``, ``Broken``), by the EpisodeSet's name."""


def record_left_out(directory: Path, set_name: str, annotations: Mapping[str, str]) -> None:
    """Keep what the annotation of an EpisodeSet says beside its results; nothing where it says nothing."""
    try:
        counts = msgspec.json.decode(annotations.get(LEFT_OUT_ANNOTATION, "{}"), type=dict[str, int])
    except DECODE_ERRORS:
        return
    known = read_left_out(directory)
    if counts != known.get(set_name, {}):
        merged = {name: found for name, found in {**known, set_name: counts}.items() if found}
        directory.mkdir(parents=True, exist_ok=True)
        temporary = directory / f"{_FILE}.part"
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(merged)))
        temporary.replace(directory / _FILE)


def read_left_out(directory: Path) -> LeftOut:
    """What is kept beside the results in ``directory``; empty where nothing is."""
    try:
        return msgspec.json.decode(read_regular(directory / _FILE), type=LeftOut)
    except (OSError, *DECODE_ERRORS):
        return {}
