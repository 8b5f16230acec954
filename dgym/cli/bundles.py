"""Benchmarks that come with dgym, as manifests."""

import difflib

from dgym.api import DebugTask, Loaded
from dgym.errors import ManifestError

PREFIX = "bundled:"


def load_bundle(name: str) -> list[Loaded]:
    """The benchmark's EpisodeSet and its tasks."""
    from dgym.benchmarks import bundled, episode_set, load_bundled

    known = list(bundled())
    if name not in known:
        nearest = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are: {', '.join(known)}"
        raise ManifestError(f"--bundled {name}: no such benchmark; {hint}")
    source = f"{PREFIX}{name}"
    tasks = [Loaded(task, source, number) for number, task in enumerate(load_bundled(name), start=2)]
    return [Loaded(episode_set(name), source, 1), *tasks]


def bundled_tasks() -> list[DebugTask]:
    """The tasks of all benchmarks."""
    from dgym.benchmarks import bundled, load_bundled

    return [task for name in bundled() for task in load_bundled(name)]
