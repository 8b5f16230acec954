"""The health of a benchmark's tasks, as ``dgym benchmark health`` found it: remembered beside the imported rows."""

from pathlib import Path
from typing import Literal, get_args

import msgspec

State = Literal["Healthy", "Flaky", "Broken"]
HEALTHY: Literal["Healthy"] = "Healthy"
STATES: tuple[State, ...] = get_args(State)


class TaskHealth(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """``Flaky``: equal runs differ. ``Broken``: the gold patch fails, an empty one passes, or it cannot run."""

    instance: str
    state: State
    message: str = ""


def read_health(file: Path) -> dict[str, TaskHealth]:
    """By instance; empty where nothing is known."""
    try:
        found = msgspec.json.decode(file.read_bytes(), type=list[TaskHealth])
    except (OSError, msgspec.MsgspecError):
        return {}
    return {one.instance: one for one in found}


def write_health(file: Path, found: dict[str, TaskHealth]) -> None:
    """Replace what is known."""
    temporary = file.with_suffix(".new")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode([found[name] for name in sorted(found)])))
    temporary.replace(file)
