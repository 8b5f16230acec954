"""Agents that ask a model: their settings, their loop, and which tools each has.

The loop appends to one conversation: it asks the model, makes the calls of the reply in order, and asks again. It ends
when the environment ends the episode, or when ``Chat`` refuses a request (budget, deadline).
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec

from dgym.agents.base import AgentContext, BaseAgent, Env, Tools
from dgym.agents.chat import Chat, StopEpisode
from dgym.agents.conversation import Conversation
from dgym.agents.prompt import InlineTemplate, Prompt, advice, check_template, digest_template
from dgym.api import ToolSpec
from dgym.env import InfoDict
from dgym.errors import ContextLengthExceeded, ManifestError
from dgym.llm import Message, ModelCall, Reply, ToolDefinition, describe_tool
from dgym.wire import EndReason, Step, ToolCall

_SNAKE = re.compile(r"_([a-z0-9])")


class Settings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """``agent.parameters`` of an agent that asks a model.

    ``compaction``: what happens when the next request would exceed the model's context: ``elide`` replaces the oldest
    observations by stubs, ``stop`` ends the episode. ``eval_on_reset`` and ``eval_on_rewrite`` run the task's tests
    without a call. ``tree_depth`` levels of the repository are shown. ``max_idle_replies`` replies without a call, one
    after the other, end the episode. ``system_prompt`` and ``task_prompt`` are templates in place of dgym's own: paths,
    from the manifest's directory, or ``{inline: TEXT}``.
    """

    compaction: Literal["elide", "stop"] = "elide"
    eval_on_reset: bool = True
    eval_on_rewrite: bool = True
    tree_depth: Annotated[int, msgspec.Meta(ge=0, le=20)] = 2
    max_idle_replies: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 3
    system_prompt: str | InlineTemplate | None = None
    task_prompt: str | InlineTemplate | None = None


_VALID = {
    "compaction": "elide or stop",
    "evalOnReset": "true or false",
    "evalOnRewrite": "true or false",
    "treeDepth": "an integer from 0 to 20",
    "maxIdleReplies": "an integer from 1 to 10000",
    "rewritesBeforePdb": "an integer from 0 to 10000",
    "systemPrompt": "a path, or {inline: TEXT}",
    "taskPrompt": "a path, or {inline: TEXT}",
}
_REMOVED = {
    "memorySize": "every step stays in the request",
    "resetHistoryAfterRewrite": "no step is forgotten",
}
"""Parameters that agents had. Their successor is ``compaction``."""

S = TypeVar("S", bound=Settings)


def read_settings(kind: type[S], parameters: Mapping[str, Any], *, agent: str) -> S:
    """``parameters`` as settings; names in snake_case are accepted too.

    Raises:
        ManifestError: A name is unknown, or a value is wrong.
    """
    given = {_SNAKE.sub(lambda match: match[1].upper(), name): value for name, value in parameters.items()}
    known = [field.encode_name for field in msgspec.structs.fields(kind)]
    for name in given:
        if name in _REMOVED and name not in known:
            raise ManifestError(
                f"agent {agent} has no parameter {name!r} any more: {_REMOVED[name]}; remove it, and choose with"
                " compaction (elide or stop) what happens when the model's context is full"
            )
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"known are: {', '.join(known)}"
            raise ManifestError(f"agent {agent} has no parameter {name!r}; {hint}")
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        _, _, place = str(error).partition(" - at `$.")
        field = place.rstrip("`").partition(".")[0]
        raise ManifestError(
            f"agent.parameters.{field} of agent {agent} is {str(given.get(field))[:200]!r}; it must be {_VALID[field]}"
        ) from None


_WINDOW = 128_000
"""Tokens; assumed for models whose window is not known."""
_TRIES = 8
_LESS = 0.7
"""The part of a refused request, or of the limit that the model names, that the next request may have."""


class Loop:
    """One episode of one agent."""

    def __init__(self, env: Env, chat: Chat, context: AgentContext, settings: Settings) -> None:
        self._env = env
        self._chat = chat
        self._context = context
        self._settings = settings
        self._prompt = Prompt(settings.system_prompt, settings.task_prompt, base=context.base, count=chat.count)
        self._limit = chat.prompt_limit
        self._in_text = chat.model.tool_calling == "text"
        self._tools: list[ToolDefinition] = []
        self._idle = 0
        self._conversation = Conversation((), chat.count)

    async def run(self) -> None:
        """Drive the episode to its end; resumes an episode that an earlier worker began."""
        info = await self._reset()
        history = self._env.history()
        over = bool(history) and history[-1].observation.end_reason is not None
        reply, made = await self._begin(info, history)
        while not over:
            if reply is None or made >= max(1, len(reply.calls)):
                if self._idle >= self._settings.max_idle_replies:
                    raise StopEpisode(EndReason.NO_TOOL_CALL)
                reply, made = await self._ask(info), 0
                self._add_reply(reply)
            observation, _, terminated, truncated, latest = await self._env.step(self._action(reply, made))
            self._add_observation(reply, made, observation["text"], self._offer(latest.get("tools")))
            made += 1
            over = terminated or truncated

    async def _reset(self) -> InfoDict:
        evaluate = self._settings.eval_on_reset and "eval" in self._context.tools
        _, info = await self._env.reset(seed=self._context.seed, options={"eval": evaluate})
        return info

    async def _begin(self, info: InfoDict, history: Sequence[Step]) -> tuple[Reply | None, int]:
        """Set up the conversation; returns the reply whose calls are being made, and how many have been."""
        said, at = self._context.said, 1
        messages = None
        for seq in sorted((seq for seq in said if 0 < seq <= len(history)), reverse=True):
            if (messages := self._chat.request(said[seq])) is not None:
                at = seq
                break
        self._offer([{"name": name} for name in self._chat.last_tools] if messages is not None else [])
        new = self._offer(info["tools"])
        if messages is None:
            messages, new = await self._head(info), []
        self._conversation = Conversation(messages, self._chat.count)
        return self._restore(history[at:], new)

    def _restore(self, steps: Sequence[Step], new: Sequence[ToolDefinition]) -> tuple[Reply | None, int]:
        """Append what an earlier worker's agent did after the last known request."""
        self._idle = self._idle_before(steps[0].seq if steps else len(self._env.history()))
        reply: Reply | None = None
        made = 0
        for step in steps:
            assert step.call is not None
            if step.seq in self._context.said or reply is None or made >= max(1, len(reply.calls)):
                reply, made = self._context.said.get(step.seq) or _reply_of(step.seq, step.call), 0
                self._add_reply(reply)
            self._add_observation(reply, made, step.observation.text, new if step is steps[-1] else ())
            made += 1
        return reply, made

    def _idle_before(self, seq: int) -> int:
        """How many replies before this step had no call, one after the other."""
        idle = 0
        while (reply := self._context.said.get(seq - 1 - idle)) is not None and not reply.calls:
            idle += 1
        return idle

    def _offer(self, tools: Sequence[ToolDefinition] | None) -> list[ToolDefinition]:
        """Set the tools to those of the environment, known ones first; returns the new ones."""
        if tools is None:
            return []
        given = {str(tool["name"]): tool for tool in tools}
        known = [str(tool["name"]) for tool in self._tools]
        new = [tool for name, tool in given.items() if name not in known]
        self._tools = [*(given[name] for name in known if name in given), *new]
        return new

    def _add_reply(self, reply: Reply) -> None:
        self._idle = 0 if reply.calls else self._idle + 1
        self._conversation.add_reply(reply)

    def _add_observation(self, reply: Reply, made: int, text: str, new: Sequence[ToolDefinition]) -> None:
        parts = [text]
        for tool in new:
            parts.append(advice(str(tool["name"])) if self._settings.system_prompt is None else "")
            parts.append(describe_tool(tool) if self._in_text else "")
        text = "\n\n".join(part for part in parts if part) if new else text
        self._conversation.add_observation(reply, made, text, window=self._limit or _WINDOW)

    async def _ask(self, info: InfoDict) -> Reply:
        """The model's reply, after room was made for the request where the context is full.

        Raises:
            ContextLengthExceeded: There is nothing left to remove, or ``compaction`` is ``stop``.
        """
        for _ in range(_TRIES):
            counted = self._chat.count(self._conversation.messages, self._tools)
            if self._limit is not None and counted > self._limit:
                await self._make_room(info)
            try:
                return await self._chat.ask(self._conversation.messages, self._tools)
            except ContextLengthExceeded as error:
                counted = self._chat.count(self._conversation.messages, self._tools)
                # The model counts differently, so its limit alone might lead to the same request again.
                self._limit = int(min(counted, error.limit or counted) * _LESS)
                if not await self._make_room(info):
                    raise
                self._context.log(f"the request was too long ({error}); it is cut to about {self._limit} tokens")
        return await self._chat.ask(self._conversation.messages, self._tools)

    async def _make_room(self, info: InfoDict) -> bool:
        """Compact the conversation; False if that changed nothing."""
        assert self._limit is not None
        if self._settings.compaction == "stop":
            raise ContextLengthExceeded("the next request would exceed the model's context, and compaction is stop")
        messages = self._conversation.messages
        if all(message.role != "assistant" for message in messages):
            head = await self._head(info)
            changed, self._conversation.messages = messages != head, head
            return changed
        tools = self._chat.count((), self._tools)
        changed = self._conversation.compact(max(1, self._limit - tools))
        if changed:
            self._context.log("the context is full: old observations were removed from the conversation")
        return changed

    async def _head(self, info: InfoDict) -> list[Message]:
        depth = self._settings.tree_depth
        seen = await self._env.peek({"tool": "listdir", "arguments": {"path": ".", "depth": depth}}) if depth else None
        return self._prompt.head(
            info,
            self._tools,
            str(seen["text"]) if seen is not None and seen["ok"] else "",
            eval_on_rewrite=self._settings.eval_on_rewrite,
            window=self._limit or _WINDOW,
            in_text=self._in_text,
        )

    def _action(self, reply: Reply, number: int) -> ToolCall | dict[str, object] | str:
        """The argument of ``env.step``: a call of the reply, or the reply's mistake, which becomes an observation."""
        if not reply.calls:
            return ToolCall.mistake(idle_message(reply, [str(tool["name"]) for tool in self._tools]))
        call = reply.calls[number]
        if call.error is not None:
            return ToolCall.mistake(f"The call of {call.tool or 'a tool'} cannot be read: {call.error}")
        return call.action


