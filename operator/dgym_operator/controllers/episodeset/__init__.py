"""The controller of EpisodeSets: a frozen list of tasks, the Episodes made for it, and their counts."""

from dgym_operator.controllers.episodeset.controller import (
    child_manifest,
    decide_set,
    decode_tasks,
    encode_tasks,
    tasks_name,
)
from dgym_operator.controllers.episodeset.counts import Indexes, child_index, is_counted

__all__ = [
    "Indexes",
    "child_index",
    "child_manifest",
    "decide_set",
    "decode_tasks",
    "encode_tasks",
    "is_counted",
    "tasks_name",
]
