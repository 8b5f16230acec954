"""Runs episodes: plans them from manifests, plays each one, many in an event loop, on a laptop and in agent pods."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dgym.episodes.comparison import Comparison, Difference, compare, normalize, run_again
    from dgym.episodes.events import Event, Finished, Logged, Narrated, Started, Stepped, describe_exchange
    from dgym.episodes.job import Job, effective_tools
    from dgym.episodes.local import run_episode
    from dgym.episodes.plan import (
        Plan,
        RunOptions,
        any_interactive,
        episodes_for,
        make_plan,
        stored_results,
        task_digest,
        unfinished,
    )
    from dgym.episodes.player import Hooks, Models
    from dgym.episodes.pool import Pool, run_inline

__all__ = [
    "Comparison",
    "Difference",
    "Event",
    "Finished",
    "Hooks",
    "Job",
    "Logged",
    "Models",
    "Narrated",
    "Plan",
    "Pool",
    "RunOptions",
    "Started",
    "Stepped",
    "any_interactive",
    "compare",
    "describe_exchange",
    "effective_tools",
    "episodes_for",
    "make_plan",
    "normalize",
    "run_again",
    "run_episode",
    "run_inline",
    "stored_results",
    "task_digest",
    "unfinished",
]

# Imported at their first use: reading manifests needs no processes, and an agent pod no plan.
_MODULES = {
    "comparison": ("Comparison", "Difference", "compare", "normalize", "run_again"),
    "events": ("Event", "Finished", "Logged", "Narrated", "Started", "Stepped", "describe_exchange"),
    "job": ("Job", "effective_tools"),
    "local": ("run_episode",),
    "plan": (
        "Plan",
        "RunOptions",
        "any_interactive",
        "episodes_for",
        "make_plan",
        "stored_results",
        "task_digest",
        "unfinished",
    ),
    "player": ("Hooks", "Models"),
    "pool": ("Pool", "run_inline"),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    for module, names in _MODULES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(f"dgym.episodes.{module}"), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
