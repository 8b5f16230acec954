"""The player runs one episode with one agent, on a laptop and in an agent pod.

It opens the episode's session, runs the agent, records every step before the agent receives its observation, resumes
from the steps that an earlier player recorded, and ends the episode. An ``EpisodeSession`` opens the session, in this
process or in a pod. Many players may share an event loop.
"""

import asyncio
import functools
import hashlib
import logging
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

import dgym
from dgym.agents import AgentContext, BaseAgent, Chat, Exchange, StopEpisode, Tools
from dgym.api import AgentSpec, DebugTask
from dgym.env import AsyncRepoEnv
from dgym.errors import (
    ArgumentError,
    ContentFiltered,
    ContextLengthExceeded,
    DgymError,
    EpisodeOver,
    InfrastructureError,
    ManifestError,
    ModelError,
    ModelMisconfigured,
    PluginError,
    Superseded,
)
from dgym.llm import Model, Waiting, describe_model, load_models, mask
from dgym.results import Record, TimedStep
from dgym.session import EpisodeLimits
from dgym.tracing import genai_span
from dgym.wire import EndReason, Result, Step, ToolCall, read_cost, write_cost
from dgym.wire.episode import Action
from dgym.wire.outcome import Provenance

if TYPE_CHECKING:
    from dgym.llm import ModelCatalog

_MOST_SERVED = 20
"""Maximum number of models, and of fingerprints, in a result."""
_WRONG = (ManifestError, PluginError, ArgumentError)
_GIT_SECONDS = 10.0
_LONG_BYTES = 1_000


def _open_human() -> Model:
    from dgym.agents import HumanModel

    return HumanModel()


class Models:
    """The models that episodes share. Connections, rate limits and concurrency limits are per model, not per episode.

    Each model is opened once. All episodes that use one instance must run in the same event loop.

    Args:
        origin: Description of the user's configuration, for messages. Empty: messages contain its path.
    """

    def __init__(self, *, origin: str = "") -> None:
        self._origin = origin
        self._catalogs: dict[str | None, ModelCatalog] = {}
        self._opening = asyncio.Lock()

    def catalog(self, config: str | None) -> "ModelCatalog":
        """The models of the file ``config``, which is read once. None: the user's own configuration."""
        if config not in self._catalogs:
            self._catalogs[config] = load_models(config, human=_open_human, origin=self._origin)
        return self._catalogs[config]

    async def open(self, name: str, config: str | None) -> Model:
        """Open a model by name, in a thread because its tokenizer may be downloaded.

        Raises:
            ModelConfigError: The model does not exist, or its configuration is wrong.
        """
        async with self._opening:
            return await asyncio.to_thread(lambda: self.catalog(config).open(name))

    def require_prices(self, name: str, config: str | None, *, field: str, limit: str) -> None:
        """Check that a model has prices, which a cost limit requires. The message contains ``field`` and ``limit``.

        Raises:
            ManifestError: The model has no prices.
            ModelConfigError: The model does not exist, or its configuration is wrong.
        """
        catalog = self.catalog(config)
        remedy = f"remove {field}"
        if not catalog.is_interactive(name):
            if catalog.settings(name).has_prices:
                return
            remedy = f"add input_price and output_price to it (0 where it costs nothing), or {remedy}"
        where = self._origin or catalog.path
        raise ManifestError(f"{field} is {limit}, but model {name!r} of {where} has no prices; {remedy}")

    def failures(self) -> Iterator[tuple[str, str, int]]:
        """Yield model, fault and number of the failed requests of every open model."""
        for catalog in self._catalogs.values():
            yield from catalog.failures()

    async def close(self) -> None:
        """Close every model. A model may be opened again."""
        for catalog in self._catalogs.values():
            await catalog.close()


