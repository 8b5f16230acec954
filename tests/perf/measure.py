"""Figures: the result type and helpers for measurement."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import msgspec


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A measured quantity. ``aim`` is the target of the design. ``baseline`` is the same work done in another way."""

    name: str
    unit: str
    median: float
    p95: float | None = None
    samples: int = 1
    aim: float | None = None
    baseline: float | None = None
    baseline_name: str = ""

    @property
    def ratio(self) -> float | None:
        """The baseline divided by the median."""
        return self.baseline / self.median if self.baseline is not None and self.median else None


def timed(action: Callable[[], Any], *, repeat: int, warm_up: int = 3) -> list[float]:
    """Milliseconds of each of ``repeat`` runs of ``action``, after ``warm_up`` runs that are not counted."""
    for _ in range(warm_up):
        action()
    durations = []
    for _ in range(repeat):
        started = time.perf_counter()
        action()
        durations.append((time.perf_counter() - started) * 1000)
    return durations


def figure(name: str, durations: list[float], **more: Any) -> Figure:
    """Median and 95th percentile of ``durations`` (milliseconds)."""
    p95 = statistics.quantiles(durations, n=20)[-1] if len(durations) > 1 else None
    return Figure(name=name, unit="ms", median=statistics.median(durations), p95=p95, samples=len(durations), **more)
