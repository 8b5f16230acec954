"""The plan for a SandboxPool: how many pods it keeps ready, and which pods it replaces.

A pod serves one attempt. A claimed pod does not return to its pool. An unclaimed pod is replaced when its template hash
is out of date, when it has failed, or when its ``ttlSeconds`` are over.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

import msgspec

from dgym.api import SandboxPoolStatus
from dgym_operator.controllers._conditions import fit, observed_generation, with_readiness
from dgym_operator.controllers._inputs import Policy, SandboxPoolInput, backoff
from dgym_operator.controllers._plan import Action, CreatePooledPod, DeletePod, PatchSandboxPoolStatus, Plan
from dgym_operator.controllers.episode import created, slow_at, start_failure, waiting_cause
from dgym_operator.objects import Pod

_START_SECONDS = 10.0
"""Assumed start-up time of a pod until one of the pool's pods is ready."""
_LONGEST_START_SECONDS = 120.0
RESYNC_SECONDS = 60.0
"""Longest interval between two decisions about a pool. Its template may change without an event on the pool."""


def decide_sandbox_pool(view: SandboxPoolInput, now: datetime) -> Plan:
    """Return the plan: create missing pods, delete pods that cannot be used, and write the pool's status."""
    if view.pool.metadata.deletion_timestamp is not None:
        return Plan()
    dropped = [pod for pod in view.pods if has_failed(pod, view.policy, now) or not _is_useful(view, pod, now)]
    kept = [pod for pod in view.pods if pod not in dropped and pod.metadata.deletion_timestamp is None]
    wanted, deletions = _pods_to_keep(view, kept, now), list(_deletions([*dropped, *view.unusable_pods]))
    surplus = sorted(kept, key=lambda pod: (pod.ready, created(pod)))[: max(0, len(kept) - _max_idle(view))]
    deletions += _deletions(surplus)
    due = _next_try(view)
    creations: tuple[Action, ...] = ()
    if view.template_hash and (due is None or now >= due):
        missing = min(wanted - len(kept), view.policy.pool_creates_per_round)
        creations = (CreatePooledPod(),) * max(0, missing)
    if view.template_hash and len(kept) >= wanted:
        view = msgspec.structs.replace(view, refused="")  # No pod is missing, so the last refusal no longer applies.
    status = _status(view, [pod for pod in kept if pod not in surplus], now)
    changed = (PatchSandboxPoolStatus(status=status),) if status != view.pool.status else ()
    seconds = min((each for each in _waits(view, kept, due, now)), default=RESYNC_SECONDS)
    return Plan(actions=(*changed, *deletions, *creations), requeue_after=min(RESYNC_SECONDS, seconds))


def has_failed(pod: Pod, policy: Policy, now: datetime) -> bool:
    """True if the pod has terminated, cannot start, or did not start in time."""
    if pod.metadata.deletion_timestamp is not None:
        return False
    ended = any(pod.terminated(name) is not None for name in ("sandbox", "verifier", "sidecar"))
    return ended or pod.is_over or start_failure(pod) is not None or _is_late(pod, policy, now)


def _is_late(pod: Pod, policy: Policy, now: datetime) -> bool:
    """True if the pod should be ready by now. A pod with a scheduling gate has no time limit."""
    cause = waiting_cause(pod)
    if pod.ready or (cause is not None and cause.gated):
        return False
    return now >= slow_at(pod, policy.pool_start_timeout_seconds)


def _is_useful(view: SandboxPoolInput, pod: Pod, now: datetime) -> bool:
    expired = now >= created(pod) + timedelta(seconds=view.pool.spec.ttl_seconds)
    same = not view.template_hash or pod.metadata.annotations.template_hash == view.template_hash
    return same and not expired


def _max_idle(view: SandboxPoolInput) -> int:
    spec = view.pool.spec
    return spec.min_idle if spec.max_idle is None else max(spec.min_idle, spec.max_idle)


def _pods_to_keep(view: SandboxPoolInput, kept: list[Pod], now: datetime) -> int:
    """Return the number of pods to keep: ``minIdle``, or if it is higher the demand during one pod's start-up time.

    Misses raise the demand to at most twice the number of claims. A set may start hundreds of episodes at once and
    fewer afterwards: hundreds of new pods would be ready too late, and then stay idle.
    """
    window = timedelta(seconds=start_seconds(kept))
    claimed, missed = (sum(now - each < window for each in times) for times in (view.claims, view.misses))
    demand = max(claimed, min(claimed + missed, max(1, 2 * claimed)))
    return min(_max_idle(view), max(view.pool.spec.min_idle, demand))


def start_seconds(pods: list[Pod]) -> float:
    """Return the longest observed start-up time of these pods in seconds, between 1 and 120; 10 if none is ready."""
    starts = [
        (ready.last_transition_time - created(pod)).total_seconds()
        for pod in pods
        if (ready := pod.condition("Ready")) is not None and ready.status == "True" and ready.last_transition_time
    ]
    return min(_LONGEST_START_SECONDS, max((*starts, 1.0))) if starts else _START_SECONDS


def _deletions(pods: list[Pod]) -> Iterator[DeletePod]:
    for pod in pods:
        if pod.metadata.deletion_timestamp is None:
            yield DeletePod(name=pod.metadata.name, uid=pod.metadata.uid)


def _next_try(view: SandboxPoolInput) -> datetime | None:
    """Return when the next pod may be created after failures, or None if there is no back-off."""
    if view.failed_at is None or not view.failures:
        return None
    policy = view.policy
    seconds = backoff(policy.backoff_seconds, policy.backoff_limit_seconds, view.failures)
    return view.failed_at + timedelta(seconds=seconds)


def _status(view: SandboxPoolInput, kept: list[Pod], now: datetime) -> SandboxPoolStatus:
    before, spec = view.pool.status, view.pool.spec
    idle = sum(pod.ready for pod in kept)
    reason, message = _reason(view, kept, idle)
    stalled = reason in ("Refused", "SandboxStartFailed")
    conditions = with_readiness(
        before.conditions,
        ready=idle >= spec.min_idle and not view.refused,
        stalled=stalled,
        reason=reason,
        message=message,
        at=now,
    )
    return msgspec.structs.replace(
        before,
        conditions=conditions,
        reason=reason,
        message=fit(message),
        idle=idle,
        starting=len(kept) - idle,
        claimed=max(before.claimed, view.claimed),
        observed_generation=observed_generation(before.observed_generation, view.pool.metadata.generation),
    )


def _reason(view: SandboxPoolInput, kept: list[Pod], idle: int) -> tuple[str, str]:
    if view.refused:
        return "Refused", view.refused
    if not view.pool.spec.min_idle and not kept:
        return "Disabled", "minIdle is 0"
    if idle >= view.pool.spec.min_idle:
        return "Ready", ""
    causes = (waiting_cause(pod) for pod in kept if not pod.ready)
    cause = next((each for each in causes if each is not None), None)
    if cause is not None:
        return cause.reason, cause.message
    if view.failures:
        return "SandboxStartFailed", f"{view.failures} pods in a row have failed before they were ready"
    return "Starting", f"{idle} of {view.pool.spec.min_idle} sandboxes are ready"


def _waits(view: SandboxPoolInput, kept: list[Pod], due: datetime | None, now: datetime) -> Iterator[float]:
    """Yield the seconds until each pod's time to live ends, and until the end of the back-off."""
    ttl = timedelta(seconds=view.pool.spec.ttl_seconds)
    moments = [created(pod) + ttl for pod in kept]
    for moment in (*moments, due) if due is not None and due > now else moments:
        yield max(0.1, (moment - now).total_seconds())
