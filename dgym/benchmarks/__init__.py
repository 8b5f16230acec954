"""Benchmarks that come with dgym: tasks, a recorded walkthrough of each, and an EpisodeSet over all of them.

A benchmark is a package below this one with a folder per task: ``task.yaml`` (a DebugTask whose source is the folder
``repository`` beside it) and ``walkthrough.jsonl`` (one call a line, which finds the cause and repairs it).
"""

from dgym.benchmarks.catalog import bundled, episode_set, load_bundled, walkthrough

__all__ = ["bundled", "episode_set", "load_bundled", "walkthrough"]
