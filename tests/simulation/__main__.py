"""Play schedules on all processors, or on as many as DGYM_SIMULATION_PROCESSES sets, and shrink the first that fails.

With --mutations, fixes of the operator are reverted separately, and the schedules must detect each.
"""

import argparse
import logging
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.simulation.mutations import MUTATIONS
from tests.simulation.schedule import play, schedules, shrink

_COUNT = 10_000
_CHUNK = 25
_MUTATED_CHUNK = 4
_MUTATED = 400
_SHOWN_SECONDS = 10.0


def _pool():
    number = os.environ.get("DGYM_SIMULATION_PROCESSES")
    return ProcessPoolExecutor(int(number) if number else None)


def _failures(first, last):
    logging.disable(logging.CRITICAL)
    return [
        (seed, schedule, found)
        for seed in range(first, last)
        for schedule in schedules(seed)
        if (found := play(schedule))
    ]


def main(count, first):
    """Play the schedules of ``count`` seeds. Return exit status 1 if a schedule failed."""
    started = shown = time.monotonic()
    failures, played = [], 0
    with _pool() as pool:
        chunks = {
            pool.submit(_failures, begin, min(begin + _CHUNK, first + count)): min(_CHUNK, first + count - begin)
            for begin in range(first, first + count, _CHUNK)
        }
        for done in as_completed(chunks):
            failures += done.result()
            for seed, _, found in done.result():
                print(f"seed {seed}: " + "; ".join(found), file=sys.stderr, flush=True)
            played += chunks[done]
            if time.monotonic() - shown > _SHOWN_SECONDS:
                shown = time.monotonic()
                print(f"{played} of {count} seeds, {len(failures)} schedules failed", file=sys.stderr, flush=True)
    seconds = time.monotonic() - started
    print(f"{count} seeds from {first}, {count / seconds:.1f} a second, {len(failures)} schedules failed")
    for seed, _, found in sorted(failures)[:10]:
        print(f"seed {seed}: " + "; ".join(found))
    if failures:
        logging.disable(logging.CRITICAL)
        print(f"the first, shrunk: {shrink(min(failures)[1])}")
    return 1 if failures else 0


def _first_failure(mutation, first, last):
    """Return the seed of the first schedule that fails under the mutation, and the violation.

    Return None if all pass.
    """
    with MUTATIONS[mutation]():
        logging.disable(logging.CRITICAL)
        played = ((seed, play(schedule)) for seed in range(first, last) for schedule in schedules(seed))
        return next(((seed, found[0]) for seed, found in played if found), None)


def find(mutation, count, first):
    """Return the first of ``count`` seeds whose schedule detects the mutation, and the violation, or None."""
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
    """Play schedules with each mutation. Return exit status 1 if a mutation is not detected."""
    results = {}
    for mutation in MUTATIONS:
        results[mutation] = find(mutation, count, first)
        seed, problem = results[mutation] or ("not found", f"the schedules of {count} seeds pass")
        print(f"{mutation:55} {seed!s:>10}  {problem}", flush=True)
    return 1 if None in results.values() else 0


def _natural(text):
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 0 or more")
    return int(text)


def _arguments():
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("count", nargs="?", type=_natural, help=f"seeds (default {_COUNT}; mutations: {_MUTATED})")
    parser.add_argument("first", nargs="?", type=_natural, default=0, help="the seed of the first (default 0)")
    parser.add_argument("--mutations", action="store_true", help="revert fixes of the operator, one at a time")
    return parser.parse_args()


if __name__ == "__main__":
    options = _arguments()
    run, default = (prove, _MUTATED) if options.mutations else (main, _COUNT)
    raise SystemExit(run(default if options.count is None else options.count, options.first))
