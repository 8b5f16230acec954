"""The controller of EpisodeSets: a frozen list of tasks, the Episodes made for it, and their counts."""

from dgym_operator.controllers.children import Children, Indexes, child_index, is_counted
from dgym_operator.controllers.episodeset.controller import (
    child_manifest,
    decide_set,
    decode_tasks,
    encode_tasks,
    tasks_name,
)

__all__ = [
    "Children",
    "Indexes",
    "child_index",
    "child_manifest",
    "decide_set",
    "decode_tasks",
    "encode_tasks",
    "is_counted",
    "tasks_name",
]
