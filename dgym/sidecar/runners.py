"""The runners of a pod's sandbox and verifier, and the end of the sandbox's container.

Each runner is behind the one connection that its Unix socket accepts. A pod has one sandbox: when it is gone, another
attempt needs another pod. The sidecar orders its end and cannot see other containers; the operator observes the end.
Silence of the operator is no evidence about the agent: without a report the attempt is lost.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from dgym.errors import InfrastructureError, SandboxLost, SandboxStartFailed
from dgym.sandbox import RunnerClient, Sandbox, SandboxProvider, SandboxSpec

_POLL_SECONDS = 0.02
_CONFIGURE_SECONDS = 60.0
_SHARED_TEMPORARY_FILES = "/tmp"  # noqa: S108 - the container's own


class PodSandbox(RunnerClient):
    """A container of this pod. The sidecar orders its end, the operator observes it."""

    @property
    def kind(self) -> Literal["pod"]:
        """Always "pod"."""
        return "pod"

    async def stop(self) -> None:
        """Order the runner to exit. Idempotent."""
        with contextlib.suppress(InfrastructureError, OSError):
            await self.close()


class Runners:
    """The connections to both runners, from when each comes up until it is gone."""

    def __init__(self, sandbox: Path, verifier: Path) -> None:
        self._paths = {"sandbox": sandbox, "verifier": verifier}
        self._connected: dict[str, PodSandbox] = {}

    @property
    def missing(self) -> str | None:
        """Which runner is missing, and why; None when both answer."""
        for name in self._paths:
            if name not in self._connected:
                return f"the {name}'s runner has not come up yet"
            if self._connected[name].lost:
                return f"the {name}'s runner is gone"
        return None

    @property
    def starting(self) -> bool:
        """Whether a runner has not come up yet."""
        return len(self._connected) < len(self._paths)

    def is_lost(self, name: str) -> bool:
        """Whether one of the two has come up and is gone."""
        runner = self._connected.get(name)
        return runner is not None and runner.lost

    async def connect(self) -> None:
        """Wait for both runners, however long images take to arrive."""
        async with asyncio.TaskGroup() as group:
            for name, path in self._paths.items():
                group.create_task(self._connect(name, path))

    def get(self, name: str) -> PodSandbox:
        """One of the two; ``SandboxLost`` when it is not there."""
        runner = self._connected.get(name)
        if runner is None or runner.lost:
            raise SandboxLost(f"the {name}'s runner is gone")
        return runner

    async def clear_shared(self) -> Sequence[str]:
        """Remove what the sandbox left in the pod's IPC namespace; returns notes for the result.

        The rest of what the two share goes with processes (sockets), or cannot be written (names of hosts).
        """
        return (await self.get("verifier").clear_ipc()).notes

    async def close(self) -> None:
        """Order both to exit. Idempotent."""
        for runner in self._connected.values():
            await runner.stop()

    async def _connect(self, name: str, path: Path) -> None:
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(str(path))
            except OSError:
                # Nothing notifies of it: the socket appears in a directory of another container.
                await asyncio.sleep(_POLL_SECONDS)
            else:
                self._connected[name] = PodSandbox(reader, writer)
                return


class PodProvider(SandboxProvider):
    """Hands out each of the two runners once, configured for the task."""

    def __init__(self, runners: Runners, spec: SandboxSpec) -> None:
        self._runners = runners
        # The image's environment applies; its own TMPDIR may name a directory that does not exist.
        environment = {"TMPDIR": _SHARED_TEMPORARY_FILES, **spec.environment}
        self._spec = msgspec.structs.replace(spec, python=None, environment=environment)
        self._handed_out: set[str] = set()

    async def sandbox(self) -> Sandbox:
        """The agent's sandbox; ``SandboxLost`` when it was used before."""
        return await self._open("sandbox")

    async def verifier(self) -> Sandbox:
        """The verifier."""
        return await self._open("verifier")

    async def _open(self, name: str) -> PodSandbox:
        runner = self._runners.get(name)
        if name in self._handed_out:
            raise SandboxLost(f"this pod has one {name}, and it was used")
        self._handed_out.add(name)
        # An ``activate`` line may take minutes; the runner has a deadline of its own for it.
        limit = None if self._spec.activate else _CONFIGURE_SECONDS
        try:
            await asyncio.wait_for(runner.configure(self._spec, inherit_environment=True), limit)
        except TimeoutError:
            raise SandboxStartFailed(f"the {name}'s runner did not answer within {_CONFIGURE_SECONDS:g} s") from None
        except OSError as error:
            raise SandboxStartFailed(f"{name}: workspace {self._spec.workspace}: {error.strerror or error}") from error
        return runner


class TerminationReports:
    """The operator's reports about the sandbox's container.

    Args:
        timeout_seconds: How long a container may take to end after the order.
        patience_seconds: How long to wait for the operator's report after that.
    """

    def __init__(self, *, timeout_seconds: float, patience_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._patience_seconds = patience_seconds
        self._terminated = asyncio.Event()
        self._reported = asyncio.Event()
        self._overdue_since: datetime | None = None

    @property
    def overdue(self) -> bool:
        """Whether the container's end was ordered, has had its time, and is not reported."""
        return self._overdue_since is not None and not self._reported.is_set()

    def report_terminated(self) -> None:
        """Record the operator's report that the container has terminated."""
        self._terminated.set()
        self._reported.set()

    def report_running(self, observed: datetime) -> bool:
        """Record the operator's report that the container still ran at ``observed``, by the clock of the pod's node.

        Returns False where that is no evidence: no end was ordered, or the container still had time to end.
        """
        # Kubernetes cuts its times to whole seconds.
        if self._overdue_since is None or observed < self._overdue_since.replace(microsecond=0):
            return False
        self._reported.set()
        return True

    async def confirmed(self) -> bool:
        """Wait for the operator's report: True for a container that has terminated, False for one that still runs.

        Raises:
            SandboxLost: There was no report.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_seconds):
                await self._reported.wait()
        if not self._reported.is_set():
            self._overdue_since = datetime.now(UTC)
            await self._report()
        return self._terminated.is_set()

    async def _report(self) -> None:
        try:
            async with asyncio.timeout(self._patience_seconds):
                await self._reported.wait()
        except TimeoutError:
            waited = self._timeout_seconds + self._patience_seconds
            message = f"the operator did not report within {waited:g} s whether the sandbox has ended"
            raise SandboxLost(message) from None
