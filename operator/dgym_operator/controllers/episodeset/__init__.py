"""The controller of EpisodeSets: it freezes a list of tasks, creates an Episode for each index and counts outcomes."""

from dgym_operator.controllers.episodeset._controller import (
    child_manifest,
    decide_set,
    decode_tasks,
    encode_tasks,
    tasks_name,
)

__all__ = [
    "child_manifest",
    "decide_set",
    "decode_tasks",
    "encode_tasks",
    "tasks_name",
]
