"""Play schedules in all processors, or in as many as DGYM_SIMULATION_PROCESSES says.

python -m tests.simulation [COUNT] [FIRST]              shrink the first that fails
python -m tests.simulation --mutations [COUNT] [FIRST]  revert fixes of the operator, one at a time: each must be found
"""

import logging
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.simulation.mutations import MUTATIONS
from tests.simulation.schedule import draw, play, shrink

_CHUNK = 25
_MUTATED_CHUNK = 4
_MUTATED = 400
_SHOWN_SECONDS = 10.0


def _pool():
    number = os.environ.get("DGYM_SIMULATION_PROCESSES")
    return ProcessPoolExecutor(int(number) if number else None)


def _failures(first, last):
    logging.disable(logging.CRITICAL)
    return [(seed, found) for seed in range(first, last) if (found := play(draw(seed)))]


def main(count, first):
    """Exit status 1 if a schedule failed."""
    started = shown = time.monotonic()
    failures, played = [], 0
    with _pool() as pool:
        chunks = {
            pool.submit(_failures, begin, min(begin + _CHUNK, first + count)): min(_CHUNK, first + count - begin)
            for begin in range(first, first + count, _CHUNK)
        }
        for done in as_completed(chunks):
            failures += done.result()
            for seed, found in done.result():
                print(f"seed {seed}: " + "; ".join(found), file=sys.stderr, flush=True)
            played += chunks[done]
            if time.monotonic() - shown > _SHOWN_SECONDS:
                shown = time.monotonic()
                print(f"{played} of {count} schedules, {len(failures)} failed", file=sys.stderr, flush=True)
    seconds = time.monotonic() - started
    print(f"{count} schedules from seed {first}, {count / seconds:.1f} a second, {len(failures)} failed")
    for seed, found in sorted(failures)[:10]:
        print(f"seed {seed}: " + "; ".join(found))
    if failures:
        logging.disable(logging.CRITICAL)
        print(f"the first, shrunk: {shrink(draw(min(failures)[0]))}")
    return 1 if failures else 0


def _first_failure(mutation, first, last):
    """The first schedule that fails under the mutation, and how; None: all pass."""
    with MUTATIONS[mutation]():
        logging.disable(logging.CRITICAL)
        return next(((seed, found[0]) for seed in range(first, last) if (found := play(draw(seed)))), None)


def find(mutation, count, first):
    """The first schedule of ``count`` that a mutation fails, and how; None: it is not found."""
    with _pool() as pool:
        chunks = [
            pool.submit(_first_failure, mutation, begin, min(begin + _MUTATED_CHUNK, first + count))
            for begin in range(first, first + count, _MUTATED_CHUNK)
        ]
        try:
            return next((chunk.result() for chunk in chunks if chunk.result() is not None), None)
        finally:
            pool.shutdown(cancel_futures=True)


def prove(count, first):
    """Exit status 1 if a mutation is not found."""
    results = {}
    for mutation in MUTATIONS:
        results[mutation] = find(mutation, count, first)
        seed, problem = results[mutation] or ("not found", f"{count} schedules pass")
        print(f"{mutation:55} {seed!s:>10}  {problem}", flush=True)
    return 1 if None in results.values() else 0


if __name__ == "__main__":
    proves = "--mutations" in sys.argv
    numbers = [int(each) for each in sys.argv[1:] if each != "--mutations"]
    count, first = numbers + [_MUTATED if proves else 10_000, 0][len(numbers) :]
    raise SystemExit(prove(count, first) if proves else main(count, first))
