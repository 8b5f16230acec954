"""What a decision asks for: actions in order, and when to look again. Data alone; ``execute`` carries it out."""

from datetime import datetime
from typing import Literal

import msgspec

from dgym.api import EpisodeSetStatus, EpisodeStatus


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all actions. Each may be repeated without harm."""


class CreatePod(Action, frozen=True, kw_only=True):
    """Make the pod ``name`` of this attempt. What goes wrong comes back in the next view as a ``CreateFailure``."""

    name: str
    attempt: int


class DeletePod(Action, frozen=True, kw_only=True):
    """Delete exactly this pod."""

    name: str
    uid: str


class PatchStatus(Action, frozen=True, kw_only=True):
    """Write the Episode's status. ``progress`` may be put off when many are written; transitions may not."""

    status: EpisodeStatus
    progress: bool = False


class PatchSetStatus(Action, frozen=True, kw_only=True):
    """Write the set's status."""

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
    """Tell the sidecar that the sandbox's container is seen to have terminated (``POST /v1/verify``)."""

    pod: str
    url: str
    attempt: int


class CancelAttempt(Action, frozen=True, kw_only=True):
    """Ask the sidecar to end the episode as cancelled (``POST /v1/cancel``)."""

    pod: str
    url: str
    attempt: int


class Emit(Action, frozen=True, kw_only=True):
    """Record an Event on the object."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


class CreateFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why the pod could not be made: the reason is one of the API's ``WAIT`` and ``TERMINAL`` ones."""

    reason: str
    message: str
    since: datetime
    tries: int = 1


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to do now, and after how many seconds to look again at the latest (None: when something changes)."""

    actions: tuple[Action, ...] = ()
    requeue_after: float | None = None
