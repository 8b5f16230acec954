"""The Prometheus metrics and the logs of an agent pod.

Labels have few values: a tool that does not exist counts as ``other``. Logs are JSON lines on standard error, and a
log of each episode for the results store.
"""

import logging
import platform
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import version
from typing import Any

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from dgym.episodes._events import NOTICE
from dgym.llm import Fault, Reply
from dgym.logs import JsonFormatter, PrintableFormatter, encodable, log_to_stderr
from dgym.metric_types import LAG_BUCKETS, NAMESPACE_VALUES, OTHER, Catalogue, NamespaceLabel, NamespaceMode, among
from dgym.tools import available_tools
from dgym.wire import EndReason, Step
from dgym.wire.assignments import AssignmentState

CONTENT_TYPE = CONTENT_TYPE_LATEST
CATALOGUE = Catalogue()
"""All metrics of agent pods."""
_STAGE_BUCKETS = (0.01, 0.05, 0.2, 1, 5, 20, 60, 300, 1200, 3600)
_TOOL_BUCKETS = (0.005, 0.02, 0.1, 0.5, 1, 2, 5, 20, 60, 300)
_MODEL_BUCKETS = (0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300)
_STAGES = ("prepare", "play", "close", "store")
_MODEL = "the models of llm.yaml that episodes have used"
_TOOL = f"the installed tools, and `{OTHER}`"
_STEPS = CATALOGUE.counter("dgym_agent_steps_total", "Steps recorded.")
_CALLS = CATALOGUE.counter("dgym_agent_tool_calls_total", "Calls of tools.", tool=_TOOL, result=("ok", "error"))
_CALL_SECONDS = CATALOGUE.histogram(
    "dgym_agent_tool_call_seconds", "Time of a call of a tool in its sandbox.", _TOOL_BUCKETS, tool=_TOOL
)
_ENDED = CATALOGUE.counter(
    "dgym_agent_episodes_ended_total",
    "Assignments that ended.",
    episode_namespace=NAMESPACE_VALUES,
    reason=tuple(reason.value for reason in EndReason),
)
_RESUMED = CATALOGUE.counter("dgym_agent_episodes_resumed_total", "Episodes resumed midway.")
_TOKENS = CATALOGUE.counter(
    "dgym_agent_model_tokens_total",
    "Tokens of models.",
    episode_namespace=NAMESPACE_VALUES,
    model=_MODEL,
    direction=("input", "output"),
)
_COST = CATALOGUE.counter(
    "dgym_agent_model_cost_total",
    "Price of the tokens, in the currency of llm.yaml; 0 without prices.",
    episode_namespace=NAMESPACE_VALUES,
    model=_MODEL,
)
_REPLIES = CATALOGUE.counter("dgym_agent_model_replies_total", "Replies of models.", model=_MODEL)
_MODEL_SECONDS = CATALOGUE.histogram(
    "dgym_agent_model_request_seconds", "Time of a request that a model replied to.", _MODEL_BUCKETS, model=_MODEL
)
_FAILED = CATALOGUE.counter(
    "dgym_agent_model_failures_total",
    "Requests to models that failed, those that were repeated too.",
    model=_MODEL,
    fault=", ".join(fault.value for fault in Fault),
)
_OUTAGE = CATALOGUE.gauge(
    "dgym_agent_model_outage", "1 while the model is out and no episode begins with it, else 0.", model=_MODEL
)
_RETRIES = CATALOGUE.counter("dgym_agent_model_retries_total", "Repeated requests before a reply.", model=_MODEL)
_WAITS = CATALOGUE.counter(
    "dgym_agent_model_wait_seconds_total", "Time that replies waited for rate limits, places and retries.", model=_MODEL
)
_STORE_FAILURES = CATALOGUE.counter("dgym_agent_store_failures_total", "Calls that the results store failed.")
_STAGE_SECONDS = CATALOGUE.histogram(
    "dgym_agent_stage_seconds",
    "Time of each stage of an assignment.",
    _STAGE_BUCKETS,
    episode_namespace=NAMESPACE_VALUES,
    stage=_STAGES,
)
_LAG_SECONDS = CATALOGUE.histogram(
    "dgym_agent_loop_lag_seconds", "Delay of a callback of the event loop, sampled once a second.", LAG_BUCKETS
)
_SLOTS = CATALOGUE.gauge("dgym_agent_slots", "Episodes that are played at the same time at most.")
_USED = CATALOGUE.gauge("dgym_agent_slots_used", "Slots with an episode.")
_DRAINING = CATALOGUE.gauge("dgym_agent_draining", "1 once no more episodes are accepted.")
_EPISODES = CATALOGUE.gauge(
    "dgym_agent_episodes", "Episodes held.", state=tuple(state.value for state in AssignmentState)
)
_BUILD = CATALOGUE.gauge(
    "dgym_agent_build_info", "1; the versions of dgym and Python.", version="dgym's", python="Python's"
)
Failures = Callable[[], Iterator[tuple[str, str, int]]]
"""Model, fault and number of the requests that failed."""
Outages = Callable[[], Iterator[tuple[str, bool]]]
"""Models that have failed, and whether each is out."""
_LINE_CHARACTERS = 8192
_LOG_BYTES = 1024**2
_CUT = "… the log's beginning was left out …\n"


