"""The end of the sandbox's container: ordered by the sidecar, observed by the operator.

A sidecar cannot see other containers. Silence of the operator is no evidence about the agent: the sidecar waits for a
report, and without one the attempt is lost.
"""

import asyncio
import contextlib
from datetime import UTC, datetime

from dgym.errors import SandboxLost


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
