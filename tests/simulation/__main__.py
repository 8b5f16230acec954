"""``python -m tests.simulation [COUNT] [FIRST]``: play schedules in all processors, and shrink the first that fails."""

import logging
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.simulation.schedule import draw, play, shrink

_CHUNK = 25
_SHOWN_SECONDS = 10.0


def _failures(first, last):
    logging.disable(logging.CRITICAL)
    return [(seed, found) for seed in range(first, last) if (found := play(draw(seed)))]


def main(count, first):
    """Exit status 1 if a schedule failed."""
    started = shown = time.monotonic()
    failures, played = [], 0
    with ProcessPoolExecutor() as pool:
        chunks = {
            pool.submit(_failures, begin, min(begin + _CHUNK, first + count)): min(_CHUNK, first + count - begin)
            for begin in range(first, first + count, _CHUNK)
        }
        for done in as_completed(chunks):
            failures += done.result()
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


if __name__ == "__main__":
    numbers = [int(each) for each in sys.argv[1:3]]
    raise SystemExit(main(*(numbers + [1000, 0][len(numbers) :])))