class Hooks(msgspec.Struct, frozen=True, kw_only=True):
    """Callbacks in the player's process.

    Attributes:
        on_step: Called after each step.
        on_exchange: Called after each reply of a model, before the agent acts on it.
        on_wait: Called with the reason why the model's reply has to wait, and with "" when it no longer waits.
    """

    on_step: Callable[[Step], None] | None = None
    on_exchange: Callable[[Exchange, list[Step]], None] | None = None
    on_wait: Waiting | None = None


class EpisodeRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one agent on one task.

    Attributes:
        tools: The tools of the episode, from ``effective_tools``.
        session: Identifies the conversation with the model.
        base: The directory of relative paths in parameters. None: parameters cannot refer to files.
        earlier_cost: Cost of all attempts before this player.
        provenance: The provenance as far as it is known before the episode starts.
    """

    task: DebugTask
    spec: AgentSpec
    agent: type[BaseAgent]
    tools: Tools
    session: str
    seed: int | None
    deadline_seconds: float
    base: Path | None = None
    llm_config: str | None = None
    earlier_cost: Decimal = Decimal(0)
    provenance: Provenance = Provenance()

    @property
    def limits(self) -> EpisodeLimits:
        """The limits of the session."""
        return EpisodeLimits(
            max_steps=self.spec.max_steps,
            max_rewrites=self.spec.max_rewrites,
            deadline_seconds=self.deadline_seconds,
        )


class EpisodeSession(Protocol):
    """Opens and ends the session of an episode, which is in this process or in a pod."""

    @property
    def retryable(self) -> tuple[type[Exception], ...]:
        """Failures that another player may recover from. The player raises them instead of returning a result."""
        ...

    def open(self, run: EpisodeRun) -> AbstractAsyncContextManager[AsyncRepoEnv]:
        """The prepared environment of the episode. Leaving the context releases it."""
        ...

    async def finish(self, env: AsyncRepoEnv, reason: EndReason | None) -> Result:
        """End and score the episode. ``reason`` is the agent's reason for ending it, or None."""
        ...

    async def result_after(self, over: EpisodeOver) -> Result:
        """The result of an episode that ended without this player. Raises ``over`` if there is none."""
        ...


