"""The assignments of an agent pod, their progress, and the circuit breakers of its models.

The operator creates and withdraws assignments; each runs in its own task. While a model is out, no episode starts
with it until a probe succeeds.
"""

import asyncio
import contextlib
import logging
import random
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

import msgspec

from dgym.agents import Exchange
from dgym.env import RetryLimits
from dgym.episodes._player import Models
from dgym.episodes.agent_pod._telemetry import Gauges, Metrics
from dgym.errors import ModelUnavailable
from dgym.results import ResultsStore, StoreUnavailable
from dgym.tracing import OFF, Tracer, span
from dgym.wire import AttemptOutcome, EndReason, Step
from dgym.wire.assignments import (
    AgentPodReport,
    Assignment,
    AssignmentMode,
    AssignmentState,
    AssignmentStatus,
    ModelOutage,
)
from dgym.workspace.sources import SourceCache

_log = logging.getLogger(__name__)
_KEPT = 2_000
"""Maximum number of ended episodes in the report. The operator normally deletes them much earlier."""
_STORING = (AssignmentState.STORING, AssignmentState.STORE_UNAVAILABLE)
_episode_log = logging.getLogger("dgym.episodes.episode")
_CAUSE_CHARACTERS = 1000
FAILURES = 3
"""Number of consecutive episodes that use up the retries of a request before the model is out."""
FIRST_PAUSE_SECONDS = 15.0
LONGEST_PAUSE_SECONDS = 300.0
_REASON_CHARACTERS = 500


class Breaker:
    """The circuit breaker of one model."""

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._chance = chance
        self._failures = 0
        self._pause = 0.0
        self._until = 0.0
        self._probe: object | None = None
        self.cause = ""
        """Why the model is out. Empty if it is not."""

    def is_probe_due(self, now: float) -> bool:
        """Whether an episode may probe the model now."""
        return self._probe is None and now >= self._until

    def admit(self, episode: object, now: float) -> bool:
        """Whether the episode may use the model. While the model is out, only a probe may."""
        if self.cause and not self.is_probe_due(now):
            return False
        self._probe = episode if self.cause else None
        return True

    def answered(self) -> None:
        """Close the breaker, because the model has answered a request."""
        self._failures, self._pause, self._probe, self.cause = 0, 0.0, None, ""

    def failed(self, cause: str, now: float) -> None:
        """Count a failed request of an episode."""
        self._failures += 1
        if self._failures < FAILURES:
            return
        if not self.cause or self._probe is not None:
            self._pause = min(LONGEST_PAUSE_SECONDS, max(FIRST_PAUSE_SECONDS, 2 * self._pause))
            # Jitter, so that agent pods do not probe at the same time.
            self._until = now + self._pause * (0.5 + self._chance() / 2)
            self._probe = None
        self.cause = cause

    def left(self, episode: object) -> None:
        """Record the end of an episode. If it was the probe and had no result, another episode may probe the model."""
        if self._probe is episode:
            self._probe = None


class Breakers:
    """The circuit breakers of an agent pod by model name. They exist only for models that have failed."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, chance: Callable[[], float] = random.random
    ) -> None:
        self._clock = clock
        self._chance = chance
        self._breakers: dict[str, Breaker] = {}

    @contextlib.contextmanager
    def guard(self, model: str, episode: object) -> Iterator[None]:
        """Run an episode in the context unless its model is out.

        Raises:
            ModelUnavailable: The model is out, so the episode is not started, or the model failed in the context.
        """
        breaker = self._breakers.get(model)
        if breaker is not None and not breaker.admit(episode, self._clock()):
            raise ModelUnavailable(f"{breaker.cause}; no episode begins with it until a probe is answered")
        try:
            yield
        except ModelUnavailable as error:
            self._breakers.setdefault(model, Breaker(self._chance)).failed(str(error), self._clock())
            raise
        finally:
            if model in self._breakers:
                self._breakers[model].left(episode)

    def answered(self, model: str) -> None:
        """Record that the model has answered a request."""
        if model in self._breakers:
            self._breakers[model].answered()

    def report(self) -> tuple[ModelOutage, ...]:
        """The models that are out, for the operator's report."""
        now = self._clock()
        return tuple(
            ModelOutage(model=model, message=each.cause[:_REASON_CHARACTERS], probe=each.is_probe_due(now))
            for model, each in self._breakers.items()
            if each.cause
        )

    def outages(self) -> Iterator[tuple[str, bool]]:
        """Yield each model that has failed, and whether it is out."""
        for model, breaker in self._breakers.items():
            yield model, bool(breaker.cause)


class Stage(msgspec.Struct, frozen=True):
    """The progress of an assignment.

    Attributes:
        state: The state of the assignment.
        steps: Number of steps.
        cause: Why the assignment waits.
        active: Whether the deadline clock runs.
        price: The price of the model's tokens in all attempts.
    """

    state: AssignmentState
    steps: int = 0
    cause: str = ""
    active: bool = False
    price: str | None = None


