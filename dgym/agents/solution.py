"""Checks a task: the debugger reaches its program, and its gold patch makes the tests pass."""

import re
from collections.abc import Iterator

from dgym.agents.base import AgentContext, BaseAgent, Env, ObservationDict
from dgym.agents.retracing import RetracingEnv
from dgym.errors import ManifestError, SetupFailed
from dgym.wire import EndReason

_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+")
_TRIES = 5


class SolutionAgent(BaseAgent):
    """Sets a breakpoint where the solution will change the code, applies the solution, evaluates and submits."""

    name = "solution"
    default_tools = ("pdb", "eval", "submit")
    needs_solution = True

    async def run(self, env: Env, context: AgentContext) -> EndReason | None:
        """Reset, check the debugger, apply the solution, evaluate and submit."""
        if not context.solution:
            raise ManifestError(f"task {context.task_name!r} has no spec.solution for the agent solution to apply")
        env = RetracingEnv(env)
        _, info = await env.reset(seed=context.seed)
        tools = {tool["name"] for tool in info["tools"]}
        if "pdb" in tools:
            await _check_debugger(env, context)
        applied = await env.apply_solution()
        if not applied.ok:
            raise SetupFailed(f"the solution of task {context.task_name!r} does not apply: {applied.text}")
        for tool in ("eval", "submit"):
            if tool in tools:
                _, _, terminated, truncated, _ = await env.step({"tool": tool, "arguments": {}})
                if terminated or truncated:
                    break
        return None


async def _check_debugger(env: Env, context: AgentContext) -> None:
    """Set a breakpoint and let the program run; a task on which that fails is no task for debugging."""
    where = await _set_breakpoint(env, context)
    stop = await _pdb(env, "c")
    frame = stop.get("frame")
    if frame is None and stop.get("exit_status") is None:
        raise SetupFailed(f"pdb sanity check: the program did not run under pdb: {stop['text']}")
    reached = f"stopped at {frame['file']}:{frame['line']}" if frame else "ran to its end without stopping"
    context.log(f"pdb sanity check: breakpoint at {where or 'no line of the solution'}; the program {reached}")
    await _pdb(env, "q")


async def _set_breakpoint(env: Env, context: AgentContext) -> str | None:
    """Try lines that the solution changes until one takes a breakpoint; None when it changes no Python file."""
    answer: ObservationDict | None = None
    for tried, where in enumerate(changed_lines(context.solution or "")):
        if tried == _TRIES:
            break
        answer = await _pdb(env, f"b {where}")
        if answer.get("breakpoints"):
            return where
    if answer is not None:
        raise SetupFailed(f"pdb sanity check: no breakpoint could be set: {answer['text']}")
    return None


async def _pdb(env: Env, command: str) -> ObservationDict:
    observation, _, terminated, truncated, info = await env.step({"tool": "pdb", "arguments": {"command": command}})
    if terminated or truncated:
        raise SetupFailed(f"pdb sanity check: the episode ended at {command!r} ({info.get('reason')})")
    return observation


def changed_lines(patch: str) -> Iterator[str]:
    """``path:line`` of code lines a patch touches in existing Python files, removed lines before context."""
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
