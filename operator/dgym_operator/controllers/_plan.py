"""Plans: the actions of a decision, in order, and when to requeue. Plans contain only data.

``dgym_operator.actions`` applies plans. All decisions rely on these guarantees:

- Actions are applied in order. After an action that failed, the rest of the plan is not applied.
- Status is written with the resourceVersion of the view from which the plan was made. A plan from an old view therefore
  fails and does not undo newer writes. The next decision sees the result of the write.
- Actions are idempotent. Creating an object that already exists and belongs to the operator, or deleting an object that
  is gone, succeeds.
"""

import re
from datetime import datetime
from typing import Any, Literal

import msgspec

from dgym.api import EpisodeSetStatus, EpisodeStatus, SandboxPoolSpec, SandboxPoolStatus
from dgym.wire.calls import Call
from dgym.wire.http import WireMessage

_NUMBER = re.compile(r"\d+")


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all actions."""


class CreatePod(Action, frozen=True, kw_only=True):
    """Create the pod ``name`` of this attempt. After a failure the next view contains a ``CreateFailure``.

    The Episode is first read from the API server, and the pod is created only if ``still_requires_pod``
    returns True for it. The first views of a new leader may be older than the last writes of its predecessor.
    """

    name: str
    attempt: int


class BindSidecar(Action, frozen=True, kw_only=True):
    """Bind the sidecar of a claimed pod to the attempt with the call ``bind``."""

    pod_name: str
    url: str
    attempt: int


class DeletePod(Action, frozen=True, kw_only=True):
    """Delete the pod with this name and UID."""

    name: str
    uid: str


class LookUpPod(Action, frozen=True, kw_only=True):
    """Get a pod from the API server that status names and that is not in the view.

    If it does not exist or has another UID, ``EpisodeInput.absent`` contains its name from the next decision on.
    An empty ``uid`` matches any pod of the Episode with this name.
    """

    name: str
    uid: str = ""


class PatchStatus(Action, frozen=True, kw_only=True):
    """Write the Episode's status. A write of ``progress`` may be deferred under load; a transition may not."""

    status: EpisodeStatus
    progress: bool = False


class PatchSetStatus(Action, frozen=True, kw_only=True):
    """Write the set's status. It is never deferred, because the creations after it in the plan depend on it."""

    status: EpisodeSetStatus


class DeleteEpisode(Action, frozen=True, kw_only=True):
    """Delete the Episode with this name and UID. It may be a child of a set."""

    name: str
    uid: str


class DeleteSet(Action, frozen=True, kw_only=True):
    """Delete the set with this name and UID."""

    name: str
    uid: str


class FreezeTasks(Action, frozen=True, kw_only=True):
    """Create the immutable ConfigMap with the names and UIDs of the set's tasks, in order. The set owns it."""

    name: str
    tasks: tuple[tuple[str, str], ...]


class LookUpTasks(Action, frozen=True, kw_only=True):
    """Get the set's list of tasks from the API server. It was created before and is not in the view.

    If it does not exist, ``EpisodeSetInput.list_absent`` is True from the next decision on.
    """

    name: str


class CreatePooledPod(Action, frozen=True, kw_only=True):
    """Create one more pod of the sandbox pool."""


class PatchSandboxPoolStatus(Action, frozen=True, kw_only=True):
    """Write the sandbox pool's status."""

    status: SandboxPoolStatus


class CreateSandboxPool(Action, frozen=True, kw_only=True):
    """Create the set's sandbox pool."""

    name: str
    spec: SandboxPoolSpec


class PatchSandboxPool(Action, frozen=True, kw_only=True):
    """Write the task and the sizes of the set's sandbox pool."""

    name: str
    spec: SandboxPoolSpec


class DeleteSandboxPool(Action, frozen=True, kw_only=True):
    """Delete the set's sandbox pool with this name and UID."""

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
    """Set ``suspend`` or ``cancel`` of a child. None leaves the field unchanged."""

    name: str
    suspend: bool | None = None
    cancel: bool | None = None


class CallSidecar(Action, frozen=True, kw_only=True):
    """Call the attempt's sidecar.

    The action is planned again until ``EpisodeInput.sidecar`` contains the answer or the pod has terminated. A call
    that was answered is not repeated, except ``STATE``.

    Attributes:
        call: The call. It has no parameters.
        url: URL of the sidecar.
        attempt: Attempt of the pod.
        body: Body of the request, or None.
    """

    call: Call[Any, Any]
    url: str
    attempt: int
    body: WireMessage | None = None


class CreateDriverSecret(Action, frozen=True, kw_only=True):
    """Create the Secret for the attempt's external driver. The attempt's pod owns it. Planned again until the end.

    Attributes:
        pod_name: Name of the pod.
        pod_uid: UID of the pod.
        url: URL of the sidecar.
        attempt: Attempt of the pod.
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
    """Why the pod could not be created. The treatment of the reason is ``WAIT`` or ``TERMINAL``.

    Attributes:
        reason: The reason with which the episode ends if the cause is final or lasts too long.
        message: The cause.
        since: When the first try failed.
        is_temporary: True if the cause is temporary, so that the creation is retried for any reason.
        tries: Number of failed tries.
        tried: When the last try failed. None if there was only one.
        retry_after: Seconds from the last try to the next, from the API server's header ``Retry-After``.
        full: True if the namespace's quota was used up at the last try. The dispatcher then chooses the next Episode
            to try, and the time.
    """

    reason: str
    message: str
    since: datetime
    is_temporary: bool = False
    tries: int = 1
    tried: datetime | None = None
    retry_after: float = 0.0
    full: bool = False

    def followed_by(self, failure: "CreateFailure") -> "CreateFailure":
        """Return this failure merged with the next one.

        A temporary ``InternalError`` does not replace the reason of an earlier one or of a used-up quota.
        """
        waits = self.is_temporary and self.reason in ("InternalError", "QuotaExceeded")
        fault = failure.is_temporary and failure.reason == "InternalError"
        same = self.reason == failure.reason and _without_numbers(self.message) == _without_numbers(failure.message)
        shown = self if same or (waits and fault) else failure
        return msgspec.structs.replace(
            failure,
            reason=shown.reason,
            message=shown.message,
            is_temporary=shown.is_temporary,
            since=self.since,
            tries=self.tries + 1,
            tried=failure.since,
        )


def _without_numbers(message: str) -> str:
    """Return the message without numbers, to compare causes: the used amount of a quota changes from try to try."""
    return _NUMBER.sub("", message)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a decision.

    Attributes:
        actions: Actions to apply now, in order.
        requeue_after: Maximum seconds until the next decision. None if the next decision waits for a change.
        requests_pod: True if the next attempt needs a pod now. The pod is created when the dispatcher grants it.
    """

    actions: tuple[Action, ...] = ()
    requeue_after: float | None = None
    requests_pod: bool = False


def soonest(*plans: Plan) -> Plan:
    """Return all actions of the plans in order, with the earliest requeue time."""
    times = [plan.requeue_after for plan in plans if plan.requeue_after is not None]
    actions = tuple(action for plan in plans for action in plan.actions)
    requests_pod = any(plan.requests_pod for plan in plans)
    return Plan(actions=actions, requeue_after=min(times, default=None), requests_pod=requests_pod)


def until(moment: datetime, now: datetime) -> Plan:
    """Return a plan without actions that requeues at this moment."""
    return Plan(requeue_after=max(0.1, (moment - now).total_seconds()))
