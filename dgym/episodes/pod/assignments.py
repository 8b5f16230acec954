"""The assignments of an agent pod: put and deleted by the operator, each run in a task of its own."""

import asyncio
import logging
import time
import uuid
from collections import Counter
from collections.abc import Awaitable
from types import TracebackType
from typing import Protocol, Self

import msgspec

from dgym.episodes.pod.metrics import Gauges
from dgym.episodes.pod.progress import Ending, Report, Stage
from dgym.wire import EndReason
from dgym.wire.assignments import AgentReport, Assignment, AssignmentMode, AssignmentState, AssignmentStatus

_log = logging.getLogger(__name__)

_KEPT = 2_000
"""Ended episodes in the report; the operator deletes them long before there are so many."""
_STORING = (AssignmentState.STORING, AssignmentState.STORE_UNAVAILABLE)


class AssignmentRunner(Protocol):
    """Runs one assignment to its end."""

    def __call__(self, assignment: Assignment, report: Report) -> Awaitable[Ending | None]:
        """Run ``assignment``; ``report`` gets every change of its stage."""
        ...


class Refusal(Exception):
    """The assignment is refused."""


class NoSlot(Refusal):
    """Every slot is taken, or the pod drains; the operator may try again."""


class Outdated(Refusal):
    """The pod has the episode under a later attempt, or under a higher epoch of this one."""


class _Held:
    """One assignment, its stage and its end."""

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.stage = Stage(AssignmentState.PREPARING)
        self.ending: Ending | None = None
        self.task: asyncio.Task[None] | None = None
        self._active_seconds = 0.0
        self._active_since: float | None = None

    def enter(self, stage: Stage) -> None:
        """Begin a stage; the deadline's clock runs in active ones."""
        now = time.monotonic()
        self.stage = stage
        if stage.active and self._active_since is None:
            self._active_since = now
        elif not stage.active:
            self._active_seconds, self._active_since = self.active_seconds, None

    @property
    def active_seconds(self) -> float:
        """How long the episode's deadline has run under this assignment."""
        running = time.monotonic() - self._active_since if self._active_since is not None else 0.0
        return self._active_seconds + running

    @property
    def rank(self) -> tuple[int, int]:
        """Orders the assignments of an episode; the highest is the newest."""
        return _rank(self.assignment)

    @property
    def takes_slot(self) -> bool:
        """Whether an agent runs here; a preparation or a recovery only waits for others."""
        return self.ending is None and self.assignment.mode is AssignmentMode.RUN

    @property
    def is_storing(self) -> bool:
        """Whether there is a result that the store does not hold yet."""
        return self.ending is None and self.stage.state in _STORING

    @property
    def status(self) -> AssignmentStatus:
        """The assignment's line in the report."""
        ending = self.ending
        outcome = None if ending is None else ending.outcome
        return AssignmentStatus(
            episode_uid=self.assignment.episode_uid,
            attempt=self.assignment.attempt,
            epoch=self.assignment.epoch,
            state=self.stage.state if ending is None else ending.state,
            steps=self.stage.steps,
            active_seconds=int(self.active_seconds),
            reason=None if ending is None else ending.reason,
            outcome=outcome,
            message=self.stage.cause if ending is None else ending.message,
            outage=ending is not None and ending.outage,
            price=(outcome.price if outcome is not None else None) or self.stage.price,
        )


