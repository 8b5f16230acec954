"""Fuzzing of sidecars one after the other, each with an episode in a different scene."""

import asyncio
import os
import time
from pathlib import Path

import msgspec

from tests.fuzz.engine import Outcome
from tests.fuzz.wire.scenes import MEMORY_BYTES, SHARES, Place, Scene, sidecar

_ROOT = Path(__file__).parents[3]
_DOCUMENT = _ROOT / "docs" / "openapi.json"
_GRACE_SECONDS = 120.0
_DOWN_SECONDS = 5.0
"""Least remaining time for which another sidecar is started after an episode ends early."""


class _Task(Place, frozen=True, kw_only=True):
    seconds: float
    seed: int


class _Answer(msgspec.Struct, frozen=True):
    statuses: dict[str, int]
    slowest: float
    failure: str


class _Callers:
    """The process that makes the calls. It uses schemathesis, which is not a dependency of dgym."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, python: str) -> "_Callers":
        command = (python, "-m", "tests.fuzz.wire.caller", str(_DOCUMENT))
        pipe = asyncio.subprocess.PIPE
        environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
        process = await asyncio.create_subprocess_exec(*command, cwd=_ROOT, env=environment, stdin=pipe, stdout=pipe)
        return cls(process)

    async def call(self, task: _Task) -> _Answer:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(task) + b"\n")
        async with asyncio.timeout(task.seconds + _GRACE_SECONDS):
            line = await self._process.stdout.readline()
        return msgspec.json.decode(line, type=_Answer) if line else _Answer({}, 0.0, "the calling process has died")

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(10):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


def fuzz_wire(python: str, seconds: float, seed: int) -> Outcome:
    """Fuzz for about ``seconds``. ``python`` is the interpreter that has schemathesis."""
    return asyncio.run(_fuzz(python, seconds, seed))


async def _fuzz(python: str, seconds: float, seed: int) -> Outcome:
    outcome, begun = Outcome(target="wire"), time.monotonic()
    callers = await _Callers.start(python)
    try:
        for scene, share in SHARES.items():
            deadline = time.monotonic() + seconds * share
            while not outcome.failure:
                await _one(callers, scene, max(1.0, deadline - time.monotonic()), seed, outcome)
                seed += 1000
                if deadline - time.monotonic() < _DOWN_SECONDS:
                    break
    finally:
        await callers.close()
    outcome.seconds = round(time.monotonic() - begun, 1)
    return outcome


async def _one(callers: _Callers, scene: Scene, seconds: float, seed: int, outcome: Outcome) -> None:
    async with sidecar(scene) as called:
        begun = called.peak_bytes()
        place = called.place
        task = _Task(url=place.url, tokens=place.tokens, scene=scene, seconds=seconds, seed=seed)
        answer = await callers.call(task)
        peak = called.peak_bytes() or outcome.ended_bytes
    outcome.inputs += sum(answer.statuses.values())
    outcome.slowest_seconds = max(outcome.slowest_seconds, answer.slowest)
    outcome.begun_bytes, outcome.ended_bytes = outcome.begun_bytes or begun, max(outcome.ended_bytes, peak)
    for name, count in answer.statuses.items():
        outcome.counts[name] = outcome.counts.get(name, 0) + count
    if answer.failure:
        outcome.failure = f"{scene}: {answer.failure}"
    elif not answer.statuses:
        outcome.failure = f"{scene}: nothing was called"
    elif peak > MEMORY_BYTES:
        outcome.failure = f"{scene}: the sidecar took {peak / 1024**2:.0f} MiB, more than its container has"
