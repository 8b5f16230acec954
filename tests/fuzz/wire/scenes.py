"""Scenes, which are states of an episode while its sidecar is fuzzed, and sidecars in these states."""

import asyncio
import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import psutil

from dgym.sandbox import cache_directory
from dgym.sandbox.local import ensure_environment
from dgym.session import EpisodeLimits
from dgym.wire.http import Role
from tests.fakes.pods import TOOLS, Pod

Scene = Literal["unprepared", "begun", "ending", "ended"]
SHARES: dict[Scene, float] = {"unprepared": 0.2, "begun": 0.5, "ending": 0.2, "ended": 0.1}
"""Share of the time for each scene."""
MEMORY_BYTES = 128 * 1024**2
"""Memory limit of a sidecar's container. The peak of a fuzzed sidecar must stay below it."""
_ANSWER_SECONDS = 2.0


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A sidecar to call: its address, the token of each role, and the scene of its episode."""

    url: str
    tokens: dict[str, str]
    scene: Scene


class FuzzedPod(Pod):
    """A pod whose containers cannot write files of this machine, because they run generated commands."""

    def __init__(self, directory: Path, environment: Path, **settings: Any) -> None:
        super().__init__(directory, environment, **settings)
        # The interpreter and the cache may be below /tmp.
        shown = [("--ro-bind", str(path), str(path)) for path in (sys.prefix, cache_directory())]
        self.view = (
            *("--ro-bind", "/", "/", "--dev", "/dev", "--tmpfs", "/tmp", "--unshare-net"),
            *(argument for arguments in shown for argument in arguments),
            *("--bind", str(directory), str(directory)),
        )


class Sidecar(msgspec.Struct, frozen=True):
    """A sidecar's process and its place."""

    place: Place
    process: psutil.Process

    def peak_bytes(self) -> int:
        """The peak resident memory of the process."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return 0


@contextlib.asynccontextmanager
async def sidecar(scene: Scene) -> AsyncIterator[Sidecar]:
    """A sidecar in a separate process, with an episode in the state ``scene``."""
    if shutil.which("bwrap") is None:
        raise SystemExit("tests.fuzz: install bubblewrap; the calls of steps run in it")
    environment = Path(await ensure_environment(()))
    with tempfile.TemporaryDirectory(prefix="dgym-fuzz-", ignore_cleanup_errors=True) as name:
        pod = FuzzedPod(Path(name), environment, answer_seconds=_ANSWER_SECONDS)
        try:
            pod.settings.directory.mkdir()
            pod.start_runners()
            process = pod.start_process()
            await pod.listening()
            await pod.ready()
            if scene != "unprepared":
                await _begin(pod)
            if scene == "ended":
                await _end(pod)
            place = Place(url=pod.url, tokens={role.value: token for role, token in pod.tokens.items()}, scene=scene)
            yield Sidecar(place, psutil.Process(process.pid))
        finally:
            await pod.close()


async def _begin(pod: Pod) -> None:
    await pod.prepare(tools=TOOLS, limits=EpisodeLimits(max_steps=10_000))
    env = pod.connect()
    await env.reset()


async def _end(pod: Pod) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        status, _ = await pod.raw("POST", "/v1/finish", role=Role.DRIVE)
        if pod.runners["sandbox"].poll() is not None:
            await pod.raw("POST", "/v1/terminated", role=Role.OPERATE)
        if status == 200:
            return
        await asyncio.sleep(0.1)
    raise TimeoutError("the episode does not end")
