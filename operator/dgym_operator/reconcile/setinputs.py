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
        list_absent: Whether the API server itself said that the set's list of tasks is not there.
        tasks: The DebugTasks of its namespace; all, or at least those that it names or selects. Unused once frozen.
        children: All Episodes whose controller is this set (by its UID).
        refused: Why the API server refused the last child, until one is made.
        creating: Indexes of children that were asked for and are not among ``children`` yet.
        policy: Constants.
    """

    episode_set: EpisodeSetView
    frozen: FrozenTasks | None = None
    list_absent: bool = False
    tasks: tuple[TaskView, ...] = ()
    children: tuple[EpisodeView, ...] = ()
    refused: str = ""
    creating: frozenset[int] = frozenset()
    policy: Policy = Policy()