class Metrics:
    """The metrics of one agent pod."""

    def __init__(self, namespace_mode: NamespaceMode = "false") -> None:
        self.registry = CollectorRegistry()
        self._namespace_label = NamespaceLabel(namespace_mode)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        self._tools = frozenset(available_tools())
        self._steps = _STEPS.register(self.registry)
        self._calls = _CALLS.register(self.registry)
        self._call_seconds = _CALL_SECONDS.register(self.registry)
        self._ended = _ENDED.register(self.registry)
        self._resumed = _RESUMED.register(self.registry)
        self._tokens = _TOKENS.register(self.registry)
        self._cost = _COST.register(self.registry)
        self._replies = _REPLIES.register(self.registry)
        self._model_seconds = _MODEL_SECONDS.register(self.registry)
        self._retries = _RETRIES.register(self.registry)
        self._waits = _WAITS.register(self.registry)
        self._store_failures = _STORE_FAILURES.register(self.registry)
        self._stages = _STAGE_SECONDS.register(self.registry)
        self.lag_seconds = _LAG_SECONDS.register(self.registry)
        self._namespace_label.follow(_ENDED, self._ended)
        self._namespace_label.follow(_STAGE_SECONDS, self._stages)
        for tool in (*self._tools, OTHER):
            for result in ("ok", "error"):
                self._calls.labels(tool, result)

    def add_gauges(
        self,
        now: Callable[[], "Gauges"],
        failures: Failures = lambda: iter(()),
        outages: Outages = lambda: iter(()),
    ) -> None:
        """Register gauges. All three functions are called at every scrape."""
        self.registry.register(_GaugesCollector(now, failures, outages))

    def step_recorded(self, step: Step) -> None:
        """Count a step and its tool call. The reset is not counted."""
        if step.call is None:
            return
        self._steps.inc()
        tool = among(step.call.tool, self._tools)
        self._calls.labels(tool, "ok" if step.observation.ok else "error").inc()
        self._call_seconds.labels(tool).observe(step.observation.duration_seconds)

    def resumed(self) -> None:
        """Count an episode that continues from the steps of an earlier agent pod."""
        self._resumed.inc()

    def ended(self, namespace: str, reason: str) -> None:
        """Count an episode that finished or failed."""
        self._ended.labels(self._namespace_label(namespace), reason).inc()

    def model_replied(self, namespace: str, model: str, reply: Reply) -> None:
        """Count the reply of a configured model, with its time, its tokens and their price."""
        usage = reply.usage
        shown = self._namespace_label(namespace)
        self._tokens.labels(shown, model, "input").inc(usage.input_tokens)
        self._tokens.labels(shown, model, "output").inc(usage.output_tokens)
        self._cost.labels(shown, model).inc(float(usage.price or 0))
        self._replies.labels(model).inc()
        self._model_seconds.labels(model).observe(reply.seconds_model)
        self._retries.labels(model).inc(max(0, reply.tries - 1))
        self._waits.labels(model).inc(reply.seconds_queue)

    def store_failed(self) -> None:
        """Count a failed call of the store."""
        self._store_failures.inc()

    def observe_stage(self, namespace: str, stage: str, seconds: float) -> None:
        """Add the duration of a stage of an episode."""
        self._stages.labels(self._namespace_label(namespace), stage).observe(seconds)

    def text(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return generate_latest(self.registry)


class Gauges:
    """Slots and episodes at one moment."""

    def __init__(self, *, slots: int, used: int, draining: bool, states: Mapping[AssignmentState, int]) -> None:
        self.slots = slots
        self.used = used
        self.draining = draining
        self.states = Counter(states)


class _GaugesCollector:
    def __init__(self, now: Callable[[], Gauges], failures: Failures, outages: Outages) -> None:
        self._now = now
        self._outages = outages
        self._failures = failures
        self._build = (version("dgym"), platform.python_version())

    def collect(self) -> Iterator[Metric]:
        now = self._now()
        yield _SLOTS.single(now.slots)
        yield _USED.single(now.used)
        yield _DRAINING.single(int(now.draining))
        yield _EPISODES.family({state.value: now.states[state] for state in AssignmentState})
        failures: Counter[tuple[str, str]] = Counter()
        for model, fault, count in self._failures():
            failures[model, fault] += count
        yield _FAILED.family(failures)
        yield _OUTAGE.family({model: int(out) for model, out in self._outages()})
        yield _BUILD.family({self._build: 1})


class EpisodeLog:
    """The last MiB of the log of one episode."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        self._lines: deque[str] = deque()
        self._size = 0
        self._cut = False

    def add(self, line: str) -> None:
        """Append a line. If the log is full, the oldest lines are dropped."""
        self._lines.append(line)
        self._size += len(line)
        while self._size > _LOG_BYTES:
            self._size -= len(self._lines.popleft())
            self._cut = True

    def text(self) -> str:
        """The kept lines."""
        return (_CUT if self._cut else "") + "".join(self._lines)


_current: ContextVar[EpisodeLog | None] = ContextVar("dgym_pod_episode", default=None)


@contextmanager
def logging_into(log: EpisodeLog) -> Iterator[None]:
    """Write the log records of this task and its child tasks to the episode's log."""
    token = _current.set(log)
    try:
        yield
    finally:
        _current.reset(token)


class _EpisodeHandler(logging.Handler):
    """Adds each log record to the log of the episode whose task created it."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        formatter = PrintableFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
        formatter.converter = time.gmtime
        self.setFormatter(formatter)

    def emit(self, record: logging.LogRecord) -> None:
        log = _current.get()
        if log is not None:
            log.add(encodable(self.format(record)[:_LINE_CHARACTERS]) + "\n")


def configure_logging(*, level: str, pod: str) -> None:
    """Write records of ``level`` and above to standard error, and all records of an episode to its log."""
    logging.addLevelName(NOTICE, "NOTICE")
    own = {"agent_pod": pod} if pod else {}

    def context() -> dict[str, Any]:
        log = _current.get()
        return {**own, **log.fields} if log is not None else own

    log_to_stderr(JsonFormatter(context), level)
    package = logging.getLogger("dgym")
    package.setLevel(logging.DEBUG)
    package.addHandler(_EpisodeHandler())
