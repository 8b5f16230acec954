"""Asks every agent how it goes, and sets right what an agent knows and what is so."""

import asyncio
import logging
from collections.abc import Callable

from dgym.kube import Key
from dgym.wire.assignments import AgentReport
from dgym_operator.cache import Agent, World
from dgym_operator.calls import AgentClient, CallFailed, Refused
from dgym_operator.dispatch.delivery import Deliveries, compare
from dgym_operator.dispatch.dispatcher import Dispatcher
from dgym_operator.logs import fields

_log = logging.getLogger(__name__)
_UNAUTHORIZED = 401
_AT_ONCE = 128
"""Half of the connections there are: agents that hang leave the others to deliveries."""


class AgentPoller:
    """Polls every agent at a pace of its own, so that one that hangs holds up no other."""

    def __init__(
        self,
        world: World,
        *,
        client: AgentClient,
        deliveries: Deliveries,
        dispatcher: Dispatcher,
        enqueue: Callable[[Key], None],
        token_refused: Callable[[Agent], None],
        interval_seconds: float,
    ) -> None:
        self._world = world
        self._client = client
        self._deliveries = deliveries
        self._dispatcher = dispatcher
        self._enqueue = enqueue
        self._token_refused = token_refused
        self._interval = interval_seconds
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._polled: set[str] = set()

    async def run(self) -> None:
        """Ask until cancelled."""
        agents = self._world.agents
        agents.expect_answers()
        async with asyncio.TaskGroup() as group:
            while True:
                agents.appeared.clear()
                for agent in agents:
                    if agent.url and agent.uid not in self._polled:
                        self._polled.add(agent.uid)
                        group.create_task(self._poll(agent.uid))
                await agents.appeared.wait()

    async def _poll(self, uid: str) -> None:
        """Ask one agent until it is gone."""
        clock = self._world.clock
        try:
            while (agent := self._world.agents.get(uid)) is not None:
                begun = clock.monotonic()
                if agent.url:
                    await self._ask(agent)
                await clock.sleep(max(0.0, begun + self._interval - clock.monotonic()))
        finally:
            self._polled.discard(uid)

    async def _ask(self, agent: Agent) -> None:
        async with self._places:
            asked = self._world.clock.monotonic()
            try:
                report = await self._client.report(agent.url)
            except CallFailed as error:
                self._record_failure(agent, error)
                # The status of waiting episodes shows the failure.
                self._dispatcher.wake()
                self._look_at_lost(agent)
                return
        self._take(agent, report, asked)

    def _take(self, agent: Agent, report: AgentReport, asked: float) -> None:
        agents = self._world.agents
        slots, failed = agents.open_slots(agent), agent.failure
        back = self._world.episodes_by_agent[agent.uid] if agents.is_silent(agent) else ()
        if failed:
            _log.info("an agent answers again", extra=fields(agent=agent.name))
        before = set(agent.heard)
        changed = agents.take_report(agent, report)
        missing, surplus = compare(agent, self._world, before)
        for episode in missing:
            if report.draining:
                self._enqueue(episode.key)
            elif not self._deliveries.told_since(agent, episode, asked):
                self._deliveries.deliver(episode.key)
        for uid in surplus:
            self._deliveries.withdraw(agent, uid)
        for uid in changed:
            episode_of = self._world.episode_of(uid)
            if episode_of is not None:
                self._enqueue(episode_of.key)
        for episode in back:
            # Even with the same report as before: their status must not show AgentLost any longer.
            self._enqueue(episode.key)
        if agents.open_slots(agent) != slots or failed:
            self._dispatcher.wake()

    def _record_failure(self, agent: Agent, error: CallFailed) -> None:
        failure = str(error)
        if isinstance(error, Refused) and error.status == _UNAUTHORIZED:
            failure = "it refuses the operator's token, which does not come from the key it knows"
            self._token_refused(agent)
        if agent.failure != failure:
            # The agent is polled every few seconds; each cause is logged once.
            _log.warning("an agent does not answer: %s", error, extra=fields(agent=agent.name))
        agent.failure = failure

    def _look_at_lost(self, agent: Agent) -> None:
        if self._world.agents.is_silent(agent):
            for episode in self._world.episodes_by_agent[agent.uid]:
                self._enqueue(episode.key)
