"""The operator process: informers and event handlers on every replica, workers on the leader, health and metrics."""

from dgym_operator.app.metrics import Metrics
from dgym_operator.app.operator import Operator
from dgym_operator.app.present import CATALOGUE, Snapshot

__all__ = ["CATALOGUE", "Metrics", "Operator", "Snapshot"]
