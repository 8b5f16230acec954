"""What a decision about an EpisodeSet is made from, and nothing else."""

import msgspec

from dgym_operator.reconcile.policy import Policy
from dgym_operator.reconcile.views import EpisodeSetView, EpisodeView, TaskView

FrozenTasks = tuple[tuple[str, str], ...]
"""Names and UIDs, in the order that gives every index its task."""


class EpisodeSetInput(msgspec.Struct, frozen=True, kw_only=True):
    """One EpisodeSet and all that bears on it.

    Attributes:
        episode_set: The set.
        frozen: Its list of tasks, once it is frozen (``frozen.decode_tasks`` of the ConfigMap that the set controls).
        tasks: The DebugTasks of its namespace; all, or at least those that it names or selects. Unused once frozen.
        children: All Episodes whose controller is this set (by its UID).
        creating: Indexes of children that were asked for and are not among ``children`` yet.
        policy: Constants.
    """

    episode_set: EpisodeSetView
    frozen: FrozenTasks | None = None
    tasks: tuple[TaskView, ...] = ()
    children: tuple[EpisodeView, ...] = ()
    creating: frozenset[int] = frozenset()
    policy: Policy = Policy()
