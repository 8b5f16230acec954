"""Fixes of the operator that are reverted separately. The simulation must detect each reverted fix."""

from unittest.mock import patch

import msgspec

from dgym.kube import InformerStore
from dgym_operator.actions import NetworkPolicies, _episodes, _pods, _writes
from dgym_operator.app._reconciler import Reconciler
from dgym_operator.cache import Cache, Informers, Memory
from dgym_operator.controllers import Children, EpisodeInput, PatchStatus, Plan, Waits
from dgym_operator.controllers.episode import _attempt, _clocks, _controller, _finish, _pod_status
from dgym_operator.controllers.episodeset import _controller as set_controller
from dgym_operator.controllers.episodeset import _counts
from dgym_operator.dispatch._admission import ModelsOut
from dgym_operator.dispatch._holds import Outages, Quotas
from tests.simulation.faults import CANCELLED_SET, STRANGER, Fault
from tests.simulation.schedule import Schedule
from tests.simulation.store import ResultsStore

_assign = Reconciler._assign
_waits = Reconciler._waits
_status_patch = _writes.status_patch
_claim_patch = _pods.claim_patch
_plan_retry = _counts.plan_retry
_after_finish = _finish.after_finish


def _finish_at_once(view, end, now):
    return _finish.finish_attempt(view, _finish._decided(view, end), now)


def _without_version(old, new, _version):
    difference = _status_patch(old, new, "")
    return {"status": difference["status"]} if difference is not None else None


def _claim_without_version(*args, **options):
    patched = _claim_patch(*args, **options)
    del patched["metadata"]["resourceVersion"]
    return patched


async def _release_first(self, key, view, request, agent):
    self.dispatcher.release_agent_pod(key)
    return await _assign(self, key, view, request, agent)


async def _nothing(*_args):
    """Do nothing."""


def _epoch_of_attempt(view):
    return (view.assignment.epoch if view.assignment is not None else 0) + 1


def _same_epoch(view):
    return max(1, view.episode.status.epoch)


def _lost_at_once(view, pod, _deadline, now):
    return _pod_status._report_or(view, _pod_status.loss(pod), None, now)


def _no_plan(_view):
    return Plan()


def _assume_deleted(self, key, uid, _last):
    self.assume_deleted(key, uid)


def _all_active(self, episode_set):
    return msgspec.structs.replace(_waits(self, episode_set), active=10**6)


def _without_cause(self, episode_set):
    return Waits(active=_waits(self, episode_set).active)


async def _absent(*_args, **_options):
    return False


def _retry_at_once(view, now):
    return _plan_retry(msgspec.structs.replace(view, children=Children()), now)


def _finish_again(view, now):
    again = PatchStatus(status=msgspec.structs.replace(view.episode.status, completion_time=now))
    return Plan(actions=(again, *_after_finish(view, now).actions))


MUTATIONS = {
    "no agent looks for a stored outcome": lambda: patch.object(_controller, "end_attempt", _finish_at_once),
    "leadership is not checked before writes": lambda: patch.object(_writes.Writes, "_check", lambda _self: None),
    "epochs begin anew with each attempt": lambda: patch.object(
        EpisodeInput, "next_epoch", property(_epoch_of_attempt)
    ),
    "another agent gets the same epoch": lambda: patch.object(EpisodeInput, "next_epoch", property(_same_epoch)),
    "status is written whatever its version is": lambda: patch.object(_writes, "status_patch", _without_version),
    "a slot is released before its assignment is written": lambda: patch.object(Reconciler, "_assign", _release_first),
    "a new leader trusts its watch": lambda: patch.object(Informers, "catch_up", _nothing),
    "an attempt is lost before its agent has reported": lambda: patch.object(
        EpisodeInput, "awaits_report", property(lambda _view: False)
    ),
    "the last message of a deleted pod is not awaited": lambda: patch.object(
        _pod_status, "_terminating", _lost_at_once
    ),
    "a conflict at a deletion counts as done": lambda: patch.object(_writes.Writes, "_exists", _absent),
    "a pod is created from an old view": lambda: patch.object(_episodes, "still_requires_pod", lambda *_args: True),
    "the cache is trusted before this leader has written": lambda: patch.object(
        Memory, "has_written", lambda *_args: True
    ),
    "an attempt is not given up before the next": lambda: patch.object(ResultsStore, "give_up", ResultsStore.get),
    "the sidecar is not asked while an end is awaited": lambda: patch.object(_controller, "sidecar_requests", _no_plan),
    "an end of all containers is the agent's doing": lambda: patch.multiple(
        _pod_status, _UNOBSERVED_REASONS=(), _UNOBSERVED_CODE=-1, _killed_together=lambda *_ends: False
    ),
    "a death with its pod is the agent's doing": lambda: patch.object(_pod_status, "_by_itself", lambda *_death: True),
    "a cancelled attempt is not scored": lambda: patch.object(_finish, "_cancelling", lambda *_view: None),
    "a pod that is gone at its deletion is not awaited": lambda: patch.object(
        InformerStore, "assume_ended", _assume_deleted
    ),
    "an attempt has the clock of its agents": lambda: patch.object(_clocks, "termination_message", lambda *_view: None),
    "name and owner make a pod the episode's": lambda: patch.object(Cache, "owns", lambda *_pod: True),
    "a lost sandbox waits for its agent": lambda: patch.object(_controller, "lose_sandbox", lambda *_view: None),
    "a pod is claimed whatever its version is": lambda: patch.object(_pods, "claim_patch", _claim_without_version),
    "the NetworkPolicy is trusted once applied": lambda: patch.object(NetworkPolicies, "reconcile", _nothing),
    "the end of a pod opens no quota": lambda: patch.object(Quotas, "freed", lambda *_args: False),
    "a set counts all unfinished episodes as active": lambda: patch.object(Reconciler, "_waits", _all_active),
    "a set does not show what its episodes wait for": lambda: patch.object(Reconciler, "_waits", _without_cause),
    "a cancelled episode that never began is unresolved": lambda: patch.object(
        _counts, "_is_cancelled", lambda _child: False
    ),
    "an agent whose model is out gets its episodes": lambda: patch.multiple(
        Outages, of_agent_pods=lambda _self: ModelsOut(), by_pool=lambda _self: {}
    ),
    "an agent gets a pod that is not bound": lambda: patch.object(
        EpisodeInput, "is_bound", property(lambda _view: True)
    ),
    "the deadline runs while an episode waits for its model": lambda: patch.object(
        _attempt, "sidecar_requests", _no_plan
    ),
    "a finished episode is written again": lambda: patch.object(_controller, "after_finish", _finish_again),
    "an episode expires before its set has counted it": lambda: patch.object(Cache, "_is_counted", lambda *_: True),
    "a retry does not wait for the end of the old episodes": lambda: patch.object(
        set_controller, "plan_retry", _retry_at_once
    ),
}
"""Patches by a description of what they revert."""

