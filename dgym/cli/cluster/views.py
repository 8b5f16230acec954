"""Episodes and EpisodeSets as the commands show them; other fields are not decoded."""

from datetime import UTC, datetime
from typing import ClassVar

import msgspec

from dgym.api import TREATMENTS, Treatment


class View(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of all views: lenient, so that a newer cluster is shown by an older command."""


class Meta(View, frozen=True, kw_only=True):
    """Identity and version."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)


class ConditionView(View, frozen=True, kw_only=True):
    """A condition."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


class Named(View, frozen=True, kw_only=True):
    """A reference, or an agent."""

    name: str = ""
    model: str = ""


class Outcome(View, frozen=True, kw_only=True):
    """The verdict of an episode."""

    resolved: bool = False
    score: int = 0
    max_score: int = 0
    steps: int = 0
    result_uri: str = msgspec.field(default="", name="resultURI")
    message: str = ""


class EpisodeViewSpec(View, frozen=True, kw_only=True):
    """The fields of the spec."""

    task_ref: Named | None = None
    agent: Named | None = None
    cancel: bool = False


class EpisodeViewStatus(View, frozen=True, kw_only=True):
    """The fields of the status."""

    conditions: tuple[ConditionView, ...] = ()
    reason: str = ""
    message: str = ""
    steps: int = 0
    outcome: Outcome | None = None
    attempt: int = 0
    pod_name: str | None = None


class EpisodeView(View, frozen=True, kw_only=True):
    """An Episode."""

    kind: ClassVar[str] = "Episode"

    metadata: Meta
    spec: EpisodeViewSpec = EpisodeViewSpec()
    status: EpisodeViewStatus = EpisodeViewStatus()

    @property
    def finished(self) -> bool:
        """Whether it has ended."""
        return condition_of(self, "Finished") is not None

    @property
    def failed(self) -> bool:
        """Whether it ended without a verdict."""
        return self.finished and TREATMENTS.get(self.status.reason) is not Treatment.VERDICT

    @property
    def message(self) -> str:
        """The message that explains its reason, in one line."""
        texts = [self.status.outcome.message] if self.status.outcome is not None else []
        texts += [self.status.message]
        texts += [each.message for each in self.status.conditions if each.reason == self.status.reason]
        return next((text.strip().partition("\n")[0] for text in texts if text.strip()), "")


class SetViewSpec(View, frozen=True, kw_only=True):
    """The fields of the spec."""

    parallelism: int = 0
    cancel: bool = False


class SetViewStatus(View, frozen=True, kw_only=True):
    """The fields of the status."""

    conditions: tuple[ConditionView, ...] = ()
    reason: str = ""
    completed_indexes: str = ""
    total: int = 0
    pending: int = 0
    active: int = 0
    resolved: int = 0
    unresolved: int = 0
    failed: int = 0
    pass_at_1: str = msgspec.field(default="", name="passAt1")


class SetView(View, frozen=True, kw_only=True):
    """An EpisodeSet."""

    kind: ClassVar[str] = "EpisodeSet"

    metadata: Meta
    spec: SetViewSpec = SetViewSpec()
    status: SetViewStatus = SetViewStatus()

    @property
    def finished(self) -> bool:
        """Whether it has ended."""
        return condition_of(self, "Finished") is not None


def condition_of(view: EpisodeView | SetView, type_: str) -> ConditionView | None:
    """The condition of that type if it is true."""
    return next((each for each in view.status.conditions if each.type == type_ and each.status == "True"), None)


def age(since: datetime | None, now: datetime | None = None) -> str:
    """How long ago, as kubectl writes it: 45s, 12m, 3h20m, 2d."""
    if since is None:
        return ""
    seconds = max(0, int(((now or datetime.now(UTC)) - since).total_seconds()))
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if minutes < 2:
        return f"{seconds}s"
    if hours < 3:
        return f"{minutes}m"
    if days < 2:
        return f"{hours}h{minutes % 60}m" if hours < 10 and minutes % 60 else f"{hours}h"
    return f"{days}d"
