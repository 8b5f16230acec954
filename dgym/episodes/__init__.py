"""Runs episodes: plans them from manifests and plays many of them in an event loop, on a laptop and in agent pods."""

from typing import TYPE_CHECKING

from dgym.lazy import lazy_names

if TYPE_CHECKING:
    from dgym.episodes._comparison import ReplayComparison, StepDifference, compare, normalize, run_again
    from dgym.episodes._events import (
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
    from dgym.episodes._local import Job, RunOptions, SetCosts, effective_tools, first_request, run_episode
    from dgym.episodes._plan import (
        Plan,
        any_interactive,
        episodes_for,
        make_plan,
        record_plan,
        stored_results,
        task_digest,
        unfinished,
    )
    from dgym.episodes._player import Hooks, Models
    from dgym.episodes._worker_processes import WorkerProcesses, cpus, run_inline

__all__ = [
    "Event",
    "Finished",
    "Hooks",
    "Job",
    "Logged",
    "Models",
    "Narrated",
    "Plan",
    "ReplayComparison",
    "RunOptions",
    "SetCosts",
    "Started",
    "StepDifference",
    "Stepped",
    "Waits",
    "WorkerProcesses",
    "any_interactive",
    "compare",
    "cpus",
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

# Imported on first use: reading manifests does not need processes, and an agent pod does not need a plan.
__getattr__ = lazy_names(
    __name__,
    {
        "dgym.episodes._comparison": ("ReplayComparison", "StepDifference", "compare", "normalize", "run_again"),
        "dgym.episodes._local": ("Job", "RunOptions", "SetCosts", "effective_tools", "first_request", "run_episode"),
        "dgym.episodes._events": (
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
        "dgym.episodes._plan": (
            "Plan",
            "any_interactive",
            "episodes_for",
            "make_plan",
            "record_plan",
            "stored_results",
            "task_digest",
            "unfinished",
        ),
        "dgym.episodes._player": ("Hooks", "Models"),
        "dgym.episodes._worker_processes": ("WorkerProcesses", "cpus", "run_inline"),
    },
)