_LOST = Schedule(0, (Fault(20.0, "cluster: agent and pod lost as it stores", 0, 50.0),), 0.0)
_REBOOTS = tuple(Fault(20.0 + 6.0 * number, "pod: on a rebooted node", number, 3.0 + number) for number in range(2))
_SANDBOXES = tuple(Fault(14.0 + 6.0 * number, "pod: without its sandbox", number, 50.0) for number in range(2))

FOUND_BY = {
    "no agent looks for a stored outcome": _LOST,
    "an attempt is not given up before the next": _LOST,
    "epochs begin anew with each attempt": _LOST,
    "another agent gets the same epoch": Schedule(0, (Fault(20.0, "agent: deleted", 0, 50.0),), 0.0),
    "a slot is released before its assignment is written": Schedule(0, (), 0.15, slots=1),
    "an end of all containers is the agent's doing": Schedule(0, _REBOOTS, 0.0),
    "a cancelled attempt is not scored": Schedule(0, (Fault(25.0, "episode: cancelled", 0, 0.0),), 0.0),
    "an attempt has the clock of its agents": Schedule(0, (Fault(25.0, "pod: deleted", 0, 0.0),), 0.0),
    "a lost sandbox waits for its agent": Schedule(0, _SANDBOXES, 0.0),
    "name and owner make a pod the episode's": Schedule(0, (Fault(0.0, STRANGER, 0, 60.0),), 0.0),
    "the sidecar is not asked while an end is awaited": Schedule(0, (), 0.0, ("deadly once",) * 4),
    "a pod is claimed whatever its version is": Schedule(0, (), 0.0, idle=2),
    "the NetworkPolicy is trusted once applied": Schedule(0, (Fault(45.0, "policy: deleted", 0, 0.0),), 0.0),
    "the end of a pod opens no quota": Schedule(0, (), 0.0, (), 8, quota=3, samples=18),
    "a set counts all unfinished episodes as active": Schedule(0, (), 0.0, (), quota=1, samples=6),
    "a set does not show what its episodes wait for": Schedule(0, (), 0.0, (), quota=1, samples=6),
    "a cancelled episode that never began is unresolved": Schedule(
        0, (Fault(20.0, CANCELLED_SET, 0, 0.0),), 0.0, (), quota=1, samples=6
    ),
    "an agent whose model is out gets its episodes": Schedule(
        0, (Fault(30.0, "cluster: model away", 0, 7200.0),), 0.0, ("agent",) * 4, samples=4
    ),
    "an agent gets a pod that is not bound": Schedule(0, (), 0.15, idle=2),
    "the deadline runs while an episode waits for its model": Schedule(
        0, (Fault(30.0, "cluster: model away", 0, 7200.0),), 0.0, ("agent",) * 8
    ),
    "a finished episode is written again": Schedule(0, (), 0.0, ("agent",)),
    "an episode expires before its set has counted it": Schedule(0, (), 0.0, (), 4, samples=2, arms=2, ttl=0),
    "a retry does not wait for the end of the old episodes": Schedule(
        0, (Fault(100.0, "set: retried", 0, 0.0),), 0.0, (), 4, samples=1, arms=3
    ),
}
"""Schedules that detect a reverted fix under most or some seeds, after any other change of the operator."""