Report = Callable[[Stage], None]
"""Called with the stage whenever it changes."""


class SharedResources(msgspec.Struct, frozen=True, kw_only=True):
    """The objects that all episodes of an agent pod share."""

    store: ResultsStore
    sources: SourceCache
    models: Models
    breakers: Breakers = msgspec.field(default_factory=Breakers)
    metrics: Metrics
    tracer: Tracer = OFF
    retry_limits: RetryLimits = RetryLimits()
    store_retry_seconds: float = 30.0
    store_patience_seconds: float = 600.0


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """The end of an assignment: the result is stored and the pod released, or the operator may retry the failure."""

    state: AssignmentState
    outcome: AttemptOutcome
    outage: bool = False
    """Whether the provider of the model is out."""


def failure(reason: EndReason, message: str, *, outage: bool = False) -> Ending:
    """Create the end of a failed assignment."""
    outcome = AttemptOutcome(resolved=False, reason=reason, message=message)
    return Ending(state=AssignmentState.FAILED, outcome=outcome, outage=outage)


class AssignmentProgress:
    """Reports the progress of one assignment to the operator and to metrics."""

    def __init__(self, report: Report, metrics: Metrics, *, namespace: str, model: str = "") -> None:
        self._report_stage = report
        self._metrics = metrics
        self._namespace = namespace
        self._model = model
        self._state = AssignmentState.PREPARING
        self._begun = False
        self._steps = 0
        self._wait = ""
        self._price: str | None = None
        self.store_problem: StoreUnavailable | None = None

    def enter(self, state: AssignmentState) -> None:
        """Report the start of a stage."""
        self._state = state
        self._report(state)

    def step_recorded(self, step: Step) -> None:
        """Report a step. The first is the reset, which starts the deadline clock."""
        self._begun = True
        self._steps = step.seq
        self._metrics.step_recorded(step)
        self._report(self._state)

    def model_replied(self, exchange: Exchange, price: str | None = None) -> None:
        """Count a reply, its tokens and its price. ``price`` is the price of all replies in all attempts."""
        self._metrics.model_replied(self._namespace, self._model, exchange)
        self._price = price
        self._report(self._state)

    def waits(self, cause: str) -> None:
        """Report why the episode waits. Empty: it no longer waits."""
        self._wait = cause
        self._report(self._state)

    def report_earlier_steps(self, steps: Sequence[Step]) -> None:
        """Report the steps that earlier agent pods recorded."""
        self._steps = max(0, len(steps) - 1)

    def resumed(self) -> None:
        """Report that an earlier agent pod had started the episode."""
        self._begun = True
        _episode_log.info("resumed after the steps of an earlier agent pod")
        self._metrics.resumed()

    def store_unavailable(self, error: StoreUnavailable | None) -> None:
        """Report a failed call of the store, or with None that it works again.

        The state ``STORE_UNAVAILABLE`` also means that there is a result, so the operator does not apply its timeouts.
        """
        self.store_problem = error
        if error is not None:
            _episode_log.warning("the call of the results store is repeated: %s", error)
            self._metrics.store_failed()
        waits = error is not None and self._state is AssignmentState.STORING
        if waits:
            self._report(AssignmentState.STORE_UNAVAILABLE, str(error)[:_CAUSE_CHARACTERS])
        else:
            self._report(self._state)

    def _report(self, state: AssignmentState, cause: str = "") -> None:
        runs = state is AssignmentState.RUNNING
        self._report_stage(Stage(state, self._steps, self._wait if runs else cause, self._begun and runs, self._price))

    @contextlib.contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Measure the duration of a stage."""
        began = time.monotonic()
        try:
            with span(stage):
                yield
        finally:
            self._metrics.observe_stage(self._namespace, stage, time.monotonic() - began)


AssignmentRunner = Callable[[Assignment, Report], Awaitable[Ending | None]]
"""Runs one assignment to its end, and reports every change of its stage."""


class AssignmentRefused(Exception):
    """The assignment is refused."""


class NoSlot(AssignmentRefused):
    """All slots are taken, or the pod is draining. The operator may try again."""


class Outdated(AssignmentRefused):
    """The pod has a later attempt of the episode, or a higher epoch of this attempt."""


class _TrackedAssignment:
    """One assignment with its stage and its end."""

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.stage = Stage(AssignmentState.PREPARING)
        self.ending: Ending | None = None
        self.task: asyncio.Task[None] | None = None
        self._active_seconds = 0.0
        self._active_since: float | None = None

    def enter(self, stage: Stage) -> None:
        """Start a stage. The deadline clock runs only in active stages."""
        now = time.monotonic()
        self.stage = stage
        if stage.active and self._active_since is None:
            self._active_since = now
        elif not stage.active:
            self._active_seconds, self._active_since = self.active_seconds, None

    @property
    def active_seconds(self) -> float:
        """How long the deadline clock has run in this assignment."""
        running = time.monotonic() - self._active_since if self._active_since is not None else 0.0
        return self._active_seconds + running

    @property
    def rank(self) -> tuple[int, int]:
        """Orders the assignments of an episode. The newest has the highest rank."""
        return _rank(self.assignment)

    @property
    def takes_slot(self) -> bool:
        """Whether the assignment runs an agent. A preparation or a recovery only waits."""
        return self.ending is None and self.assignment.mode is AssignmentMode.RUN

    @property
    def is_storing(self) -> bool:
        """Whether the assignment has a result that is not stored yet."""
        return self.ending is None and self.stage.state in _STORING

    @property
    def status(self) -> AssignmentStatus:
        """The status of the assignment for the report."""
        ending = self.ending
        return AssignmentStatus(
            episode_uid=self.assignment.episode_uid,
            attempt=self.assignment.attempt,
            epoch=self.assignment.epoch,
            state=self.stage.state if ending is None else ending.state,
            steps=self.stage.steps,
            active_seconds=int(self.active_seconds),
            outcome=None if ending is None else ending.outcome,
            message=self.stage.cause,
            outage=ending is not None and ending.outage,
            price=(None if ending is None else ending.outcome.price) or self.stage.price,
        )


class Assignments:
    """The assignments by the episode's UID. Leaving the asynchronous context cancels those that run."""

    def __init__(self, runner: AssignmentRunner, *, slots: int) -> None:
        self.slots = slots
        self.draining = False
        self.incarnation = uuid.uuid4().hex
        self._run_assignment = runner
        self._held: dict[str, _TrackedAssignment] = {}
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

    def report(self) -> AgentPodReport:
        """The report that the operator reads every few seconds."""
        return AgentPodReport(
            incarnation=self.incarnation,
            slots=self.slots,
            draining=self.draining,
            assignments=tuple(held.status for held in self._held.values()),
        )

    def gauges(self) -> Gauges:
        """The current values for metrics."""
        states = Counter(held.status.state for held in self._held.values())
        return Gauges(slots=self.slots, used=self._used, draining=self.draining, states=states)

    def assign(self, assignment: Assignment) -> AssignmentStatus:
        """Accept an assignment and return its status.

        An assignment of the same attempt and epoch is not started again. A newer assignment replaces an older one. A
        recovery waits if the result is currently being stored here, and then reads it from the store.

        Raises:
            Refusal: All slots are used, or the agent pod has a newer assignment of the episode.
        """
        uid = assignment.episode_uid
        before = self._held.get(uid)
        if before is not None:
            if before.rank > _rank(assignment):
                raise Outdated("the episode is held under attempt {}, epoch {}".format(*before.rank))
            if before.rank == _rank(assignment):
                return before.status
        if self.draining:
            raise NoSlot("the agent pod is draining and accepts no new assignment")
        freed = before is not None and before.takes_slot
        if assignment.mode is AssignmentMode.RUN and self._used - freed >= self.slots:
            raise NoSlot(f"all {self.slots} slots are taken")
        outdated = before.task if before is not None else self._storing.get(uid)
        stored = before is None or before.is_storing
        if outdated is not None and not (stored and assignment.mode is AssignmentMode.RECOVER):
            outdated.cancel()
        held = self._held[uid] = _TrackedAssignment(assignment)
        held.task = self._group.create_task(self._play(held, outdated), name=f"dgym-episode-{uid}")
        self._idle.clear()
        self._evict_oldest()
        return held.status

    def withdraw(self, episode_uid: str) -> bool:
        """Remove an episode and cancel it if it runs. Its sandbox pod is not changed. Return False if it is unknown.

        Storing a result is not cancelled: the operator may have read the outcome from the sandbox pod, but only the
        agent pod can store patch and trajectory.
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

    async def _play(self, held: _TrackedAssignment, before: asyncio.Task[None] | None) -> None:
        try:
            if before is not None:
                await asyncio.wait([before])
            ending = await self._run_assignment(held.assignment, held.enter)
        except (Exception, SystemExit) as error:
            # SystemExit of an agent must only end its own episode, because other episodes run in this process.
            _log.exception("an episode could not be played")
            ending = failure(EndReason.INTERNAL_ERROR, f"{type(error).__name__}: {error}")
        uid = held.assignment.episode_uid
        if ending is not None:
            # Free the memory: only the outcome of the episode is still needed.
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
    # Each attempt has its own sidecar, so epochs may start again with each attempt.
    return assignment.attempt, assignment.epoch
