"""Plans: the actions of a decision, in order, and when to requeue. Data alone.

``dgym_operator.actions`` applies plans and guarantees what all decisions rest on:

- Actions are applied in order, and none after one that failed.
- Status is written with the resourceVersion of the view that the plan was made from: a plan made from an old view fails
  instead of undoing newer writes. The answer to a write is in the view before the next decision.
- Repeating an action is harmless: an object that exists and is ours, or is gone, is no failure.
"""

import re
from datetime import datetime
from typing import Literal

import msgspec

from dgym.api import EpisodeSetStatus, EpisodeStatus, SandboxPoolSpec, SandboxPoolStatus
from dgym.wire.http import Path, PauseRequest, RunningRequest

_NUMBER = re.compile(r"\d+")


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all actions."""


class CreatePod(Action, frozen=True, kw_only=True):
    """Create the pod ``name`` of this attempt. A failure is in the next view as a ``CreateFailure``.

    The Episode is first read from the API server, and the pod is created only if ``still_wants`` holds of it: a new
    leader's first views may be older than its predecessor's last writes.
    """

    name: str
    attempt: int


class BindSidecar(Action, frozen=True, kw_only=True):
    """Bind the sidecar of a claimed pod to the attempt, by the call ``bind``."""

    pod_name: str
    url: str
    attempt: int


class DeletePod(Action, frozen=True, kw_only=True):
    """Delete exactly this pod."""

    name: str
    uid: str


class LookUpPod(Action, frozen=True, kw_only=True):
    """Get the pod that status names and the view lacks from the API server.

    If it does not exist, or has another UID, ``EpisodeInput.absent`` holds its name from the next decision on. Without
    ``uid`` any pod of the Episode is the one.
    """

    name: str
    uid: str = ""


class PatchStatus(Action, frozen=True, kw_only=True):
    """Write the Episode's status. A write of ``progress`` may be deferred under load; a transition may not."""

    status: EpisodeStatus
    progress: bool = False


class PatchSetStatus(Action, frozen=True, kw_only=True):
    """Write the set's status. Never deferred: the creations behind it in the plan rest on it."""

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
    """Create the owned, immutable ConfigMap that lists the set's tasks in order: names and UIDs."""

    name: str
    tasks: tuple[tuple[str, str], ...]


class LookUpTasks(Action, frozen=True, kw_only=True):
    """Get the set's list of tasks, which was created and which the view lacks, from the API server.

    If it does not exist, ``EpisodeSetInput.list_absent`` is True from the next decision on.
    """

    name: str


class CreatePooledPod(Action, frozen=True, kw_only=True):
    """Create one more pod of the pool."""


class PatchPoolStatus(Action, frozen=True, kw_only=True):
    """Write the pool's status."""

    status: SandboxPoolStatus


class CreatePool(Action, frozen=True, kw_only=True):
    """Create the set's pool."""

    name: str
    spec: SandboxPoolSpec


class PatchPool(Action, frozen=True, kw_only=True):
    """Write the task and the sizes of the set's pool."""

    name: str
    spec: SandboxPoolSpec


class DeletePool(Action, frozen=True, kw_only=True):
    """Delete exactly this pool of the set."""

    name: str
    uid: str


class CreateEpisode(Action, frozen=True, kw_only=True):
    """Create the child with this index."""

    name: str
    index: int
    sample: int
    task: str
    task_uid: str


class PatchChild(Action, frozen=True, kw_only=True):
    """Set ``suspend`` or ``cancel`` of a child as they are in its set."""

    name: str
    suspend: bool | None = None
    cancel: bool | None = None


class CallSidecar(Action, frozen=True, kw_only=True):
    """Call the attempt's sidecar. Planned again until its answer is in ``EpisodeInput.sidecar``, or the pod has ended.

    An acknowledged call is not repeated, but for ``STATE``.

    Attributes:
        path: ``VERIFY`` (the sandbox's container has terminated), ``PAUSE`` (the agent of an epoch is lost),
            ``RUNNING`` (the container was running at a time), ``CANCEL`` (end the episode as cancelled) or ``STATE``
            (the clocks).
        url: The sidecar's.
        attempt: The pod's.
        body: Of ``PAUSE`` and ``RUNNING``.
    """

    path: Path
    url: str
    attempt: int
    body: PauseRequest | RunningRequest | None = None


class CreateDriverSecret(Action, frozen=True, kw_only=True):
    """Create the Secret of the attempt's external driver, owned by the attempt's pod. Planned again until the end.

    Attributes:
        pod_name: The pod's name.
        pod_uid: Its UID.
        url: The sidecar's.
        attempt: The pod's.
    """

    pod_name: str
    pod_uid: str
    url: str
    attempt: int


class Emit(Action, frozen=True, kw_only=True):
    """Record an Event on the object."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


class CreateFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why the pod could not be created. The reason is one of the API's ``WAIT`` and ``TERMINAL`` ones.

    Attributes:
        reason: The episode's end if the cause is final, or lasts.
        message: The cause.
        since: When the first try failed.
        passes: Whether the cause passes by itself, so that more tries follow whatever the reason.
        tries: How many failed.
        tried: When the last one failed; None: there was one.
        retry_after: Seconds from then until the next try, by the API server's ``Retry-After``.
        full: Whether the last try found the namespace's quota used up: the dispatcher chooses who tries next, and when.
    """

    reason: str
    message: str
    since: datetime
    passes: bool = False
    tries: int = 1
    tried: datetime | None = None
    retry_after: float = 0.0
    full: bool = False

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
    """Actions to apply now, and the seconds after which to requeue at the latest (None: on the next change)."""

    actions: tuple[Action, ...] = ()
    requeue_after: float | None = None


def soonest(*plans: Plan) -> Plan:
    """All actions of the plans in order, and the earliest requeue."""
    times = [plan.requeue_after for plan in plans if plan.requeue_after is not None]
    actions = tuple(action for plan in plans for action in plan.actions)
    return Plan(actions=actions, requeue_after=min(times, default=None))


def until(moment: datetime, now: datetime) -> Plan:
    """No action, requeued at that moment."""
    return Plan(requeue_after=max(0.1, (moment - now).total_seconds()))
