"""How long an episode's worker may take before something must be wrong with the worker itself. Pure.

Everything within an episode has a limit of its own, and a live worker keeps them. These bounds are for one that keeps
none because its event loop is blocked: an agent in a loop without ``await``, a call into C that never returns.
"""

import msgspec

from dgym.session import SETUP_TIMEOUT_SECONDS
from dgym.worker.jobs import Job

_FETCH_SECONDS = 2 * 3600.0
"""Pulling an image, fetching sources, installing requirements (and waiting while another process does)."""
_BUILD_SECONDS = 1800.0
_COPY_SECONDS = 1200.0
"""Carrying the changes over, and back what is protected."""
_RUNS = 3
"""Runs of the entrypoint at scoring: collecting, the tests, the canary."""
MARGIN_SECONDS = 120.0


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds from the start of the job to the first observation, and from there to the result."""

    prepare: float
    play: float


def bounds_of(job: Job) -> Bounds:
    """The bounds of ``job``: deadline, verification and a margin once it has begun."""
    task = job.task.spec
    setup = len(task.setup_commands) * SETUP_TIMEOUT_SECONDS
    entrypoint = float(task.entrypoint_timeout_seconds)
    verification = setup + len(task.build_commands) * _BUILD_SECONDS + _RUNS * entrypoint + _COPY_SECONDS
    return Bounds(
        prepare=_FETCH_SECONDS + 2 * setup + entrypoint + MARGIN_SECONDS,
        play=job.spec.active_deadline_seconds + verification + MARGIN_SECONDS,
    )
