"""Plays one assignment to its end: the verdict stored, the pod let go, or the reason why another must try."""

import asyncio
import contextlib
import logging
from datetime import UTC, datetime

import msgspec

from dgym.env.preparation import RemotePreparation
from dgym.episodes.pod.driving import Driving
from dgym.episodes.pod.logs import EpisodeLog, logging_into
from dgym.episodes.pod.observing import Observing
from dgym.episodes.pod.progress import Ending, Progress, Shared, Tell
from dgym.errors import (
    AccessRefused,
    ContextLengthExceeded,
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
from dgym.results import Record, StoredResult
from dgym.results.store import attempt_path
from dgym.wire import EndReason, Outcome, Result
from dgym.wire.assignments import Assignment, AssignmentMode, AssignmentState

_log = logging.getLogger("dgym.episodes.episode")

_LOST = (SandboxLost, SandboxStartFailed, AccessRefused)
"""The pod is gone, or is another's. Nothing is stored: another attempt follows."""
_WRONG = (ManifestError, PluginError)
_MARGIN_SECONDS = 6 * 3600.0
_MESSAGE_CHARACTERS = 4096


async def play(assignment: Assignment, shared: Shared, *, tell: Tell) -> Ending | None:
    """Play to the end; None when another agent has the episode now.

    A failure that another try may cure is returned as such, and the pod is kept. ``tell`` is told of every change.
    """
    log = EpisodeLog(
        namespace=assignment.namespace,
        episode=assignment.episode,
        attempt=assignment.attempt,
        epoch=assignment.epoch,
    )
    with logging_into(log):
        _log.info("assigned: attempt %d, epoch %d, %s", assignment.attempt, assignment.epoch, assignment.mode.value)
        try:
            ending = await _PodPlay(assignment, shared, log, Progress(tell, shared.metrics)).run()
        except Superseded as error:
            _log.info("dropped: %s", error)
            return None
        except _LOST as error:
            ending = _failure(EndReason.SANDBOX_LOST, str(error))
        except ModelError as error:
            ending = _failure(EndReason.MODEL_ERROR, str(error))
        _log.info("over: %s %s", ending.state.value, ending.reason, extra={"fields": {"why": ending.message}})
    shared.metrics.ended(ending.reason.value)
    return ending


class _PodPlay:
    def __init__(self, assignment: Assignment, shared: Shared, log: EpisodeLog, progress: Progress) -> None:
        self._assignment = assignment
        self._shared = shared
        self._progress = progress
        self._record = Record(
            shared.store,
            attempt_path(assignment.namespace, assignment.episode, assignment.episode_uid, assignment.attempt),
            log,
            unavailable=progress.store_unavailable,
            longest_pause_seconds=shared.store_retry_seconds,
        )
        self._started = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

    async def run(self) -> Ending:
        assignment = self._assignment
        stored = await self._record.result()
        if assignment.mode is AssignmentMode.RECOVER:
            if stored is None:
                return _failure(EndReason.SANDBOX_LOST, "the store holds no result of this attempt")
            return _finished(stored)
        waiting = msgspec.structs.replace(
            self._shared.patience, running_seconds=assignment.remaining_seconds + _MARGIN_SECONDS
        )
        preparation = RemotePreparation(
            assignment.sidecar_url, assignment.prepare_token, epoch=assignment.epoch, patience=waiting
        )
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(preparation.close)
            if stored is None:
                stored = await self._play(preparation)
            await preparation.release(
                result_uri=stored.result_uri,
                reason=None if stored.reason.is_verdict else stored.reason,
                message=stored.message[:_MESSAGE_CHARACTERS],
            )
        return _finished(stored)

    async def _play(self, preparation: RemotePreparation) -> StoredResult:
        kind = Driving if self._assignment.mode is AssignmentMode.RUN else Observing
        playing = kind(self._assignment, self._shared, self._progress, self._record, preparation)
        try:
            result = await self._verdict(playing, preparation)
        finally:
            playing.close()
        self._progress.become(AssignmentState.STORING)
        with self._progress.timed("store"):
            return await self._store(self._described(result, playing.price), preparation)

    async def _store(self, result: StoredResult, preparation: RemotePreparation) -> StoredResult:
        """Store the result; wait for the store while the pod holds the result too, and for a while after that.

        A result that neither store nor pod holds is returned with that in its message: only the operator gets it.
        """
        storing = asyncio.create_task(self._record.finish(result), name="dgym-storing")
        watching = asyncio.create_task(self._pod_is_gone(preparation), name="dgym-watching")
        try:
            await asyncio.wait((storing, watching), return_when=asyncio.FIRST_COMPLETED)
            if not storing.done():
                watching.result()
                await asyncio.wait((storing,), timeout=self._shared.store_patience_seconds)
            if storing.done():
                return storing.result()
        finally:
            for task in (storing, watching):
                task.cancel()
            await asyncio.gather(storing, watching, return_exceptions=True)
        problem = f"the pod is gone, and the result could not be stored: {self._progress.store_problem}"
        _log.error("%s", problem)
        return msgspec.structs.replace(result, message=f"{result.message}; {problem}".removeprefix("; "))

    async def _pod_is_gone(self, preparation: RemotePreparation) -> None:
        """Wait until the sidecar stops answering, or refuses the episode.

        Raises:
            Superseded: Another agent has the episode, and finds the verdict in the pod.
        """
        while True:
            await asyncio.sleep(self._shared.store_retry_seconds)
            try:
                await preparation.result()
            except Superseded:
                raise
            except (*_LOST, EpisodeOver) as error:
                seconds = self._shared.store_patience_seconds
                _log.warning("the pod is gone, and storing is tried for %g s more: %s", seconds, error)
                return
            except DgymError:
                continue  # the failure that is being stored

    async def _verdict(self, playing: Driving | Observing, preparation: RemotePreparation) -> Result:
        """The verdict, or a failure that no other try would cure in the form of a result."""
        try:
            return await playing.run(self._started)
        except ContextLengthExceeded as error:
            # The agent has left out what it could: another try would send the same.
            _log.error("%s", error)
            return playing.failed(EndReason.MODEL_ERROR, str(error))
        except (Superseded, ModelError, *_LOST):
            raise
        except EpisodeOver as error:
            return await self._told(preparation, error)
        except InfrastructureError as error:
            _log.error("%s: %s", error.reason, error)
            return playing.failed(EndReason(error.reason), str(error))
        except DgymError as error:
            _log.error("%s", error)
            reason = EndReason.INVALID_SPEC if isinstance(error, _WRONG) else EndReason.INTERNAL_ERROR
            return playing.failed(reason, str(error))
        except Exception as error:
            _log.exception("the agent or dgym failed")
            return playing.failed(EndReason.INTERNAL_ERROR, f"{type(error).__name__}: {error}")

    async def _told(self, preparation: RemotePreparation, over: EpisodeOver) -> Result:
        """The verdict of an episode that ended without this agent; a sidecar that was restarted has none."""
        try:
            async with asyncio.timeout(self._shared.patience.silence_seconds):
                return await preparation.result()
        except TimeoutError:
            raise SandboxLost(str(over)) from None

    def _described(self, result: Result, price: str | None) -> StoredResult:
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
            price=price,
        )


def _finished(stored: StoredResult) -> Ending:
    outcome = Outcome(**{name: getattr(stored, name) for name in Outcome.__struct_fields__})
    return Ending(state=AssignmentState.FINISHED, reason=stored.reason, outcome=outcome, message=stored.message)


def _failure(reason: EndReason, message: str) -> Ending:
    return Ending(state=AssignmentState.FAILED, reason=reason, message=message)
