"""Carries out what was decided about an Episode: the only code that writes one.

Actions are carried out in order, and none after one that failed or was put off. Every answer goes back into the stores,
so that the next decision sees what this one did.
"""

import logging
from datetime import timedelta

import msgspec

from dgym.kube import EPISODES, PODS, Client, EventRecorder, NotFound
from dgym.wire.http import Path, PauseRequest, RunningRequest
from dgym_operator.actions.pods import Gone, PodMaker
from dgym_operator.actions.reader import Reader, Unmet
from dgym_operator.actions.writes import ProgressBudget, Writes, episode_patch
from dgym_operator.cache import Memory, World
from dgym_operator.calls import SidecarCall, SidecarCalls
from dgym_operator.controllers import (
    Action,
    CancelAttempt,
    CreateFailure,
    CreatePod,
    DeleteEpisode,
    DeletePod,
    Emit,
    LookUpPod,
    PatchStatus,
    PauseDeadline,
    Plan,
    SandboxEnded,
    SandboxRunning,
    pod_deadline_seconds,
    still_wants,
)
from dgym_operator.logs import fields
from dgym_operator.objects import EpisodeView, Pod

_log = logging.getLogger(__name__)
PUT_OFF_SECONDS = 2.0
HELD_SECONDS = 1.0
_LONGEST_HELD = timedelta(seconds=120)


class EpisodeExecutor:
    """Writes Episodes and their pods."""

    def __init__(
        self,
        world: World,
        *,
        client: Client,
        writes: Writes,
        reader: Reader,
        pods: PodMaker,
        sidecars: SidecarCalls,
        events: EventRecorder,
        progress: ProgressBudget,
    ) -> None:
        self._world = world
        self._client = client
        self._writes = writes
        self._reader = reader
        self._pods = pods
        self._sidecars = sidecars
        self._events = events
        self._progress = progress

    @property
    def _memory(self) -> Memory:
        return self._world.memory

    async def carry_out(self, episode: EpisodeView, plan: Plan) -> float | None:
        """Do it; when to look again at the latest, in seconds.

        Raises:
            ApiError: An action failed; those behind it were not carried out.
            NotLeading: As above, since another leads.
        """
        for action in plan.actions:
            wait, episode = await self._act(episode, action)
            if wait is not None:
                # It was put off, or showed that the view is old: what follows may rest on it.
                return wait if plan.requeue_after is None else min(plan.requeue_after, wait)
        return plan.requeue_after

    async def _act(self, episode: EpisodeView, action: Action) -> tuple[float | None, EpisodeView]:
        match action:
            case PatchStatus():
                return await self._patch(episode, action)
            case CreatePod():
                return await self._create_pod(episode, action), episode
            case DeletePod():
                key = (episode.metadata.namespace, action.name)
                await self._writes.delete(PODS, self._world.pods, key, action.uid, decode=Pod)
            case LookUpPod():
                return await self._look_up(episode, action), episode
            case DeleteEpisode():
                await self._writes.delete(EPISODES, self._world.episodes, episode.key, action.uid, decode=EpisodeView)
            case SandboxEnded():
                self._sidecars.ask(SidecarCall(Path.VERIFY, action.url, episode.metadata.uid, action.attempt))
            case PauseDeadline():
                request = msgspec.json.encode(PauseRequest(epoch=action.epoch))
                self._sidecars.ask(SidecarCall(Path.PAUSE, action.url, episode.metadata.uid, action.attempt, request))
            case SandboxRunning():
                request = msgspec.json.encode(RunningRequest(observed=action.observed))
                self._sidecars.ask(SidecarCall(Path.RUNNING, action.url, episode.metadata.uid, action.attempt, request))
            case CancelAttempt():
                return self._cancel(episode, action), episode
            case Emit():
                self._events.record(EPISODES, episode, type=action.type, reason=action.reason, message=action.message)
            case _:
                raise TypeError(f"not an action on an Episode: {action!r}")
        return None, episode

    async def _patch(self, episode: EpisodeView, action: PatchStatus) -> tuple[float | None, EpisodeView]:
        metadata = episode.metadata
        patch = episode_patch(episode, action.status)
        if patch is None:
            return None, episode
        if action.progress and not self._progress.allows():
            return PUT_OFF_SECONDS + self._progress.until_turn(), episode
        written = await self._writes.patch_status(
            EPISODES, metadata.name, patch, decode=EpisodeView, namespace=metadata.namespace
        )
        self._world.episodes.assume(written)
        _log.info(
            "wrote the status",
            extra=fields(
                namespace=metadata.namespace,
                episode=metadata.name,
                attempt=written.status.attempt,
                reason=written.status.reason,
            ),
        )
        return None, written

    async def _create_pod(self, episode: EpisodeView, action: CreatePod) -> float | None:
        metadata, uid = episode.metadata, episode.metadata.uid
        about = fields(namespace=metadata.namespace, episode=metadata.name, attempt=action.attempt, pod=action.name)
        if self._is_held(episode, action.name):
            return HELD_SECONDS
        try:
            read, full = await self._reader.episode(metadata.namespace, metadata.name)
            if not still_wants(read, uid, action.attempt):
                return PUT_OFF_SECONDS  # the view is old, and the watch will bring the new one
            seconds = pod_deadline_seconds(episode, self._world.task_state(episode), self._world.policy)
            pod = await self._pods.create(full, name=action.name, attempt=action.attempt, deadline_seconds=seconds)
        except (NotFound, Gone):
            _log.info("nobody wants the pod any more", extra=about)
            return None
        except Unmet as error:
            failure = CreateFailure(
                reason=error.reason.value,
                message=error.message,
                since=self._world.clock.now(),
                passes=error.passes,
                retry_after=error.retry_after or 0.0,
            )
            self._memory.failed(uid, action.attempt, failure)
            _log.info(
                "the pod could not be made: %s",
                error,
                extra={"fields": {**about["fields"], "reason": error.reason.value}},
            )
            return 0.0
        self._memory.made(uid)
        self._world.pods.assume(pod)
        _log.info("made the pod", extra=about)
        return None

    def _cancel(self, episode: EpisodeView, action: CancelAttempt) -> float | None:
        uid = episode.metadata.uid
        ended = self._sidecars.ask(SidecarCall(Path.CANCEL, action.url, uid, action.attempt))
        if not ended or self._memory.cancelled(uid, action.attempt):
            return None
        self._memory.is_cancelled(uid, action.attempt)
        return 0.0

    def _is_held(self, episode: EpisodeView, name: str) -> bool:
        """Whether a deleted Episode of the same name still has a pod of this name, which will go as it has gone.

        One that stays is as much in the way as a pod of somebody else.
        """
        metadata = episode.metadata
        pod = self._world.pods.get((metadata.namespace, name))
        owner = pod.metadata.controller if pod is not None else None
        if owner is None or (owner.kind, owner.name) != ("Episode", metadata.name) or owner.uid == metadata.uid:
            return False
        return self._memory.held_for(metadata.uid, self._world.clock.now()) < _LONGEST_HELD

    async def _look_up(self, episode: EpisodeView, action: LookUpPod) -> float | None:
        uid = episode.metadata.uid
        try:
            pod = await self._client.get(PODS, action.name, decode=Pod, namespace=episode.metadata.namespace)
        except NotFound:
            self._memory.is_absent(uid, action.name)
            return 0.0
        owner = pod.metadata.controller
        if owner is None or owner.uid != uid:
            self._memory.is_absent(uid, action.name)
        else:
            self._world.pods.assume(pod)
        return 0.0
