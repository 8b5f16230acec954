"""Reasons of the finished Episodes of simulated clusters, by seed.

Several runs of a schedule with different latencies are compared. A reason is golden if it is equal in all runs.
If a change of the operator changes the number of requests, other latencies are drawn. So a few reasons may differ.
"""

import logging
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.schedule import draw, play

SEEDS = 500
CHUNK = 50
TOLERATED = 0.015
"""Share of a chunk's reasons that may differ."""
_RUNS = 5
_VARIES = "*"


def reasons(seed: int, run: int = 0) -> dict[str, str]:
    """The reason of each Episode. Each ``run`` of the schedule has different latencies."""
    found = []
    problems = play(draw(seed)._replace(seed=seed + 1_000_003 * run), prepare=found.append)
    assert problems == [], f"seed {seed}, run {run}: {problems}"
    return {each["metadata"]["name"]: each["status"]["reason"] for each in found[0].items("episodes")}


def _line(seed: int) -> str:
    logging.disable(logging.CRITICAL)
    runs = [reasons(seed, run) for run in range(_RUNS)]
    # An EpisodeSet that is cancelled early does not create all of its Episodes.
    names = sorted(name for name in runs[0] if all(name in each for each in runs))
    ends = ({each[name] for each in runs} for name in names)
    shown = [f"{name} {min(end) if len(end) == 1 else _VARIES}" for name, end in zip(names, ends, strict=True)]
    return f"{seed}: {', '.join(shown)}\n"


def simulation() -> dict[str, str]:
    """The golden file with the reasons. It takes about eight minutes of CPU time."""
    with ProcessPoolExecutor() as pool:
        return {"simulation.txt": "".join(pool.map(_line, range(SEEDS), chunksize=CHUNK // 5))}


def golden_reasons(text: str, first: int) -> dict[tuple[int, str], str]:
    """The reasons in the golden file for a chunk of seeds, by seed and name, without reasons that vary."""
    found = {}
    for line in text.splitlines()[first : first + CHUNK]:
        seed, _, episodes = line.partition(": ")
        for episode in episodes.split(", "):
            name, _, reason = episode.partition(" ")
            if reason != _VARIES:
                found[int(seed), name] = reason
    return found
