"""Execution of one call by its tool, the tools that are available, and the limits of an episode.

Refusals and failures of a tool become observations. Limits are steps, rewrites and the clock of the deadline.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any

import msgspec

from dgym.errors import InfrastructureError
from dgym.tools import Tool, ToolContext, ToolError, ToolResult, find_tool, load_tools, parse_action, validate_arguments
from dgym.tools.rewrite import Rewrite
from dgym.wire import OBSERVATION_LIMIT, EndReason, Observation, ToolCall
from dgym.wire.http import ToolDescription, ToolsResponse

log = logging.getLogger(__name__)


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """An observation, and how the call changed the state of the episode."""

    observation: Observation
    rewrote: bool = False
    submitted: bool = False
    unscored: bool = False
    evaluation: str | None = None


def read_action(action: Any, tools: Mapping[str, Tool]) -> tuple[ToolCall, str]:
    """Parse an action. Return the call, and the reason why it cannot be executed ("" if it can).

    An action that cannot be parsed is recorded as a call without a tool. Its only argument is ``problem``, or
    ``action`` with the original action. A recorded call with ``action`` is parsed again.
    """
    if isinstance(action, ToolCall):
        if action.tool:
            return action, ""
        if "problem" in action.arguments:
            return action, str(action.arguments["problem"])
        action = action.arguments.get("action", "")
    try:
        return parse_action(action, tools), ""
    except ToolError as error:
        return ToolCall.unread(action), str(error)


async def execute(tools: Mapping[str, Tool], context: ToolContext, call: ToolCall, problem: str = "") -> Execution:
    """Execute ``call`` by its tool. A refusal, a failure of the tool and a ``problem`` of the call become observations.

    Raises:
        InfrastructureError: ``SandboxLost`` if the sandbox died during the call.
    """
    started = time.monotonic()
    try:
        if problem:
            raise ToolError(problem)
        result = await _use(tools, context, call)
    except ToolError as error:
        result = ToolResult(text=str(error), ok=False)
    except InfrastructureError:
        raise
    except Exception as error:
        log.exception("the tool %s failed", call.tool)
        result = ToolResult(text=f"The tool {call.tool} failed: {type(error).__name__}: {error}", ok=False)
    text, cut = bounded(result.text)
    observation = Observation(
        text=text,
        tool=call.tool,
        ok=result.ok,
        truncated_bytes=cut + result.truncated_bytes,
        duration_seconds=round(time.monotonic() - started, 6),
        exit_status=result.exit_status,
        frame=result.frame,
        breakpoints=result.breakpoints,
        diff=bounded(result.diff)[0] if result.diff is not None else None,
        score=result.score,
        focus_file=result.focus_file,
    )
    return Execution(
        observation=observation,
        rewrote=result.rewrote,
        submitted=result.submitted,
        unscored=result.unscored,
        evaluation=result.evaluation,
    )


async def _use(tools: Mapping[str, Tool], context: ToolContext, call: ToolCall) -> ToolResult:
    tool = find_tool(call.tool, tools)
    answer = await tool.use(context, **validate_arguments(tool, call))
    result = answer if isinstance(answer, ToolResult) else ToolResult(text=answer)
    if result.rewrote:
        result = await _after_rewrite(tools, context, result)
    return result


async def _after_rewrite(tools: Mapping[str, Tool], context: ToolContext, result: ToolResult) -> ToolResult:
    texts = [result.text]
    score, evaluation = result.score, result.evaluation
    for tool in tools.values():
        try:
            answer = await tool.on_rewrite(context, result.focus_file or "")
        except InfrastructureError:
            raise
        except Exception as error:
            # The rewrite succeeded and must be counted, even if a tool fails afterwards.
            log.exception("the tool %s failed at on_rewrite", tool.name)
            answer = f"The tool {tool.name} failed after the rewrite: {type(error).__name__}: {error}"
        if isinstance(answer, ToolResult):
            score, evaluation, answer = answer.score or score, answer.evaluation or evaluation, answer.text
        if answer:
            texts.append(answer)
    return msgspec.structs.replace(result, text="\n\n".join(texts), score=score, evaluation=evaluation)


@cache
def reading_tools() -> dict[str, Tool]:
    """The tools that a peek may use even if the episode does not have them."""
    return {tool.name: tool for tool in load_tools(("listdir", "view"))}


async def first_observation(
    tools: Mapping[str, Tool], context: ToolContext, texts: Sequence[str], *, evaluate: bool
) -> Execution:
    """The observation of a reset: ``texts``, the directory tree and, if ``evaluate``, the output of the tests.

    The tree and the tests are left out if the tool ``listdir`` or ``eval`` is missing.
    """
    calls = [ToolCall(tool="listdir", arguments={"depth": 2}), *[ToolCall(tool="eval")] * evaluate]
    executions = {call.tool: await execute(tools, context, call) for call in calls if call.tool in tools}
    observations = [execution.observation for execution in executions.values()]
    evaluated = executions.get("eval", Execution(observation=Observation(text="")))
    return msgspec.structs.replace(
        evaluated,
        observation=joined(evaluated.observation, [*texts, *(each.text for each in observations)], tool="reset"),
    )


def joined(observation: Observation, texts: Sequence[str], *, tool: str) -> Observation:
    """Return ``observation`` with the tool ``tool`` and the joined ``texts``, cut to the limit of an observation."""
    text, cut = bounded("\n\n".join(texts))
    truncated_bytes = observation.truncated_bytes + cut
    return msgspec.structs.replace(observation, text=text, tool=tool, truncated_bytes=truncated_bytes)


def bounded(text: str, limit: int = OBSERVATION_LIMIT) -> tuple[str, int]:
    """Cut ``text`` to ``limit`` bytes of UTF-8. Return the text and the number of bytes that were cut.

    The head and the tail are kept, and the cut is marked.
    """
    data = text.encode("utf-8", "replace")
    if len(data) <= limit:
        return text, 0
    half = (limit - 64) // 2
    cut = len(data) - 2 * half
    head, tail = data[:half].decode("utf-8", "ignore"), data[-half:].decode("utf-8", "ignore")
    return f"{head}\n[… {cut:,} bytes cut …]\n{tail}", cut


class Toolbox:
    """The tools of an episode. It counts rewrites, which make further tools available.

    Args:
        tools: All tools of the episode.
        max_rewrites: Maximum number of rewrites. With 0 the tool ``rewrite`` is left out.
    """

    def __init__(self, tools: Sequence[Tool], *, max_rewrites: int | None) -> None:
        self._max_rewrites = max_rewrites
        self.all = {tool.name: tool for tool in tools if self._is_allowed(tool)}
        """Includes removed tools, because a replay executes their calls."""
        self.rewrites = 0
        self.removed: set[str] = set()
        self._notices: list[str] = []

    @property
    def available(self) -> dict[str, Tool]:
        """The tools that are available now."""
        return {
            name: tool
            for name, tool in self.all.items()
            if tool.after_rewrites <= self.rewrites and name not in self.removed
        }

    def add(self, tool: Tool) -> bool:
        """Add a tool. Return whether it is available now."""
        if self._is_allowed(tool):
            self.all[tool.name] = tool
            self.removed.discard(tool.name)
        return tool.name in self.available

    def remove(self, name: str) -> None:
        """Make a tool unavailable for later calls."""
        self.removed.add(name)

    def _is_allowed(self, tool: Tool) -> bool:
        return self._max_rewrites != 0 or not isinstance(tool, Rewrite)

    def describe(self, instructions: str) -> ToolsResponse:
        """The task's ``instructions`` and the tools that are available now."""
        descriptions = (
            ToolDescription(
                name=tool.name,
                description=tool.description,
                parameters=tool.parameters,
                instructions=tool.instructions,
            )
            for tool in self.available.values()
        )
        return ToolsResponse(instructions=instructions, tools=tuple(descriptions), notices=tuple(self._notices))

    async def reset_tools(self, context: ToolContext, tools: Iterable[Tool]) -> list[str]:
        """Return the introductions of ``tools``, which are available from now on."""
        texts = [text for tool in tools if (text := await tool.on_reset(context))]
        self._notices += texts
        return texts

    async def count(self, execution: Execution, context: ToolContext) -> Execution:
        """Count a rewrite. The observation announces the tools that it makes available."""
        before = self.available
        self.rewrites += execution.rewrote
        new = [tool for name, tool in self.available.items() if name not in before]
        if not new:
            return execution
        summaries = {tool.name: tool.description.partition("\n")[0] for tool in new}
        texts = [f"The tool {name} is available from now on: {summary}" for name, summary in summaries.items()]
        texts = [execution.observation.text, *texts, *await self.reset_tools(context, new)]
        observation = joined(execution.observation, texts, tool=execution.observation.tool)
        return msgspec.structs.replace(execution, observation=observation)


class EpisodeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one episode.

    The rewrite that reaches ``max_rewrites`` ends the episode. With 0 the tool ``rewrite`` is not offered, and the
    first change by another tool that counts as a rewrite ends the episode.

    Attributes:
        max_steps: Maximum number of steps.
        max_rewrites: Maximum number of successful rewrites. None: unlimited.
        deadline_seconds: Time from the first reset. None: unlimited.
    """

    max_steps: Annotated[int, msgspec.Meta(ge=1)] = 50
    max_rewrites: Annotated[int, msgspec.Meta(ge=0)] | None = None
    deadline_seconds: float | None = 3600.0

    def reached(self, *, steps: int, rewrites: int) -> EndReason | None:
        """The limit that ends the episode after ``steps`` steps and ``rewrites`` successful rewrites, or None."""
        if self.max_rewrites is not None and rewrites >= max(self.max_rewrites, 1):
            return EndReason.REWRITE_LIMIT_REACHED
        if steps >= self.max_steps:
            return EndReason.STEP_LIMIT_REACHED
        return None


class Deadline:
    """The deadline of an episode. Its clock starts at the first reset and is paused while no agent serves the episode.

    Args:
        seconds: Running time in total. None: unlimited.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._before = 0.0
        self._since: float | None = None
        self._changed = asyncio.Event()

    @property
    def running(self) -> bool:
        """Whether the clock runs."""
        return self._since is not None

    @property
    def elapsed(self) -> float:
        """Seconds for which the clock has run."""
        return self._before + (time.monotonic() - self._since if self._since is not None else 0.0)

    @property
    def remaining(self) -> float | None:
        """Seconds that are left. None: unlimited."""
        return None if self._seconds is None else self._seconds - self.elapsed

    def run(self) -> None:
        """Start or resume the clock. Idempotent."""
        if self._since is None:
            self._since = time.monotonic()
            self._changed.set()

    def pause(self) -> None:
        """Stop the clock until ``run``. Idempotent."""
        self._before, self._since = self.elapsed, None
        self._changed.set()

    async def passed(self) -> None:
        """Wait until the remaining time is 0."""
        while (left := self.remaining) is None or left > 0:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left if self._since is not None else None):
                    await self._changed.wait()
