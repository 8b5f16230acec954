"""Benchmarks of the operator at scale: a real API server, real controllers, and simulated nodes and agent pods.

``python -m tests.perf throughput`` compares episodes with batch/v1 Jobs of the same PodSpec, ``python -m tests.perf
active`` measures a leader with active episodes, and its replacement. ``python -m tests.perf.scale`` runs both at all
sizes, for docs/scale.md.
"""

from tests.perf.scale.active import active_figures
from tests.perf.scale.comparison import throughput_figures

__all__ = ["active_figures", "throughput_figures"]
