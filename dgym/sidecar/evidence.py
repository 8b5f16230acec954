"""What the sidecar knows of its attempt and the operator must not infer: its clock, and the step in flight."""

import time

import msgspec

from dgym.session import Session
from dgym.wire.http import AttemptState

_WITH_THE_POD_SECONDS = 2.0
"""A sandbox that died so shortly before the sidecar was told to end has ended with its pod, and not by itself."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The sidecar's word for when it cannot be asked any more; see ``TerminationMessage``."""

    elapsed_seconds: float = 0.0
    step_in_flight: int | None = None
    poisoned_step: int | None = None
    told_to_end: bool = False


def evidence_of(session: Session) -> Evidence:
    """The evidence as it is now."""
    return Evidence(
        elapsed_seconds=round(session.deadline.elapsed, 3),
        step_in_flight=_step_in_flight(session),
        poisoned_step=next(reversed(session.poisoned_here), None),
    )


def last_evidence(session: Session | None) -> Evidence:
    """The evidence of a sidecar that is told to end: whatever ends from now on ends with the pod."""
    if session is None:
        return Evidence(told_to_end=True)
    now, death = evidence_of(session), session.last_death
    if death is not None and time.monotonic() - death < _WITH_THE_POD_SECONDS:
        now = msgspec.structs.replace(now, step_in_flight=now.poisoned_step or now.step_in_flight, poisoned_step=None)
    return msgspec.structs.replace(now, told_to_end=True)


def state_of(session: Session | None, *, ended: bool) -> AttemptState:
    """The clocks of the attempt; ``ended``: there is a verdict, or a failure that will not pass."""
    if session is None:
        return AttemptState(ended=ended)
    deadline, ending = session.deadline, session.ending.is_set()
    return AttemptState(
        elapsed_seconds=round(deadline.elapsed, 3),
        remaining_seconds=None if deadline.remaining is None else round(max(0.0, deadline.remaining), 3),
        running=deadline.running and not ending,
        steps=session.steps,
        step_in_flight=_step_in_flight(session),
        poisoned_steps=session.poisoned_here,
        ending=ending,
        ended=ended,
    )


def _step_in_flight(session: Session) -> int | None:
    """The step that is being executed. While the tests run, the step that submits is answered by them alone."""
    return None if session.ending.is_set() else session.step_in_flight
