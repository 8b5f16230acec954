"""How far each assignment of an agent pod is, for the operator's report and for metrics; what assignments share."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from dgym.agents import Exchange
from dgym.env import Patience
from dgym.episodes.player import Models
from dgym.episodes.pod.breaker import Breakers
from dgym.episodes.pod.metrics import Metrics
from dgym.results import Store, StoreUnavailable
from dgym.tracing import OFF, Tracer, span
from dgym.wire import EndReason, Outcome, Step
from dgym.wire.assignments import AssignmentState
from dgym.workspace.sources import SourceCache

_log = logging.getLogger("dgym.episodes.episode")

_CAUSE_CHARACTERS = 1000


class Stage(msgspec.Struct, frozen=True):
    """How far an assignment is: its state, its steps, the cause of a wait, whether its deadline runs, and its price.

    That is the price of the model's tokens in all attempts.
    """

    state: AssignmentState
    steps: int = 0
    cause: str = ""
    active: bool = False
    price: str | None = None


Report = Callable[[Stage], None]
"""Called with the stage whenever it changes."""


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """What all episodes of a worker use together."""

    store: Store
    sources: SourceCache
    models: Models
    breakers: Breakers = msgspec.field(default_factory=Breakers)
    metrics: Metrics
    tracer: Tracer = OFF
    patience: Patience = Patience()
    store_retry_seconds: float = 30.0
    store_patience_seconds: float = 600.0


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """The end of an assignment: the result stored and the pod released, or a failure that the operator may retry."""

    state: AssignmentState
    reason: EndReason
    outcome: Outcome | None = None
    message: str = ""
    outage: bool = False
    """The provider of the model is out."""


class Progress:
    """How far one assignment is, for the operator's report and for metrics."""

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
        """Report the beginning of a stage."""
        self._state = state
        self._report(state)

    def step_recorded(self, step: Step) -> None:
        """Report a step; the reset is the first, and the deadline runs from it on."""
        self._begun = True
        self._steps = step.seq
        self._metrics.step_recorded(step)
        self._report(self._state)

    def model_replied(self, exchange: Exchange, price: str | None = None) -> None:
        """Count a reply, its tokens and its price; ``price`` is that of all replies in all attempts."""
        self._metrics.model_replied(self._namespace, self._model, exchange)
        self._price = price
        self._report(self._state)

    def waits(self, cause: str) -> None:
        """Report what the episode waits for; empty: it goes on."""
        self._wait = cause
        self._report(self._state)

    def went_on(self, steps: Sequence[Step]) -> None:
        """Report the steps that earlier agents recorded."""
        self._steps = max(0, len(steps) - 1)

    def resumed(self) -> None:
        """Report that an earlier agent had begun."""
        self._begun = True
        _log.info("taken up where an earlier agent left it")
        self._metrics.resumed()

    def store_unavailable(self, error: StoreUnavailable | None) -> None:
        """Report a failed call of the store; None: it answers again.

        The state that says so also says that there is a verdict, for which the operator waits past every clock.
        """
        self.store_problem = error
        if error is not None:
            _log.warning("the store is asked again: %s", error)
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
        """Measure a stage."""
        began = time.monotonic()
        try:
            with span(stage):
                yield
        finally:
            self._metrics.observe_stage(self._namespace, stage, time.monotonic() - began)
