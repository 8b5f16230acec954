"""One run of one agent, wherever its sandbox is: what ``dgym run`` and an agent pod have in common."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from decimal import Decimal
from pathlib import Path

import msgspec

from dgym.agents import Agent, AgentContext, StopEpisode, Tools
from dgym.agents.chat import Chat, Exchange, reply_of
from dgym.api import AgentSpec, DebugTask
from dgym.env import AsyncRepoEnv
from dgym.episodes.models import Models
from dgym.episodes.recording import RecordingEnv, Trajectory
from dgym.errors import EpisodeOver
from dgym.results import TimedStep
from dgym.wire import EndReason, Result, Step


class Hooks(msgspec.Struct, frozen=True, kw_only=True):
    """Called in the worker's process: after each step, and after each reply of a model before it is acted on."""

    on_step: Callable[[Step], None] | None = None
    on_exchange: Callable[[Exchange, list[Step]], None] | None = None


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """What is played. ``session`` names the conversation with the model; ``base`` None: parameters name no files."""

    task: DebugTask
    spec: AgentSpec
    agent: type[Agent]
    tools: Tools
    session: str
    seed: int | None
    deadline_seconds: float
    base: Path | None = None
    llm_config: str | None = None


class Play:
    """Plays ``script`` once, writing down every step.

    Args:
        script: What is played.
        trajectory: Where the steps go.
        log: The episode's log.
        hooks: Who is told.
        begun: What an earlier worker wrote down of the same attempt; the agent goes on from there.
    """

    def __init__(
        self,
        script: Script,
        trajectory: Trajectory,
        *,
        log: logging.Logger,
        hooks: Hooks = Hooks(),  # noqa: B008 - immutable
        begun: tuple[TimedStep, ...] = (),
    ) -> None:
        self._script = script
        self._trajectory = trajectory
        self._log = log
        self._hooks = hooks
        self._begun = begun
        self._exchanges = {
            line.seq: tuple(msgspec.convert(each, Exchange) for each in line.exchanges)
            for line in begun
            if line.exchanges
        }
        self._env: AsyncRepoEnv | None = None
        self._recording: RecordingEnv | None = None
        self._chat: Chat | None = None
        self._notes: list[str] = []

    def open_chat(self, models: Models) -> None:
        """Open the agent's model, if it uses one; ``close`` ends it."""
        spec = self._script.spec
        if not self._script.agent.uses_model or spec.model is None:
            return
        self._chat = Chat(
            models.open(spec.model, self._script.llm_config),
            session=self._script.session,
            seed=self._script.seed,
            temperature=spec.temperature,
            token_budget=spec.token_budget,
            listener=self._said,
        )

    async def drive(
        self, env: AsyncRepoEnv, finish: Callable[[EndReason | None], Awaitable[Result]] | None = None
    ) -> Result:
        """The verdict. ``finish`` ends the episode where that is not what ``env.finish`` does."""
        self._env = env
        recording = RecordingEnv(
            env, self._trajectory, recorded=self._begun, on_reset=self._take_up, on_step=self._stepped
        )
        self._recording = recording
        try:
            reason = await self._script.agent().run(recording, self._context())
        except StopEpisode as stop:
            reason = stop.reason
        except EpisodeOver:
            # The verdict stands, whether or not the agent noticed that it was given.
            if env.result is None:
                raise
            reason = None
        if finish is None:
            result = await env.finish(*(() if reason is None else (reason,)))
        else:
            result = await finish(reason)
        recording.record()
        return msgspec.structs.replace(result, notes=(*result.notes, *self._notes))

    def failed(self, reason: EndReason, message: str) -> Result:
        """A failure in the form of a result."""
        recorded = self._recording.recorded if self._recording is not None else []
        rewrites = sum(
            step.call is not None and step.call.tool == "rewrite" and step.observation.ok for step in recorded
        )
        return Result(
            resolved=False, reason=reason, message=message, steps=max(0, len(recorded) - 1), rewrites=rewrites
        )

    def with_usage(self, result: Result) -> Result:
        """``result`` with the tokens of the model."""
        if self._chat is None:
            return result
        return msgspec.structs.replace(
            result, input_tokens=self._chat.input_tokens, output_tokens=self._chat.output_tokens
        )

    @property
    def price(self) -> str | None:
        """What the model's tokens cost, where that is known."""
        price = self._chat.price if self._chat is not None else None
        return None if price is None else format(price, "f")

    def close(self) -> None:
        """The episode has ended. Idempotent."""
        if self._chat is not None:
            self._chat.close()

    def _context(self) -> AgentContext:
        script = self._script
        return AgentContext(
            task_name=script.task.metadata.name,
            parameters=script.spec.parameters,
            model=script.spec.model,
            tools=tuple(tool if isinstance(tool, str) else tool.name for tool in script.tools),
            seed=script.seed,
            base=script.base,
            solution=script.task.spec.solution if script.agent.needs_solution else None,
            chat=self._chat,
            said={seq: reply_of(exchanges[-1]) for seq, exchanges in self._exchanges.items()},
            log=lambda text: self._log.info("%s", text),
            note=self._note,
        )

    def _note(self, text: str) -> None:
        self._notes.append(text)
        self._log.warning("%s", text)

    def _take_up(self) -> None:
        """The episode has begun, now or with an earlier worker: the clock runs, and what was used is used."""
        if self._chat is None:
            return
        assert self._env is not None
        self._chat.deadline = asyncio.get_running_loop().time() + self._script.deadline_seconds
        spoken = [exchange for exchanges in self._exchanges.values() for exchange in exchanges]
        prices = [Decimal(exchange.usage.price) for exchange in spoken if exchange.usage.price is not None]
        told = self._env.usage
        self._chat.resume(
            spoken,
            input_tokens=max(told.input_tokens, sum(exchange.usage.input_tokens for exchange in spoken)),
            output_tokens=max(told.output_tokens, sum(exchange.usage.output_tokens for exchange in spoken)),
            price=sum(prices, Decimal(0)) if prices else None,
        )

    def _said(self, exchange: Exchange) -> None:
        assert self._recording is not None
        assert self._chat is not None
        assert self._env is not None
        self._recording.say(exchange)
        self._env.note_usage(input_tokens=self._chat.input_tokens, output_tokens=self._chat.output_tokens)
        if self._hooks.on_exchange is not None:
            self._hooks.on_exchange(exchange, self._recording.recorded)

    def _stepped(self, step: Step) -> None:
        observation = step.observation
        tool = "reset" if step.call is None else step.call.tool or "no call"
        self._log.debug("step %d: %s (%s, %.3f s)", step.seq, tool, observation.ok, observation.duration_seconds)
        if self._hooks.on_step is not None:
            self._hooks.on_step(step)
