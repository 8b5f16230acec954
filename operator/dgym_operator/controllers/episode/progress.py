"""The progress of an unfinished episode in its status: written once it has lasted, and when its reason changes."""

from datetime import datetime, timedelta
from typing import Literal

from dgym.api import ConditionType
from dgym_operator.controllers.conditions import fit, set_condition
from dgym_operator.controllers.inputs import EpisodeInput
from dgym_operator.controllers.plan import Action, Emit, PatchStatus, Plan


def show(
    view: EpisodeInput,
    reason: str,
    *,
    since: datetime | None,
    now: datetime,
    message: str = "",
    ready: Literal["True", "False"] | None = "False",
    warn: bool = False,
    revise: bool = False,
) -> Plan:
    """Show ``reason`` once it has lasted; ``ready`` is the status of ``SandboxReady`` (None: unchanged).

    A message that changes under the same reason is not written again: a scheduler has a new one for every node that
    comes and goes. With ``revise`` it is: for messages that change with their cause alone.
    """
    status = view.episode.status
    if status.reason == reason and not (revise and status.message != fit(message)):
        return Plan()
    shown_at = (since or now) + timedelta(seconds=view.policy.shown_after_seconds)
    if now < shown_at:
        return Plan(requeue_after=(shown_at - now).total_seconds())
    conditions = status.conditions
    if ready is not None:
        conditions = set_condition(
            conditions, ConditionType.SANDBOX_READY, ready, reason=reason, message=message, at=since or now
        )
    changed = view.status_with(conditions=conditions, reason=reason, message=fit(message))
    actions: list[Action] = [PatchStatus(status=changed, progress=True)]
    if warn:
        actions.append(Emit(type="Warning", reason=reason, message=fit(message)))
    return Plan(actions=tuple(actions))
