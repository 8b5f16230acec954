"""Checks a task: the gold patch must make the tests pass, and the debugger should work on its program.

Only the gold patch determines the outcome. A failure of the debugger is recorded as a note in the result.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from dgym.agents._base import AgentContext, BaseAgent, Env
from dgym.env import InfoDict, ObservationDict, observation_view
from dgym.errors import ManifestError, SetupFailed
from dgym.wire import EndReason, Observation, Step, ToolCall
from dgym.wire.episode import Action

_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+")
_TRIES = 5


class SolutionAgent(BaseAgent):
    """Sets a breakpoint in the code that the solution changes, applies the solution, evaluates and submits."""

    name = "solution"
    default_tools = ("pdb", "eval", "submit")
    needs_solution = True

    async def run(self, env: Env, context: AgentContext) -> EndReason | None:
        """Reset, check the debugger, apply the solution, evaluate and submit."""
        if not context.solution:
            raise ManifestError(f"task {context.task_name!r} has no spec.solution for the agent solution to apply")
        env = ResumedEnv(env)
        _, info = await env.reset(seed=context.seed)
        tools = {tool["name"] for tool in info["tools"]}
        if "pdb" in tools and (problem := await _check_debugger(env, context)):
            context.note(f"pdb sanity check: {problem}")
        applied = await env.apply_solution()
        if not applied.ok:
            raise SetupFailed(f"the solution of task {context.task_name!r} does not apply: {applied.text}")
        for tool in ("eval", "submit"):
            if tool in tools:
                _, _, terminated, truncated, _ = await env.step({"tool": tool, "arguments": {}})
                if terminated or truncated:
                    break
        return None


class _Ended(Exception):
    """The episode ended during the check."""


async def _check_debugger(env: Env, context: AgentContext) -> str | None:
    """Set a breakpoint and run the program. Returns a description of the failure, or None."""
    try:
        where, refused = await _set_breakpoint(env, context)
        if refused is not None:
            return f"a breakpoint could not be set: {refused}"
        stop = await _pdb(env, "c")
        frame = stop.get("frame")
        if frame is None and stop.get("exit_status") is None:
            return f"the program did not run under pdb: {stop['text']}"
        reached = f"stopped at {frame['file']}:{frame['line']}" if frame else "ran to its end without stopping"
        context.log(f"pdb sanity check: breakpoint at {where or 'no line of the solution'}; the program {reached}")
        await _pdb(env, "q")
    except _Ended as ended:
        return str(ended)
    return None


async def _set_breakpoint(env: Env, context: AgentContext) -> tuple[str | None, str | None]:
    """Set a breakpoint at the first changed line of the solution that the debugger accepts.

    Returns:
        ``(line, None)``, or ``(None, message)`` with the message of the last refusal. ``(None, None)`` if the solution
        does not change a Python file.
    """
    refused: str | None = None
    for where in islice(changed_lines(context.solution or ""), _TRIES):
        answer = await _pdb(env, f"b {where}")
        if answer.get("breakpoints"):
            return where, None
        refused = answer["text"]
    return None, refused


async def _pdb(env: Env, command: str) -> ObservationDict:
    observation, _, terminated, truncated, info = await env.step({"tool": "pdb", "arguments": {"command": command}})
    if terminated or truncated:
        raise _Ended(f"the episode ended at {command!r} ({info.get('reason')})")
    return observation


def changed_lines(patch: str) -> Iterator[str]:
    """Yield ``path:line`` for the lines of a patch in existing Python files: first removed lines, then context lines.

    Comments, docstrings and closing brackets are skipped, because a breakpoint cannot be set there.
    """
    removed: list[str] = []
    context: list[str] = []
    path, line = "", 0
    for text in patch.splitlines():
        if text.startswith("--- "):
            name = text[4:].split("\t")[0].strip().strip('"')
            path, line = (name.removeprefix("a/") if name.endswith(".py") else ""), 0
        elif hunk := _HUNK.match(text):
            line = int(hunk[1])
        elif path and line and text[:1] in ("-", " ", ""):
            code = text[1:].strip()
            if code and not code.startswith(("#", '"""', "'''", ")", "]", "}")):
                (removed if text.startswith("-") else context).append(f"{path}:{line}")
            line += 1
    yield from removed
    yield from context


Answer = tuple[ObservationDict, float, bool, bool, InfoDict]


class ResumedEnv:
    """An environment for agents that always make the same calls, so that a resumed episode does not repeat them.

    As long as the agent's calls equal the recorded ones, their recorded observations are returned. The first different
    call and all later ones are executed.
    """

    def __init__(self, env: Env) -> None:
        self._env = env
        self._recorded: list[Step] = []
        self._info: InfoDict

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[ObservationDict, InfoDict]:
        """Start or resume the session. If it is resumed, return the first recorded observation."""
        last, self._info = await self._env.reset(seed=seed, options=options)
        first, *self._recorded = self._env.trajectory()
        return (observation_view(first.observation) if self._recorded else last), self._info

    async def step(self, action: Action) -> Answer:
        """Execute one call, or return its recorded observation."""
        if self._recorded and _is_same(action, self._recorded[0].call):
            observation = self._recorded.pop(0).observation
            ended = observation.end_reason
            truncated = ended is not None and ended.is_truncation
            return observation_view(observation), 0.0, ended is not None and not truncated, truncated, self._info
        self._recorded.clear()
        return await self._env.step(action)

    async def peek(self, action: Action) -> ObservationDict:
        """See ``Env.peek``."""
        return await self._env.peek(action)

    async def patch(self) -> str:
        """See ``Env.patch``."""
        return await self._env.patch()

    def trajectory(self) -> list[Step]:
        """See ``Env.trajectory``."""
        return self._env.trajectory()

    async def apply_solution(self) -> Observation:
        """Apply the gold patch. Repeated calls apply it only once."""
        return await self._env.apply_solution()


def _is_same(action: Action, call: ToolCall | None) -> bool:
    if call is None or isinstance(action, str):
        return False
    if isinstance(action, ToolCall):
        return action == call
    return action.get("tool") == call.tool and action.get("arguments", {}) == call.arguments
