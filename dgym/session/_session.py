"""One episode from reset to result.

A session owns the two sandboxes, the tools, the journal, the limits and the final scoring. ``dgym run`` uses a session
in its own process, and a sidecar serves one over HTTP. A session ends when its sandbox dies: a new session resumes the
episode and replays the steps.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from dgym.api import DebugTask
from dgym.errors import ConflictError, EpisodeOver, ManifestError, RunnerFailed, SandboxLost
from dgym.sandbox import RunResult, Sandbox, SandboxProvider
from dgym.session._execution import (
    Deadline,
    EpisodeLimits,
    Execution,
    Toolbox,
    bounded,
    execute,
    first_observation,
    read_action,
    reading_tools,
)
from dgym.session._journal import Journal, RecordedTrajectory, RequestsInFlight, death_observation
from dgym.session._outcome import MAXIMUM_NOTES, ChangeSet, score, scoring_plan, unscored
from dgym.session._preparation import Baseline, apply_solution, read_environment, run_setup
from dgym.session._sandboxes import Sandboxes, SandboxTermination
from dgym.session.scoring import SuiteCache, check_evaluation
from dgym.tools import Tool, ToolContext
from dgym.wire import EndReason, Observation, Result, Score, Step, ToolCall
from dgym.wire.episode import Action
from dgym.wire.http import StepState, ToolsResponse, Usage
from dgym.wire.outcome import MOST_POISONED, RunEnvironment


class Session:
    """The engine of one episode.

    Args:
        task: The task.
        provider: Opens the sandbox and the verifier; the session stops both.
        tools: The tools that the agent may call.
        source: A tar of the repository. None if the sandbox's image has it.
        limits: Steps, rewrites, deadline.
        suite_cache: Caches the suite of the untouched repository between episodes of a task.
        termination: How the sandbox is terminated, and how its termination is confirmed.
        trajectory: The steps of an earlier session, which the reset replays. They count against the limits as steps of
            this session do. None: a new episode.
        changed: Called when the execution of a step begins and when it ends.

    The order of calls is ``reset``, ``step`` with numbers from 1, ``finish``, ``close``. The step that ends the episode
    and the deadline call ``finish`` implicitly. ``close`` without ``finish`` discards the episode. Every call is
    executed once, even if it is repeated, and continues if its caller is cancelled.
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
        termination: SandboxTermination = SandboxTermination(),  # noqa: B008 - immutable
        trajectory: RecordedTrajectory | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.task = task
        self.limits = limits
        self.deadline = Deadline(limits.deadline_seconds)
        self.evaluation: str | None = None
        """The output of the last run of the task's tests."""
        self.usage = Usage()
        self.result: Result | None = None
        self.reset_requested = False
        """Whether a reset was requested, even if it has not returned yet."""
        self.ending = asyncio.Event()
        """Set when the episode ends for any reason, including a failed reset. ``finish`` waits for the result."""
        self.toolbox = Toolbox(tools, max_rewrites=limits.max_rewrites)
        self._sandboxes = Sandboxes(task, provider, self.toolbox.all, source, trajectory)
        self._recorded = trajectory
        self._suite_cache = suite_cache
        self._termination = termination
        self._requests = RequestsInFlight()
        self._journal = Journal(self._requests, changed)
        self._reset_key: str | None = None
        self._call: ToolCall | None = None
        """The call of the current step, or of the last step if no step is being executed."""
        self._acknowledged = 0
        """The value of ``Sandbox.acknowledged`` before that step."""
        self._unexecuted: set[int] = set()
        self._solution: Observation | None = None
        self._environment: RunEnvironment | None = None
        self._started = 0.0
        self._deadline_watch: asyncio.Task[None] | None = None
        self._finishing: asyncio.Future[Result] | None = None

    @property
    def tools(self) -> dict[str, Tool]:
        """The tools that are available now."""
        return self.toolbox.available

    @property
    def rewrites(self) -> int:
        """Successful rewrites so far."""
        return self.toolbox.rewrites

    @property
    def steps(self) -> int:
        """Number of steps. The reset and calls after the end of the episode are not counted."""
        recorded = self._journal.next_seq
        return max(0, recorded - 1) - sum(seq < recorded for seq in self._unexecuted)

    @property
    def poisoned(self) -> frozenset[int]:
        """Numbers of the steps during which a sandbox died."""
        return frozenset(self._sandboxes.poisoned)

    @property
    def own_poisoned_steps(self) -> tuple[int, ...]:
        """The poisoned steps whose sandbox belonged to this session, in the order of the deaths."""
        return self._sandboxes.own_poisoned_steps

    @property
    def last_death(self) -> float | None:
        """When a sandbox was last found to have died during a step, by ``time.monotonic``."""
        return self._sandboxes.last_death

    @property
    def death(self) -> SandboxLost | None:
        """The error that showed the death of the sandbox. None while it is alive and after the result is known."""
        return self._sandboxes.death if self.result is None else None

    def recorded(self) -> RecordedTrajectory:
        """The trajectory that a new session must replay after the sandbox of this session has died."""
        earlier, poisoned = self._recorded or RecordedTrajectory(steps=()), self._sandboxes.poisoned
        trajectory = msgspec.structs.replace(
            earlier,
            steps=tuple(self._journal.steps) or earlier.steps,
            poisoned=tuple(poisoned),
            misaddressed=tuple(sorted(self._sandboxes.misaddressed)),
            seconds=self._seconds,
            unread=self._sandboxes.unread,
        )
        if not self.next_seq and self.own_poisoned_steps:
            return trajectory.with_another_death(self.own_poisoned_steps[-1])
        if self._call is None or self.next_seq not in poisoned:
            return trajectory
        observation = death_observation(self._call, self._sandboxes.death)
        killer = Step(seq=self.next_seq, call=self._call, observation=observation)
        return msgspec.structs.replace(trajectory, steps=(*trajectory.steps, killer))

    @property
    def next_seq(self) -> int:
        """The number of the next step. 0 until the reset has returned."""
        return self._journal.next_seq

    @property
    def state(self) -> StepState:
        """Counts, breakpoints, focus file and names of the tools after the last step."""
        context, result, usage = self._sandboxes.context, self.result, self.usage
        return StepState(
            steps=self.steps,
            rewrites=self.rewrites,
            tools=tuple(self.tools),
            evaluation=bounded(self.evaluation)[0] if self.evaluation is not None else None,
            breakpoints=context.breakpoints if context is not None else (),
            focus_file=context.focus_file if context is not None else None,
            end_reason=result.reason if result is not None else None,
            score=Score(score=result.score, max_score=result.max_score) if result is not None else None,
            usage=usage if usage.input_tokens or usage.output_tokens else None,
        )

    @property
    def toolset(self) -> ToolsResponse:
        """The task's instructions and the tools that are available now."""
        toolset = self.toolbox.describe(self.task.spec.instructions)
        return msgspec.structs.replace(toolset, environment=self._environment)

    @property
    def step_in_flight(self) -> int | None:
        """The number of the step that is being executed."""
        seq = self._journal.in_flight
        return None if seq in self._unexecuted else seq

    @property
    def busy(self) -> bool:
        """Whether the reset or a step is being executed."""
        return self._journal.busy or bool(self._requests.running("reset"))

    def record_usage(self, usage: Usage) -> None:
        """Record the tokens that the agent's model has used so far. The highest counts are kept."""
        self.usage = self.usage.merged(usage)

    def trajectory(self, *, start: int = 0) -> list[Step]:
        """The recorded steps from number ``start`` on."""
        return self._journal.steps[start:]

    async def reset(self, *, evaluate: bool = False, key: str | None = None) -> Observation:
        """Start the episode, or resume the episode that was started with the same idempotency ``key``.

        Returns the last observation, after the step that is being executed has ended. With ``evaluate`` the first
        observation ends with the output of ``eval``.

        Raises:
            ConflictError: The session was reset before, with another key or without a key.
            ManifestError: ``evaluate`` is set, but the episode does not have the tool ``eval``.
            SandboxStartFailed, SetupFailed: The episode could not start.
        """
        if evaluate and "eval" not in self.tools:
            raise ManifestError("the option eval runs the tool eval, which this episode does not have; add it to tools")
        if self.reset_requested and (key is None or key != self._reset_key):
            raise ConflictError("the session was reset under another key; a new episode needs a new session")
        self.reset_requested, self._reset_key = True, key
        if self.next_seq and not self._requests.running("reset"):
            self.deadline.run()
            await self._journal.settled()
            return self._journal.steps[-1].observation
        if self._finishing is not None and not self.next_seq:
            await self.finish()  # Raises the error of the first reset.
        return await self._requests.once("reset", key, lambda: self._begin(evaluate))

    async def step(self, seq: int, action: Action) -> Observation:
        """Execute ``action`` as step ``seq``, once; see ``Journal``.

        An invalid action costs a step and returns an observation. The observation of the step that ends the episode has
        ``end_reason``, and ``result`` is set.

        Raises:
            EpisodeOver: The episode has ended, and an earlier observation had ``end_reason``.
            ConflictError: The number was used for another call, or leaves a gap.
            InfrastructureError: A failure that the agent did not cause.
        """
        call, problem = read_action(action, self.tools)
        last = self._journal.steps[-1:]
        if seq >= self._journal.next_seq and last and last[0].observation.end_reason is not None:
            raise EpisodeOver("the episode is over; reset() starts a new one")
        return await self._journal.once(seq, call, lambda call: self._execute(call, problem))

    async def peek(self, action: Action) -> Observation:
        """Call a tool that changes nothing, without a step. Used for an agent's prompt.

        ``view`` and ``listdir`` can be called even if the episode does not have these tools.
        """
        tools = reading_tools() | {name: tool for name, tool in self.tools.items() if not tool.mutates}
        call, problem = read_action(action, tools)
        return await self._requests.once("peek", (self.next_seq, call), lambda: self._peek(tools, call, problem))

    async def finish(self, reason: EndReason = EndReason.UNRESOLVED) -> Result:
        """End the episode: collect the changes, terminate the sandbox, score on the pristine copy. Idempotent.

        The result's reason is Resolved if everything that counts passed, else ``reason``. If a reset is in flight, the
        method waits for it and raises its error.
        """
        await self._requests.settled("reset")
        return await self._ended(reason)

    async def patch(self) -> str:
        """The agent's changes so far in the format of ``git apply``. Bytes that are not UTF-8 are surrogate escapes."""
        if self.result is not None:
            return self.result.patch
        changes = await self._requests.once("patch", self.next_seq, self._sandboxes.changes)
        patch = await asyncio.to_thread(lambda: changes.patch)
        return patch.decode("utf-8", "surrogateescape")

    async def run(self, command: str, *, timeout_seconds: float) -> RunResult:
        """Run a shell command in the agent's sandbox without recording a step. Its changes are part of the workspace.

        Raises:
            EpisodeOver: The episode has ended.
            SandboxLost: The sandbox died during the command.
        """
        sandbox, _ = self._current_sandbox()

        async def execute() -> RunResult:
            try:
                return await sandbox.run(command, timeout_seconds=timeout_seconds)
            except SandboxLost as death:
                self._sandboxes.record_death(death, under=None)
                raise

        return await self._requests.once("run", object(), execute)

    async def restore(self, paths: Sequence[str]) -> tuple[str, ...]:
        """Restore the files at and below ``paths`` from the untouched repository, without recording a step.

        Returns the changed paths.

        Raises:
            EpisodeOver: The episode has ended.
            PathError: A path never existed.
        """
        self._current_sandbox()
        return await self._requests.once("restore", object(), lambda: self._sandboxes.restore(paths))

    async def add_tool(self, tool: Tool) -> None:
        """Run the setup commands of ``tool`` and make it available.

        Raises:
            EpisodeOver: The episode has ended.
            SetupFailed: One of the setup commands failed.
        """
        sandbox, _ = self._current_sandbox()
        assert self._sandboxes.context is not None
        await run_setup(sandbox, tool.setup_commands, origin=f" of tool {tool.name}")
        if self.toolbox.add(tool):
            await self.toolbox.reset_tools(self._sandboxes.context, [tool])

    def remove_tool(self, name: str) -> None:
        """Make the tool unavailable."""
        self.toolbox.remove(name)

    def _current_sandbox(self) -> tuple[Sandbox, Baseline]:
        if self._finishing is not None:
            raise EpisodeOver("the episode is over; reset() starts a new one")
        return self._sandboxes.current()

    async def apply_solution(self) -> Observation:
        """Apply the task's gold patch to the agent's workspace, once. Agents must not be allowed to call this.

        Raises:
            ManifestError: The patch does not apply.
        """
        if self._solution is None:
            sandbox, _ = self._sandboxes.current()
            applied = self._requests.once("solution", None, lambda: apply_solution(sandbox, self.task))
            self._solution = await applied
        return self._solution

    async def close(self) -> None:
        """Cancel the requests in flight and stop both sandboxes, without scoring. Idempotent."""
        if self._deadline_watch is not None:
            self._deadline_watch.cancel()
            await asyncio.gather(self._deadline_watch, return_exceptions=True)
        if self.death is not None:
            # A step whose sandbox is dead ends by itself. Its caller repeats it in the next session.
            await self._journal.settled()
        await self._requests.close()
        if self._finishing is not None and not self._finishing.done():
            self._finishing.cancel()
            await asyncio.wait([self._finishing])
        await self._sandboxes.stop()

    # Start of the episode

    async def _begin(self, evaluate: bool) -> Observation:
        try:
            context = await self._sandboxes.open()
            self._started = time.monotonic()
            if self._recorded is None:
                self.deadline.run()
            instructions = self.task.spec.instructions.strip() or "Find and repair the bug."
            texts = [instructions, *await self.toolbox.reset_tools(context, self.tools.values())]
            sandbox, _ = self._sandboxes.current()
            first, self._environment = await asyncio.gather(
                first_observation(self.tools, context, texts, evaluate=evaluate), read_environment(sandbox)
            )
            self.evaluation = first.evaluation
            if self._recorded is None:
                await self._check_evaluation(context)
            else:
                return await self._resume(self._recorded.after(first.observation))
        except Exception as error:
            self._finishing = asyncio.get_running_loop().create_future()
            self._finishing.set_exception(error)
            self._finishing.exception()  # asyncio logs exceptions that are never retrieved.
            self.ending.set()
            raise
        self._journal.restore([Step(seq=0, call=None, observation=first.observation)])
        self._deadline_watch = asyncio.create_task(self._watch_deadline())
        return first.observation

    async def _check_evaluation(self, context: ToolContext) -> None:
        """Raise SetupFailed if the tests ran and the environment cannot run them, since no step could change that."""
        if context.evaluated is None:
            return
        sandbox, baseline = self._sandboxes.current()
        plan = scoring_plan(self.task, baseline, ChangeSet(changes={}), self._suite_cache)
        await check_evaluation(sandbox, plan, context.evaluated)

    async def _resume(self, trajectory: RecordedTrajectory) -> Observation:
        """Replay ``trajectory`` and return its last observation. The clock of the deadline starts after the replay."""

        async def replayed(step: Step, execution: Execution | None) -> None:
            if step.call is not None:
                await self._count(step.seq, step.call, execution or Execution(observation=step.observation))

        await self._sandboxes.resume(trajectory, lambda: self.tools, replayed)
        self.deadline.run()
        self._journal.restore(trajectory.steps)
        self._deadline_watch = asyncio.create_task(self._watch_deadline())
        if len(self.poisoned) < MOST_POISONED:
            return trajectory.steps[-1].observation
        result = await self._ended(EndReason.SANDBOX_KILLED)
        return self._journal.end(result.reason)

    # Execution of a step

    async def _execute(self, call: ToolCall, problem: str) -> Observation:
        if self._finishing is None:
            self._sandboxes.current()
        else:
            self._unexecuted.add(self.next_seq)
            result = await self.finish()
            return Observation(
                text=f"Not executed: the episode has ended ({result.reason}).", ok=False, end_reason=result.reason
            )
        reason: EndReason | None = None
        try:
            async with asyncio.timeout(self.deadline.remaining):
                execution = await self._execute_in_sandbox(call, problem)
        except TimeoutError:
            reason = EndReason.DEADLINE_EXCEEDED
            text = "The deadline passed while the call ran. The call was stopped."
            execution = Execution(observation=Observation(text=text, tool=call.tool, ok=False))
        execution = self._sandboxes.annotated(await self._count(self.next_seq, call, execution))
        reason = reason or self._end_reason(execution)
        if reason is None and self._finishing is None:
            return execution.observation
        result = await self.finish(reason or EndReason.UNRESOLVED)
        return msgspec.structs.replace(execution.observation, end_reason=result.reason)

    async def _execute_in_sandbox(self, call: ToolCall, problem: str) -> Execution:
        """Execute the next step; see ``dgym.session._execution.execute``.

        Raises:
            SandboxLost: The sandbox has died. If it had started the call or a part of it, the step is poisoned.
        """
        context, tools = self._sandboxes.context, self.tools
        assert context is not None
        self._call, self._acknowledged = call, context.sandbox.acknowledged
        try:
            execution = await execute(tools, context, call, problem)
            tool = tools.get(call.tool)
            writes = tool is not None and tool.mutates and not execution.submitted
            return await self._sandboxes.digested(execution) if writes else execution
        except SandboxLost as death:
            if self._finishing is not None:
                # The session stopped the sandbox, so it has not died.
                text = "The episode ended while the call ran."
                return Execution(observation=Observation(text=text, tool=call.tool, ok=False))
            begun = isinstance(death, RunnerFailed) or self._has_begun
            self._sandboxes.record_death(death, under=self.next_seq if begun else None)
            raise

    @property
    def _has_begun(self) -> bool:
        """Whether the sandbox has started the last call or a part of it."""
        context = self._sandboxes.context
        return context is not None and context.sandbox.acknowledged > self._acknowledged

    async def _count(self, seq: int, call: ToolCall, execution: Execution) -> Execution:
        """Record the effects of the call. Its observation announces tools that its rewrite makes available."""
        if call.tool not in self.tools:
            self._sandboxes.misaddressed.add(seq)
        self.evaluation = execution.evaluation or self.evaluation
        assert self._sandboxes.context is not None
        return await self.toolbox.count(execution, self._sandboxes.context)

    async def _peek(self, tools: Mapping[str, Tool], call: ToolCall, problem: str) -> Observation:
        context = self._sandboxes.context
        if context is None or self._finishing is not None:
            return Observation(text="The episode has ended.", ok=False)
        focus_file = context.focus_file
        try:
            return (await execute(tools, context, call, problem)).observation
        except SandboxLost as death:
            # Not recorded as a death: the next step finds it too.
            return Observation(text=f"The sandbox does not answer ({death}).", ok=False)
        finally:
            context.focus_file = focus_file

    # End of the episode

    @property
    def _seconds(self) -> float:
        """Duration of the episode so far, including earlier sessions of this process."""
        return time.monotonic() - self._started + (self._recorded.seconds if self._recorded is not None else 0.0)

    def _end_reason(self, execution: Execution) -> EndReason | None:
        score = execution.observation.score
        if execution.submitted:
            return EndReason.SUBMITTED if execution.unscored else EndReason.UNRESOLVED
        if self.task.spec.scoring.stop_when_eval_passes and score is not None and score.resolved:
            return EndReason.UNRESOLVED
        return self.limits.reached(steps=self.next_seq, rewrites=self.rewrites)

    async def _watch_deadline(self) -> None:
        await self.deadline.passed()
        if not self._journal.busy:
            await self.finish(EndReason.DEADLINE_EXCEEDED)

    def _ended(self, reason: EndReason) -> asyncio.Future[Result]:
        """The result of the episode. Starts ending the episode if that has not happened yet."""
        if self._finishing is None:
            self._finishing = asyncio.create_task(self._finish(reason), name="dgym-finish")
            self.ending.set()
        return asyncio.shield(self._finishing)

    async def _finish(self, reason: EndReason) -> Result:
        running, begun = self.step_in_flight, self._has_begun
        verifier = await self._sandboxes.verifier()
        changes = await self._sandboxes.final_changes(running if begun else None)
        _, baseline = self._sandboxes.current()
        # Read before the sandbox is terminated: the time until the termination is confirmed is not the agent's.
        seconds, trajectory = self._seconds, self._journal.steps
        steps, rewrites = self.steps + (running is not None), self.rewrites
        terminated = await self._sandboxes.terminate(self._termination)
        if terminated and reason is EndReason.SUBMITTED:
            why = "not scored: the tool submit has the option evaluate: false"
            result = await unscored(why, baseline, changes, trajectory)
        elif terminated:
            another = self._sandboxes.another_verifier
            result = await score(verifier, self.task, baseline, changes, trajectory, self._suite_cache, another)
        else:
            reason = EndReason.SANDBOX_KILLED
            result = await unscored(self._termination.failed, baseline, changes, trajectory)
        self.result = msgspec.structs.replace(
            result,
            reason=result.reason if result.resolved else reason,
            steps=steps,
            rewrites=rewrites,
            duration_seconds=round(seconds, 3),
            notes=(*result.notes, *self._sandboxes.cleared, *self._sandboxes.divergences[:MAXIMUM_NOTES]),
            **msgspec.structs.asdict(self.usage),
        )
        return self.result
