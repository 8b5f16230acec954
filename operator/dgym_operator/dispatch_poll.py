"""Asks every agent how it goes, and sets right what an agent knows and what is so."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from dgym_operator.agents import Agent
from dgym_operator.agents_client import AgentClient
from dgym_operator.agents_http import CallFailed
from dgym_operator.dispatch import Dispatcher
from dgym_operator.dispatch_delivery import Deliveries, compare
from dgym_operator.execute_world import World
from dgym_operator.kube import Key
from dgym_operator.logs import fields

_log = logging.getLogger(__name__)
_AT_ONCE = 32


class AgentPoller:
    """Polls all agents in turns."""

    def __init__(
        self,
        world: World,
        *,
        client: AgentClient,
        deliveries: Deliveries,
        dispatcher: Dispatcher,
        enqueue: Callable[[Key], None],
        interval_seconds: float,
    ) -> None:
        self._world = world
        self._client = client
        self._deliveries = deliveries
        self._dispatcher = dispatcher
        self._enqueue = enqueue
        self._interval = interval_seconds
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def run(self) -> None:
        """Ask until cancelled."""
        self._world.agents.expect_answers()
        while True:
            self._world.agents.appeared.clear()
            async with asyncio.TaskGroup() as group:
                for agent in self._world.agents:
                    if agent.url:
                        group.create_task(self._ask(agent))
            self._dispatcher.wake()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval):
                    await self._world.agents.appeared.wait()

    async def _ask(self, agent: Agent) -> None:
        async with self._places:
            asked = self._world.clock.monotonic()
            try:
                report = await self._client.report(agent.url)
            except CallFailed as error:
                _log.info("an agent does not answer: %s", error, extra=fields(agent=agent.name))
                self._look_at_lost(agent)
                return
        before = set(agent.heard)
        changed = self._world.agents.take_report(agent, report)
        missing, surplus = compare(agent, self._world, before)
        for episode in missing:
            if not self._deliveries.told_since(episode, asked):
                self._deliveries.deliver(episode.key)
        for uid in surplus:
            self._deliveries.withdraw(agent, uid)
        for uid in changed:
            episode_of = self._world.episode_of(uid)
            if episode_of is not None:
                self._enqueue(episode_of.key)

    def _look_at_lost(self, agent: Agent) -> None:
        if self._world.agents.is_silent(agent):
            for episode in self._world.episodes_by_agent[agent.uid]:
                self._enqueue(episode.key)
