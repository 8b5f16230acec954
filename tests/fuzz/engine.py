"""Engine that runs a target for a time and reports crashes, hangs and growth of memory.

An input that crashes or hangs is shrunk and printed with the seed that repeats the inputs.
"""

import contextlib
import gc
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import psutil
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky

HANG_SECONDS = 10.0
"""Limit of wall time for an input. The slowest normal input takes a tenth of a second."""
GROWTH_BYTES = 64 * 1024**2
"""More than hypothesis and a target's caches use. A leak of a kilobyte for each input is found in a minute."""
BATCH = 200
_SHOWN = 4000
_WARM_UP = 0.25


class Hang(BaseException):
    """An input takes too long. Not an ``Exception``: a target must not catch it."""


class Target(msgspec.Struct, frozen=True):
    """``check`` reads an input and raises any exception that callers of the code do not expect."""

    name: str
    inputs: st.SearchStrategy[Any]
    check: Callable[[Any], None]


class Outcome(msgspec.Struct, kw_only=True):
    """Figures of a run. ``failure`` describes the problem and its input. ``counts`` has the number of each answer."""

    target: str
    inputs: int = 0
    seconds: float = 0.0
    slowest_seconds: float = 0.0
    begun_bytes: int = 0
    ended_bytes: int = 0
    failure: str = ""
    counts: dict[str, int] = {}


def fuzz(
    target: Target,
    seconds: float,
    first_seed: int,
    *,
    hang: float = HANG_SECONDS,
    growth: int = GROWTH_BYTES,
    batch: int = BATCH,
) -> Outcome:
    """Try two batches or more until ``seconds`` have passed or an input fails. It runs only in the main thread."""
    outcome = Outcome(target=target.name)
    begun, number, later = time.monotonic(), first_seed, 0
    while not outcome.failure and (outcome.seconds < seconds or not later):
        _batch(target, number, outcome, hang, batch)
        number += 1
        outcome.seconds = round(time.monotonic() - begun, 1)
        if outcome.begun_bytes:
            later += 1
        elif outcome.seconds >= seconds * _WARM_UP:
            outcome.begun_bytes = resident_bytes()
    outcome.ended_bytes = resident_bytes()
    grown = outcome.ended_bytes - outcome.begun_bytes
    if not outcome.failure and grown > growth:
        outcome.failure = f"the process grew by {grown / 1024**2:.0f} MiB after its first quarter"
    return outcome


def resident_bytes() -> int:
    """Resident memory of this process after a garbage collection."""
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def _batch(target: Target, number: int, outcome: Outcome, hang: float, size: int) -> None:
    quiet = settings(
        max_examples=size,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )

    @seed(number)
    @quiet
    @given(target.inputs)
    def once(value: Any) -> None:
        started = time.monotonic()
        try:
            with _limited(hang):
                target.check(value)
        except Hang:
            # hypothesis shrinks inputs only for an Exception.
            raise AssertionError(f"no end within {hang:g} s: {value!r}"[:_SHOWN]) from None
        except Exception as error:
            error.add_note(f"input: {value!r}"[:_SHOWN])
            raise
        outcome.inputs += 1
        outcome.slowest_seconds = round(max(outcome.slowest_seconds, time.monotonic() - started), 3)

    try:
        once()
    except (Exception, Flaky) as error:
        notes = [str(note)[:_SHOWN] for note in getattr(error, "__notes__", ())[:2]]
        places = "".join(traceback.format_tb(error.__traceback__, limit=-6))
        outcome.failure = "\n".join((f"seed {number}: {type(error).__name__}: {error!s:.2000}", places, *notes))


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise ``Hang`` in Python code that takes longer. C code cannot be interrupted."""

    def stop(_number: int, _frame: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
