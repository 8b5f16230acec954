"""The operator process: informers and event handlers on every replica, workers on the leader, health and metrics."""

from dgym_operator.app.operator import Operator

__all__ = ["Operator"]
