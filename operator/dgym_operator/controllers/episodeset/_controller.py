"""The decision about one EpisodeSet. Its tasks are frozen in a ConfigMap once and always read from there.

A round that creates children writes the status first, and this write fails if the view was old. So a new leader does
not create children again that were finished and deleted, even if its first views are older than the last writes of its
predecessor.
"""

from datetime import datetime, timedelta
from typing import Literal

import msgspec

from dgym.api import (
    API_VERSION,
    INDEX_LABEL,
    RETRY_KEY,
    SAMPLE_LABEL,
    TASK_UID_LABEL,
    ConditionType,
    DebugTask,
    DebugTaskSpec,
    Episode,
    EpisodeSet,
    EpisodeSetStatus,
    LabelSelector,
    ObjectMeta,
    ProgressReason,
    SandboxPoolSpec,
    TaskRef,
    child_name,
    episodes_of,
    expand,
    in_order_of_use,
    place_of,
    with_cost_limit,
)
from dgym.api import OwnerReference as Owner
from dgym.wire import EndReason, read_cost, write_cost
from dgym_operator.controllers._conditions import (
    EPOCH,
    Conditions,
    find,
    fit,
    is_outdated,
    is_true,
    observed_generation,
    set_condition,
    since,
)
from dgym_operator.controllers._inputs import MODEL, STORE, EpisodeSetInput, FrozenTasks
from dgym_operator.controllers._plan import (
    Action,
    CreateEpisode,
    CreateSandboxPool,
    DeleteSandboxPool,
    DeleteSet,
    Emit,
    FreezeTasks,
    LookUpTasks,
    PatchChild,
    PatchSandboxPool,
    PatchSetStatus,
    Plan,
    soonest,
)
from dgym_operator.controllers.episodeset._counts import (
    Tally,
    next_indexes,
    pass_at_1,
    plan_retry,
    resolved_by_arm,
    retry_label,
    tally,
)
from dgym_operator.objects import EpisodeSetView, TaskView

_SOON = 1.0
_RESUMING = "Resuming"
_OUTAGES = (
    (MODEL, ConditionType.MODEL_AVAILABLE, EndReason.MODEL_ERROR.value),
    (STORE, ConditionType.RESULT_STORE_AVAILABLE, ProgressReason.RESULT_STORE_UNAVAILABLE.value),
)
"""For each kind of outage: the key in ``Waits.counts``, the condition that shows it, and the condition's reason."""
_WARNINGS = frozenset({"WaitingForTask", "EpisodeRefused", "MaxFailedReached", "CostLimitReached", "TaskListLost"})
KEY = "tasks"
"""Key in the ConfigMap's data. The value has one line for each task: its name, a space, its UID."""
SIZE_LIMIT = 1_000_000
"""Bytes. The API server limits a whole ConfigMap to one mebibyte."""
_NAMED = 3
_MOST_IDLE = 1000
CHANGE_SECONDS = 30.0
"""Shortest interval between two changes of the pool. The next task may change many times a second."""


def decide_set(view: EpisodeSetInput, now: datetime) -> Plan:
    """Return the plan for the EpisodeSet."""
    episode_set = view.episode_set
    if episode_set.metadata.deletion_timestamp is not None:
        return Plan()
    retry = plan_retry(view, now)
    if retry is not None and retry.status is not None:
        written = _write(view, retry.status)
        return Plan(actions=(*written.actions, retry.event), requeue_after=_SOON)
    is_finished = is_true(episode_set.status.conditions, ConditionType.FINISHED)
    if is_finished and retry is None:
        return _after_finish(view, now)
    if view.frozen is None and episode_set.status.start_time is None:
        return _freeze(view, now)
    if view.frozen is None and not view.list_absent:
        return Plan(actions=(LookUpTasks(name=tasks_name(episode_set)),), requeue_after=view.policy.repeat_seconds)
    # The deletions of a retry come after the write of the status, which fails if the view was old.
    return soonest(Plan() if is_finished else _round(view, now), retry.plan if retry is not None else Plan())


