"""How the Episodes of simulated clusters end, by seed.

A reason is golden if it does not depend on the latencies of requests: those of several runs of a schedule are compared.
A change of the operator that makes another number of requests draws other latencies, so a few may differ all the same.
"""

import logging
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.schedule import draw, play

SEEDS = 500
CHUNK = 50
TOLERATED = 0.015
"""The share of reasons of a chunk that may differ."""
_RUNS = 5
_VARIES = "*"


def reasons(seed: int, run: int = 0) -> dict[str, str]:
    """The reason of each Episode. Each ``run`` of the schedule has other latencies."""
    found = []
    problems = play(draw(seed)._replace(seed=seed + 1_000_003 * run), prepare=found.append)
    assert problems == [], f"seed {seed}, run {run}: {problems}"
    return {each["metadata"]["name"]: each["status"]["reason"] for each in found[0].items("episodes")}


def _line(seed: int) -> str:
    logging.disable(logging.CRITICAL)
    runs = [reasons(seed, run) for run in range(_RUNS)]
    # An EpisodeSet that is cancelled early does not make all of its Episodes.
    names = sorted(name for name in runs[0] if all(name in each for each in runs))
    ends = ({each[name] for each in runs} for name in names)
    shown = [f"{name} {min(end) if len(end) == 1 else _VARIES}" for name, end in zip(names, ends, strict=True)]
    return f"{seed}: {', '.join(shown)}\n"


def simulation() -> dict[str, str]:
    """Takes about eight minutes of CPU time."""
    with ProcessPoolExecutor() as pool:
        return {"simulation.txt": "".join(pool.map(_line, range(SEEDS), chunksize=CHUNK // 5))}


def golden_reasons(text: str, first: int) -> dict[tuple[int, str], str]:
    """By seed and name, for a chunk of seeds, from the golden file; without those that vary."""
    found = {}
    for line in text.splitlines()[first : first + CHUNK]:
        seed, _, episodes = line.partition(": ")
        for episode in episodes.split(", "):
            name, _, reason = episode.partition(" ")
            if reason != _VARIES:
                found[int(seed), name] = reason
    return found
