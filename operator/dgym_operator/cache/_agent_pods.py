"""The observed state of agent pods: their pods, their reports, and which of them are lost.

``dispatch.polling`` polls the agent pods. This module does no I/O. Each observed state is kept with the time of its
first observation, because decisions use its age.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from datetime import datetime, timedelta

import msgspec

from dgym.api import AgentPodAssignment, Stages
from dgym.kube import Clock
from dgym.wire.assignments import AgentPodReport, AssignmentStatus
from dgym_operator.calls import AgentPodAddress
from dgym_operator.controllers import AgentPodView
from dgym_operator.objects import EpisodeView, Pod

_GONE_REMEMBERED = 1000

Term = tuple[int, int]
"""Attempt and epoch. Together they identify one assignment of an episode."""


class ObservedStatus(msgspec.Struct, frozen=True):
    """The reported status of one episode, when its state was first observed, and the times of its steps."""

    status: AssignmentStatus
    since: datetime
    stages: Stages = Stages()

    @property
    def term(self) -> Term:
        """The assignment that the status is about."""
        return self.status.attempt, self.status.epoch


class ActiveTime(msgspec.Struct, frozen=True):
    """How long an episode's deadline clock has run under one assignment, including earlier processes of the agent pod.

    Attributes:
        term: The assignment.
        before: Seconds under earlier processes.
        reported: Seconds that the current process reported.
    """

    term: Term
    before: int
    reported: int

    @property
    def seconds(self) -> int:
        """Total seconds."""
        return self.before + self.reported


class AgentPod(msgspec.Struct, kw_only=True):
    """One agent pod.

    Attributes:
        uid: UID of the pod.
        name: Name of the pod.
        pool: Pool of agent pods, from the pod's label. Empty: the pool of all namespaces.
        url: URL of the agent pod. Empty while the pod has no address.
        ready: True if the pod is ready and not being deleted.
        answered: Monotonic time of the last report, or of the start of polling.
        report: The last report.
        requested: When the last report was requested.
        draining_since: When the agent pod first reported that it accepts no more episodes.
        failure: Why the last poll failed. Empty if it succeeded.
        refuses_token: True if the agent pod refused the operator's token.
        observed: Reported statuses by the UID of the episode.
        delivered: Term and monotonic time of the last delivery, by the UID of the episode.
    """

    uid: str
    name: str
    pool: str = ""
    url: str = ""
    ready: bool = False
    answered: float
    report: AgentPodReport | None = None
    requested: datetime | None = None
    draining_since: datetime | None = None
    failure: str = ""
    refuses_token: bool = False
    observed: dict[str, ObservedStatus] = {}
    delivered: dict[str, tuple[Term, float]] = {}

    @property
    def takes_more(self) -> bool:
        """True if it accepts episodes. Without its results store it could not save their steps."""
        report = self.report
        return self.ready and report is not None and not report.draining and not report.store_problem

    @property
    def address(self) -> AgentPodAddress:
        """The address of the agent pod, with the data from which its token is derived."""
        return AgentPodAddress(self.url, self.uid, self.pool)

    def acknowledges(self, episode_uid: str, term: Term) -> bool:
        """True if its last report contains this assignment."""
        observed = self.observed.get(episode_uid)
        return observed is not None and observed.term == term


class AgentPods:
    """All agent pods by their UID."""

    def __init__(self, clock: Clock, *, port: int, silence_seconds: float) -> None:
        self._clock = clock
        self._port = port
        self._silence = silence_seconds
        self._agent_pods: dict[str, AgentPod] = {}
        self._gone: OrderedDict[str, tuple[str, datetime]] = OrderedDict()
        self._undeliverable: dict[str, ObservedStatus] = {}
        self._active: dict[str, ActiveTime] = {}
        self._lost: dict[str, tuple[int, datetime]] = {}
        self.appeared = asyncio.Event()
        """Set when a new agent pod can be polled."""

    def __iter__(self) -> Iterator[AgentPod]:
        return iter(tuple(self._agent_pods.values()))

    def get(self, uid: str) -> AgentPod | None:
        """Return the agent pod, or None if it does not exist."""
        return self._agent_pods.get(uid)

    # Pods

    def observe_pod(self, pod: Pod) -> None:
        """Add or update the agent pod, or remove it if it has terminated."""
        uid = pod.metadata.uid
        if pod.status.phase in ("Failed", "Succeeded"):
            self.remove(uid)
            return
        agent_pod = self._agent_pods.get(uid)
        if agent_pod is None:
            metadata, now = pod.metadata, self._clock.monotonic()
            agent_pod = self._agent_pods[uid] = AgentPod(
                uid=uid, name=metadata.name, pool=metadata.labels.pool, answered=now
            )
        if not agent_pod.url and pod.status.pod_ip:
            self.appeared.set()
        agent_pod.url = pod.url(self._port)
        agent_pod.ready = pod.ready and bool(agent_pod.url) and pod.metadata.deletion_timestamp is None

    def remove(self, uid: str) -> None:
        """Remove an agent pod that is gone or has terminated."""
        agent_pod = self._agent_pods.pop(uid, None)
        if agent_pod is not None:
            self._remember_gone(uid, agent_pod.name)

    def start_polling(self) -> None:
        """Count the silence of all agent pods from now, because they were not polled before."""
        for agent_pod in self:
            agent_pod.answered = self._clock.monotonic()

    # Reports

    def observe_report(self, agent_pod: AgentPod, report: AgentPodReport, requested: datetime) -> set[str]:
        """Record the report that was requested at ``requested``.

        Returns:
            The UIDs of episodes whose state or message has changed.
        """
        now = self._clock.now()
        before, agent_pod.observed = agent_pod.observed, {}
        for status in report.assignments:
            agent_pod.observed[status.episode_uid] = _observe(before.get(status.episode_uid), status, now)
            if status.active_seconds:
                self._active[status.episode_uid] = _active_time(self._active.get(status.episode_uid), status)
        agent_pod.report, agent_pod.requested = report, requested
        agent_pod.failure, agent_pod.refuses_token = "", False
        agent_pod.draining_since = (agent_pod.draining_since or now) if report.draining else None
        agent_pod.answered = self._clock.monotonic()
        changed = {
            uid
            for uid, seen in agent_pod.observed.items()
            if uid not in before or (before[uid].since, before[uid].status.message) != (seen.since, seen.status.message)
        }
        return changed | (before.keys() - agent_pod.observed.keys())

    def record_undeliverable(self, status: AssignmentStatus) -> bool:
        """Record that an assignment cannot be delivered, which counts as its failure. Returns True if this is new."""
        before = self._undeliverable.get(status.episode_uid)
        observed = self._undeliverable[status.episode_uid] = _observe(before, status, self._clock.now())
        return before is None or before.since != observed.since

    def record_delivered(self, episode_uid: str) -> None:
        """Record that the assignment was delivered."""
        self._undeliverable.pop(episode_uid, None)
        self._lost.pop(episode_uid, None)

    def forget(self, episode_uid: str) -> None:
        """Remove all records of an Episode that is gone."""
        self.record_delivered(episode_uid)
        self._active.pop(episode_uid, None)

    def open_slots(self, agent_pod: AgentPod) -> int | None:
        """Return the total number of its slots, used ones included. None if it does not accept episodes at present."""
        if agent_pod.report is None or not agent_pod.takes_more or self.is_silent(agent_pod):
            return None
        return agent_pod.report.slots

    def recoverer(self, before: str, pool: str | None) -> AgentPod | None:
        """Choose an agent pod of the pool that looks for a stored outcome.

        The previous agent pod is preferred, because it may have the outcome. None if no agent pod is available.
        """
        able = (agent_pod for agent_pod in self if agent_pod.pool == pool and self.open_slots(agent_pod) is not None)
        return min(
            able, key=lambda agent_pod: (agent_pod.uid != before, len(agent_pod.observed), agent_pod.uid), default=None
        )

    def is_silent(self, agent_pod: AgentPod) -> bool:
        """True if it has not answered for too long."""
        return self._clock.monotonic() - agent_pod.answered >= self._silence

    def view(self, episode: EpisodeView) -> AgentPodView | None:
        """Return the observed state of the agent pod that the Episode is assigned to, or None if not known yet."""
        assignment = episode.status.assignment
        view = self._view(episode, assignment) if assignment is not None else None
        active = self._active.get(episode.metadata.uid)
        if view is None or assignment is None or active is None:
            return view
        current = active.term == (episode.status.attempt, assignment.epoch)
        return msgspec.structs.replace(view, active_seconds=active.seconds if current else 0)

    def _view(self, episode: EpisodeView, assignment: AgentPodAssignment) -> AgentPodView | None:
        agent_pod = self._agent_pods.get(assignment.agent_pod_uid)
        if agent_pod is None:
            name, _ = self._gone_since(assignment.agent_pod_uid)
            since = self._lost_since(episode.metadata.uid, assignment)
            return AgentPodView(lost_since=since, lost=f"agent pod {name} is gone")
        if self.is_silent(agent_pod):
            silent = timedelta(seconds=self._clock.monotonic() - agent_pod.answered)
            lost = f"agent pod {agent_pod.name} has not answered for {self._silence:.0f} s"
            return AgentPodView(
                lost_since=self._clock.now() - silent,
                lost=f"{lost}: {agent_pod.failure}" if agent_pod.failure else lost,
            )
        if agent_pod.report is None:
            return None
        term = (episode.status.attempt, assignment.epoch)
        observed = self._observed(agent_pod, episode.metadata.uid, term)
        if agent_pod.draining_since is not None and (observed is None or observed.term != term):
            # A draining agent pod refuses new assignments, so it will never acknowledge this assignment.
            lost = f"agent pod {agent_pod.name} is terminating and does not accept episodes"
            return AgentPodView(lost_since=agent_pod.draining_since, lost=lost)
        if observed is None:
            return AgentPodView(requested=agent_pod.requested)
        return AgentPodView(
            status=observed.status, since=observed.since, requested=agent_pod.requested, stages=observed.stages
        )

    def _observed(self, agent_pod: AgentPod, uid: str, term: Term) -> ObservedStatus | None:
        failed = self._undeliverable.get(uid)
        if failed is None or failed.term != term or agent_pod.acknowledges(uid, term):
            return agent_pod.observed.get(uid)
        return failed

    def _lost_since(self, episode_uid: str, assignment: AgentPodAssignment) -> datetime:
        """Return when the loss of this assignment's agent pod was first observed. It may be gone for longer."""
        _, gone = self._gone_since(assignment.agent_pod_uid)
        epoch, since = self._lost.get(episode_uid, (0, gone))
        if epoch != assignment.epoch:
            since = self._clock.now() if assignment.losses else gone
            self._lost[episode_uid] = (assignment.epoch, since)
        return since

    def _gone_since(self, uid: str) -> tuple[str, datetime]:
        """Return the pod's name, or its UID if it was never observed, and when it was first missing."""
        return self._gone.get(uid) or self._remember_gone(uid, f"with the UID {uid}")

    def _remember_gone(self, uid: str, name: str) -> tuple[str, datetime]:
        self._gone[uid] = name, self._clock.now()
        if len(self._gone) > _GONE_REMEMBERED:
            self._gone.popitem(last=False)
        return self._gone[uid]


def _observe(before: ObservedStatus | None, status: AssignmentStatus, now: datetime) -> ObservedStatus:
    stages = before.stages if before is not None and before.status.attempt == status.attempt else Stages()
    if status.steps and (before is None or before.status.steps != status.steps):
        stages = msgspec.structs.replace(stages, first_step=stages.first_step or now, last_step=now)
    observed = ObservedStatus(status, now, stages)
    if before is None or (before.term, before.status.state) != (observed.term, status.state):
        return observed
    return msgspec.structs.replace(observed, since=before.since)


def _active_time(before: ActiveTime | None, status: AssignmentStatus) -> ActiveTime:
    term = (status.attempt, status.epoch)
    if before is None or before.term != term:
        return ActiveTime(term, 0, status.active_seconds)
    # A restarted process counts from zero.
    past = before.seconds if status.active_seconds < before.reported else before.before
    return ActiveTime(term, past, status.active_seconds)
