"""The operator process. Every replica runs informers, event handlers, health and metrics. The leader runs workers."""

from dgym_operator.app._metrics import Metrics
from dgym_operator.app._operator import Operator
from dgym_operator.app._present import CATALOGUE, Snapshot

__all__ = ["CATALOGUE", "Metrics", "Operator", "Snapshot"]