class Player:
    """Plays one episode to its result.

    Args:
        run: The task, the agent and its settings.
        session: Opens and ends the session.
        record: Stores the steps.
        log: The episode's log.
        hooks: Callbacks for steps and exchanges.
        begun: The steps that an earlier player recorded in the same attempt. The agent resumes after them.
        pending_exchanges: Exchanges that led to later steps, by step number. They are not in the trajectory yet.
    """

    def __init__(
        self,
        run: EpisodeRun,
        session: EpisodeSession,
        record: Record,
        *,
        log: logging.Logger,
        hooks: Hooks = Hooks(),  # noqa: B008 - immutable
        begun: tuple[TimedStep, ...] = (),
        pending_exchanges: Mapping[int, tuple[Any, ...]] = MappingProxyType({}),
    ) -> None:
        self._run = run
        self._session = session
        self._record = record
        self._log = log
        self._hooks = hooks
        self._recorded: list[Step] = list(begun)
        self._exchanges = {
            line.seq: tuple(msgspec.convert(each, Exchange) for each in line.exchanges)
            for line in begun
            if line.exchanges
        }
        self._pending_exchanges = {
            seq: tuple(msgspec.convert(each, Exchange) for each in exchanges)
            for seq, exchanges in pending_exchanges.items()
            if exchanges and seq >= len(begun)
        }
        self._exchanges |= self._pending_exchanges
        self._unrecorded: list[Exchange] = []
        self._served: dict[str, None] = {}
        self._fingerprints: dict[str, None] = {}
        for exchange in (exchange for exchanges in self._exchanges.values() for exchange in exchanges):
            self._served_by(exchange)
        self._env: AsyncRepoEnv | None = None
        self._chat: Chat | None = None
        self._notes: list[str] = []
        self._patch = ""
        self._provenance = run.provenance

    async def play(self, models: Models) -> Result:
        """Play the episode and return its result. A failure is returned as a result, too.

        Raises:
            Exception: One of ``session.retryable``.
        """
        started = time.monotonic()
        try:
            async with self._record.saving():
                await self._open_chat(models)
                self._record.provenance = self._provenance = self._with_agent()
                result = await self._drive()
        except Exception as error:
            if self._is_retryable(error):
                raise
            reason, message = failure_cause(error, self._log)
            result = self._failed(reason, message)
        finally:
            if self._chat is not None:
                self._chat.close()
        if not result.duration_seconds:
            result = msgspec.structs.replace(result, duration_seconds=round(time.monotonic() - started, 3))
        return self._with_usage(result)

    def _is_retryable(self, error: Exception) -> bool:
        return isinstance(error, self._session.retryable) and not isinstance(error, ModelMisconfigured)

    @property
    def price(self) -> str | None:
        """The price of the model's tokens in all attempts. None if the model has no prices."""
        cost = self._chat.cost if self._chat is not None else None
        return None if cost is None else write_cost(cost)

    @property
    def provenance(self) -> Provenance:
        """The provenance as far as it is known."""
        model = self._provenance.model
        if model is None:
            return self._provenance
        model = msgspec.structs.replace(
            model,
            served=tuple(self._served)[:_MOST_SERVED],
            system_fingerprints=tuple(self._fingerprints)[:_MOST_SERVED],
        )
        return msgspec.structs.replace(self._provenance, model=model)

    def _with_agent(self) -> Provenance:
        run = self._run
        return with_agent(
            run.provenance,
            run.agent,
            run.spec.parameters,
            base=run.base,
            model=self._chat.model if self._chat is not None else None,
            seed=run.seed,
            temperature=run.spec.temperature,
        )

    def _with_environment(self) -> Provenance:
        """The provenance with the report of the environment at the reset."""
        assert self._env is not None
        environment = self._env.environment
        if environment is None:
            return self._provenance
        return msgspec.structs.replace(
            self._provenance,
            sandbox=environment.sandbox,
            image=self._provenance.image or environment.image,
            reported_by_sandbox=environment.reported_by_sandbox,
        )

    def _served_by(self, exchange: Exchange) -> None:
        """Record the model and fingerprint that the server reported."""
        self._served |= dict.fromkeys([exchange.model] if exchange.model else [])
        self._fingerprints |= dict.fromkeys([exchange.system_fingerprint] if exchange.system_fingerprint else [])

    async def _drive(self) -> Result:
        try:
            async with self._session.open(self._run) as env:
                self._env = env
                env.observe(self._observe, sending=self._sending)
                result = await self._session.finish(env, await self._run_agent(env))
        except EpisodeOver as over:
            result = await self._session.result_after(over)
        return msgspec.structs.replace(result, notes=(*result.notes, *self._notes))

    async def _run_agent(self, env: AsyncRepoEnv) -> EndReason | None:
        """Run the agent. Return its reason for ending the episode, or None if the environment ended it."""
        try:
            with genai_span("invoke_agent", self._run.spec.name) as invoking:
                if invoking is not None:
                    invoking.set("gen_ai.agent.name", self._run.spec.name)
                    invoking.set("gen_ai.request.model", self._run.spec.model)
                try:
                    return await self._run.agent().run(env, self._context())
                except StopEpisode as stop:
                    return stop.reason
                except ContextLengthExceeded as error:
                    self._note(f"the messages exceed the model's context: {error}")
                    return EndReason.CONTEXT_EXHAUSTED
                except ContentFiltered as error:
                    self._note(f"the model or its provider refuses to answer: {error}")
                    return EndReason.MODEL_REFUSED
                except ModelError as error:
                    if not self._is_retryable(error):
                        self._patch = await self._patch_of(env)
                    raise
        except EpisodeOver:
            # The result is valid even if the agent did not notice that the episode has ended.
            if env.result is None:
                raise
            return None

    async def _patch_of(self, env: AsyncRepoEnv) -> str:
        """The agent's patch before the model failed. Empty if it cannot be read."""
        try:
            return await env.patch()
        except Superseded:
            raise
        except DgymError as error:
            self._note(f"the changes before the failure are lost: {error}")
            return ""

    async def _open_chat(self, models: Models) -> None:
        run = self._run
        if not run.agent.uses_model or run.spec.model is None:
            return
        limit = run.spec.cost_limit
        if limit is not None:
            models.require_prices(run.spec.model, run.llm_config, field="agent.costLimit", limit=limit)
        self._chat = Chat(
            await models.open(run.spec.model, run.llm_config),
            session=run.session,
            seed=run.seed,
            temperature=run.spec.temperature,
            token_budget=run.spec.token_budget,
            cost_limit=None if limit is None else Decimal(limit),
            earlier_cost=run.earlier_cost,
            listener=self._exchanged,
            waiting=self._hooks.on_wait or (lambda _: None),
        )

    def _context(self) -> AgentContext:
        run = self._run
        return AgentContext(
            task_name=run.task.metadata.name,
            parameters=run.spec.parameters,
            model=run.spec.model,
            tools=tuple(tool if isinstance(tool, str) else tool.name for tool in run.tools),
            seed=run.seed,
            base=run.base,
            solution=run.task.spec.solution if run.agent.needs_solution else None,
            chat=self._chat,
            earlier_replies={seq: exchanges[-1] for seq, exchanges in self._exchanges.items()},
            log=lambda text: self._log.info("%s", text),
            note=self._note,
        )

    def _note(self, text: str) -> None:
        self._notes.append(text)
        self._log.warning("%s", text)

    def _resume_chat(self) -> None:
        """Start the model's deadline at the reset, and add the tokens that earlier players of this attempt used."""
        if self._chat is None:
            return
        assert self._env is not None
        self._chat.deadline = asyncio.get_running_loop().time() + self._run.deadline_seconds
        earlier = [exchange for exchanges in self._exchanges.values() for exchange in exchanges]
        prices = [Decimal(exchange.usage.price) for exchange in earlier if exchange.usage.price is not None]
        usage = self._env.usage
        self._chat.resume(
            earlier,
            input_tokens=max(usage.input_tokens, sum(exchange.usage.input_tokens for exchange in earlier)),
            output_tokens=max(usage.output_tokens, sum(exchange.usage.output_tokens for exchange in earlier)),
            price=sum(prices, Decimal(0)) if prices else None,
            cost=read_cost(usage.price),
        )

    def _exchanged(self, exchange: Exchange) -> None:
        assert self._chat is not None
        assert self._env is not None
        self._unrecorded.append(exchange)
        self._served_by(exchange)
        self._env.record_usage(
            input_tokens=self._chat.input_tokens, output_tokens=self._chat.output_tokens, price=self.price
        )
        if self._hooks.on_exchange is not None:
            self._hooks.on_exchange(exchange, self._recorded)

    def _sending(self, seq: int, action: Action) -> None:
        """Record the exchanges before a step when the step is sent, so they are kept if the step kills its sandbox."""
        self._record.sending(seq, _recorded_call(action), [*self._pending_exchanges.get(seq, ()), *self._unrecorded])

    def _observe(self, step: Step) -> None:
        """Record a step with the exchanges that led to it, unless an earlier player has recorded it."""
        if step.seq == 0:
            self._resume_chat()
            self._provenance = self._with_environment()
            self._record.describe(self._provenance)
        if step.seq < len(self._recorded):
            return
        exchanges, self._unrecorded = self._unrecorded, []
        self._record.write(step, [*self._pending_exchanges.pop(step.seq, ()), *exchanges])
        self._recorded.append(step)
        observation = step.observation
        self._log.debug(
            "step %d: %s (%s, %.3f s)", step.seq, step.shown_tool, observation.ok, observation.duration_seconds
        )
        if self._hooks.on_step is not None:
            self._hooks.on_step(step)

    def _failed(self, reason: EndReason, message: str) -> Result:
        rewrites = sum(
            step.call is not None and step.call.tool == "rewrite" and step.observation.ok for step in self._recorded
        )
        steps = max(0, len(self._recorded) - 1)
        return Result(resolved=False, reason=reason, message=message, steps=steps, rewrites=rewrites, patch=self._patch)

    def _with_usage(self, result: Result) -> Result:
        """Add the model's tokens to ``result`` if the session has not. A signed result must not be changed."""
        if self._chat is None or result.signature:
            return result
        result = msgspec.structs.replace(result, price=self.price)
        if result.input_tokens or result.output_tokens:
            return result
        return msgspec.structs.replace(
            result, input_tokens=self._chat.input_tokens, output_tokens=self._chat.output_tokens
        )


