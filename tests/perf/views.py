"""Benchmark of the operator's type ``Pod``: the time to decode a pod, and its memory in the cache."""

import gc
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import kubernetes
import msgspec

from dgym_operator.objects import Pod
from dgym_operator.render import Renderer
from tests.perf.measure import Figure
from tests.perf.views_pods import running_pod

PODS = 1000
FEW = 100
"""Number of pods for time measurements. They fit in the processor's caches, as single events do."""
ROUNDS = 50


def view_figures(scratch: Path) -> list[Figure]:
    """Figures for a running pod of an episode, as a watch returns it."""
    del scratch
    renderer = Renderer()
    bodies = [msgspec.json.encode(running_pod(renderer, number)) for number in range(PODS)]
    models = kubernetes.client.ApiClient()

    def official(body: bytes) -> Any:
        return models.deserialize(body.decode(), "V1Pod", "application/json")

    ours = msgspec.json.Decoder(Pod).decode
    others: list[tuple[str, Callable[[bytes], Any]]] = [
        ("json.loads", json.loads),
        ("kubernetes models", official),
        ("nothing kept", msgspec.json.Decoder(_Nothing).decode),
    ]
    size = statistics.mean(map(len, bodies)) / 1000
    spent, held = _microseconds(ours, bodies[:FEW], ROUNDS), _bytes(ours, bodies)
    figures = []
    for name, decode in others:
        theirs = statistics.median(_microseconds(decode, bodies[:FEW], 5))
        figures.append(
            Figure(
                name=f"decode a pod of {size:.1f} kB",
                unit="µs",
                median=statistics.median(spent),
                p95=statistics.quantiles(spent, n=20)[-1],
                samples=ROUNDS,
                aim=8.0,
                baseline=theirs,
                baseline_name=name,
            )
        )
    for name, decode in others[:2]:
        figures.append(
            Figure(
                name="a pod in the cache",
                unit="bytes",
                median=held,
                samples=PODS,
                aim=2000.0,
                baseline=_bytes(decode, bodies[:FEW]),
                baseline_name=name,
            )
        )
    return figures


class _Nothing(msgspec.Struct):
    """Type without fields, to measure the cost of parsing alone."""


def _microseconds(decode: Callable[[bytes], Any], bodies: Sequence[bytes], repeat: int) -> list[float]:
    """Microseconds for an object, in each of ``repeat`` rounds over all objects."""
    rounds = []
    for _ in range(repeat):
        started = time.perf_counter()
        for body in bodies:
            decode(body)
        rounds.append((time.perf_counter() - started) * 1e6 / len(bodies))
    return rounds


def _bytes(decode: Callable[[bytes], Any], bodies: Sequence[bytes]) -> float:
    """Bytes of heap for each object while all objects are kept."""
    decode(bodies[0])
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = [decode(body) for body in bodies]
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        return (after - before) / len(kept)
    finally:
        tracemalloc.stop()