def _after_finish(view: EpisodeSetInput, now: datetime) -> Plan:
    if _is_outdated(view):
        return _write(view, view.episode_set.status)
    return soonest(without_sandbox_pool(view), _until_deletion(view, now))


def _until_deletion(view: EpisodeSetInput, now: datetime) -> Plan:
    metadata, ttl = view.episode_set.metadata, view.episode_set.spec.ttl_seconds_after_finished
    if ttl is None:
        return Plan()
    left = (view.episode_set.status.completion_time or now) + timedelta(seconds=ttl) - now
    if left > timedelta():
        return Plan(requeue_after=left.total_seconds())
    return Plan(actions=(DeleteSet(name=metadata.name, uid=metadata.uid),))


def _freeze(view: EpisodeSetInput, now: datetime) -> Plan:
    spec, status = view.episode_set.spec, view.episode_set.status
    if spec.cancel:
        message = "cancelled before its tasks were listed"
        finished = set_condition(
            status.conditions, ConditionType.FINISHED, "True", reason="Cancelled", message=message, at=now
        )
        ended = msgspec.structs.replace(
            status, conditions=finished, reason="Cancelled", message=message, completion_time=now
        )
        return _write(view, ended)
    chosen = choose(view, now)
    if not isinstance(chosen, NotFrozen):
        return Plan(actions=(FreezeTasks(name=tasks_name(view.episode_set), tasks=chosen),))
    if not chosen.message:
        return Plan(requeue_after=chosen.seconds)
    shown_at = (view.episode_set.metadata.creation_timestamp or now) + timedelta(
        seconds=view.policy.shown_after_seconds
    )
    if now < shown_at:
        return Plan(requeue_after=(shown_at - now).total_seconds())
    waiting = set_condition(
        status.conditions, ConditionType.FINISHED, "False", reason="WaitingForTask", message=chosen.message, at=now
    )
    shown = msgspec.structs.replace(status, conditions=waiting, reason="WaitingForTask", message=fit(chosen.message))
    return _write(view, shown)


def _round(view: EpisodeSetInput, now: datetime) -> Plan:
    frozen = view.frozen or ()
    total = episodes_of(view.episode_set.spec, len(frozen)) if frozen else view.episode_set.status.total
    counted = tally(view, total)
    patches, more_patches = _propagate(view, counted)
    new = next_indexes(counted, _room(view, counted))
    paused = _paused(view, bool(patches), now)
    conditions = _finished(view, counted, _available(view, paused, now), now)
    status = _status(view, counted, conditions, unfinished=counted.active + len(new), now=now)
    if new and status == view.episode_set.status:
        # Creations require a write of status, which detects an old view. The status here would not change, so write one
        # with fewer unfinished children now and create the children in the next round.
        status, new = _status(view, counted, conditions, unfinished=counted.active, now=now), []
        return msgspec.structs.replace(_write(view, status), requeue_after=_SOON)
    stopped = is_true(conditions, ConditionType.SUSPENDED) or _stop_reason(view, counted) is not None
    pool = without_sandbox_pool(view) if stopped else plan_sandbox_pool(view, counted, len(new), now)
    creations = tuple(_creation(view, frozen, index) for index in new)
    written = _write(view, status)
    resuming = is_true(conditions, ConditionType.SUSPENDED) and not view.episode_set.spec.suspend
    is_more = more_patches or resuming or len(new) == view.policy.creates_per_round
    plan = Plan(actions=(*written.actions, *patches, *creations), requeue_after=_SOON if is_more else None)
    # The causes for which children wait may change without an event on a child.
    return soonest(plan, pool, Plan(requeue_after=view.policy.shown_after_seconds if view.waits.total else None))


def _room(view: EpisodeSetInput, counted: Tally) -> int:
    """Return the number of children that may be created in this round."""
    spec = view.episode_set.spec
    paused = spec.suspend or is_true(view.episode_set.status.conditions, ConditionType.SUSPENDED)
    if paused or _stop_reason(view, counted) is not None:
        return 0
    return min(spec.parallelism - counted.active, view.policy.creates_per_round)