def _recorded_call(action: Action) -> ToolCall:
    """Convert ``action`` to a call without validation, since the session parses it later."""
    if isinstance(action, ToolCall):
        return action
    try:
        return msgspec.convert(action, ToolCall)
    except msgspec.ValidationError:
        return ToolCall.unread(action)


def failure_cause(error: Exception, log: logging.Logger) -> tuple[EndReason, str]:
    """Log ``error`` as the cause of the end. Return the reason and the message of the result."""
    if isinstance(error, InfrastructureError):
        log.error("%s: %s", error.reason, error)
        return EndReason(error.reason), str(error)
    if isinstance(error, DgymError):
        log.error("%s", error)
        return EndReason.INVALID_SPEC if isinstance(error, _WRONG) else EndReason.INTERNAL_ERROR, str(error)
    log.error("the agent or dgym failed:", exc_info=error)
    return EndReason.INTERNAL_ERROR, f"{type(error).__name__}: {error}"


def begin_provenance(task_digest: str, *, image: str = "") -> Provenance:
    """The provenance before an episode starts. ``image`` is the digest of the pod's image."""
    return Provenance(dgym_version=version("dgym"), dgym_commit=dgym_commit(), task_digest=task_digest, image=image)


def with_agent(
    provenance: Provenance,
    agent: type[BaseAgent],
    parameters: Mapping[str, Any],
    *,
    base: Path | None,
    model: Model | None,
    seed: int | None,
    temperature: str | None,
) -> Provenance:
    """Add the agent's parameters and prompts, and its model, to ``provenance``."""
    return msgspec.structs.replace(
        provenance,
        parameters={name: _recorded(value) for name, value in parameters.items()},
        prompts=agent.prompt_digests(parameters, base),
        model=describe_model(model, seed=seed, temperature=temperature) if model is not None else None,
    )


def _recorded(value: Any) -> Any:
    """Mask possible keys in a parameter, and replace a long one by its digest."""
    data = mask(msgspec.json.encode(value, order="sorted", enc_hook=repr).decode())
    if len(data) > _LONG_BYTES:
        return {"sha256": hashlib.sha256(data.encode()).hexdigest()}
    return msgspec.json.decode(data)


@functools.cache
def dgym_commit() -> str:
    """The commit that dgym was installed from, with ``-dirty`` if files of its checkout differed. Empty if unknown.

    Wheels have it in ``commit.txt``, see ``hack/record_commit.py``.
    """
    package = Path(dgym.__file__).resolve().parent
    try:
        if not (package.parent / ".git").exists():
            return (package / "commit.txt").read_text("ascii").strip()
        git = ["git", "--no-optional-locks", "-C", str(package.parent)]
        describe = [*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        return subprocess.run(describe, check=True, capture_output=True, text=True, timeout=_GIT_SECONDS).stdout.strip()
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""
