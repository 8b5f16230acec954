"""What a decision asks for: actions in order, and when to look again. Data alone; ``execute`` carries it out.

Whoever carries a plan out keeps three promises, on which all decisions rest:

- in order, and nothing after an action that failed: what follows may rest on it;
- status is written with the resourceVersion of the view the plan was made from, so that a plan made from an old view
  fails instead of undoing what is newer; the answer to a write is in the view before the next decision;
- repeating an action that was carried out already is harmless: what is there and ours, or gone, is no failure.
"""

import re
from datetime import datetime
from typing import Literal

import msgspec

from dgym.api import EpisodeSetStatus, EpisodeStatus

_NUMBER = re.compile(r"\d+")


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all actions. Each may be repeated without harm."""


class CreatePod(Action, frozen=True, kw_only=True):
    """Make the pod ``name`` of this attempt. What goes wrong comes back in the next view as a ``CreateFailure``.

    The Episode is read anew from the API server first, and nothing is made unless ``episode.still_wants`` says so of
    what was read: a leader's first views may be older than what its predecessor did.
    """

    name: str
    attempt: int


class DeletePod(Action, frozen=True, kw_only=True):
    """Delete exactly this pod."""

    name: str
    uid: str


class LookUpPod(Action, frozen=True, kw_only=True):
    """Ask the API server itself whether this pod is there: status names it and the view has it not.

    If there is none, ``EpisodeInput.absent`` holds its name from the next decision on.
    """

    name: str


class PatchStatus(Action, frozen=True, kw_only=True):
    """Write the Episode's status. ``progress`` may be put off when many are written; transitions may not."""

    status: EpisodeStatus
    progress: bool = False


class PatchSetStatus(Action, frozen=True, kw_only=True):
    """Write the set's status. Never put off while the rest of its plan is carried out: creations rest on it."""

    status: EpisodeSetStatus


class DeleteEpisode(Action, frozen=True, kw_only=True):
    """Delete exactly this Episode (or a set's child)."""

    name: str
    uid: str


class DeleteSet(Action, frozen=True, kw_only=True):
    """Delete exactly this set."""

    name: str
    uid: str


class FreezeTasks(Action, frozen=True, kw_only=True):
    """Make the owned, immutable ConfigMap that lists the set's tasks in order: names and UIDs."""

    name: str
    tasks: tuple[tuple[str, str], ...]


class LookUpTasks(Action, frozen=True, kw_only=True):
    """Ask the API server itself whether the set's list of tasks exists: it was made, and is not in the view.

    If there is none, ``EpisodeSetInput.list_absent`` is True from the next decision on.
    """

    name: str


class CreateEpisode(Action, frozen=True, kw_only=True):
    """Make the child with this index."""

    name: str
    index: int
    sample: int
    task: str
    task_uid: str


class PatchChild(Action, frozen=True, kw_only=True):
    """Tell a child what its set was told."""

    name: str
    suspend: bool | None = None
    cancel: bool | None = None


class SandboxEnded(Action, frozen=True, kw_only=True):
    """Tell the sidecar that the sandbox's container is seen to have terminated (``POST /v1/verify``).

    Asked for again until the pod has ended; whoever knows that this pod's sidecar has answered may leave it.
    """

    pod: str
    url: str
    attempt: int


class PauseDeadline(Action, frozen=True, kw_only=True):
    """Report to the sidecar that the agent of assignment ``epoch`` is lost (``POST /v1/pause``)."""

    pod: str
    url: str
    attempt: int
    epoch: int


class SandboxRunning(Action, frozen=True, kw_only=True):
    """Report to the sidecar that the sandbox's container was running at ``observed`` (``POST /v1/running``).

    Repeated until the pod has ended: the sidecar says when the report counts.
    """

    pod: str
    url: str
    attempt: int
    observed: datetime


class CancelAttempt(Action, frozen=True, kw_only=True):
    """Ask the sidecar to end the episode as cancelled (``POST /v1/cancel``).

    Asked for again until the pod has ended; whoever knows that this pod's sidecar has answered may leave it.
    """

    pod: str
    url: str
    attempt: int


class Emit(Action, frozen=True, kw_only=True):
    """Record an Event on the object."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


class CreateFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why the pod could not be made: the reason is one of the API's ``WAIT`` and ``TERMINAL`` ones.

    Attributes:
        reason: The episode's end if the cause is final, or lasts.
        message: The cause.
        since: When the first try failed.
        passes: Whether the cause passes by itself, so that more tries follow whatever the reason.
        tries: How many failed.
        tried: When the last one failed; None: there was one.
        retry_after: Seconds from then until the next try, by the API server's ``Retry-After``.
    """

    reason: str
    message: str
    since: datetime
    passes: bool = False
    tries: int = 1
    tried: datetime | None = None
    retry_after: float = 0.0

    def followed_by(self, failure: "CreateFailure") -> "CreateFailure":
        """This failure and the next one. A server's fault replaces neither an earlier one nor a used-up quota."""
        waits = self.passes and self.reason in ("InternalError", "QuotaExceeded")
        fault = failure.passes and failure.reason == "InternalError"
        same = self.reason == failure.reason and _without_numbers(self.message) == _without_numbers(failure.message)
        shown = self if same or (waits and fault) else failure
        return msgspec.structs.replace(
            failure,
            reason=shown.reason,
            message=shown.message,
            passes=shown.passes,
            since=self.since,
            tries=self.tries + 1,
            tried=failure.since,
        )


def _without_numbers(message: str) -> str:
    """The message without numbers, the same for the same cause: the use of a quota changes from try to try."""
    return _NUMBER.sub("", message)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to do now, and after how many seconds to look again at the latest (None: when something changes)."""

    actions: tuple[Action, ...] = ()
    requeue_after: float | None = None


def soonest(*plans: Plan) -> Plan:
    """All their actions in order, and the earliest time to look again."""
    times = [plan.requeue_after for plan in plans if plan.requeue_after is not None]
    actions = tuple(action for plan in plans for action in plan.actions)
    return Plan(actions=actions, requeue_after=min(times, default=None))


def until(moment: datetime, now: datetime) -> Plan:
    """Nothing but to look again then."""
    return Plan(requeue_after=max(0.1, (moment - now).total_seconds()))
