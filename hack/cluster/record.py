"""The record of a cluster, in its state directory: its first process, and what it has changed on the machine.

A machine that was restarted has the record still, and neither the process nor the settings; a process id may be
another's, a directory may hold what others have put there since.
"""

import json
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hack.cluster.machine import SETTINGS, ClusterError, boot, read_tunables, restore_tunables, start_time

FILE = "init.json"
_FRESH = f"{FILE}.new"


@dataclass(frozen=True)
class Record:
    """``pid`` is 0 until there is a process; ``made`` are the directories that were not there before."""

    boot: str
    tunables: dict[str, str]
    made: tuple[str, ...]
    pid: int = 0
    started: str = ""

    def running(self) -> int | None:
        """The process, if it is the one that was started and still runs."""
        same = self.boot == boot() and self.pid and start_time(self.pid) == self.started
        return self.pid if same else None

    def with_process(self, pid: int) -> "Record":
        """The same with a process that runs now."""
        return replace(self, pid=pid, started=start_time(pid) or "")

    def write(self, state: Path) -> None:
        """Whole or not at all."""
        fresh = state / _FRESH
        fresh.write_text(json.dumps(asdict(self)))
        fresh.replace(state / FILE)

    def undo(self, settings: Path = SETTINGS) -> None:
        """Put settings back, which a restart has done by itself, and remove directories that nobody uses."""
        if self.boot == boot():
            restore_tunables(self.tunables, settings)
        for directory in self.made:
            with suppress(OSError):
                Path(directory).rmdir()


def begin(state: Path, mount_points: Iterable[Path], settings: Path = SETTINGS) -> Record:
    """Make the state directory and the directories to mount on, once the record says so."""
    made = tuple(str(point) for point in mount_points if not point.exists())
    record = Record(boot=boot(), tunables=read_tunables(settings), made=made)
    state.mkdir(parents=True, mode=0o755, exist_ok=True)
    record.write(state)
    for point in made:
        Path(point).mkdir(parents=True)
    return record


def read(state: Path) -> Record | None:
    """The record; None if there is none, or not a whole one. Those of older versions do not name their boot."""
    try:
        found = json.loads((state / FILE).read_text())
        since = found.get("boot", boot())
        return Record(since, found["tunables"], tuple(found["made"]), found["pid"], found["started"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def remove(state: Path) -> None:
    """Remove the state directory, its record last: what is left of it if we are killed can be removed again."""
    if not state.exists():
        return
    names = {entry.name for entry in state.iterdir()}
    if FILE not in names and names - {_FRESH}:
        raise ClusterError(
            f"{state} is no cluster's state: it has no {FILE}. Remove it if nobody needs it, or name another directory"
            " with DGYM_CLUSTER_STATE"
        )
    for entry in state.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != FILE:
            entry.unlink()
    shutil.rmtree(state)
