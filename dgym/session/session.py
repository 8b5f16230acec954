"""One episode from reset to verdict.

A session owns the two sandboxes of an episode, the tools, the journal, the limits and the final scoring. It is what
``dgym run`` drives in this process and what a sidecar serves over HTTP; it knows neither.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dgym.api import DebugTask
from dgym.errors import ConflictError, EpisodeOver, ManifestError, SandboxLost
from dgym.sandbox import Sandbox, SandboxProvider
from dgym.session.changes import ChangeSet, collect
from dgym.session.execution import Execution, execute, first_observation, joined, read_action, reading_tools
from dgym.session.journal import Journal
from dgym.session.limits import Deadline, EpisodeLimits
from dgym.session.preparation import Baseline, apply_solution, open_verifier, prepare, tool_settings
from dgym.session.sandboxes import Killing, death_observation, replay
from dgym.session.scoring import Ending, SuiteCache, score, unscored
from dgym.session.verification.environment import suggests_doubt
from dgym.tools import Tool, ToolContext
from dgym.tools.rewrite import Rewrite
from dgym.wire import Breakpoint, EndReason, Observation, Result, Step, ToolCall

_LAST_DEATH = 2
"""A second sandbox that dies under the agent's steps ends the episode."""


class Session:
    """The engine of one episode.

    Args:
        task: The bug.
        provider: Opens the sandbox and the verifier; the session stops what it opened.
        tools: What the agent may call.
        source: A tar of the repository; None when the sandbox's image holds it.
        limits: Steps, rewrites, deadline.
        suite_cache: Where the suite of the untouched repository is remembered between episodes of a task.
        killing: How the sandbox is ended, and who knows that it is.

    The order of calls is ``reset``, ``step`` with numbers from 1, ``finish``, ``close``. ``finish`` is implied by the
    step that ends the episode and by the deadline; ``close`` without ``finish`` discards the episode.
    """

    def __init__(
        self,
        task: DebugTask,
        *,
        provider: SandboxProvider,
        tools: Sequence[Tool],
        source: Path | None,
        limits: EpisodeLimits,
        suite_cache: SuiteCache | None = None,
        killing: Killing = Killing(),  # noqa: B008 - immutable
    ) -> None:
        self.task = task
        self.limits = limits
        self.rewrites = 0
        self.evaluation: str | None = None
        """What the task's tests said last, wherever they were run."""
        self.notices: list[str] = []
        """What tools said when they appeared."""
        self.result: Result | None = None
        self.ending = asyncio.Event()
        """Set once the episode ends, whoever or whatever ended it; ``finish`` waits for the result."""
        self._tools = {tool.name: tool for tool in tools if limits.max_rewrites != 0 or not isinstance(tool, Rewrite)}
        self._provider = provider
        self._source = source
        self._suite_cache = suite_cache
        self._killing = killing
        self._journal = Journal()
        self._poisoned: set[int] = set()
        self._misaddressed: set[int] = set()
        self._unexecuted: set[int] = set()
        self._sandbox: Sandbox | None = None
        self._verifier: Sandbox | None = None
        self._preparing_verifier = asyncio.Lock()
        self._baseline: Baseline | None = None
        self._context: ToolContext | None = None
        self._started = 0.0
        self.deadline = Deadline(limits.deadline_seconds)
        self._deadline_watch: asyncio.Task[None] | None = None
        self._finishing: asyncio.Task[Result] | None = None

    @property
    def tools(self) -> dict[str, Tool]:
        """The tools that are there now."""
        return {name: tool for name, tool in self._tools.items() if tool.after_rewrites <= self.rewrites}

    @property
    def breakpoints(self) -> tuple[Breakpoint, ...]:
        """The breakpoints that are set now."""
        return self._context.breakpoints if self._context is not None else ()

    @property
    def focus_file(self) -> str | None:
        """The file the agent looked at or changed last."""
        return self._context.focus_file if self._context is not None else None

    @property
    def steps(self) -> int:
        """Steps taken; the reset and a call that came after the end are none."""
        recorded = self._journal.next_seq
        return max(0, recorded - 1) - sum(seq < recorded for seq in self._unexecuted)

    @property
    def poisoned(self) -> frozenset[int]:
        """Numbers of the steps under which a sandbox died."""
        return frozenset(self._poisoned)

    @property
    def next_seq(self) -> int:
        """The number of the next step."""
        return self._journal.next_seq

    async def settled(self) -> None:
        """Wait for the end of the step that runs now, if one does."""
        await self._journal.settled()

    def history(self, *, start: int = 0) -> list[Step]:
        """The recorded steps from number ``start`` on."""
        return self._journal.steps[start:]

    async def reset(self, *, evaluate: bool = False) -> Observation:
        """Start the episode; once a session. With ``evaluate`` the observation ends with the output of ``eval``.

        Raises:
            ConflictError: The session was reset before.
            ManifestError: ``evaluate`` without the tool ``eval``.
            SandboxStartFailed, SetupFailed: The episode could not start.
        """
        if evaluate and "eval" not in self.tools:
            raise ManifestError("the option eval runs the tool eval, which this episode does not have; add it to tools")
        if self._sandbox is not None:
            raise ConflictError("this session was reset before; a new episode needs a new session")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._open_sandbox())
                if self.task.spec.setup_commands:
                    group.create_task(self._pristine())
        except ExceptionGroup as failures:
            await self.close()
            raise failures.exceptions[0] from None
        self._started = time.monotonic()
        self.deadline.run()
        assert self._context is not None
        instructions = self.task.spec.instructions.strip() or "Find and repair the bug."
        texts = [instructions, *await self._greet(self.tools.values())]
        first = await first_observation(self.tools, self._context, texts, evaluate=evaluate)
        observation, self.evaluation = first.observation, first.evaluation
        self._journal.record_reset(observation)
        self._deadline_watch = asyncio.create_task(self._watch_deadline())
        return observation

    async def step(self, seq: int, action: ToolCall | Mapping[str, Any] | str) -> Observation:
        """Execute ``action`` as step ``seq``, once; see ``Journal``.

        A bad action costs a step and is answered by an observation. The observation of the step that ends the episode
        has ``end_reason``, and ``result`` is set.

        Raises:
            EpisodeOver: The episode ended, and an earlier answer said so.
            ConflictError: The number was used for another call, or one was left out.
            InfrastructureError: Something that is not the agent's doing.
        """
        call = read_action(action, self.tools)
        last = self._journal.steps[-1:]
        if seq >= self._journal.next_seq and last and last[0].observation.end_reason is not None:
            raise EpisodeOver("the episode is over; reset() starts a new one")
        return await self._journal.once(seq, call, self._execute)

    async def peek(self, action: ToolCall | Mapping[str, Any] | str) -> Observation:
        """The answer of a tool that changes nothing, without a step: what an agent shows its model unasked.

        ``view`` and ``listdir`` answer here even where they are not among the tools.
        """
        tools = reading_tools() | {name: tool for name, tool in self.tools.items() if not tool.mutates}
        if self._context is None or self._finishing is not None:
            return Observation(text="The episode has ended.", ok=False)
        focus_file = self._context.focus_file
        try:
            return (await execute(tools, self._context, read_action(action, tools))).observation
        except SandboxLost as death:
            # The next step finds it too, and starts a new one.
            return Observation(text=f"The sandbox does not answer ({death}).", ok=False)
        finally:
            self._context.focus_file = focus_file

    async def finish(self, reason: EndReason = EndReason.UNRESOLVED) -> Result:
        """End the episode: take the changes out, kill the sandbox, score on the pristine copy. Idempotent.

        ``reason`` is what ended it; the result says Resolved whenever everything that counts passed.
        """
        if self._finishing is None:
            self._finishing = asyncio.create_task(self._finish(reason), name="dgym-finish")
            self.ending.set()
        return await asyncio.shield(self._finishing)

    async def changes(self) -> ChangeSet:
        """What the agent has changed so far."""
        sandbox, baseline = self._open()
        return await collect(sandbox, await self._pristine(), baseline)

    async def apply_solution(self) -> Observation:
        """Apply the task's gold patch to the agent's workspace. For the role that prepares, never for one that drives.

        Raises:
            ManifestError: The patch does not apply.
        """
        sandbox, _ = self._open()
        return await apply_solution(sandbox, self.task)

    async def close(self) -> None:
        """End everything the session started, without scoring what was not finished. Idempotent."""
        if self._deadline_watch is not None:
            self._deadline_watch.cancel()
            await asyncio.wait([self._deadline_watch])
        await self._journal.abandon()
        if self._finishing is not None and not self._finishing.done():
            self._finishing.cancel()
            await asyncio.wait([self._finishing])
        await self._stop_sandboxes()

    # How a session opens its sandboxes

    async def _open_sandbox(self) -> None:
        self._sandbox = await self._provider.sandbox()
        self._baseline = await prepare(self._sandbox, self.task, self._source)
        self._context = ToolContext(self._sandbox, self._baseline.policy, tool_settings(self.task))

    async def _pristine(self) -> Sandbox:
        # Someone may ask for the changes while the deadline ends the episode: one verifier, and none half prepared.
        async with self._preparing_verifier:
            if self._verifier is None:
                self._verifier = await self._open_verifier()
            return self._verifier

    async def _open_verifier(self) -> Sandbox:
        return await open_verifier(self._provider, self.task, self._source)

    def _open(self) -> tuple[Sandbox, Baseline]:
        if self._sandbox is None or self._baseline is None:
            raise EpisodeOver("the session was not reset, or is closed")
        return self._sandbox, self._baseline

    async def _stop_sandboxes(self) -> None:
        sandboxes = [sandbox for sandbox in (self._sandbox, self._verifier) if sandbox is not None]
        self._sandbox = self._verifier = None
        for sandbox in sandboxes:
            await sandbox.stop()

    async def _greet(self, tools: Iterable[Tool]) -> list[str]:
        assert self._context is not None
        texts = [text for tool in tools if (text := await tool.on_reset(self._context))]
        self.notices += texts
        return texts

    # How a step runs

    async def _execute(self, call: ToolCall) -> Observation:
        if self._finishing is None:
            self._open()
        else:
            self._unexecuted.add(self._journal.next_seq)
            result = await self.finish()
            return Observation(
                text=f"Not executed: the episode has ended ({result.reason}).", ok=False, end_reason=result.reason
            )
        reason: EndReason | None = None
        try:
            async with asyncio.timeout(self.deadline.remaining):
                execution = await self._execute_in_sandbox(call)
        except TimeoutError:
            reason = EndReason.DEADLINE_EXCEEDED
            text = "The episode's deadline passed while this ran; it was stopped."
            execution = Execution(observation=Observation(text=text, tool=call.tool, ok=False))
        execution = await self._count(call, execution)
        reason = reason or self._why_it_ends(execution)
        if reason is None and self._finishing is None:
            return execution.observation
        result = await self.finish(reason or EndReason.UNRESOLVED)
        return msgspec.structs.replace(execution.observation, end_reason=result.reason)

    async def _count(self, call: ToolCall, execution: Execution) -> Execution:
        """Keep account of what the call did, and announce the tools that its rewrite brings."""
        before = self.tools
        if call.tool not in before:
            self._misaddressed.add(self._journal.next_seq)
        self.evaluation = execution.evaluation or self.evaluation
        self.rewrites += execution.rewrote
        new = [tool for name, tool in self.tools.items() if name not in before]
        if not new:
            return execution
        texts = [f"New from now on, the tool {tool.name}: {tool.description.partition(chr(10))[0]}" for tool in new]
        texts = [execution.observation.text, *texts, *await self._greet(new)]
        observation = joined(execution.observation, texts, tool=execution.observation.tool)
        return msgspec.structs.replace(execution, observation=observation)

    async def _execute_in_sandbox(self, call: ToolCall) -> Execution:
        assert self._context is not None
        try:
            return await execute(self.tools, self._context, call)
        except SandboxLost as death:
            if self._finishing is None:
                return await self._recover(call, death)
            text = "The episode was ended while this ran."
            return Execution(observation=Observation(text=text, tool=call.tool, ok=False))

    async def _recover(self, call: ToolCall, death: SandboxLost) -> Execution:
        """What the agent does to its own sandbox is the agent's doing: the step is poisoned, the rest is replayed."""
        self._poisoned.add(self._journal.next_seq)
        killer = await self._restart(death, self.breakpoints)
        return Execution(
            observation=death_observation(call, death, killer), killed_sandbox=len(self._poisoned) >= _LAST_DEATH
        )

    async def _restart(self, death: SandboxLost, breakpoints: tuple[Breakpoint, ...] = ()) -> int | None:
        """Replay the episode in a new sandbox. Returns the first step that kills it, too; the replay ends before it."""
        steps = [step for step in self._journal.steps if step.seq not in self._poisoned | self._misaddressed]
        first_killer = None
        for _ in range(_LAST_DEATH):
            if self._sandbox is not None:
                await self._sandbox.stop()
            await self._open_sandbox()
            assert self._context is not None
            killer = await replay(self._tools, self._context, steps, breakpoints)
            if killer is None:
                return first_killer
            # The calls before that one did not kill it: what they made is what is scored.
            self._poisoned.add(killer)
            first_killer = first_killer or killer
            steps = [step for step in steps if step.seq < killer]
        raise SandboxLost(f"three sandboxes died in a row ({death})")

    def _why_it_ends(self, execution: Execution) -> EndReason | None:
        score = execution.observation.score
        if execution.killed_sandbox:
            return EndReason.SANDBOX_KILLED
        if execution.submitted:
            return EndReason.UNRESOLVED
        if self.task.spec.scoring.stop_when_eval_passes and score is not None and score.resolved:
            return EndReason.UNRESOLVED
        return self.limits.reached(steps=self._journal.next_seq, rewrites=self.rewrites)

    # How an episode ends

    async def _watch_deadline(self) -> None:
        await self.deadline.passed()
        if not self._journal.busy:
            await self.finish(EndReason.DEADLINE_EXCEEDED)

    async def _finish(self, reason: EndReason) -> Result:
        pristine = await self._pristine()
        changes = await self._final_changes(pristine)
        sandbox, baseline = self._open()
        if len(self._poisoned) >= _LAST_DEATH:
            reason = EndReason.SANDBOX_KILLED
        # Before the sandbox is terminated: the wait for a confirmation is not the agent's time.
        ending = Ending(
            reason=reason,
            steps=self.steps + (self._journal.busy and self._journal.next_seq not in self._unexecuted),
            rewrites=self.rewrites,
            seconds=time.monotonic() - self._started,
            doubted=any(suggests_doubt(step.observation) for step in self._journal.steps),
        )
        dead = await self._killing.kill(sandbox)
        self._sandbox = None
        if dead:
            self.result = await score(
                pristine, self.task, baseline, changes, ending, self._suite_cache, self._open_verifier
            )
        else:
            self.result = unscored(EndReason.SANDBOX_KILLED, self._killing.failed, changes, ending)
        return self.result

    async def _final_changes(self, pristine: Sandbox, *, replays: int = 1) -> ChangeSet:
        """The agent's changes; where the sandbox has died since the last step, those of a replay in a new one."""
        sandbox, baseline = self._open()
        try:
            return await collect(sandbox, pristine, baseline)
        except SandboxLost as death:
            await pristine.stat(["."])  # the death of the verifier is no reason to replay
            if not replays:
                return ChangeSet(changes={}, unscorable=f"two sandboxes died before their changes were read ({death})")
            if self._journal.busy:
                self._poisoned.add(self._journal.next_seq)
            await self._restart(death)
        return await self._final_changes(pristine, replays=replays - 1)
