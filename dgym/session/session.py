"""One episode from reset to verdict.

A session owns the sandboxes of an episode, the tools, the journal, the limits and the final scoring. ``dgym run`` uses
it in its own process and a sidecar serves it over HTTP; a session knows neither.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from dgym.api import DebugTask
from dgym.errors import ConflictError, EpisodeOver, ManifestError, SandboxLost
from dgym.sandbox import RunResult, Sandbox, SandboxProvider
from dgym.session.execution import (
    Execution,
    bounded,
    execute,
    first_observation,
    read_action,
    reading_tools,
)
from dgym.session.journal import Journal, Requests
from dgym.session.limits import Deadline, EpisodeLimits
from dgym.session.preparation import Baseline, apply_solution, run_setup
from dgym.session.provenance import read_environment
from dgym.session.replay import LAST_DEATH, RecordedHistory
from dgym.session.sandboxes import Sandboxes, SandboxTermination
from dgym.session.scoring import MAXIMUM_NOTES, ChangeSet, Ending, score, unscored, verification_plan
from dgym.session.steps import StepExecution
from dgym.session.toolbox import Toolbox
from dgym.session.verification import SuiteCache, check_evaluation
from dgym.tools import Tool, ToolContext
from dgym.wire import EndReason, Observation, Result, Score, Step, ToolCall
from dgym.wire.episode import Action
from dgym.wire.http import EpisodeState, ToolsResponse, Usage
from dgym.wire.provenance import RunEnvironment


class Session:
    """The engine of one episode.

    Args:
        task: The bug.
        provider: Opens the sandbox and the verifier; the session stops both.
        tools: The tools that the agent may call.
        source: A tar of the repository; None when the sandbox's image holds it.
        limits: Steps, rewrites, deadline.
        suite_cache: Where the suite of the untouched repository is remembered between episodes of a task.
        termination: How the sandbox is terminated, and how its termination is confirmed.
        history: The steps of an earlier attempt, which the reset replays; they count against the limits as if they had
            been taken here. None: the episode begins afresh.
        changed: Called when a step begins to be executed, and when that is over.

    The order of calls is ``reset``, ``step`` with numbers from 1, ``finish``, ``close``. ``finish`` is implied by the
    step that ends the episode and by the deadline; ``close`` without ``finish`` discards the episode. Every call is
    executed once, however often it is repeated, and goes on when its caller is cancelled.
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
        history: RecordedHistory | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.task = task
        self.limits = limits
        self.deadline = Deadline(limits.deadline_seconds)
        self.evaluation: str | None = None
        """The output of the task's tests when they ran last."""
        self.usage = Usage()
        self.result: Result | None = None
        self.reset_requested = False
        """Whether a reset was requested, answered or not."""
        self.ending = asyncio.Event()
        """Set once the episode ends, by any cause, a failed reset included; ``finish`` waits for the result."""
        self._toolbox = Toolbox(tools, max_rewrites=limits.max_rewrites)
        self._sandboxes = Sandboxes(task, provider, self._toolbox.all, source, history.poisoned if history else ())
        self._steps = StepExecution(self._sandboxes, lambda: self._finishing is not None)
        self._recorded = history
        self._suite_cache = suite_cache
        self._termination = termination
        self._requests = Requests()
        self._journal = Journal(self._requests, changed)
        self._reset_key: str | None = None
        self._unexecuted: set[int] = set()
        self._solution: Observation | None = None
        self._environment: RunEnvironment | None = None
        self._started = 0.0
        self._deadline_watch: asyncio.Task[None] | None = None
        self._finishing: asyncio.Future[Result] | None = None

    @property
    def tools(self) -> dict[str, Tool]:
        """The tools that are available now."""
        return self._toolbox.available

    @property
    def rewrites(self) -> int:
        """Successful rewrites so far."""
        return self._toolbox.rewrites

    @property
    def steps(self) -> int:
        """Steps taken; the reset and a call that came after the end are none."""
        recorded = self._journal.next_seq
        return max(0, recorded - 1) - sum(seq < recorded for seq in self._unexecuted)

    @property
    def poisoned(self) -> frozenset[int]:
        """Numbers of the steps under which a sandbox died."""
        return frozenset(self._sandboxes.poisoned)

    @property
    def poisoned_here(self) -> tuple[int, ...]:
        """Those of them whose sandbox was one of this session, in the order of the deaths."""
        return self._sandboxes.poisoned_here

    @property
    def last_death(self) -> float | None:
        """When a sandbox was last found to have died under a step, by ``time.monotonic``."""
        return self._sandboxes.last_death

    @property
    def next_seq(self) -> int:
        """The number of the next step; 0 before the reset has been answered."""
        return self._journal.next_seq

    @property
    def state(self) -> EpisodeState:
        """Counts, breakpoints, focus file and names of the tools after the last step."""
        context, result, usage = self._sandboxes.context, self.result, self.usage
        return EpisodeState(
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
        toolset = self._toolbox.describe(self.task.spec.instructions)
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
        """Record the tokens that the agent's model has used so far; the highest counts stay."""
        self.usage = self.usage.merged(usage)

    def history(self, *, start: int = 0) -> list[Step]:
        """The recorded steps from number ``start`` on."""
        return self._journal.steps[start:]

    async def reset(self, *, evaluate: bool = False, key: str | None = None) -> Observation:
        """Start the episode, or resume the one that was started under the same idempotency ``key``.

        Returns the last observation, once the step that is being executed has ended. With ``evaluate`` the first
        observation ends with the output of ``eval``.

        Raises:
            ConflictError: The session was reset before, under another key or without one.
            ManifestError: ``evaluate`` without the tool ``eval``.
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
            await self.finish()  # raises the error of the first reset
        return await self._requests.once("reset", key, lambda: self._begin(evaluate))

    async def step(self, seq: int, action: Action) -> Observation:
        """Execute ``action`` as step ``seq``, once; see ``Journal``.

        A bad action costs a step and is answered by an observation. The observation of the step that ends the episode
        has ``end_reason``, and ``result`` is set.

        Raises:
            EpisodeOver: The episode ended, and an earlier answer said so.
            ConflictError: The number was used for another call, or one was left out.
            InfrastructureError: Something that is not the agent's doing.
        """
        call, problem = read_action(action, self.tools)
        last = self._journal.steps[-1:]
        if seq >= self._journal.next_seq and last and last[0].observation.end_reason is not None:
            raise EpisodeOver("the episode is over; reset() starts a new one")
        return await self._journal.once(seq, call, lambda call: self._execute(call, problem))

    async def peek(self, action: Action) -> Observation:
        """The answer of a tool that changes nothing, without a step: for an agent's prompt.

        ``view`` and ``listdir`` answer here even where they are not among the tools.
        """
        tools = reading_tools() | {name: tool for name, tool in self.tools.items() if not tool.mutates}
        call, problem = read_action(action, tools)
        return await self._requests.once("peek", (self.next_seq, call), lambda: self._look(tools, call, problem))

    async def finish(self, reason: EndReason = EndReason.UNRESOLVED) -> Result:
        """End the episode: take the changes out, terminate the sandbox, score on the pristine copy. Idempotent.

        The result's reason is Resolved whenever everything that counts passed, else ``reason``. A reset in flight is
        awaited first; its failure is raised here, too.
        """
        await self._requests.settled("reset")
        return await self._ended(reason)

    async def changes(self) -> str:
        """The agent's changes so far as ``git apply`` takes them; bytes that are not UTF-8 are surrogate escapes."""
        if self.result is not None:
            return self.result.patch
        changes = await self._requests.once("changes", self.next_seq, self._sandboxes.changes)
        patch = await asyncio.to_thread(lambda: changes.patch)
        return patch.decode("utf-8", "surrogateescape")

    async def run(self, command: str, *, timeout_seconds: float) -> RunResult:
        """Run a shell line in the agent's sandbox, outside the record; what it changes is part of the workspace.

        Raises:
            EpisodeOver: The episode has ended.
            SandboxLost: The sandbox died of it. A new one has the steps, replayed, and nothing of such commands.
        """
        sandbox, _ = self._before_the_end()

        async def execute() -> RunResult:
            try:
                return await sandbox.run(command, timeout_seconds=timeout_seconds)
            except SandboxLost as death:
                breakpoints = self._sandboxes.context.breakpoints if self._sandboxes.context is not None else ()
                await self._sandboxes.replace(sandbox, self._journal.steps, breakpoints)
                text = f"the sandbox died of the command ({death}); a new one has the steps, and nothing of run()"
                raise SandboxLost(text) from None

        return await self._requests.once("run", object(), execute)

    async def restore(self, paths: Sequence[str]) -> tuple[str, ...]:
        """Make the files at and below ``paths`` those of the untouched repository, outside the record.

        Returns the paths that were changed. Raises ``EpisodeOver`` and, for a path that never was, ``PathError``.
        """
        self._before_the_end()
        return await self._requests.once("restore", object(), lambda: self._sandboxes.restore(paths))

    async def add_tool(self, tool: Tool) -> None:
        """Make ``tool`` available from now on, after its setup commands.

        Raises:
            EpisodeOver: The episode has ended.
            SetupFailed: One of its setup commands failed.
        """
        sandbox, _ = self._before_the_end()
        assert self._sandboxes.context is not None
        await run_setup(sandbox, tool.setup_commands, of=f" of tool {tool.name}")
        if self._toolbox.add(tool):
            await self._toolbox.greet(self._sandboxes.context, [tool])

    def remove_tool(self, name: str) -> None:
        """Make the tool unavailable from now on."""
        self._toolbox.remove(name)

    def _before_the_end(self) -> tuple[Sandbox, Baseline]:
        if self._finishing is not None:
            raise EpisodeOver("the episode is over; reset() starts a new one")
        return self._sandboxes.current()

    async def apply_solution(self) -> Observation:
        """Apply the task's gold patch to the agent's workspace, once. For the role that prepares, never for an agent.

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
            await asyncio.wait([self._deadline_watch])
        await self._requests.close()
        if self._finishing is not None and not self._finishing.done():
            self._finishing.cancel()
            await asyncio.wait([self._finishing])
        await self._sandboxes.stop()

    # How an episode begins

    async def _begin(self, evaluate: bool) -> Observation:
        try:
            context = await self._sandboxes.open()
            self._started = time.monotonic()
            if self._recorded is None:
                self.deadline.run()
            instructions = self.task.spec.instructions.strip() or "Find and repair the bug."
            texts = [instructions, *await self._toolbox.greet(context, self.tools.values())]
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
            self._finishing.exception()  # Keeps asyncio from reporting it where nothing awaits it.
            self.ending.set()
            raise
        self._journal.restore([Step(seq=0, call=None, observation=first.observation)])
        self._deadline_watch = asyncio.create_task(self._watch_deadline())
        return first.observation

    async def _check_evaluation(self, context: ToolContext) -> None:
        """``SetupFailed`` if the tests ran and the environment cannot run them: no step would change that."""
        if context.evaluated is None:
            return
        sandbox, baseline = self._sandboxes.current()
        plan = verification_plan(self.task, baseline, ChangeSet(changes={}), self._suite_cache)
        await check_evaluation(sandbox, plan, context.evaluated)

    async def _resume(self, history: RecordedHistory) -> Observation:
        """Replay ``history``, whose time is not the episode's; returns its last observation."""

        async def replayed(step: Step, execution: Execution | None) -> None:
            if step.call is not None:
                await self._count(step.seq, step.call, execution or Execution(observation=step.observation))

        await self._sandboxes.resume(history, lambda: self.tools, replayed)
        self.deadline.run()
        self._journal.restore(history.steps)
        self._deadline_watch = asyncio.create_task(self._watch_deadline())
        if len(self.poisoned) < LAST_DEATH:
            return history.steps[-1].observation
        result = await self._ended(EndReason.SANDBOX_KILLED)
        return self._journal.end(result.reason)

    # How a step is executed

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
                execution = await self._steps.execute(self.tools, call, problem, self._journal.steps)
        except TimeoutError:
            reason = EndReason.DEADLINE_EXCEEDED
            text = "The episode's deadline passed while this ran; it was stopped."
            execution = Execution(observation=Observation(text=text, tool=call.tool, ok=False))
        execution = self._sandboxes.annotated(await self._count(self.next_seq, call, execution))
        reason = reason or self._why_it_ends(execution)
        if reason is None and self._finishing is None:
            return execution.observation
        result = await self.finish(reason or EndReason.UNRESOLVED)
        return msgspec.structs.replace(execution.observation, end_reason=result.reason)

    async def _count(self, seq: int, call: ToolCall, execution: Execution) -> Execution:
        """Record the effects of the call, and announce the tools that its rewrite brings."""
        if call.tool not in self.tools:
            self._sandboxes.misaddressed.add(seq)
        self.evaluation = execution.evaluation or self.evaluation
        assert self._sandboxes.context is not None
        return await self._toolbox.count(execution, self._sandboxes.context)

    async def _look(self, tools: Mapping[str, Tool], call: ToolCall, problem: str) -> Observation:
        context = self._sandboxes.context
        if context is None or self._finishing is not None:
            return Observation(text="The episode has ended.", ok=False)
        focus_file = context.focus_file
        try:
            return (await execute(tools, context, call, problem)).observation
        except SandboxLost as death:
            # The next step finds it too, and starts a new one.
            return Observation(text=f"The sandbox does not answer ({death}).", ok=False)
        finally:
            context.focus_file = focus_file

    # How an episode ends

    def _why_it_ends(self, execution: Execution) -> EndReason | None:
        score = execution.observation.score
        if execution.killed_sandbox:
            return EndReason.SANDBOX_KILLED
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
        """The end of the episode, which begins now if it has not."""
        if self._finishing is None:
            self._finishing = asyncio.create_task(self._finish(reason), name="dgym-finish")
            self.ending.set()
        return asyncio.shield(self._finishing)

    async def _finish(self, reason: EndReason) -> Result:
        running, begun = self.step_in_flight, self._steps.begun
        verifier = await self._sandboxes.verifier()
        changes = await self._sandboxes.final_changes(self._journal.steps, running if begun else None)
        _, baseline = self._sandboxes.current()
        # Before the sandbox is terminated: the wait for a confirmation is not the agent's time.
        ending = Ending(
            reason=EndReason.SANDBOX_KILLED if len(self.poisoned) >= LAST_DEATH else reason,
            steps=self.steps + (running is not None),
            rewrites=self.rewrites,
            seconds=time.monotonic() - self._started,
            history=self._journal.steps,
        )
        terminated = await self._sandboxes.terminate(self._termination)
        if terminated and ending.reason is EndReason.SUBMITTED:
            why = "not scored: the tool submit has the option evaluate: false"
            result = await asyncio.to_thread(unscored, ending.reason, why, baseline, changes, ending)
        elif terminated:
            another = self._sandboxes.another_verifier
            result = await score(verifier, self.task, baseline, changes, ending, self._suite_cache, another)
        else:
            failed = self._termination.failed
            result = await asyncio.to_thread(unscored, EndReason.SANDBOX_KILLED, failed, baseline, changes, ending)
        notes = (*result.notes, *self._sandboxes.cleared, *self._sandboxes.divergences[:MAXIMUM_NOTES])
        self.result = msgspec.structs.replace(result, notes=notes, **msgspec.structs.asdict(self.usage))
        return self.result
