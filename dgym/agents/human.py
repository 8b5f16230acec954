"""A person at the terminal, either as the agent (``HumanAgent``) or as the model of an agent (``HumanModel``)."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from dgym.agents._base import AgentContext, BaseAgent, Env
from dgym.console import META_COMMANDS, Console, open_console, read_block
from dgym.env import ObservationDict
from dgym.errors import HumanQuit
from dgym.llm import Message, ModelCall, Reply, TokenCounter, TokenUsage, ToolDefinition, Waiting, describe_tools
from dgym.wire import EndReason


class HumanAgent(BaseAgent):
    """Reads calls from the terminal or from a pipe. The end of the input cancels the episode."""

    name = "human"
    interactive = True
    commands: ClassVar[Mapping[str, str]] = META_COMMANDS

    async def run(self, env: Env, context: AgentContext) -> EndReason | None:
        """Show the first observation, then execute one call per line until the episode ends."""
        observation, info = await env.reset(seed=context.seed)
        tools = {tool["name"]: tool for tool in info["tools"]}
        console = open_console(tools, self.commands)
        console.show(f"Episode of task {context.task_name}. Type a call, help, or quit.", "title")
        _show(console, observation)
        while (line := await read_block(console, "dgym> ", "....> ")) is not None:
            command, _, rest = line.strip().partition(" ")
            if not command:
                continue
            if command in ("quit", "exit"):
                return EndReason.CANCELLED
            if command == "help":
                console.show(_help(rest.strip(), tools, info["instructions"], self.commands))
                continue
            observation, _, terminated, truncated, info = await env.step(line.strip())
            _show(console, observation)
            if terminated or truncated:
                _show_end(console, info)
                return None
        return EndReason.CANCELLED


def _help(
    name: str, tools: Mapping[str, Mapping[str, Any]], instructions: Mapping[str, str], commands: Mapping[str, str]
) -> str:
    """Return the description of the tool ``name``, or a list of all tools with one line each."""
    if name in tools:
        return instructions.get(name) or str(tools[name]["description"])
    lines = [f"Unknown tool {name!r}."] if name else []
    for tool, about in sorted(tools.items()):
        first_line, _, _ = str(about["description"]).strip().partition("\n")
        lines.append(f"  {tool:<10} {first_line}")
    lines += [f"  {command:<10} {text}" for command, text in commands.items()]
    return "\n".join(lines)


def _show(console: Console, observation: ObservationDict) -> None:
    text = observation["text"]
    console.add_completions(text)
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


_TITLES = {"system": "System", "user": "User", "assistant": "You said", "tool": "Result"}


class HumanModel:
    """A ``dgym.llm.Model`` whose replies are typed by a person, in the text grammar of the tools.

    Args:
        open_console: Opens the terminal. Its argument maps tool names to tools.
    """

    name = "human"
    context_limit: int | None = None
    reply_limit: int | None = None
    tool_calling: Literal["native", "text"] = "text"
    interactive = True

    def __init__(self, open_console: Callable[[Mapping[str, ToolDefinition]], Console] = open_console) -> None:
        self._open_console = open_console
        self._console: Console | None = None
        self._shown: dict[str, Sequence[Message]] = {}
        self._calls = 0
        self._counter = TokenCounter()

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition],
        *,
        session: str,
        seed: int | None = None,  # noqa: ARG002 - not applicable to a person
        temperature: str | None = None,  # noqa: ARG002
        waiting: Waiting = lambda _: None,  # noqa: ARG002 - the person at the terminal sees that input is expected
    ) -> Reply:
        """Show new messages and read the reply.

        A reply that begins with a tool's name or with ``{`` is a call. Any other reply is plain text.

        Raises:
            HumanQuit: The person typed ``quit`` or ``exit``, or the input has ended.
        """
        started = time.monotonic()
        named = {str(tool["name"]): tool for tool in tools}
        console = self._console = self._console or self._open_console(named)
        self._show_new(console, messages, session)
        while not (text := await _read_reply(console)) or text == "help":
            if text == "help":
                console.show(describe_tools(tools))
        self._calls += 1
        words = text.split(maxsplit=1)
        is_call = words[0] in named or text.startswith("{")
        call = ModelCall(id=f"human-{self._calls}", tool=words[0] if words[0] in named else "", raw=text)
        return Reply(
            text="" if is_call else text,
            calls=(call,) if is_call else (),
            usage=TokenUsage(
                input_tokens=self.count_tokens(messages, tools),
                output_tokens=self._counter.count_reply(text),
                exact=False,
            ),
            seconds_model=round(time.monotonic() - started, 6),
        )

    def count_tokens(self, messages: Sequence[Message], tools: Sequence[ToolDefinition] = ()) -> int:
        """Estimate the tokens of a request."""
        return self._counter.count(messages, tools)

    def release(self, session: str) -> None:
        """Delete the record of the messages that were shown for the episode."""
        self._shown.pop(session, None)

    async def close(self) -> None:
        """Do nothing."""

    def _show_new(self, console: Console, messages: Sequence[Message], session: str) -> None:
        before = self._shown.get(session, ())
        for message in messages:
            if message not in before and message.role != "assistant":
                console.show(f"--- {_TITLES[message.role]}", "title")
                console.show(message.content)
        self._shown[session] = tuple(messages)


async def _read_reply(console: Console) -> str:
    text = await read_block(console, "model> ", ".....> ")
    if text is None:
        raise HumanQuit("the input of the person who played the model has ended")
    if (text := text.strip()) in ("quit", "exit"):
        raise HumanQuit("the person who played the model has left")
    return text
