"""Runs episodes: plans them from manifests, plays each one, many in an event loop, on a laptop and in agent pods."""

from typing import TYPE_CHECKING

from dgym.lazy import lazy_names

if TYPE_CHECKING:
    from dgym.episodes.comparison import Comparison, Difference, compare, normalize, run_again
    from dgym.episodes.costs import SetCosts
    from dgym.episodes.events import (
        Event,
        Finished,
        Logged,
        Narrated,
        Started,
        Stepped,
        Waits,
        describe_exchange,
        describe_step,
    )
    from dgym.episodes.job import Job, effective_tools
    from dgym.episodes.local import run_episode
    from dgym.episodes.plan import (
        Plan,
        RunOptions,
        any_interactive,
        episodes_for,
        make_plan,
        record_plan,
        stored_results,
        task_digest,
        unfinished,
    )
    from dgym.episodes.player import Hooks, Models
    from dgym.episodes.pool import Pool, run_inline
    from dgym.episodes.preview import first_request

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
    "SetCosts",
    "Started",
    "Stepped",
    "Waits",
    "any_interactive",
    "compare",
    "describe_exchange",
    "describe_step",
    "effective_tools",
    "episodes_for",
    "first_request",
    "make_plan",
    "normalize",
    "record_plan",
    "run_again",
    "run_episode",
    "run_inline",
    "stored_results",
    "task_digest",
    "unfinished",
]

# Reading manifests needs no processes, and an agent pod no plan.
__getattr__ = lazy_names(
    __name__,
    {
        "dgym.episodes.comparison": ("Comparison", "Difference", "compare", "normalize", "run_again"),
        "dgym.episodes.costs": ("SetCosts",),
        "dgym.episodes.events": (
            "Event",
            "Finished",
            "Logged",
            "Narrated",
            "Started",
            "Stepped",
            "Waits",
            "describe_exchange",
            "describe_step",
        ),
        "dgym.episodes.job": ("Job", "effective_tools"),
        "dgym.episodes.local": ("run_episode",),
        "dgym.episodes.plan": (
            *("Plan", "RunOptions", "any_interactive", "episodes_for"),
            *("make_plan", "record_plan", "stored_results", "task_digest", "unfinished"),
        ),
        "dgym.episodes.player": ("Hooks", "Models"),
        "dgym.episodes.pool": ("Pool", "run_inline"),
        "dgym.episodes.preview": ("first_request",),
    },
)