def _stop_reason(view: EpisodeSetInput, counted: Tally) -> str | None:
    """Return why the set does not create more children, or None. ``maxFailed`` 0 stops at the first failure."""
    spec = view.episode_set.spec
    if spec.cancel:
        return "Cancelled"
    if view.frozen is None:
        # A new list might map other tasks to the same indexes, and outcomes would be counted for the wrong tasks.
        return "TaskListLost"
    if spec.max_failed is not None and counted.failed >= max(1, spec.max_failed):
        return "MaxFailedReached"
    if spec.cost_limit is not None and counted.pending(counted.active) and counted.spent >= read_cost(spec.cost_limit):
        return "CostLimitReached"
    return None


def _propagate(view: EpisodeSetInput, counted: Tally) -> tuple[tuple[Action, ...], bool]:
    """Return the patches of this round that propagate ``cancel`` and ``suspend`` to children, and if more are left.

    A child that a user suspended individually stays suspended, unless its set is suspended and resumed.
    """
    spec = view.episode_set.spec
    resuming = is_true(view.episode_set.status.conditions, ConditionType.SUSPENDED) and not spec.suspend
    if not (spec.cancel or spec.suspend or resuming):
        return (), False
    actions: list[Action] = []
    for child in counted.children.unfinished(counted.total):
        cancel = True if spec.cancel and not child.spec.cancel else None
        suspend = None
        if spec.suspend and not child.spec.suspend:
            suspend = True
        elif resuming and child.spec.suspend != spec.template.suspend:
            suspend = spec.template.suspend
        if cancel is not None or suspend is not None:
            actions.append(PatchChild(name=child.metadata.name, suspend=suspend, cancel=cancel))
    limit = view.policy.creates_per_round
    return tuple(actions[:limit]), len(actions) > limit


def _creation(view: EpisodeSetInput, frozen: FrozenTasks, index: int) -> CreateEpisode:
    spec = view.episode_set.spec
    place = place_of(spec, len(frozen), index)
    task, uid = frozen[place.task]
    name = child_name(view.episode_set.metadata.name, index, [arm.name for arm in spec.arms])
    return CreateEpisode(name=name, index=index, sample=place.sample, task=task, task_uid=uid)


def _paused(view: EpisodeSetInput, patching: bool, now: datetime) -> Conditions:
    """Return the conditions with the current ``Suspended``.

    The set stays in the state Resuming for ``settle_seconds`` after the last patch of a child. The view of a child may
    be older than its suspension, and without this delay such a child would stay suspended.
    """
    conditions = view.episode_set.status.conditions
    before = find(conditions, ConditionType.SUSPENDED)
    if view.episode_set.spec.suspend:
        return set_condition(conditions, ConditionType.SUSPENDED, "True", reason="Suspended", at=now)
    if before is None or before.status == "False":
        return conditions
    if before.reason != _RESUMING:
        return set_condition(conditions, ConditionType.SUSPENDED, "True", reason=_RESUMING, at=now, restamp=True)
    if patching or now < _resumed_at(view):
        return conditions
    return set_condition(conditions, ConditionType.SUSPENDED, "False", reason="Resumed", at=now)


def _available(view: EpisodeSetInput, conditions: Conditions, now: datetime) -> Conditions:
    """Return the conditions with ``ModelAvailable`` and ``ResultStoreAvailable``. Both are absent until an outage."""
    causes, message = {cause for cause, _ in view.waits.counts}, fit(view.waits.message)
    for cause, kind, reason in _OUTAGES:
        if cause in causes:
            conditions = set_condition(conditions, kind, "False", reason=reason, message=message, at=now)
        elif find(conditions, kind) is not None:
            conditions = set_condition(conditions, kind, "True", reason="Available", at=now)
    return conditions


