"""The agent pods: which there are, what each last said, and which of them are lost.

Agents are known from their pods and asked by the poller; nothing here waits. What they say is kept with the time it was
first heard, since decisions ask for how long something lasts.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from datetime import datetime, timedelta

import msgspec

from dgym.api import Assignment, Stages
from dgym.kube import Clock
from dgym.wire.assignments import AgentReport, AssignmentStatus
from dgym_operator.controllers import AgentView
from dgym_operator.objects import EpisodeView, Pod

_GONE_REMEMBERED = 1000


class Heard(msgspec.Struct, frozen=True):
    """What an agent said of one episode, since when it says so, and when steps were heard of."""

    status: AssignmentStatus
    since: datetime
    stages: Stages = Stages()

    @property
    def names(self) -> tuple[int, int]:
        """Attempt and epoch: which assignment of the episode it is about."""
        return self.status.attempt, self.status.epoch


class Active(msgspec.Struct, frozen=True):
    """How long an episode's deadline has run under one assignment, over restarts of the agent's process."""

    names: tuple[int, int]
    before: int
    reported: int

    @property
    def seconds(self) -> int:
        """The total."""
        return self.before + self.reported


class Agent(msgspec.Struct, kw_only=True):
    """One agent pod.

    ``answered`` is when it last did, or since when it is expected to; ``told`` is attempt, epoch and moment of the last
    assignment that it took, by the UID of the episode; ``draining_since`` is when it first said that it takes no more;
    ``failure`` is why it did not answer the last time it was asked, ``refuses`` whether it refused the token.
    """

    uid: str
    name: str
    url: str = ""
    ready: bool = False
    answered: float
    report: AgentReport | None = None
    draining_since: datetime | None = None
    failure: str = ""
    refuses: bool = False
    heard: dict[str, Heard] = {}
    told: dict[str, tuple[int, int, float]] = {}

    @property
    def takes_more(self) -> bool:
        """Whether it may be given episodes, slots allowing."""
        return self.ready and self.report is not None and not self.report.draining

    def knows(self, episode_uid: str, attempt: int, epoch: int) -> bool:
        """Whether it has exactly this assignment."""
        heard = self.heard.get(episode_uid)
        return heard is not None and heard.names == (attempt, epoch)


class Agents:
    """All agents by the UID of their pod."""

    def __init__(self, clock: Clock, *, port: int, silence_seconds: float) -> None:
        self._clock = clock
        self._port = port
        self._silence = silence_seconds
        self._agents: dict[str, Agent] = {}
        self._gone: OrderedDict[str, tuple[str, datetime]] = OrderedDict()
        self._untold: dict[str, Heard] = {}
        self._active: dict[str, Active] = {}
        self._missed: dict[str, tuple[int, datetime]] = {}
        self.appeared = asyncio.Event()
        """Set when there is somebody new to ask."""

    def __iter__(self) -> Iterator[Agent]:
        return iter(tuple(self._agents.values()))

    def get(self, uid: str) -> Agent | None:
        """The agent, while its pod is there."""
        return self._agents.get(uid)

    # Pods

    def see(self, pod: Pod) -> None:
        """The pod is there, in this state."""
        uid = pod.metadata.uid
        if pod.status.phase in ("Failed", "Succeeded"):
            self.lose(uid)
            return
        agent = self._agents.get(uid)
        if agent is None:
            agent = self._agents[uid] = Agent(uid=uid, name=pod.metadata.name, answered=self._clock.monotonic())
        if not agent.url and pod.status.pod_ip:
            self.appeared.set()
        agent.url = pod.url(self._port)
        agent.ready = pod.ready and bool(agent.url) and pod.metadata.deletion_timestamp is None

    def lose(self, uid: str) -> None:
        """The pod is gone, or will never run again."""
        agent = self._agents.pop(uid, None)
        if agent is not None:
            self._remember_gone(uid, agent.name)

    def expect_answers(self) -> None:
        """Asking begins now: silence before was not theirs."""
        for agent in self:
            agent.answered = self._clock.monotonic()

    # Reports

    def take_report(self, agent: Agent, report: AgentReport) -> set[str]:
        """Keep what it says; the UIDs of episodes of which it says something else than before."""
        now = self._clock.now()
        before, agent.heard = agent.heard, {}
        for status in report.assignments:
            agent.heard[status.episode_uid] = _heard(before.get(status.episode_uid), status, now)
            if status.active_seconds:
                self._active[status.episode_uid] = _active(self._active.get(status.episode_uid), status)
        agent.report = report
        agent.failure, agent.refuses = "", False
        agent.draining_since = (agent.draining_since or now) if report.draining else None
        agent.answered = self._clock.monotonic()
        changed = {uid for uid, heard in agent.heard.items() if uid not in before or before[uid].since != heard.since}
        return changed | (before.keys() - agent.heard.keys())

    def take_untold(self, status: AssignmentStatus) -> bool:
        """An agent cannot be told of an assignment, which counts as if it had failed; whether that is news."""
        before = self._untold.get(status.episode_uid)
        heard = self._untold[status.episode_uid] = _heard(before, status, self._clock.now())
        return before is None or before.since != heard.since

    def told(self, episode_uid: str) -> None:
        """The agent has its assignment."""
        self._untold.pop(episode_uid, None)
        self._missed.pop(episode_uid, None)

    def forget(self, episode_uid: str) -> None:
        """The Episode is gone."""
        self.told(episode_uid)
        self._active.pop(episode_uid, None)

    def open_slots(self, agent: Agent) -> int | None:
        """How many episodes it serves at a time, the present ones included; None: it takes no more for now."""
        if agent.report is None or not agent.takes_more or self.is_silent(agent):
            return None
        return agent.report.slots

    def is_silent(self, agent: Agent) -> bool:
        """Whether it has not answered for too long."""
        return self._clock.monotonic() - agent.answered >= self._silence

    def view(self, episode: EpisodeView) -> AgentView | None:
        """What is known of the agent that the Episode is assigned to; None: nothing."""
        assignment = episode.status.assignment
        known = self._view(episode, assignment) if assignment is not None else None
        active = self._active.get(episode.metadata.uid)
        if known is None or assignment is None or active is None:
            return known
        current = active.names == (episode.status.attempt, assignment.epoch)
        return msgspec.structs.replace(known, active_seconds=active.seconds if current else 0)

    def _view(self, episode: EpisodeView, assignment: Assignment) -> AgentView | None:
        agent = self._agents.get(assignment.agent_pod_uid)
        if agent is None:
            name, _ = self._gone_since(assignment.agent_pod_uid)
            since = self._missed_since(episode.metadata.uid, assignment)
            return AgentView(lost_since=since, lost=f"agent pod {name} is gone")
        if self.is_silent(agent):
            silent = timedelta(seconds=self._clock.monotonic() - agent.answered)
            lost = f"agent pod {agent.name} has not answered for {self._silence:.0f} s"
            return AgentView(
                lost_since=self._clock.now() - silent, lost=f"{lost}: {agent.failure}" if agent.failure else lost
            )
        if agent.report is None:
            return None
        heard = self._heard_of(agent, episode.metadata.uid, episode.status.attempt, assignment.epoch)
        told = heard is not None and heard.names == (episode.status.attempt, assignment.epoch)
        if agent.draining_since is not None and not told:
            # It never will be: a draining agent refuses whatever it does not serve yet.
            lost = f"agent pod {agent.name} ends and takes no more episodes"
            return AgentView(lost_since=agent.draining_since, lost=lost)
        if heard is None:
            return AgentView()
        return AgentView(status=heard.status, since=heard.since, stages=heard.stages)

    def _heard_of(self, agent: Agent, uid: str, attempt: int, epoch: int) -> Heard | None:
        untold = self._untold.get(uid)
        if untold is None or untold.names != (attempt, epoch) or agent.knows(uid, attempt, epoch):
            return agent.heard.get(uid)
        return untold

    def _missed_since(self, episode_uid: str, assignment: Assignment) -> datetime:
        """When this assignment's agent was first missed: an epoch may begin with an agent that is long gone."""
        _, gone = self._gone_since(assignment.agent_pod_uid)
        epoch, since = self._missed.get(episode_uid, (0, gone))
        if epoch != assignment.epoch:
            since = gone if assignment.epoch == 1 else self._clock.now()
            self._missed[episode_uid] = (assignment.epoch, since)
        return since

    def _gone_since(self, uid: str) -> tuple[str, datetime]:
        """The pod's name, if it was ever seen, and since when it is gone."""
        return self._gone.get(uid) or self._remember_gone(uid, f"with the UID {uid}")

    def _remember_gone(self, uid: str, name: str) -> tuple[str, datetime]:
        self._gone[uid] = name, self._clock.now()
        if len(self._gone) > _GONE_REMEMBERED:
            self._gone.popitem(last=False)
        return self._gone[uid]


def _heard(before: Heard | None, status: AssignmentStatus, now: datetime) -> Heard:
    stages = before.stages if before is not None and before.status.attempt == status.attempt else Stages()
    if status.steps and (before is None or before.status.steps != status.steps):
        stages = msgspec.structs.replace(stages, first_step=stages.first_step or now, last_step=now)
    heard = Heard(status, now, stages)
    same = before is not None and (before.names, before.status.state) == (heard.names, status.state)
    return msgspec.structs.replace(heard, since=before.since) if before is not None and same else heard


def _active(known: Active | None, status: AssignmentStatus) -> Active:
    names = (status.attempt, status.epoch)
    if known is None or known.names != names:
        return Active(names, 0, status.active_seconds)
    # A process that was started anew counts from zero.
    before = known.seconds if status.active_seconds < known.reported else known.before
    return Active(names, before, status.active_seconds)
