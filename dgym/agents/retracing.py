"""Walks a way again that was walked before: how an agent that always does the same goes on after a restart."""

from typing import Any

from dgym.agents.base import Action, Env, InfoDict, ObservationDict
from dgym.env.views import observation_view
from dgym.wire import Observation, Step, ToolCall

Answer = tuple[ObservationDict, float, bool, bool, InfoDict]


class RetracingEnv:
    """An environment that answers from its history as long as the calls are those that were made.

    The first call that is another one is made, and from then on every call is.
    """

    def __init__(self, env: Env) -> None:
        self._env = env
        self._made: list[Step] = []
        self._info: InfoDict = {}

    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObservationDict, InfoDict]:
        """Begin, or take up what was begun."""
        last, self._info = await self._env.reset(seed=seed, options=options)
        first, *self._made = self._env.history()
        return (observation_view(first.observation) if self._made else last), self._info

    async def step(self, action: Action) -> Answer:
        """Make one call, unless it was made."""
        if self._made and _same(action, self._made[0].call):
            observation = self._made.pop(0).observation
            ended = observation.end_reason
            truncated = ended is not None and ended.is_truncation
            return observation_view(observation), 0.0, ended is not None and not truncated, truncated, self._info
        self._made.clear()
        return await self._env.step(action)

    async def peek(self, action: Action) -> ObservationDict:
        """Look without a step."""
        return await self._env.peek(action)

    async def patch(self) -> str:
        """The changes so far."""
        return await self._env.patch()

    def history(self) -> list[Step]:
        """Every step so far."""
        return self._env.history()

    async def apply_solution(self) -> Observation:
        """Apply the gold patch; the pod does it once however often it is asked."""
        return await self._env.apply_solution()


def _same(action: Action, call: ToolCall | None) -> bool:
    if call is None or isinstance(action, str):
        return False
    if isinstance(action, ToolCall):
        return action == call
    return action.get("tool") == call.tool and action.get("arguments", {}) == call.arguments
