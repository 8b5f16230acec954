"""What the controller's view of a pod costs: the time to decode it, and its part of a cache of ten thousand."""

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

from dgym_operator.reconcile.views import Pod
from dgym_operator.render.engine import Renderer
from tests.perf.measure import Figure
from tests.perf.views_pods import running_pod

PODS = 1000
ROUNDS = 7
FEW = 100
"""Of what takes milliseconds a pod."""


def view_figures(scratch: Path) -> list[Figure]:
    """A running pod of an episode, as a watch brings it."""
    del scratch
    renderer = Renderer()
    bodies = [msgspec.json.encode(running_pod(renderer, number)) for number in range(PODS)]
    models = kubernetes.client.ApiClient()

    def official(body: bytes) -> Any:
        return models.deserialize(body.decode(), "V1Pod", "application/json")

    ours = msgspec.json.Decoder(Pod).decode
    others: list[tuple[str, Callable[[bytes], Any], Sequence[bytes]]] = [
        ("json.loads", json.loads, bodies),
        ("kubernetes models", official, bodies[:FEW]),
    ]
    size = statistics.mean(map(len, bodies)) / 1000
    spent, held = _microseconds(ours, bodies), _bytes(ours, bodies)
    figures = []
    for name, decode, some in others:
        theirs = statistics.median(_microseconds(decode, some))
        figures.append(
            Figure(
                name=f"decode a pod of {size:.1f} kB",
                unit="µs",
                median=statistics.median(spent),
                p95=max(spent),
                samples=ROUNDS,
                aim=8.0,
                baseline=theirs,
                baseline_name=name,
            )
        )
    for name, decode, some in others:
        figures.append(
            Figure(
                name="a pod in the cache",
                unit="bytes",
                median=held,
                samples=PODS,
                aim=2000.0,
                baseline=_bytes(decode, some),
                baseline_name=name,
            )
        )
    return figures


def _microseconds(decode: Callable[[bytes], Any], bodies: Sequence[bytes]) -> list[float]:
    """Of one object, in each of several rounds over all of them."""
    rounds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for body in bodies:
            decode(body)
        rounds.append((time.perf_counter() - started) * 1e6 / len(bodies))
    return rounds


def _bytes(decode: Callable[[bytes], Any], bodies: Sequence[bytes]) -> float:
    """What one object adds to the heap while all are kept."""
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
