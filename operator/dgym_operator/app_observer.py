"""Counts transitions, each once in the whole cluster: where the leader sees it happen."""

from collections.abc import Callable

from dgym.api import ConditionType
from dgym.kube import Change, Source
from dgym_operator.execute_world import is_finished
from dgym_operator.metrics import Metrics
from dgym_operator.reconcile.conditions import find
from dgym_operator.reconcile.views import EpisodeView, Pod


class TransitionObserver:
    """Compares what was with what is. What a list shows happened at some time, perhaps under another leader."""

    def __init__(self, metrics: Metrics, leads: Callable[[], bool]) -> None:
        self._metrics = metrics
        self._leads = leads

    def episode(self, change: Change[EpisodeView]) -> None:
        """An Episode has changed."""
        old, new = change.old, change.new
        if old is None or new is None or change.source is Source.LIST or not self._leads():
            return
        if is_finished(new) and not is_finished(old):
            self._metrics.finished.labels(reason=new.status.reason).inc()
        elif new.status.failures + new.status.disruptions > old.status.failures + old.status.disruptions:
            ready = find(new.status.conditions, ConditionType.SANDBOX_READY)
            self._metrics.attempts_failed.labels(reason=ready.reason if ready is not None else "").inc()

    def pod(self, change: Change[Pod]) -> None:
        """A pod has changed."""
        old, new = change.old, change.new
        if old is None or new is None or old.ready or not new.ready or not self._leads():
            return
        ready, created = new.condition("Ready"), new.metadata.creation_timestamp
        if ready is not None and ready.last_transition_time is not None and created is not None:
            self._metrics.ready_seconds.observe(max(0.0, (ready.last_transition_time - created).total_seconds()))
