"""Somebody outside drives the episode; this worker prepares the pod and stores what comes of it."""

import contextlib
import logging

from dgym.agents.base import STANDARD_TOOLS
from dgym.env.preparation import RemotePreparation
from dgym.episodes.pod.preparing import prepare
from dgym.episodes.pod.progress import Progress, Shared
from dgym.episodes.pod.script import header_of, read_task, read_tools
from dgym.errors import ConflictError, SandboxLost
from dgym.results import Record
from dgym.session import EpisodeLimits
from dgym.wire import EndReason, Result
from dgym.wire.assignments import Assignment, AssignmentState

_log = logging.getLogger("dgym.episodes.episode")

_MAX_STEPS = 10_000
"""Whoever drives knows when to stop."""


class Observing:
    """One assignment in the mode "prepare"."""

    price: str | None = None

    def __init__(
        self,
        assignment: Assignment,
        shared: Shared,
        progress: Progress,
        record: Record,
        preparation: RemotePreparation,
    ) -> None:
        self._assignment = assignment
        self._shared = shared
        self._progress = progress
        self._record = record
        self._preparation = preparation

    async def run(self, started: str) -> Result:
        """The verdict, whoever brings it about."""
        task, tools = read_task(self._assignment), read_tools(self._assignment) or STANDARD_TOOLS
        begun = await self._record.load(header_of(self._assignment, task, tools, started))
        limits = EpisodeLimits(max_steps=_MAX_STEPS, deadline_seconds=self._assignment.remaining_seconds)
        try:
            await prepare(
                self._preparation, task, tools=tools, limits=limits, shared=self._shared, progress=self._progress
            )
        except ConflictError as error:
            _log.info("prepared before: %s", error)
            self._progress.taken_up()
        self._progress.become(AssignmentState.RUNNING)
        with self._progress.timed("play"):
            result = await self._preparation.result()
        # An episode that was cancelled before it began has no steps.
        with contextlib.suppress(ConflictError, SandboxLost):
            for step in await self._preparation.steps(len(begun)):
                self._record.write(step)
                self._progress.stepped(step)
        return result

    def failed(self, reason: EndReason, message: str) -> Result:
        """A failure in the form of a result."""
        return Result(resolved=False, reason=reason, message=message)

    def close(self) -> None:
        """Nothing is held."""