def _resumed_at(view: EpisodeSetInput) -> datetime:
    begun = since(view.episode_set.status.conditions, ConditionType.SUSPENDED, "True")
    return (begun or EPOCH) + timedelta(seconds=view.policy.settle_seconds)


def _finished(view: EpisodeSetInput, counted: Tally, conditions: Conditions, now: datetime) -> Conditions:
    reason, message = _reason(view, counted, conditions)
    over = len(counted.completed) == counted.total or _stop_reason(view, counted) is not None
    status: Literal["True", "False"] = "True" if over and not counted.active else "False"
    if status == "False" and reason in ("Suspended", _RESUMING):
        reason = "Running"
    return set_condition(conditions, ConditionType.FINISHED, status, reason=reason, message=message, at=now)


def _reason(view: EpisodeSetInput, counted: Tally, conditions: Conditions) -> tuple[str, str]:
    """Return ``status.reason`` and its message: why the set has ended or is ending, or else why it waits."""
    scored = counted.resolved + counted.unresolved
    counts = f"{counted.resolved} of {scored} scored episodes are resolved, {counted.failed} episodes failed"
    stop = _stop_reason(view, counted)
    if stop is None and len(counted.completed) == counted.total:
        return "Completed", counts
    if stop == "TaskListLost":
        return stop, f"{_list_lost(view)}; {counts}"
    if stop is not None:
        rest = f"{counted.active} episodes are still under way" if counted.active else counts
        spent = ""
        if stop == "CostLimitReached":
            spent = f"costLimit is {view.episode_set.spec.cost_limit}, and {write_cost(counted.spent)} is spent: "
        return stop, f"{spent}no more episodes are created; {rest}"
    suspended = find(conditions, ConditionType.SUSPENDED)
    if suspended is not None and suspended.status == "True":
        return suspended.reason, ""
    if view.refused:
        return "EpisodeRefused", fit(f"the API server refuses an Episode of the set: {view.refused}")
    return "Running", fit(view.waits.message)


def _list_lost(view: EpisodeSetInput) -> str:
    name = tasks_name(view.episode_set)
    return (
        f"ConfigMap {name} with the set's list of tasks was deleted; create a new EpisodeSet for the missing episodes"
    )


def _status(
    view: EpisodeSetInput, counted: Tally, conditions: Conditions, *, unfinished: int, now: datetime
) -> EpisodeSetStatus:
    before = view.episode_set.status
    stopped = _stop_reason(view, counted) is not None
    active = min(view.waits.active, unfinished - counted.suspended)
    to_end = unfinished if stopped else counted.total - len(counted.completed)
    finished = is_true(conditions, ConditionType.FINISHED)
    reason, message = _reason(view, counted, conditions)
    return msgspec.structs.replace(
        before,
        conditions=conditions,
        reason=reason,
        message=message,
        completed_indexes=str(counted.completed),
        total=counted.total,
        pending=max(0, to_end - active - counted.suspended),
        active=active,
        suspended=counted.suspended,
        unfinished=unfinished,
        waiting=", ".join(f"{cause} {count}" for cause, count in view.waits.counts),
        resolved=counted.resolved,
        unresolved=counted.unresolved,
        failed=counted.failed,
        failed_indexes=counted.failed_indexes,
        cancelled=counted.cancelled,
        cost=write_cost(counted.cost) if counted.cost else "",
        pass_at_1=pass_at_1(counted.resolved, counted.unresolved),
        arms=counted.arms,
        resolved_by_arm=resolved_by_arm(counted.arms),
        start_time=before.start_time or now,
        completion_time=now if finished else None,
    )


def _write(view: EpisodeSetInput, status: EpisodeSetStatus) -> Plan:
    """Write the status if it has changed, and record an Event if its reason is new."""
    before = view.episode_set.status
    if status == before and not _is_outdated(view):
        return Plan()
    generation = observed_generation(before.observed_generation, view.episode_set.metadata.generation)
    actions: list[Action] = [PatchSetStatus(status=msgspec.structs.replace(status, observed_generation=generation))]
    if status.reason != before.reason and (status.reason != "Running" or before.reason):
        reason = (
            "Resumed" if status.reason == "Running" and before.reason in ("Suspended", _RESUMING) else status.reason
        )
        actions.append(Emit(type="Warning" if reason in _WARNINGS else "Normal", reason=reason, message=status.message))
    return Plan(actions=tuple(actions))


