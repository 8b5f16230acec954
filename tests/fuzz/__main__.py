"""``python -m tests.fuzz [TARGET…] --seconds 600``: fuzz each target, two processes at a time.

``--together 60`` divides that time among the targets. ``FUZZ_PYTHON`` names an interpreter that has schemathesis.

The exit status is 1 if an input crashes or hangs its reader, or if memory grows. ``--seed`` repeats the inputs of an
earlier run. By default each run has different inputs.
"""

import argparse
import concurrent.futures
import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from tests.fuzz.engine import Outcome, fuzz
from tests.fuzz.targets import NAMES, load
from tests.fuzz.wire.run import fuzz_wire

_ROOT = Path(__file__).parents[2]
_AT_ONCE = 2
_WIRE = "wire"
_TARGETS = (_WIRE, *NAMES)
_PYTHON = "FUZZ_PYTHON"
"""The interpreter that has schemathesis."""
_GRACE_SECONDS = 300.0
"""Extra time for a target to shrink an input that failed."""


def main() -> int:
    """Run each target in a separate process. Returns 1 if a target fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(_TARGETS))
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target (default 60)")
    parser.add_argument("--together", type=float, help="seconds for all targets together")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="number of the first batch of inputs")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        (name,) = options.targets
        if name == _WIRE:
            outcome = fuzz_wire(os.environ[_PYTHON], options.seconds, options.seed)
        else:
            outcome = fuzz(load(name), options.seconds, options.seed)
        sys.stdout.write(msgspec.json.encode(outcome).decode() + "\n")
        return 1 if outcome.failure else 0
    targets = options.targets or list(_TARGETS)
    if unknown := set(targets) - set(_TARGETS):
        parser.error(f"no target {', '.join(sorted(unknown))}; give some of {', '.join(_TARGETS)}")
    if _WIRE in targets and _PYTHON not in os.environ:
        parser.error(f"{_PYTHON} must name an interpreter that has schemathesis; make fuzz does that")
    seconds = options.seconds
    if options.together is not None:
        seconds = options.together * _AT_ONCE / len(targets)
    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
        outcomes = list(pool.map(lambda name: _run(name, seconds, options.seed), targets))
    return 1 if any(outcome.failure for outcome in outcomes) else 0


def _run(name: str, seconds: float, seed: int) -> Outcome:
    command = [sys.executable, "-m", "tests.fuzz", "--here", "--seconds", str(seconds), "--seed", str(seed), name]
    path = os.pathsep.join((str(_ROOT), str(_ROOT / "operator")))
    try:
        ended = subprocess.run(
            command,
            cwd=_ROOT,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=seconds + _GRACE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        outcome = Outcome(target=name, failure="the process does not end")
    else:
        outcome = Outcome(target=name, failure=f"the process ended with {ended.returncode}: {ended.stderr[-6000:]}")
        with contextlib.suppress(msgspec.MsgspecError):
            outcome = msgspec.json.decode(ended.stdout.strip().rpartition("\n")[2], type=Outcome)
    _show(outcome)
    return outcome


def _show(outcome: Outcome) -> None:
    begun, ended = (size / 1024**2 for size in (outcome.begun_bytes, outcome.ended_bytes))
    state = "FAILED" if outcome.failure else "ok"
    sys.stdout.write(
        f"{outcome.target:<13} {outcome.inputs:>9,} inputs in {outcome.seconds:.0f} s,"
        f" slowest {outcome.slowest_seconds:.2f} s, memory {begun:.0f} to {ended:.0f} MiB: {state}\n"
    )
    if outcome.counts:
        answers = ", ".join(f"{name}: {count:,}" for name, count in sorted(outcome.counts.items()))
        sys.stdout.write(f"{'':<13} answers {answers}\n")
    if outcome.failure:
        sys.stdout.write(f"{outcome.failure}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
