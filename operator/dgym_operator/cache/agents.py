"""The observed state of agents: their pods, their reports, and which of them are lost.

Agents are found by their pods and polled elsewhere; nothing here waits. Each observed state is kept with the time of
its first observation, since decisions need its age.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from datetime import datetime, timedelta

import msgspec

from dgym.api import AgentAssignment, Stages
from dgym.kube import Clock
from dgym.wire.assignments import AgentReport, AssignmentStatus
from dgym_operator.calls import AgentAddress
from dgym_operator.controllers import AgentView
from dgym_operator.objects import EpisodeView, Pod

_GONE_REMEMBERED = 1000

Term = tuple[int, int]
"""Attempt and epoch, which identify one assignment of an episode."""


class ObservedStatus(msgspec.Struct, frozen=True):
    """An agent's status of one episode, since when it has that state, and the steps' times."""

    status: AssignmentStatus
    since: datetime
    stages: Stages = Stages()

    @property
    def term(self) -> Term:
        """The assignment that the status is about."""
        return self.status.attempt, self.status.epoch


class ActiveTime(msgspec.Struct, frozen=True):
    """How long an episode's deadline has run under one assignment, over restarts of the agent's process."""

    term: Term
    before: int
    reported: int

    @property
    def seconds(self) -> int:
        """The total."""
        return self.before + self.reported


class Agent(msgspec.Struct, kw_only=True):
    """One agent pod.

    Attributes:
        uid: Of the pod.
        name: Of the pod.
        pool: Of the agents' pools, by the pod's label; empty: the one of all namespaces.
        url: Where the agent listens; empty while the pod has no address.
        ready: Whether the pod is ready and not being deleted.
        answered: Monotonic time of the last report, or of the begin of polling.
        report: The last report.
        asked: When it was requested.
        draining_since: When the agent first reported that it takes no more episodes.
        failure: Why the last poll failed; empty: it did not.
        refuses_token: Whether the agent refused the operator's token.
        observed: Reported statuses by the UID of the episode.
        delivered: AgentAssignment and monotonic time of the last delivery, by the UID of the episode.
    """

    uid: str
    name: str
    pool: str = ""
    url: str = ""
    ready: bool = False
    answered: float
    report: AgentReport | None = None
    asked: datetime | None = None
    draining_since: datetime | None = None
    failure: str = ""
    refuses_token: bool = False
    observed: dict[str, ObservedStatus] = {}
    delivered: dict[str, tuple[Term, float]] = {}

    @property
    def takes_more(self) -> bool:
        """Whether it may be assigned episodes, slots allowing. Without its store it could not keep their steps."""
        report = self.report
        return self.ready and report is not None and not report.draining and not report.store_problem

    @property
    def address(self) -> AgentAddress:
        """Where and by which token it is called."""
        return AgentAddress(self.url, self.uid, self.pool)

    def acknowledges(self, episode_uid: str, term: Term) -> bool:
        """Whether its last report has exactly this assignment."""
        observed = self.observed.get(episode_uid)
        return observed is not None and observed.term == term


class Agents:
    """All agents by the UID of their pod."""

    def __init__(self, clock: Clock, *, port: int, silence_seconds: float) -> None:
        self._clock = clock
        self._port = port
        self._silence = silence_seconds
        self._agents: dict[str, Agent] = {}
        self._gone: OrderedDict[str, tuple[str, datetime]] = OrderedDict()
        self._undeliverable: dict[str, ObservedStatus] = {}
        self._active: dict[str, ActiveTime] = {}
        self._lost: dict[str, tuple[int, datetime]] = {}
        self.appeared = asyncio.Event()
        """Set when a new agent can be polled."""

    def __iter__(self) -> Iterator[Agent]:
        return iter(tuple(self._agents.values()))

    def get(self, uid: str) -> Agent | None:
        """The agent, while its pod exists."""
        return self._agents.get(uid)

    # Pods

    def observe_pod(self, pod: Pod) -> None:
        """Add or update the agent of this pod."""
        uid = pod.metadata.uid
        if pod.status.phase in ("Failed", "Succeeded"):
            self.remove(uid)
            return
        agent = self._agents.get(uid)
        if agent is None:
            metadata, now = pod.metadata, self._clock.monotonic()
            agent = self._agents[uid] = Agent(uid=uid, name=metadata.name, pool=metadata.labels.pool, answered=now)
        if not agent.url and pod.status.pod_ip:
            self.appeared.set()
        agent.url = pod.url(self._port)
        agent.ready = pod.ready and bool(agent.url) and pod.metadata.deletion_timestamp is None

    def remove(self, uid: str) -> None:
        """Remove the agent: its pod is gone, or will never run again."""
        agent = self._agents.pop(uid, None)
        if agent is not None:
            self._remember_gone(uid, agent.name)

    def start_polling(self) -> None:
        """Count silence from now: before, the agents were not polled."""
        for agent in self:
            agent.answered = self._clock.monotonic()

    # Reports

    def observe_report(self, agent: Agent, report: AgentReport, asked: datetime) -> set[str]:
        """Record the report that was requested then; returns the UIDs of episodes with another state or message."""
        now = self._clock.now()
        before, agent.observed = agent.observed, {}
        for status in report.assignments:
            agent.observed[status.episode_uid] = _observe(before.get(status.episode_uid), status, now)
            if status.active_seconds:
                self._active[status.episode_uid] = _active_time(self._active.get(status.episode_uid), status)
        agent.report, agent.asked = report, asked
        agent.failure, agent.refuses_token = "", False
        agent.draining_since = (agent.draining_since or now) if report.draining else None
        agent.answered = self._clock.monotonic()
        changed = {
            uid
            for uid, seen in agent.observed.items()
            if uid not in before or (before[uid].since, before[uid].status.message) != (seen.since, seen.status.message)
        }
        return changed | (before.keys() - agent.observed.keys())

    def record_undeliverable(self, status: AssignmentStatus) -> bool:
        """Record that an assignment cannot be delivered, which counts as its failure; returns whether that is new."""
        before = self._undeliverable.get(status.episode_uid)
        observed = self._undeliverable[status.episode_uid] = _observe(before, status, self._clock.now())
        return before is None or before.since != observed.since

    def record_delivered(self, episode_uid: str) -> None:
        """Record that the agent has its assignment."""
        self._undeliverable.pop(episode_uid, None)
        self._lost.pop(episode_uid, None)

    def forget(self, episode_uid: str) -> None:
        """Drop all records of an Episode that is gone."""
        self.record_delivered(episode_uid)
        self._active.pop(episode_uid, None)

    def open_slots(self, agent: Agent) -> int | None:
        """How many episodes it serves at a time, the present ones included; None: it takes no more for now."""
        if agent.report is None or not agent.takes_more or self.is_silent(agent):
            return None
        return agent.report.slots

    def recoverer(self, before: str, pool: str | None) -> Agent | None:
        """The agent of the pool that looks for a stored verdict: the one before, which may hold it, or else any."""
        able = (agent for agent in self if agent.pool == pool and self.open_slots(agent) is not None)
        return min(able, key=lambda agent: (agent.uid != before, len(agent.observed), agent.uid), default=None)

    def is_silent(self, agent: Agent) -> bool:
        """Whether it has not answered for too long."""
        return self._clock.monotonic() - agent.answered >= self._silence

    def view(self, episode: EpisodeView) -> AgentView | None:
        """The observed state of the agent that the Episode is assigned to; None: none yet."""
        assignment = episode.status.assignment
        view = self._view(episode, assignment) if assignment is not None else None
        active = self._active.get(episode.metadata.uid)
        if view is None or assignment is None or active is None:
            return view
        current = active.term == (episode.status.attempt, assignment.epoch)
        return msgspec.structs.replace(view, active_seconds=active.seconds if current else 0)

    def _view(self, episode: EpisodeView, assignment: AgentAssignment) -> AgentView | None:
        agent = self._agents.get(assignment.agent_pod_uid)
        if agent is None:
            name, _ = self._gone_since(assignment.agent_pod_uid)
            since = self._lost_since(episode.metadata.uid, assignment)
            return AgentView(lost_since=since, lost=f"agent pod {name} is gone")
        if self.is_silent(agent):
            silent = timedelta(seconds=self._clock.monotonic() - agent.answered)
            lost = f"agent pod {agent.name} has not answered for {self._silence:.0f} s"
            return AgentView(
                lost_since=self._clock.now() - silent, lost=f"{lost}: {agent.failure}" if agent.failure else lost
            )
        if agent.report is None:
            return None
        term = (episode.status.attempt, assignment.epoch)
        observed = self._observed(agent, episode.metadata.uid, term)
        if agent.draining_since is not None and (observed is None or observed.term != term):
            # A draining agent refuses new assignments: it will never acknowledge this one.
            lost = f"agent pod {agent.name} ends and takes no more episodes"
            return AgentView(lost_since=agent.draining_since, lost=lost)
        if observed is None:
            return AgentView(asked=agent.asked)
        return AgentView(status=observed.status, since=observed.since, asked=agent.asked, stages=observed.stages)

    def _observed(self, agent: Agent, uid: str, term: Term) -> ObservedStatus | None:
        failed = self._undeliverable.get(uid)
        if failed is None or failed.term != term or agent.acknowledges(uid, term):
            return agent.observed.get(uid)
        return failed

    def _lost_since(self, episode_uid: str, assignment: AgentAssignment) -> datetime:
        """When the loss of this assignment's agent was first observed: its pod may be gone for longer."""
        _, gone = self._gone_since(assignment.agent_pod_uid)
        epoch, since = self._lost.get(episode_uid, (0, gone))
        if epoch != assignment.epoch:
            since = self._clock.now() if assignment.losses else gone
            self._lost[episode_uid] = (assignment.epoch, since)
        return since

    def _gone_since(self, uid: str) -> tuple[str, datetime]:
        """The pod's name, if it was ever observed, and since when it is gone."""
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
    # A process that was started again counts from zero.
    past = before.seconds if status.active_seconds < before.reported else before.before
    return ActiveTime(term, past, status.active_seconds)