def _is_outdated(view: EpisodeSetInput) -> bool:
    episode_set = view.episode_set
    return is_outdated(episode_set.status.observed_generation, episode_set.metadata.generation)


class NotFrozen(msgspec.Struct, frozen=True, kw_only=True):
    """Why the tasks cannot be frozen yet.

    Attributes:
        message: The missing objects, for users. Empty if the set only has to wait.
        seconds: Seconds until the next try. None: on the next change.
    """

    message: str = ""
    seconds: float | None = None


def tasks_name(episode_set: EpisodeSetView) -> str:
    """Return the name of the ConfigMap. It contains the set's UID, so a recreated set has another name."""
    return f"{episode_set.metadata.name[:200].rstrip('-.')}-tasks-{episode_set.metadata.uid[:8]}"


def encode_tasks(tasks: FrozenTasks) -> dict[str, str]:
    """Return the ConfigMap's data."""
    return {KEY: "".join(f"{name} {uid}\n" for name, uid in tasks)}


def decode_tasks(data: dict[str, str]) -> FrozenTasks | None:
    """Return the tasks, or None if the data is not a valid list of tasks."""
    pairs = [line.split(" ") for line in data.get(KEY, "").splitlines()]
    if not pairs or any(len(pair) != 2 for pair in pairs):
        return None
    return tuple((name, uid) for name, uid in pairs)


def choose(view: EpisodeSetInput, now: datetime) -> FrozenTasks | NotFrozen:
    """Return the tasks to freeze, in the order of their indexes, or why they cannot be frozen yet."""
    present = {task.metadata.name: task for task in view.tasks if task.metadata.deletion_timestamp is None}
    spec = view.episode_set.spec
    if spec.task_selector is None:
        absent = [reference.name for reference in spec.tasks if reference.name not in present]
        if absent:
            return NotFrozen(message=_missing(absent, len(spec.tasks)))
        chosen = [present[reference.name] for reference in spec.tasks]
    else:
        by_name = [task for _, task in sorted(present.items()) if spec.task_selector.matches(task.metadata.labels)]
        chosen = in_order_of_use(by_name, lambda task: task.spec.image)
        if not chosen:
            return NotFrozen(
                message="taskSelector does not select a DebugTask of this namespace; apply tasks with these labels"
            )
        arriving = _still_arriving(view, chosen, now)
        if arriving is not None:
            return arriving
    frozen = tuple((task.metadata.name, task.metadata.uid) for task in chosen)
    if len(encode_tasks(frozen)[KEY]) > SIZE_LIMIT:
        return NotFrozen(message=f"{len(frozen)} tasks are too many for one set; create several sets")
    return frozen


def _still_arriving(view: EpisodeSetInput, chosen: list[TaskView], now: datetime) -> NotFrozen | None:
    """Return a wait if a task is very new: tasks that were applied with the set may not all have been observed."""
    newest = max(task.metadata.creation_timestamp or EPOCH for task in chosen)
    left = (newest + timedelta(seconds=view.policy.settle_seconds) - now).total_seconds()
    return NotFrozen(seconds=left) if left > 0 else None


def _missing(names: list[str], total: int) -> str:
    shown = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
    return f"{len(names)} of {total} tasks are not in this namespace: {shown}; apply them, or correct tasks"


