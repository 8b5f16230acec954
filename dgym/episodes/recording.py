"""An environment that writes every step down before the agent sees its observation."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from dgym.agents import Action, Env
from dgym.agents.chat import Exchange
from dgym.env import InfoDict, ObservationDict
from dgym.wire import Observation, Step


class Trajectory(Protocol):
    """Where steps are written down."""

    def write(self, step: Step, exchanges: Sequence[Any] = ()) -> None:
        """Append one step, with the exchanges that led to it."""
        ...


class RecordingEnv:
    """The environment an agent is given: the real one, with a trajectory behind it.

    What a session records on its own account, such as a step that its deadline ended, is written down too: the
    history is compared after every call, whatever the call was and however it ended. ``recorded`` are steps that an
    earlier worker wrote into the same trajectory.
    """

    def __init__(
        self,
        env: Env,
        trajectory: Trajectory,
        *,
        recorded: Iterable[Step] = (),
        on_reset: Callable[[], None],
        on_step: Callable[[Step], None],
    ) -> None:
        self._env = env
        self._trajectory = trajectory
        self._on_reset = on_reset
        self._on_step = on_step
        self._exchanges: list[Exchange] = []
        self.recorded: list[Step] = list(recorded)

    def say(self, exchange: Exchange) -> None:
        """Keep an exchange with the model for the line of the step that follows from it."""
        self._exchanges.append(exchange)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[ObservationDict, InfoDict]:
        """Start the session; once, since a trajectory holds one."""
        answer = await self._env.reset(seed=seed, options=options)
        self._on_reset()
        self.record()
        return answer

    async def step(self, action: Action) -> tuple[ObservationDict, float, bool, bool, InfoDict]:
        """Make one call."""
        try:
            return await self._env.step(action)
        finally:
            self.record()

    async def peek(self, action: Action) -> ObservationDict:
        """Look without a step; nothing is written down."""
        return await self._env.peek(action)

    async def patch(self) -> str:
        """The changes so far."""
        return await self._env.patch()

    def history(self) -> list[Step]:
        """Every step so far."""
        return self._env.history()

    async def apply_solution(self) -> Observation:
        """Apply the gold patch."""
        return await self._env.apply_solution()

    def record(self) -> None:
        """Write down what the history holds beyond what was written."""
        for step in self._env.history()[len(self.recorded) :]:
            exchanges, self._exchanges = self._exchanges, []
            self._trajectory.write(step, exchanges)
            self.recorded.append(step)
            self._on_step(step)
