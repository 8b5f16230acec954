"""The operator process. Every replica runs informers, event handlers, health and metrics. The leader runs workers."""

from dgym_operator.app._metrics import CATALOGUE, Metrics, Snapshot
from dgym_operator.app._operator import Operator

__all__ = ["CATALOGUE", "Metrics", "Operator", "Snapshot"]
