"""The two sandboxes of an episode: opened and prepared alike, the agent's replaced after its death, terminated."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from dgym.api import DebugTask
from dgym.errors import EpisodeOver, PathError, SandboxLost
from dgym.sandbox import Sandbox, SandboxProvider
from dgym.session.digests import WorkspaceDigests
from dgym.session.execution import Execution
from dgym.session.preparation import Baseline, commit_workspace, prepare, run_setup, tool_settings
from dgym.session.replay import LAST_DEATH, RecordedHistory, Replayed, ReplayTimeout, divergence, replay
from dgym.session.scoring import ChangeSet, Originals, collect
from dgym.session.verification import write_versions
from dgym.tools import Tool, ToolContext
from dgym.tracing import span
from dgym.wire import Breakpoint, Step
from dgym.workspace import ancestors, compare, normalize
from dgym.workspace.patches import FileVersion


class SandboxTermination(msgspec.Struct, frozen=True, kw_only=True):
    """How a sandbox is terminated before its episode is scored: a process that survives could interfere with the tests.

    Without ``confirmed`` stopping the sandbox observes its end, within the bounds of that sandbox.
    ``confirmed`` observes the end of the sandbox where stopping it is only an order: True for one that has terminated,
    False for one that was seen running ``timeout_seconds`` after the order.
    ``clear_shared`` removes what a terminated sandbox left where the verifier would find it, before the verifier runs
    anything; it returns notes for the result. None: they share nothing.
    """

    confirmed: Callable[[], Awaitable[bool]] | None = None
    timeout_seconds: float = 30.0
    clear_shared: Callable[[], Awaitable[Sequence[str]]] | None = None

    async def terminate(self, sandbox: Sandbox) -> bool:
        """Terminate the sandbox; False where it was seen running ``timeout_seconds`` later.

        Raises:
            SandboxLost: The end of the sandbox could not be observed.
        """
        if self.confirmed is None:
            # A slow disk or engine is no sign of a sandbox that refuses to end: it is waited for.
            await sandbox.stop()
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.timeout_seconds):
                await sandbox.stop()
        return await self.confirmed()

    @property
    def failed(self) -> str:
        """The message of a result whose sandbox did not terminate."""
        return f"the sandbox still ran {self.timeout_seconds:g} s after it was told to end; nothing was scored"


def _is_within(path: str, directory: str) -> bool:
    return directory == "." or path == directory or path.startswith(f"{directory}/")


class Sandboxes:
    """The agent's sandbox with the tools' context on it, and the verifier, which no agent touches.

    Args:
        task: The bug.
        provider: Opens both.
        tools: Replay the agent's calls in a new sandbox.
        source: A tar of the repository; None when the sandbox's image holds it.
        poisoned: Numbers of the steps under which sandboxes of earlier attempts died.
    """

    def __init__(
        self,
        task: DebugTask,
        provider: SandboxProvider,
        tools: Mapping[str, Tool],
        source: Path | None,
        poisoned: Iterable[int] = (),
    ) -> None:
        self.context: ToolContext | None = None
        self.poisoned = list(poisoned)
        """Numbers of the steps under which a sandbox died, in the order of the deaths."""
        self.last_death: float | None = None
        """When the last of them was found dead, by ``time.monotonic``."""
        self.misaddressed: set[int] = set()
        """Numbers of the steps whose tool was not available: no replay executes them."""
        self.divergences: list[str] = []
        """How replays differed from the record."""
        self.cleared: tuple[str, ...] = ()
        """What the terminated sandbox had left to the verifier."""
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
        self._replacing = asyncio.Lock()

    async def open(self) -> ToolContext:
        """Open the agent's sandbox; with setup commands the verifier beside it.

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
        # A call for the changes may run while the deadline ends the episode: one verifier, and none half prepared.
        async with self._preparing_verifier:
            if self._verifier is None:
                self._verifier = await self.another_verifier()
            return self._verifier

    async def another_verifier(self) -> Sandbox:
        """A verifier of its own, which the caller stops."""
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
            EpisodeOver: There is none.
        """
        if self._sandbox is None or self._baseline is None:
            raise EpisodeOver("the session was not reset, or is closed")
        return self._sandbox, self._baseline

    @property
    def poisoned_here(self) -> tuple[int, ...]:
        """The poisoned steps whose sandbox was opened here."""
        return tuple(self.poisoned[self._poisoned_before :])

    def annotated(self, execution: Execution) -> Execution:
        """``execution`` with the divergences that no execution has yet."""
        new = tuple(self.divergences[self._annotated :])
        self._annotated += len(new)
        observation = msgspec.structs.replace(execution.observation, notes=new)
        return msgspec.structs.replace(execution, observation=observation) if new else execution

    async def digested(self, execution: Execution) -> Execution:
        """``execution`` of a mutating call with the digest of the workspace after it, where one is due.

        Raises:
            SandboxLost: The sandbox has died, which shows only now.
        """
        return await self._digests.after(execution) if self._digests is not None else execution

    def poison(self, seq: int) -> None:
        """Record that a sandbox died under step ``seq``."""
        self.last_death = time.monotonic()
        if seq not in self.poisoned:
            self.poisoned.append(seq)

    async def resume(
        self, history: RecordedHistory, available: Callable[[], Mapping[str, Tool]], replayed: Replayed
    ) -> None:
        """Replay ``history`` in the sandbox that was opened; ``replayed`` is called after each step.

        A sandbox that dies under it although the last death was counted already leaves nothing to score.

        Raises:
            SandboxLost: The sandbox died under a step, which is poisoned now, or the replay took too long.
        """
        assert self.context is not None
        try:
            killer = await self._replay(available, self.context, history.steps, replayed)
        except ReplayTimeout as timeout:
            if not self.poisoned:
                raise SandboxLost(str(timeout)) from None
            self.poison(timeout.seq)
            return
        if killer is not None:
            self.poison(killer)
            if len(self.poisoned) <= LAST_DEATH:
                raise SandboxLost(f"the sandbox died under the replay of step {killer}")
            return
        await self.context.table.replace(history.breakpoints)
        self.context.focus_file = history.focus_file

    async def changes(self) -> ChangeSet:
        """The agent's changes so far, by the times of files; the final ones are found by reading everything."""
        sandbox, baseline = self.current()
        # The setup of tools changes files after the manifest of the baseline, and before the changes are counted.
        counted = not any(tool.setup_commands for tool in self._tools.values())
        return await collect(sandbox, self._originals, baseline, trusting_times=counted)

    async def restore(self, paths: Sequence[str]) -> tuple[str, ...]:
        """Make the files at and below ``paths`` those of the untouched repository; returns what was changed.

        Raises:
            PathError: A path leads outside, or there is nothing at it before and now.
        """
        sandbox, baseline = self.current()
        before, after = baseline.manifest, await sandbox.manifest()
        wanted = [normalize(path, sandbox.workspace) for path in paths]
        known = before.keys() | after.keys()
        for path in wanted:
            if not any(_is_within(each, path) for each in known):
                raise PathError(f"there is neither {path!r} in the workspace nor was it in the repository")
        changed = [each for each in compare(before, after).paths if any(_is_within(each, path) for path in wanted)]
        changed = [each for each in changed if each not in before or before[each].type in ("file", "symlink")]
        originals = await self._originals.read({path: before[path] for path in changed if path in before})
        obstacles = {above for path in originals for above in ancestors(path) if above in after}
        versions: dict[str, FileVersion | None] = {path: originals.get(path) for path in (*changed, *obstacles)}
        await write_versions(sandbox, versions)
        return tuple(sorted(versions))

    async def final_changes(self, steps: Sequence[Step], running: int | None = None, *, replays: int = 1) -> ChangeSet:
        """The agent's changes; where its sandbox has died since the last step, those of a replay in a new one.

        Args:
            steps: The steps to replay.
            running: The number of the step that is being executed; a death poisons it.
            replays: How many deaths are answered by a replay.
        """
        verifier = await self.verifier()
        async with self._replacing:
            sandbox, baseline = self.current()
        try:
            return await collect(sandbox, self._originals, baseline)
        except SandboxLost as death:
            await verifier.stat(["."])  # the death of the verifier is no reason to replay
            if not replays or len(self.poisoned) > LAST_DEATH:
                return ChangeSet(changes={}, unscorable=f"two sandboxes died before their changes were read ({death})")
            if running is not None:
                self.poison(running)
            await self.replace(sandbox, steps)
        return await self.final_changes(steps, running, replays=replays - 1)

    async def replace(
        self, dead: Sandbox, steps: Sequence[Step], breakpoints: tuple[Breakpoint, ...] = ()
    ) -> int | None:
        """Replay ``steps`` in a new sandbox, unless ``dead`` has been replaced already.

        Returns the first step that kills the new sandbox, too, or takes too long in it; the replay ends before it.
        Where the last sandbox dies as well, there is none with anything to score.
        """
        async with self._replacing:
            if self._sandbox is not dead:
                return None
            return await self._replace(steps, breakpoints)

    async def _replace(self, steps: Sequence[Step], breakpoints: tuple[Breakpoint, ...]) -> int | None:
        first_killer = None
        for _ in range(LAST_DEATH):
            if self._sandbox is not None:
                await self._sandbox.stop()
            context = await self._open_sandbox()
            try:
                killer = await self._replay(lambda: self._tools, context, steps)
            except ReplayTimeout as timeout:
                killer = timeout.seq
            if killer is None:
                await context.table.replace(breakpoints)
                break
            # The calls before that one did not kill it: their changes are scored.
            self.poison(killer)
            first_killer = first_killer or killer
            steps = [step for step in steps if step.seq < killer]
        return first_killer

    async def _replay(
        self,
        available: Callable[[], Mapping[str, Tool]],
        context: ToolContext,
        steps: Sequence[Step],
        replayed: Replayed | None = None,
    ) -> int | None:
        left_out = self.misaddressed | set(self.poisoned)

        async def compare(step: Step, execution: Execution | None) -> None:
            difference = divergence(step, execution)
            if difference is not None and difference not in self.divergences:
                self.divergences.append(difference)
            if replayed is not None:
                await replayed(step, execution)

        return await replay(available, context, steps, compare, left_out=left_out)

    async def terminate(self, termination: SandboxTermination) -> bool:
        """Terminate the agent's sandbox and clear what it shared with the verifier; False where it still runs."""
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
                await run_setup(self._sandbox, tool.setup_commands, of=f" of tool {tool.name}")
            self._digests = await WorkspaceDigests.begin(self._sandbox)
        self.context = ToolContext(self._sandbox, self._baseline.policy, tool_settings(self._task))
        return self.context