def child_manifest(episode_set: EpisodeSetView, create: CreateEpisode) -> Episode:
    """Return the Episode that a local run of the set's manifest would create, with the set as its controller."""
    metadata, spec = episode_set.metadata, episode_set.spec
    arms = spec.arms[create.index % len(spec.arms) :][:1] if spec.arms else ()
    planned_set = EpisodeSet(
        metadata=ObjectMeta(name=metadata.name, namespace=metadata.namespace or None, labels=metadata.labels),
        spec=msgspec.structs.replace(spec, tasks=(), task_selector=LabelSelector(), samples=1, arms=arms),
    )
    task = DebugTask(metadata=ObjectMeta(name=create.task), spec=DebugTaskSpec())
    planned = expand(planned_set, [task])[0].episode
    owner = Owner(
        api_version=API_VERSION,
        kind="EpisodeSet",
        name=metadata.name,
        uid=metadata.uid,
        controller=True,
        block_owner_deletion=True,
    )
    marks = {INDEX_LABEL: str(create.index), SAMPLE_LABEL: str(create.sample), TASK_UID_LABEL: create.task_uid}
    if episode_set.status.retry:
        marks[RETRY_KEY] = retry_label(episode_set.status.retry)
    agent = planned.spec.agent
    if agent is not None:
        agent = with_cost_limit(agent, spec.cost_limit)
    return msgspec.structs.replace(
        planned,
        metadata=msgspec.structs.replace(
            planned.metadata,
            name=create.name,
            labels={**planned.metadata.labels, **marks},
            owner_references=(owner,),
        ),
        spec=msgspec.structs.replace(planned.spec, agent=agent, priority=spec.priority or planned.spec.priority),
    )


def sandbox_pool_name(episode_set: EpisodeSetView) -> str:
    """Return the name of the set's pool. It contains the set's UID, so a recreated set has another name."""
    return f"{episode_set.metadata.name[:200].rstrip('-.')}-{episode_set.metadata.uid[:8]}"


def plan_sandbox_pool(view: EpisodeSetInput, counted: Tally, starting: int, now: datetime) -> Plan:
    """Create, change or delete the set's pool. ``starting`` is the number of episodes created in this round."""
    wanted = _sandbox_pool_spec(view, counted, starting)
    if wanted is None:
        return without_sandbox_pool(view)
    if view.pool is None:
        return Plan(actions=(CreateSandboxPool(name=sandbox_pool_name(view.episode_set), spec=wanted),))
    before = view.pool.spec
    if (before.task_ref, before.min_idle, before.max_idle) == (wanted.task_ref, wanted.min_idle, wanted.max_idle):
        return Plan()
    due = (view.pool_changed_at or now) + timedelta(seconds=CHANGE_SECONDS)
    if view.pool_changed_at is not None and now < due:
        return Plan(requeue_after=(due - now).total_seconds())
    return Plan(actions=(PatchSandboxPool(name=view.pool.metadata.name, spec=wanted),))


def without_sandbox_pool(view: EpisodeSetInput) -> Plan:
    """Delete the set's pool, if it exists."""
    if view.pool is None or view.pool.metadata.deletion_timestamp is not None:
        return Plan()
    return Plan(actions=(DeleteSandboxPool(name=view.pool.metadata.name, uid=view.pool.metadata.uid),))


def _sandbox_pool_spec(view: EpisodeSetInput, counted: Tally, starting: int) -> SandboxPoolSpec | None:
    """Return the spec of the set's pool, or None if the set does not need a pool."""
    spec, frozen = view.episode_set.spec, view.frozen
    if spec.pool is None or frozen is None or spec.parallelism == 0:
        return None
    left = next_indexes(counted, starting + 1)[starting:]
    if not left:
        return None
    pending = counted.pending(counted.active + starting)
    task, _ = frozen[place_of(spec, len(frozen), left[0]).task]
    least = min(spec.pool.min_idle, pending)
    most = spec.parallelism if spec.pool.max_idle is None else spec.pool.max_idle
    return SandboxPoolSpec(
        task_ref=TaskRef(name=task),
        pod_template=spec.template.pod_template,
        pod_overrides=spec.template.pod_overrides,
        queue_name=spec.template.queue_name,
        min_idle=least,
        max_idle=max(least, min(most, pending, _MOST_IDLE)),
    )