def _reply_of(seq: int, call: ToolCall) -> Reply:
    """A reply that leads to ``call``, where the model's own is not known."""
    made = ModelCall(id=f"step-{seq}", tool=call.tool, arguments=call.arguments)
    return Reply(calls=(made,) if call.tool else ())


def idle_message(reply: Reply, tools: Sequence[str]) -> str:
    """What the model reads after a reply without a call, by the cause."""
    if reply.refusal:
        cause = "Your reply refused to go on. The task is to repair a bug in the repository of this sandbox."
    elif reply.finish_reason == "length":
        cause = "Your reply was cut off at the limit of its length, before a call. Write less before the call."
    elif not reply.text and reply.reasoning:
        cause = "Your reply had only reasoning: no text and no call."
    elif not reply.text:
        cause = "Your reply was empty."
    else:
        cause = "Your reply had text, but it called no tool. Text alone changes nothing."
    end = " Call submit if the work is done." if "submit" in tools else ""
    return f"{cause} Every reply must call a tool.{end}"


DEBUGGING_TOOLS = ("pdb", "view", "rewrite", "eval", "listdir", "grep", "bash", "submit")


class ModelAgent(BaseAgent):
    """Runs the loop. Subclasses choose tools, settings, and through ``tool_options`` the tools' options."""

    default_tools: ClassVar[tuple[str, ...]] = DEBUGGING_TOOLS
    uses_model = True
    settings_type: ClassVar[type[Settings]] = Settings

    @classmethod
    def arrange_tools(cls, tools: Tools, parameters: Mapping[str, Any]) -> Tools:
        """The tools with this agent's options; options of the manifest take precedence."""
        options = cls.tool_options(cls.settings(parameters))
        return tuple(_with_options(tool, options) for tool in tools)

    @classmethod
    def check_files(cls, parameters: Mapping[str, Any], base: Path | None) -> None:
        """Read the prompt templates."""
        settings = cls.settings(parameters)
        check_template(settings.system_prompt, base, "system")
        check_template(settings.task_prompt, base, "task")

    @classmethod
    def prompt_digests(cls, parameters: Mapping[str, Any], base: Path | None) -> dict[str, str]:
        """The digests of both templates."""
        settings = cls.settings(parameters)
        given = {"system": settings.system_prompt, "task": settings.task_prompt}
        return {name: digest_template(template, base, name) for name, template in given.items()}

    @classmethod
    def settings(cls, parameters: Mapping[str, Any]) -> Settings:
        """The parameters, checked."""
        return read_settings(cls.settings_type, parameters, agent=cls.name)

    @classmethod
    def tool_options(cls, settings: Settings) -> dict[str, dict[str, Any]]:
        """Options by the tool's name."""
        return {"eval": {"onRewrite": True}} if settings.eval_on_rewrite else {}

    async def run(self, env: Env, context: AgentContext) -> EndReason | None:
        """Run the loop until the episode ends."""
        if context.chat is None:
            raise ManifestError(f"agent {self.name} needs a model: set agent.model, as with -p agent.model=NAME")
        await Loop(env, context.chat, context, self.settings(context.parameters)).run()
        return None


