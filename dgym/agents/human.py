"""Lets a person debug: one call a line, as text, with everything a model would read on the screen."""

from collections.abc import Mapping
from typing import Any

from dgym.agents.base import AgentContext, BaseAgent, Env
from dgym.agents.console import META_COMMANDS, Console, open_console
from dgym.env import ObservationDict
from dgym.wire import EndReason

PROMPT = "dgym> "
CONTINUATION = "....> "
_CODE, _END_OF_CODE = "<c>", "</c>"


class HumanAgent(BaseAgent):
    """Reads calls from the terminal, or from a pipe; the end of the input cancels the episode."""

    name = "human"
    interactive = True

    async def run(self, env: Env, context: AgentContext) -> EndReason | None:
        """Show the first observation, then make one call a line until the episode ends."""
        observation, info = await env.reset(seed=context.seed)
        tools = {tool["name"]: tool for tool in info["tools"]}
        console = open_console(tools)
        console.show(f"Episode of task {context.task_name}. Type a call, help, or quit.", "title")
        _show(console, observation)
        while (line := await read_call(console)) is not None:
            command, _, rest = line.strip().partition(" ")
            if not command:
                continue
            if command in ("quit", "exit"):
                return EndReason.CANCELLED
            if command == "help":
                console.show(help_text(rest.strip(), tools, info["instructions"]))
                continue
            observation, _, terminated, truncated, info = await env.step(line.strip())
            _show(console, observation)
            if terminated or truncated:
                _show_end(console, info)
                return None
        return EndReason.CANCELLED


async def read_call(console: Console) -> str | None:
    """One call; it goes on over several lines while code between ``<c>`` and ``</c>`` is open."""
    line = await console.read(PROMPT)
    if line is None:
        return None
    while _CODE in line and _END_OF_CODE not in line:
        more = await console.read(CONTINUATION)
        if more is None:
            return None
        line += "\n" + more
    return line


def help_text(name: str, tools: Mapping[str, Mapping[str, Any]], instructions: Mapping[str, str]) -> str:
    """Every tool in a line, or all about one."""
    if name in tools:
        return instructions.get(name) or str(tools[name]["description"])
    lines = [f"There is no tool {name!r}."] if name else []
    for tool, description in [*((tool, str(tools[tool]["description"])) for tool in sorted(tools))]:
        lines.append(f"  {tool:<10} {description.strip().partition(chr(10))[0]}")
    lines += [f"  {command:<10} {text}" for command, text in META_COMMANDS.items()]
    return "\n".join(lines)


def _show(console: Console, observation: ObservationDict) -> None:
    text = observation["text"]
    console.learn(text)
    if observation.get("diff"):
        style = "diff"
    elif not observation.get("ok", True):
        style = "bad"
    else:
        style = ""
    console.show(text, style)


def _show_end(console: Console, info: Mapping[str, Any]) -> None:
    style = "good" if info["resolved"] else "bad"
    console.show(f"{info['reason']}: {info['score']} of {info['max_score']} after {info['steps']} steps.", style)
