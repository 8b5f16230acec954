"""The two sandboxes of a session. Both are prepared in the same way."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from dgym.api import DebugTask
from dgym.errors import EpisodeOver, PathError, SandboxLost
from dgym.sandbox import Sandbox, SandboxProvider
from dgym.session._execution import Execution
from dgym.session._journal import RecordedTrajectory, Replayed, ReplayTimeout, WorkspaceDigests, divergence, replay
from dgym.session._outcome import ChangeSet, Originals, collect
from dgym.session._preparation import Baseline, commit_workspace, prepare, run_setup, tool_settings
from dgym.session.scoring import write_versions
from dgym.tools import Tool, ToolContext
from dgym.tracing import span
from dgym.wire import Step
from dgym.wire.outcome import MOST_POISONED
from dgym.workspace import ancestors, compare, normalize
from dgym.workspace.patches import FileVersion


class SandboxTermination(msgspec.Struct, frozen=True, kw_only=True):
    """How a sandbox is terminated before scoring. A process that survives could interfere with the tests.

    Attributes:
        confirmed: Returns True if the sandbox has terminated and False if it was still running ``timeout_seconds``
            after it was stopped. Needed if stopping only requests the end. None: stopping waits until the sandbox has
            terminated.
        timeout_seconds: How long stopping may take before ``confirmed`` is called.
        clear_shared: Removes files that a terminated sandbox left where the verifier would find them, before the
            verifier runs anything. Returns notes for the result. None: the sandbox and the verifier share nothing.
    """

    confirmed: Callable[[], Awaitable[bool]] | None = None
    timeout_seconds: float = 30.0
    clear_shared: Callable[[], Awaitable[Sequence[str]]] | None = None

    async def terminate(self, sandbox: Sandbox) -> bool:
        """Terminate the sandbox. Return False if it was still running after ``timeout_seconds``.

        Raises:
            SandboxLost: It could not be confirmed that the sandbox has terminated.
        """
        if self.confirmed is None:
            # Wait without a timeout: a slow disk or engine does not show that the sandbox refuses to terminate.
            await sandbox.stop()
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.timeout_seconds):
                await sandbox.stop()
        return await self.confirmed()

    @property
    def failed(self) -> str:
        """The message of a result whose sandbox did not terminate."""
        return f"the sandbox still ran {self.timeout_seconds:g} s after it was stopped; nothing was scored"


def _is_within(path: str, directory: str) -> bool:
    return directory == "." or path == directory or path.startswith(f"{directory}/")


class Sandboxes:
    """The agent's sandbox with its tool context, and the verifier, which the agent cannot access.

    Args:
        task: The task.
        provider: Opens both.
        tools: All tools, including removed ones: their setup commands run too.
        source: A tar of the repository. None if the sandbox's image has it.
        trajectory: The steps of an earlier session that will be replayed.
    """

    def __init__(
        self,
        task: DebugTask,
        provider: SandboxProvider,
        tools: Mapping[str, Tool],
        source: Path | None,
        trajectory: RecordedTrajectory | None = None,
    ) -> None:
        self.context: ToolContext | None = None
        self.poisoned = list(trajectory.poisoned) if trajectory is not None else []
        """Numbers of the steps during which a sandbox died, in the order of the deaths."""
        self.death: SandboxLost | None = None
        """The error that showed the death of the sandbox. None: the sandbox is not known to have died."""
        self.last_death: float | None = None
        """When a sandbox was last found dead during a step, by ``time.monotonic``."""
        self.unread = False
        """True if the sandbox was dead when its final changes were read."""
        self.misaddressed = set(trajectory.misaddressed) if trajectory is not None else set()
        """Numbers of the steps whose tool was not available. Replays skip them."""
        self.divergences: list[str] = []
        """How replays differed from the record."""
        self.cleared: tuple[str, ...] = ()
        """Notes about files that the terminated sandbox left in the place shared with the verifier."""
        self._poisoned_before = len(self.poisoned)
        self._annotated = 0
        self._task = task
        self._provider = provider
        self._tools = tools
        self._source = source
        self._sandbox: Sandbox | None = None
        self._baseline: Baseline | None = None
        self._digests: WorkspaceDigests | None = None
        self._verifier: Sandbox | None = None
        self._preparing_verifier = asyncio.Lock()
        self._originals = Originals(source, self.verifier)
        self._was_unread = trajectory is not None and trajectory.unread

    async def open(self) -> ToolContext:
        """Open the agent's sandbox. If the task has setup commands, open the verifier at the same time.

        Raises:
            SandboxStartFailed, SetupFailed: The episode cannot start.
        """
        try:
            async with asyncio.TaskGroup() as group:
                opening = group.create_task(self._open_sandbox())
                if self._task.spec.setup_commands:
                    group.create_task(self.verifier())
        except ExceptionGroup as failures:
            await self.stop()
            raise failures.exceptions[0] from None
        return opening.result()

    async def verifier(self) -> Sandbox:
        """The verifier, prepared at the first call."""
        # The deadline may end the episode during a request for the changes. The lock prevents a second verifier.
        async with self._preparing_verifier:
            if self._verifier is None:
                self._verifier = await self.another_verifier()
            return self._verifier

    async def another_verifier(self) -> Sandbox:
        """Open another verifier, which the caller must stop."""
        with span("start verifier"):
            verifier = await self._provider.verifier()
            try:
                await prepare(verifier, self._task, self._source)
            except BaseException:
                await verifier.stop()
                raise
            return verifier

    def current(self) -> tuple[Sandbox, Baseline]:
        """The agent's sandbox and its state before the first action.

        Raises:
            EpisodeOver: The sandbox is not open.
        """
        if self._sandbox is None or self._baseline is None:
            raise EpisodeOver("the session was not reset or was closed")
        return self._sandbox, self._baseline

    @property
    def own_poisoned_steps(self) -> tuple[int, ...]:
        """The poisoned steps whose sandbox was opened by this object."""
        return tuple(self.poisoned[self._poisoned_before :])

    def annotated(self, execution: Execution) -> Execution:
        """Return ``execution`` with the divergences that were not added to an earlier execution."""
        new = tuple(self.divergences[self._annotated :])
        self._annotated += len(new)
        observation = msgspec.structs.replace(execution.observation, notes=new)
        return msgspec.structs.replace(execution, observation=observation) if new else execution

    async def digested(self, execution: Execution) -> Execution:
        """Return ``execution`` of a mutating call with the digest of the workspace, if it is time for one.

        Raises:
            SandboxLost: The digest showed that the sandbox has died.
        """
        return await self._digests.after(execution) if self._digests is not None else execution

    def record_death(self, death: SandboxLost, *, under: int | None) -> None:
        """Record that the sandbox has died. ``under`` is the number of the step during which it died, if any."""
        self.death = death
        if under is not None:
            self.last_death = time.monotonic()
            if under not in self.poisoned:
                self.poisoned.append(under)

    async def resume(
        self, trajectory: RecordedTrajectory, available: Callable[[], Mapping[str, Tool]], replayed: Replayed
    ) -> None:
        """Replay ``trajectory`` in the opened sandbox. ``replayed`` is called after each step.

        If earlier deaths do not allow another session, the method only records the new death and returns. Nothing can
        be scored then.

        Raises:
            SandboxLost: The sandbox died during a step, which is poisoned now, or the replay took too long.
        """
        assert self.context is not None

        async def compared(step: Step, execution: Execution | None) -> None:
            difference = divergence(step, execution)
            if difference is not None:
                self.divergences.append(difference)
            await replayed(step, execution)

        left_out = self.misaddressed | set(self.poisoned)
        try:
            killer = await replay(available, self.context, trajectory.steps, compared, left_out=left_out)
        except ReplayTimeout as timeout:
            late = SandboxLost(str(timeout))
            if not self.poisoned:
                raise late from None
            self.record_death(late, under=timeout.seq)
            return
        if killer is not None:
            death = SandboxLost(f"the sandbox died during the replay of step {killer}")
            self.record_death(death, under=killer)
            if len(self.poisoned) <= MOST_POISONED:
                raise death
            return
        await self.context.table.replace(trajectory.breakpoints)
        self.context.focus_file = trajectory.focus_file

    async def changes(self) -> ChangeSet:
        """The agent's changes so far, found by the times of files. ``final_changes`` reads all files instead."""
        sandbox, baseline = self.current()
        # The setup of tools changes files after the baseline's manifest is taken and before changes are tracked by
        # time.
        counted = not any(tool.setup_commands for tool in self._tools.values())
        return await collect(sandbox, self._originals, baseline, trusting_times=counted)

    async def restore(self, paths: Sequence[str]) -> tuple[str, ...]:
        """Restore the files at and below ``paths`` from the untouched repository. Return the changed paths.

        Raises:
            PathError: A path is outside of the workspace, or exists neither there nor in the repository.
        """
        sandbox, baseline = self.current()
        before, after = baseline.manifest, await sandbox.manifest()
        wanted = [normalize(path, sandbox.workspace) for path in paths]
        known = before.keys() | after.keys()
        for path in wanted:
            if not any(_is_within(each, path) for each in known):
                raise PathError(f"{path!r} is neither in the workspace nor in the repository")
        changed = [each for each in compare(before, after).paths if any(_is_within(each, path) for path in wanted)]
        changed = [each for each in changed if each not in before or before[each].type in ("file", "symlink")]
        originals = await self._originals.read({path: before[path] for path in changed if path in before})
        obstacles = {above for path in originals for above in ancestors(path) if above in after}
        versions: dict[str, FileVersion | None] = {path: originals.get(path) for path in (*changed, *obstacles)}
        await write_versions(sandbox, versions)
        return tuple(sorted(versions))

    async def final_changes(self, running: int | None = None) -> ChangeSet:
        """The agent's changes. Unscorable if the sandboxes of two sessions died before their changes were read.

        Args:
            running: The number of the step that is being executed. A death poisons it.

        Raises:
            SandboxLost: The sandbox has died since the last step.
        """
        verifier = await self.verifier()
        sandbox, baseline = self.current()
        try:
            return await collect(sandbox, self._originals, baseline)
        except SandboxLost as death:
            await verifier.stat(["."])  # Raises if the verifier died, because then a replay would not help.
            if self._was_unread or len(self.poisoned) > MOST_POISONED:
                return ChangeSet(
                    changes={}, unscorable=f"two sandboxes died before the changes were read from them ({death})"
                )
            self.record_death(death, under=running)
            self.unread = True
            raise

    async def terminate(self, termination: SandboxTermination) -> bool:
        """Terminate the agent's sandbox and clear the shared files. Return False if it is still running."""
        sandbox, _ = self.current()
        with span("terminate sandbox"):
            terminated = await termination.terminate(sandbox)
        self._sandbox = None
        if terminated and termination.clear_shared is not None:
            self.cleared = tuple(await termination.clear_shared())
        return terminated

    async def stop(self) -> None:
        """Stop both sandboxes. Idempotent."""
        sandboxes = [sandbox for sandbox in (self._sandbox, self._verifier) if sandbox is not None]
        self._sandbox = self._verifier = None
        for sandbox in sandboxes:
            await sandbox.stop()

    async def _open_sandbox(self) -> ToolContext:
        with span("start sandbox"):
            self._sandbox = await self._provider.sandbox()
            baseline = await prepare(self._sandbox, self._task, self._source)
            self._baseline = await commit_workspace(self._sandbox, self._task, baseline)
            for tool in self._tools.values():
                await run_setup(self._sandbox, tool.setup_commands, origin=f" of tool {tool.name}")
            self._digests = await WorkspaceDigests.begin(self._sandbox)
        self.context = ToolContext(self._sandbox, self._baseline.policy, tool_settings(self._task))
        return self.context
