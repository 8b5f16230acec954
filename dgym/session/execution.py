"""Execution of one call by its tool; refusals and failures of the tool become observations."""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from dgym.errors import InfrastructureError
from dgym.tools import Tool, ToolContext, ToolError, ToolResult, find_tool, load_tools, parse_action, validate_arguments
from dgym.wire import OBSERVATION_LIMIT, Observation, ToolCall, action_problem
from dgym.wire.http import ToolDescription, ToolsResponse

log = logging.getLogger(__name__)


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """An observation, and the effects of the call on the episode."""

    observation: Observation
    rewrote: bool = False
    submitted: bool = False
    unscored: bool = False
    killed_sandbox: bool = False
    evaluation: str | None = None


def read_action(action: ToolCall | Mapping[str, Any] | str, tools: Mapping[str, Tool]) -> tuple[ToolCall, str]:
    """The call that ``action`` means, and why it cannot be executed ("" if it can).

    An action that cannot be read is recorded as a call without a tool. Its only argument is ``problem``, or the
    ``action`` itself; a call of this form is read again.
    """
    if problem := action_problem(action):
        return ToolCall.mistake(problem), problem
    if isinstance(action, ToolCall):
        if action.tool:
            return action, ""
        if "problem" in action.arguments:
            return action, str(action.arguments["problem"])
    text = action.arguments.get("action", "") if isinstance(action, ToolCall) else action
    try:
        return parse_action(text, tools), ""
    except ToolError as error:
        return ToolCall(tool="", arguments={"action": text}), str(error)


async def execute(tools: Mapping[str, Tool], context: ToolContext, call: ToolCall, problem: str = "") -> Execution:
    """Execute ``call`` by its tool. A refusal, a failure of the tool and a ``problem`` of the call are observations.

    Raises:
        InfrastructureError: ``SandboxLost`` where the sandbox died during the call.
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
            # The rewrite itself succeeded and counts as one, also where a tool fails afterwards.
            log.exception("the tool %s failed at on_rewrite", tool.name)
            answer = f"The tool {tool.name} failed after the rewrite: {type(error).__name__}: {error}"
        if isinstance(answer, ToolResult):
            score, evaluation, answer = answer.score or score, answer.evaluation or evaluation, answer.text
        if answer:
            texts.append(answer)
    return msgspec.structs.replace(result, text="\n\n".join(texts), score=score, evaluation=evaluation)


@cache
def reading_tools() -> dict[str, Tool]:
    """The tools that a peek may use even where the episode does not have them."""
    return {tool.name: tool for tool in load_tools(("listdir", "view"))}


def describe_tools(instructions: str, tools: Iterable[Tool], notices: Iterable[str]) -> ToolsResponse:
    """The task's instructions and ``tools`` as an agent reads them."""
    descriptions = (
        ToolDescription(
            name=tool.name,
            description=tool.description,
            parameters=tool.parameters,
            instructions=tool.instructions,
        )
        for tool in tools
    )
    return ToolsResponse(instructions=instructions, tools=tuple(descriptions), notices=tuple(notices))


async def first_observation(
    tools: Mapping[str, Tool], context: ToolContext, texts: Sequence[str], *, evaluate: bool
) -> Execution:
    """The observation of a reset: ``texts``, the tree and, with ``evaluate``, the tests, if their tools are there."""
    calls = [ToolCall(tool="listdir", arguments={"depth": 2}), *[ToolCall(tool="eval")] * evaluate]
    executions = {call.tool: await execute(tools, context, call) for call in calls if call.tool in tools}
    observations = [execution.observation for execution in executions.values()]
    evaluated = executions.get("eval", Execution(observation=Observation(text="")))
    return msgspec.structs.replace(
        evaluated,
        observation=joined(evaluated.observation, [*texts, *(each.text for each in observations)], tool="reset"),
    )


def joined(observation: Observation, texts: Sequence[str], *, tool: str) -> Observation:
    """``observation`` of ``tool`` with all of ``texts``, within the limit for the text of one."""
    text, cut = bounded("\n\n".join(texts))
    truncated_bytes = observation.truncated_bytes + cut
    return msgspec.structs.replace(observation, text=text, tool=tool, truncated_bytes=truncated_bytes)


def bounded(text: str, limit: int = OBSERVATION_LIMIT) -> tuple[str, int]:
    """``text`` within ``limit`` bytes of UTF-8, head and tail kept and the cut marked, and how many bytes were cut."""
    data = text.encode("utf-8", "replace")
    if len(data) <= limit:
        return text, 0
    half = (limit - 64) // 2
    cut = len(data) - 2 * half
    head, tail = data[:half].decode("utf-8", "ignore"), data[-half:].decode("utf-8", "ignore")
    return f"{head}\n[… {cut:,} bytes cut …]\n{tail}", cut
