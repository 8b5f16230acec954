"""What Prometheus is told of one attempt, written in its text format by hand.

The official client imports an HTTP server and TLS, which is a tenth of what a sidecar may use of a pod's memory, and
there is a sidecar in every pod.
"""

import os
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_BOUNDS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 300.0)
_PREFIX = "dgym_sidecar_"

Sample = tuple[str, dict[str, str], float]


class _Durations:
    """How long calls took: how many in each bucket, and together."""

    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS) + 1)
        self.seconds = 0.0


class Metrics:
    """The sidecar's metrics. Calls and codes are those the wire has: their number is bounded."""

    def __init__(self) -> None:
        self._calls: Counter[tuple[str, str]] = Counter()
        self._durations: dict[str, _Durations] = {}
        self.steps = 0
        self.ready = False

    def count(self, call: str, code: str, seconds: float) -> None:
        """Write down a call that was answered."""
        self._calls[call, code] += 1
        durations = self._durations.setdefault(call, _Durations())
        durations.counts[bisect_left(_BOUNDS, seconds)] += 1
        durations.seconds += seconds

    def text(self) -> bytes:
        """All of them, as Prometheus reads them."""
        lines = [
            *_family("calls_total", "counter", "Calls by what they ask and how they were answered.", self._counted()),
            *_family("call_seconds", "histogram", "How long calls took, the sandbox included.", self._timed()),
            *_family("steps", "gauge", "Steps of the episode so far.", [("", {}, self.steps)]),
            *_family("ready", "gauge", "1 while the pod can be driven.", [("", {}, self.ready)]),
            *_family("process_cpu_seconds_total", "counter", "Processor time.", [("", {}, time.process_time())]),
            *_family("process_resident_memory_bytes", "gauge", "Resident memory.", [("", {}, _resident_bytes())]),
        ]
        return "".join(f"{line}\n" for line in lines).encode()

    def _counted(self) -> Iterator[Sample]:
        for (call, code), number in sorted(self._calls.items()):
            yield "", {"call": call, "code": code}, number

    def _timed(self) -> Iterator[Sample]:
        for call, durations in sorted(self._durations.items()):
            total = 0
            for bound, number in zip((*map(str, _BOUNDS), "+Inf"), durations.counts, strict=True):
                total += number
                yield "_bucket", {"call": call, "le": bound}, total
            yield "_sum", {"call": call}, durations.seconds
            yield "_count", {"call": call}, total


def _family(name: str, kind: str, description: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield f"# HELP {_PREFIX}{name} {description}"
    yield f"# TYPE {_PREFIX}{name} {kind}"
    for suffix, labels, value in samples:
        inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        yield f"{_PREFIX}{name}{suffix}{'{' + inside + '}' if inside else ''} {float(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return 0