def _with_options(tool: str | ToolSpec, options: Mapping[str, dict[str, Any]]) -> str | ToolSpec:
    spec = ToolSpec(name=tool) if isinstance(tool, str) else tool
    if spec.name not in options:
        return tool
    return msgspec.structs.replace(spec, options=options[spec.name] | spec.options)


class DebugAgent(ModelAgent):
    """Looks around, watches the program in pdb, rewrites and evaluates."""

    name = "debug_agent"


class LateDebuggerSettings(Settings, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """``rewrites_before_pdb``: the number of successful rewrites after which ``pdb`` is offered."""

    rewrites_before_pdb: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 5


class Debug5Agent(ModelAgent):
    """Works like the rewrite agent until its fifth rewrite, and like the debug agent from then on."""

    name = "debug_5_agent"
    settings_type = LateDebuggerSettings

    @classmethod
    def tool_options(cls, settings: Settings) -> dict[str, dict[str, Any]]:
        """``pdb`` is offered after enough rewrites; the session enforces it."""
        assert isinstance(settings, LateDebuggerSettings)
        return {**super().tool_options(settings), "pdb": {"afterRewrites": settings.rewrites_before_pdb}}


class RewriteAgent(ModelAgent):
    """Reads, rewrites and evaluates; it has no ``pdb``, even if the manifest names it."""

    name = "rewrite_agent"
    default_tools = tuple(tool for tool in DEBUGGING_TOOLS if tool != "pdb")
    banned_tools = ("pdb",)


class BashAgent(ModelAgent):
    """Has a shell and nothing else: the baseline that others are compared with."""

    name = "bash_agent"
    default_tools = ("bash", "submit")
    banned_tools = tuple(tool for tool in DEBUGGING_TOOLS if tool not in ("bash", "submit"))
