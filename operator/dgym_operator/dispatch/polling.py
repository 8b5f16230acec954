"""Polls agents for their reports, and compares each with the assignments in the Episodes' status."""

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime

from dgym.kube import Key
from dgym.logs import fields
from dgym.wire.assignments import AgentReport
from dgym_operator.cache import Agent, Cache
from dgym_operator.calls import AgentClient, CallFailed, Refused
from dgym_operator.dispatch.delivery import Deliveries
from dgym_operator.dispatch.dispatcher import Dispatcher
from dgym_operator.objects import EpisodeView

_log = logging.getLogger(__name__)
_UNAUTHORIZED = 401
_PARALLEL_POLLS = 128
"""Polls at the same time: half of the connections, so that agents that hang leave the others to deliveries."""


def compare(agent: Agent, cache: Cache, before: set[str]) -> tuple[list[EpisodeView], list[str]]:
    """Episodes to deliver to the agent, and UIDs of episodes to withdraw from it, by its last report.

    ``before`` are the UIDs in the report before: an episode that only the last report has may have been assigned by a
    write that the watch does not show yet.
    """
    expected = {episode.metadata.uid: episode for episode in cache.episodes_by_agent[agent.uid]}
    missing = [episode for episode in expected.values() if not _is_acknowledged(agent, episode)]
    surplus = [uid for uid in agent.observed if uid not in expected and (uid in before or _is_over(cache, uid))]
    return missing, surplus


def _is_acknowledged(agent: Agent, episode: EpisodeView) -> bool:
    assignment = episode.status.assignment
    if assignment is None:
        return False
    # Delivered again under an epoch that has failed, the episode would take a slot that is not counted.
    term = (episode.status.attempt, assignment.epoch)
    return assignment.failed_time is not None or agent.acknowledges(episode.metadata.uid, term)


def _is_over(cache: Cache, uid: str) -> bool:
    episode = cache.episode_of(uid)
    return episode is not None and episode.is_finished


class AgentPoller:
    """Polls every agent in a task of its own, so that an agent that hangs delays no other."""

    def __init__(
        self,
        cache: Cache,
        *,
        client: AgentClient,
        deliveries: Deliveries,
        dispatcher: Dispatcher,
        enqueue: Callable[[Key], None],
        token_refused: Callable[[Agent], None],
        interval_seconds: float,
    ) -> None:
        self._cache = cache
        self._client = client
        self._deliveries = deliveries
        self._dispatcher = dispatcher
        self._enqueue = enqueue
        self._token_refused = token_refused
        self._interval = interval_seconds
        self._slots = asyncio.Semaphore(_PARALLEL_POLLS)
        self._agents_polled: set[str] = set()

    async def run(self) -> None:
        """Poll until cancelled."""
        agents = self._cache.agents
        agents.start_polling()
        async with asyncio.TaskGroup() as group:
            while True:
                agents.appeared.clear()
                for agent in agents:
                    if agent.url and agent.uid not in self._agents_polled:
                        self._agents_polled.add(agent.uid)
                        group.create_task(self._poll(agent.uid))
                await agents.appeared.wait()

    async def _poll(self, uid: str) -> None:
        """Poll one agent until it is gone."""
        clock = self._cache.clock
        try:
            while (agent := self._cache.agents.get(uid)) is not None:
                begun = clock.monotonic()
                if agent.url:
                    await self._poll_once(agent)
                await clock.sleep(max(0.0, begun + self._interval - clock.monotonic()))
        finally:
            self._agents_polled.discard(uid)

    async def _poll_once(self, agent: Agent) -> None:
        async with self._slots:
            requested_at, asked = self._cache.clock.monotonic(), self._cache.clock.now()
            try:
                report = await self._client.report(agent.address)
            except CallFailed as error:
                self._record_failure(agent, error)
                # The status of waiting episodes shows the failure.
                self._dispatcher.wake()
                self._enqueue_if_lost(agent)
                return
        self._observe_report(agent, report, requested_at, asked)

    def _observe_report(self, agent: Agent, report: AgentReport, requested_at: float, asked: datetime) -> None:
        agents = self._cache.agents
        slots, failed = agents.open_slots(agent), agent.failure
        outages = agent.report.outages if agent.report is not None else ()
        returned = self._cache.episodes_by_agent[agent.uid] if agents.is_silent(agent) else ()
        if failed:
            _log.info("an agent answers again", extra=fields(agent=agent.name))
        before = set(agent.observed)
        changed = agents.observe_report(agent, report, asked)
        missing, surplus = compare(agent, self._cache, before)
        for episode in missing:
            if report.draining:
                self._enqueue(episode.key)
            elif not self._deliveries.delivered_since(agent, episode, requested_at):
                self._deliveries.deliver(episode.key)
        for uid in surplus:
            self._deliveries.withdraw(agent, uid)
        for uid in changed:
            episode_of = self._cache.episode_of(uid)
            if episode_of is not None:
                self._enqueue(episode_of.key)
        for episode in returned:
            # Even if the report has not changed: their status must not show AgentLost any longer.
            self._enqueue(episode.key)
        if agents.open_slots(agent) != slots or failed or report.outages != outages:
            self._dispatcher.wake()

    def _record_failure(self, agent: Agent, error: CallFailed) -> None:
        failure = str(error)
        if isinstance(error, Refused) and error.status == _UNAUTHORIZED:
            failure = "it refuses the operator's token, which does not come from the key the agent was started with"
            self._token_refused(agent)
        if agent.failure != failure:
            # The agent is polled every few seconds; each cause is logged once.
            _log.warning("an agent does not answer: %s", error, extra=fields(agent=agent.name))
        agent.failure = failure

    def _enqueue_if_lost(self, agent: Agent) -> None:
        if self._cache.agents.is_silent(agent):
            for episode in self._cache.episodes_by_agent[agent.uid]:
                self._enqueue(episode.key)
