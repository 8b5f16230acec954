"""Plays one assignment: prepares the pod, drives it, stores what it leaves, and lets the pod go."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING

import msgspec

from dgym.agents.exchange import Exchange
from dgym.env import AsyncRepoEnv
from dgym.env.http_client import HttpClient, Patience
from dgym.env.remote_preparation import RemotePreparation
from dgym.errors import (
    AccessRefused,
    ConflictError,
    DgymError,
    EpisodeOver,
    InfrastructureError,
    ManifestError,
    ModelError,
    PluginError,
    SandboxLost,
    SandboxStartFailed,
    Superseded,
)
from dgym.results import StoredResult
from dgym.results.stores import Store, StoreUnavailable, attempt_path
from dgym.results.trajectory import TimedStep, TrajectoryHeader
from dgym.session import EpisodeLimits
from dgym.wire import EndReason, Outcome, Result, Step
from dgym.wire.assignments import Assignment, AssignmentMode, AssignmentState
from dgym.wire.http import DRIVER_REASONS, Path, ToolsResponse
from dgym.worker.models import Models
from dgym.worker.playing import Hooks, Play
from dgym.worker.pod.logs import EpisodeLog, logging_into
from dgym.worker.pod.metrics import Metrics
from dgym.worker.pod.record import Record
from dgym.worker.pod.script import PodScript, read_script
from dgym.workspace.source_cache import SourceCache

if TYPE_CHECKING:
    from pathlib import Path as FilePath

_log = logging.getLogger("dgym.worker.episode")

_LAST_WORDS_SECONDS = 2.0
_LOST = (SandboxLost, SandboxStartFailed, AccessRefused)
"""The pod is gone or is another's. Nothing is stored: another attempt follows."""
_WRONG = (ManifestError, PluginError)


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """What all episodes of a worker share."""

    store: Store
    sources: SourceCache
    models: Models
    metrics: Metrics
    patience: Patience = Patience()
    store_retry_seconds: float = 30.0


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How it ended for this agent: stored and released, or to be tried again by whoever the operator chooses."""

    state: AssignmentState
    reason: EndReason
    outcome: Outcome | None = None
    message: str = ""


class PodPlay:
    """One assignment of one worker.

    Args:
        assignment: What is played.
        shared: What it uses together with others.
        tell: Told of every change of the state, with the steps so far.
    """

    def __init__(self, assignment: Assignment, shared: Shared, *, tell: Callable[[AssignmentState, int], None]) -> None:
        self._assignment = assignment
        self._shared = shared
        self._tell = tell
        self._state = AssignmentState.PREPARING
        self._steps = 0
        self._log = EpisodeLog(
            episode=f"{assignment.namespace}/{assignment.episode}", attempt=assignment.attempt, epoch=assignment.epoch
        )
        self._price: str | None = None
        self._started = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

    async def run(self) -> Ending | None:
        """Play to the end; None when another agent has the episode now.

        A failure that another try may cure is returned as such, and the pod is kept.
        """
        assignment = self._assignment
        with logging_into(self._log):
            _log.info("assigned: attempt %d, epoch %d, %s", assignment.attempt, assignment.epoch, assignment.mode.value)
            try:
                return await self._run()
            except Superseded as error:
                _log.info("dropped: %s", error)
                return None
            except _LOST as error:
                return self._failure(EndReason.SANDBOX_LOST, str(error))
            except ModelError as error:
                return self._failure(EndReason.MODEL_ERROR, str(error))
            except Exception as error:
                _log.exception("the worker failed")
                return self._failure(EndReason.INTERNAL_ERROR, f"{type(error).__name__}: {error}")

    async def _run(self) -> Ending:
        assignment = self._assignment
        path = attempt_path(assignment.namespace, assignment.episode, assignment.episode_uid, assignment.attempt)
        record = Record(
            self._shared.store,
            path,
            self._log,
            unavailable=self._store_unavailable,
            longest_pause_seconds=self._shared.store_retry_seconds,
        )
        preparation = RemotePreparation(
            assignment.sidecar_url, assignment.prepare_token, epoch=assignment.epoch, patience=self._shared.patience
        )
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(preparation.close)
            stored = await record.result()
            if stored is None and assignment.mode is AssignmentMode.RECOVER:
                return self._failure(EndReason.SANDBOX_LOST, "the store holds no result of this attempt")
            if stored is None:
                result = await self._verdict(record, preparation)
                self._become(AssignmentState.STORING)
                with self._timed("store"):
                    stored = await record.finish(self._described(result))
            if assignment.mode is not AssignmentMode.RECOVER:
                await preparation.release(
                    result_uri=stored.result_uri,
                    reason=None if stored.reason.is_verdict else stored.reason,
                    message=stored.message[:4096],
                )
        _log.info("finished: %s, score %d of %d", stored.reason, stored.score, stored.max_score)
        return self._finished(stored)

    async def _verdict(self, record: Record, preparation: RemotePreparation) -> Result:
        """The verdict, or a failure that no other try would cure in the form of a result."""
        play: Play | None = None
        reason = EndReason.INTERNAL_ERROR
        try:
            script = read_script(self._assignment)
            begun = await record.load(self._header(script))
            play = Play(script.script, record, log=_log, hooks=self._hooks(), begun=begun)
            async with self._saving(record):
                return await self._play(script, play, preparation, begun)
        except (Superseded, ModelError, *_LOST):
            raise
        except EpisodeOver as error:
            return await self._told(preparation, error)
        except InfrastructureError as error:
            reason, message = EndReason(error.reason), str(error)
            _log.error("%s: %s", reason, error)
        except DgymError as error:
            reason = EndReason.INVALID_SPEC if isinstance(error, _WRONG) else reason
            message = str(error)
            _log.error("%s", error)
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            _log.exception("the agent or dgym failed")
        finally:
            if play is not None:
                self._price = play.price
                play.close()
        if play is None:
            return Result(resolved=False, reason=reason, message=message)
        return play.with_usage(play.failed(reason, message))

    async def _play(
        self, script: PodScript, play: Play, preparation: RemotePreparation, begun: tuple[TimedStep, ...]
    ) -> Result:
        play.open_chat(self._shared.models)
        with self._timed("prepare"):
            if await self._prepared():
                _log.info("taken up where an earlier agent left it, with %d steps in the store", len(begun))
                self._shared.metrics.resumed()
            else:
                await self._prepare(script, preparation)
        self._become(AssignmentState.RUNNING)
        assignment = self._assignment
        env = AsyncRepoEnv.connect(
            assignment.sidecar_url,
            assignment.drive_token,
            epoch=assignment.epoch,
            prepare_token=assignment.prepare_token,
            reset_key=f"{assignment.episode_uid}-{assignment.attempt}",
            patience=self._shared.patience,
        )

        async def finish(reason: EndReason | None) -> Result:
            self._become(AssignmentState.CLOSING)
            with self._timed("close"):
                if reason is EndReason.DEADLINE_EXCEEDED:
                    # The sidecar has the episode's clock, and ends it by itself.
                    return await preparation.result()
                known = reason if reason in DRIVER_REASONS else None
                return await env.finish(*(() if known is None else (known,)))

        async with env:
            with self._timed("play"):
                return await play.drive(env, finish)

    async def _prepared(self) -> bool:
        """Whether an agent before this one has prepared the pod; its sources may have moved since."""
        assignment = self._assignment
        client = HttpClient(
            assignment.sidecar_url, assignment.drive_token, epoch=assignment.epoch, patience=self._shared.patience
        )
        try:
            await client.call("GET", Path.TOOLS, ToolsResponse)
        except ConflictError:
            return False
        finally:
            await client.close()
        return True

    async def _prepare(self, script: PodScript, preparation: RemotePreparation) -> None:
        spec = script.script.spec
        limits = EpisodeLimits(
            max_steps=spec.max_steps,
            max_rewrites=spec.max_rewrites,
            deadline_seconds=self._assignment.remaining_seconds,
        )
        async with self._source(script) as source:
            await preparation.prepare(script.script.task, source=source, tools=script.tools, limits=limits)

    @contextlib.asynccontextmanager
    async def _source(self, script: PodScript) -> "AsyncIterator[FilePath | None]":
        source = script.script.task.spec.source
        if source is None:
            yield None
            return
        async with contextlib.AsyncExitStack() as stack:
            with self._timed("source"):
                path = await stack.enter_async_context(self._shared.sources.packed(source))
            yield path

    async def _told(self, preparation: RemotePreparation, error: EpisodeOver) -> Result:
        """The verdict of an episode that ended without this agent; there is none in a sidecar that was restarted."""
        try:
            async with asyncio.timeout(self._shared.patience.silence_seconds):
                return await preparation.result()
        except TimeoutError:
            raise SandboxLost(str(error)) from None

    @contextlib.asynccontextmanager
    async def _saving(self, record: Record) -> AsyncIterator[None]:
        """Save what is recorded, also when the episode goes to another worker."""
        saving = asyncio.create_task(record.keep_saving(), name="dgym-saving")
        try:
            yield
        finally:
            saving.cancel()
            await asyncio.wait([saving])
            with contextlib.suppress(StoreUnavailable, TimeoutError):
                async with asyncio.timeout(_LAST_WORDS_SECONDS):
                    await record.save()

    def _hooks(self) -> Hooks:
        def on_step(step: Step) -> None:
            self._steps = step.seq
            if step.seq:
                self._shared.metrics.stepped()
            self._become(self._state)

        def on_exchange(exchange: Exchange, _recorded: list[Step]) -> None:
            usage = exchange.usage
            self._shared.metrics.spoke(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)

        return Hooks(on_step=on_step, on_exchange=on_exchange)

    def _header(self, script: PodScript) -> TrajectoryHeader:
        assignment = self._assignment
        return TrajectoryHeader(
            dgym_version=version("dgym"),
            namespace=assignment.namespace,
            episode=assignment.episode,
            sample=assignment.sample,
            attempt=assignment.attempt,
            task=script.script.task.metadata.name,
            task_digest=script.task_digest,
            digest=assignment.episode_uid,
            agent=msgspec.to_builtins(script.script.spec),
            tools=tuple(msgspec.to_builtins(script.tools)),
            sandbox="pod",
            start_time=self._started,
        )

    def _described(self, result: Result) -> StoredResult:
        assignment = self._assignment
        agent = assignment.agent or {}
        metadata = assignment.task.get("metadata") or {}
        return StoredResult(
            **{name: getattr(result, name) for name in Result.__struct_fields__},
            namespace=assignment.namespace,
            episode=assignment.episode,
            task=str(metadata.get("name", "")),
            agent=str(agent.get("name", "")),
            model=str(agent.get("model") or ""),
            sample=assignment.sample,
            attempt=assignment.attempt,
            digest=assignment.episode_uid,
            start_time=self._started,
            price=self._price,
        )

    def _finished(self, stored: StoredResult) -> Ending:
        outcome = Outcome(**{name: getattr(stored, name) for name in Outcome.__struct_fields__})
        self._shared.metrics.ended(stored.reason.value)
        return Ending(state=AssignmentState.FINISHED, reason=stored.reason, outcome=outcome, message=stored.message)

    def _failure(self, reason: EndReason, message: str) -> Ending:
        _log.warning("given up here: %s: %s", reason, message)
        self._shared.metrics.ended(reason.value)
        return Ending(state=AssignmentState.FAILED, reason=reason, message=message)

    def _store_unavailable(self, error: StoreUnavailable | None) -> None:
        if error is None:
            self._become(self._state)
            return
        _log.warning("the store is asked again: %s", error)
        self._shared.metrics.store_failed()
        self._tell(AssignmentState.STORE_UNAVAILABLE, self._steps)

    def _become(self, state: AssignmentState) -> None:
        self._state = state
        self._tell(state, self._steps)

    @contextlib.contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self._shared.metrics.took(stage, time.monotonic() - began)
