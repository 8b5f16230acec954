"""Benchmarks that come with dgym, as manifests."""

import difflib

import msgspec

from dgym.api import DebugTask, EpisodeSet, Loaded
from dgym.errors import ManifestError

PREFIX = "bundled:"


def load_bundle(name: str, agent: str | None) -> list[Loaded]:
    """The benchmark's tasks and its EpisodeSet; the agent replay gets the walkthroughs that come with the tasks."""
    from dgym.benchmarks import bundled, episode_set, load_bundled

    known = list(bundled())
    if name not in known:
        nearest = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are: {', '.join(known)}"
        raise ManifestError(f"--bundled {name}: no such benchmark; {hint}")
    everything = episode_set(name)
    if agent == "replay":
        everything = _with_walkthroughs(everything, name)
    source = f"{PREFIX}{name}"
    tasks = [Loaded(task, source, number) for number, task in enumerate(load_bundled(name), start=2)]
    return [Loaded(everything, source, 1), *tasks]


def bundled_tasks() -> list[DebugTask]:
    """The tasks of all benchmarks."""
    from dgym.benchmarks import bundled, load_bundled

    return [task for name in bundled() for task in load_bundled(name)]


def _with_walkthroughs(everything: EpisodeSet, name: str) -> EpisodeSet:
    template = everything.spec.template
    data = msgspec.to_builtins(template.agent) if template.agent is not None else {}
    parameters = {"trajectory": f"package:dgym.benchmarks.{name}", **data.get("parameters", {})}
    data = msgspec.to_builtins(everything)
    agent = data["spec"].setdefault("template", {}).setdefault("agent", {"name": "replay"})
    agent["parameters"] = parameters
    return msgspec.convert(data, EpisodeSet)