class Assignments:
    """The assignments by the episode's UID. An asynchronous context: leaving it cancels those that run."""

    def __init__(self, runner: AssignmentRunner, *, slots: int) -> None:
        self.slots = slots
        self.draining = False
        self.incarnation = uuid.uuid4().hex
        self._run_assignment = runner
        self._held: dict[str, _Held] = {}
        self._storing: dict[str, asyncio.Task[None]] = {}
        self._group = asyncio.TaskGroup()
        self._idle = asyncio.Event()
        self._idle.set()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in (*(held.task for held in self._held.values()), *self._storing.values()):
            if task is not None:
                task.cancel()
        await self._group.__aexit__(kind, error, trace)

    def report(self) -> AgentReport:
        """The report that the operator reads every few seconds."""
        return AgentReport(
            incarnation=self.incarnation,
            slots=self.slots,
            draining=self.draining,
            assignments=tuple(held.status for held in self._held.values()),
        )

    def status(self, episode_uid: str) -> AssignmentStatus | None:
        """The status of one episode; None for an unknown one."""
        held = self._held.get(episode_uid)
        return None if held is None else held.status

    def gauges(self) -> Gauges:
        """The present numbers for metrics."""
        states = Counter(held.status.state for held in self._held.values())
        return Gauges(slots=self.slots, used=self._used, draining=self.draining, states=states)

    def put(self, assignment: Assignment) -> AssignmentStatus:
        """Accept an assignment; returns the status of one of the same attempt and epoch. A newer one replaces an older.

        A recovery lets a result be stored that is being stored here, and looks for it then.

        Raises:
            Refusal: There is no free slot, or a newer assignment of the episode is known.
        """
        uid = assignment.episode_uid
        before = self._held.get(uid)
        if before is not None:
            if before.rank > _rank(assignment):
                raise Outdated("the episode is held under attempt {}, epoch {}".format(*before.rank))
            if before.rank == _rank(assignment):
                return before.status
        if self.draining:
            raise NoSlot("the agent is draining: it takes nothing new")
        freed = before is not None and before.takes_slot
        if assignment.mode is AssignmentMode.RUN and self._used - freed >= self.slots:
            raise NoSlot(f"all {self.slots} slots are taken")
        outdated = before.task if before is not None else self._storing.get(uid)
        stored = before is None or before.is_storing
        if outdated is not None and not (stored and assignment.mode is AssignmentMode.RECOVER):
            outdated.cancel()
        held = self._held[uid] = _Held(assignment)
        held.task = self._group.create_task(self._play(held, outdated), name=f"dgym-episode-{uid}")
        self._idle.clear()
        self._evict_oldest()
        return held.status

    def delete(self, episode_uid: str) -> bool:
        """Remove an episode; one that runs is cancelled, its pod untouched. False: it was not known.

        A result that is being stored is stored all the same: the operator may have read the verdict from the pod, and
        nothing else holds patch and trajectory.
        """
        held = self._held.pop(episode_uid, None)
        if held is None:
            return False
        if held.task is not None and held.is_storing:
            self._storing[episode_uid] = held.task
            held.task.add_done_callback(lambda task: self._forget_storing(episode_uid, task))
        elif held.task is not None:
            held.task.cancel()
        self._update_idle()
        return True

    def _forget_storing(self, episode_uid: str, task: asyncio.Task[None]) -> None:
        if self._storing.get(episode_uid) is task:
            del self._storing[episode_uid]
        self._update_idle()

    async def drained(self) -> None:
        """Wait until no assignment runs."""
        await self._idle.wait()

    @property
    def _used(self) -> int:
        return sum(held.takes_slot for held in self._held.values())

    async def _play(self, held: _Held, before: asyncio.Task[None] | None) -> None:
        try:
            if before is not None:
                await asyncio.wait([before])
            ending = await self._run_assignment(held.assignment, held.enter)
        except (Exception, SystemExit) as error:
            # An agent that asks for the end of the process gets the end of its episode: others are played here too.
            _log.exception("an episode could not be played")
            ending = Ending(
                state=AssignmentState.FAILED,
                reason=EndReason.INTERNAL_ERROR,
                message=f"{type(error).__name__}: {error}",
            )
        uid = held.assignment.episode_uid
        if ending is not None:
            # Nothing of the episode is needed any more but how it ended.
            held.assignment = msgspec.structs.replace(held.assignment, task={}, agent=None)
            held.enter(msgspec.structs.replace(held.stage, cause="", active=False))
            held.ending = ending
        elif self._held.get(uid) is held:
            del self._held[uid]
        self._update_idle()

    def _update_idle(self) -> None:
        if not self._storing and all(held.ending is not None for held in self._held.values()):
            self._idle.set()

    def _evict_oldest(self) -> None:
        ended = [uid for uid, held in self._held.items() if held.ending is not None]
        for uid in ended[:-_KEPT]:
            del self._held[uid]


def _rank(assignment: Assignment) -> tuple[int, int]:
    # Each attempt has a sidecar of its own to fence, so that epochs may begin anew with it.
    return assignment.attempt, assignment.epoch
