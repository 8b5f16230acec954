"""What the episodes of a worker share, and how one of them reports its progress."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator

import msgspec

from dgym.agents import Exchange
from dgym.env import Patience
from dgym.episodes.models import Models
from dgym.episodes.pod.metrics import Metrics
from dgym.results import Store, StoreUnavailable
from dgym.wire import EndReason, Outcome, Step
from dgym.wire.assignments import AssignmentState
from dgym.workspace.sources import SourceCache

_log = logging.getLogger("dgym.episodes.episode")

_CAUSE_CHARACTERS = 1000


class Stage(msgspec.Struct, frozen=True):
    """How far an assignment is: its state, the steps taken, the cause of a wait, and whether its deadline runs."""

    state: AssignmentState
    steps: int = 0
    cause: str = ""
    active: bool = False


Report = Callable[[Stage], None]
"""Called with the stage whenever it changes."""


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """What all episodes of a worker use together."""

    store: Store
    sources: SourceCache
    models: Models
    metrics: Metrics
    patience: Patience = Patience()
    store_retry_seconds: float = 30.0
    store_patience_seconds: float = 600.0


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How it ended for this agent: stored and released, or to be tried again by whoever the operator chooses."""

    state: AssignmentState
    reason: EndReason
    outcome: Outcome | None = None
    message: str = ""


class Progress:
    """How far one assignment is, for the operator's report and for metrics."""

    def __init__(self, report: Report, metrics: Metrics) -> None:
        self._report_stage = report
        self._metrics = metrics
        self._state = AssignmentState.PREPARING
        self._begun = False
        self._steps = 0
        self.store_problem: StoreUnavailable | None = None

    def become(self, state: AssignmentState) -> None:
        """The next stage has begun."""
        self._state = state
        self._report(state)

    def stepped(self, step: Step) -> None:
        """A step was recorded; the reset is the first, and the deadline runs from it on."""
        self._begun = True
        self._steps = step.seq
        if step.seq:
            self._metrics.stepped()
        self._report(self._state)

    def spoke(self, exchange: Exchange) -> None:
        """A model answered."""
        usage = exchange.usage
        self._metrics.spoke(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)

    def resumed(self) -> None:
        """An earlier agent had begun."""
        self._begun = True
        _log.info("taken up where an earlier agent left it")
        self._metrics.resumed()

    def store_unavailable(self, error: StoreUnavailable | None) -> None:
        """The store failed a call; None: it answers again.

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
        active = self._begun and state is AssignmentState.RUNNING
        self._report_stage(Stage(state, self._steps, cause, active))

    @contextlib.contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Measure a stage."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._metrics.took(stage, time.monotonic() - began)
