"""The plan for the SandboxPool of a set with ``spec.pool``.

It exists while episodes of the set are to begin. Its task is that of the next of them, so that sandboxes of tasks that
are over are replaced.
"""

from datetime import datetime, timedelta

from dgym.api import SandboxPoolSpec, TaskRef, place_of
from dgym_operator.controllers.episodeset.counts import Tally, next_indexes
from dgym_operator.controllers.inputs import EpisodeSetInput
from dgym_operator.controllers.plan import CreatePool, DeletePool, PatchPool, Plan
from dgym_operator.objects import EpisodeSetView

_MOST_IDLE = 1000
CHANGE_SECONDS = 30.0
"""Between two changes of the pool: the next task may be another one many times a second."""


def pool_name(episode_set: EpisodeSetView) -> str:
    """Name of the set's pool; a set that was deleted and created again has another one."""
    return f"{episode_set.metadata.name[:200].rstrip('-.')}-{episode_set.metadata.uid[:8]}"


def plan_pool(view: EpisodeSetInput, counted: Tally, starting: int, now: datetime) -> Plan:
    """Create, change or delete the set's pool, as ``starting`` more episodes begin now."""
    wanted = _wanted(view, counted, starting)
    if wanted is None:
        return without_pool(view)
    if view.pool is None:
        return Plan(actions=(CreatePool(name=pool_name(view.episode_set), spec=wanted),))
    before = view.pool.spec
    if (before.task_ref, before.min_idle, before.max_idle) == (wanted.task_ref, wanted.min_idle, wanted.max_idle):
        return Plan()
    due = (view.pool_changed_at or now) + timedelta(seconds=CHANGE_SECONDS)
    if view.pool_changed_at is not None and now < due:
        return Plan(requeue_after=(due - now).total_seconds())
    return Plan(actions=(PatchPool(name=view.pool.metadata.name, spec=wanted),))


def without_pool(view: EpisodeSetInput) -> Plan:
    """Delete the set's pool, if there is one."""
    if view.pool is None or view.pool.metadata.deletion_timestamp is not None:
        return Plan()
    return Plan(actions=(DeletePool(name=view.pool.metadata.name, uid=view.pool.metadata.uid),))


def _wanted(view: EpisodeSetInput, counted: Tally, starting: int) -> SandboxPoolSpec | None:
    """The spec of the pool; None: there is to be none."""
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
