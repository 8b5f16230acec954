"""Agents that use a model: their settings, their loop, and their tools.

The loop sends the conversation to the model, executes the calls of the reply in order, appends reply and observations,
and repeats. It ends when the environment ends the episode, or when ``Chat`` raises ``StopEpisode`` (budget, deadline).
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec

from dgym.agents._base import AgentContext, BaseAgent, Env, Tools
from dgym.agents._chat import Chat, Conversation, StopEpisode
from dgym.agents._prompt import InlineTemplate, Prompt, advice, check_template, digest_template
from dgym.api import ToolSpec
from dgym.env import InfoDict
from dgym.errors import ContextLengthExceeded, ManifestError, nearest
from dgym.llm import Message, ModelCall, Reply, ToolDefinition, describe_tool
from dgym.wire import EndReason, Step, ToolCall

_SNAKE = re.compile(r"_([a-z0-9])")


class Settings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """``agent.parameters`` of an agent that uses a model.

    Attributes:
        compaction: Reaction when the next request would exceed the model's context. ``elide`` replaces the oldest
            observations by stubs, ``stop`` ends the episode.
        eval_on_reset: Whether the tests run at the reset.
        eval_on_rewrite: Whether the tests run after every rewrite.
        tree_depth: Number of directory levels in the file tree of the prompt. 0: no tree.
        max_idle_replies: Number of consecutive replies without a call after which the episode ends.
        system_prompt: Template of the system message: a path relative to the manifest, or ``{inline: TEXT}``.
            Default: dgym's template.
        task_prompt: Template of the task message, in the same form.
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
S = TypeVar("S", bound=Settings)


def read_settings(kind: type[S], parameters: Mapping[str, Any], *, agent: str) -> S:
    """Convert ``parameters`` to settings. Names may be in camelCase or snake_case.

    Raises:
        ManifestError: A name is unknown, or a value is invalid.
    """
    given = {_SNAKE.sub(lambda match: match[1].upper(), name): value for name, value in parameters.items()}
    known = [field.encode_name for field in msgspec.structs.fields(kind)]
    for name in given:
        if name not in known:
            guess = nearest(name, known)
            hint = f"did you mean {guess}?" if guess else f"the parameters are: {', '.join(known)}"
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
"""Assumed context window in tokens, if the model's window is unknown."""
_TRIES = 8
_LESS = 0.7
"""After a refusal, the next limit is this fraction of the refused request or of the limit that the model reported."""


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
        """Run the episode until its end. Resumes the episode if steps have been recorded already."""
        info = await self._reset()
        trajectory = self._env.trajectory()
        over = bool(trajectory) and trajectory[-1].observation.end_reason is not None
        reply, made = await self._begin(info, trajectory)
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

    async def _begin(self, info: InfoDict, trajectory: Sequence[Step]) -> tuple[Reply | None, int]:
        """Set up the conversation from the recorded steps, if there are any.

        Returns:
            The last reply, and how many of its calls have been executed.
        """
        earlier_replies, at = self._context.earlier_replies, 1
        messages = None
        for seq in sorted((seq for seq in earlier_replies if 0 < seq <= len(trajectory)), reverse=True):
            if (messages := self._chat.request(earlier_replies[seq])) is not None:
                at = seq
                break
        self._offer([{"name": name} for name in self._chat.last_tools] if messages is not None else [])
        new = self._offer(info["tools"])
        if messages is None:
            messages, new = await self._head(info), []
        self._conversation = Conversation(messages, self._chat.count)
        return self._restore(trajectory[at:], new)

    def _restore(self, steps: Sequence[Step], new: Sequence[ToolDefinition]) -> tuple[Reply | None, int]:
        """Append the recorded replies and observations since the last request whose messages are known.

        Returns:
            The last reply, and how many of its calls have been executed.
        """
        self._idle = self._idle_before(steps[0].seq if steps else len(self._env.trajectory()))
        reply: Reply | None = None
        made = 0
        for step in steps:
            assert step.call is not None
            if step.seq in self._context.earlier_replies or reply is None or made >= max(1, len(reply.calls)):
                reply, made = self._context.earlier_replies.get(step.seq) or _reply_of(step.seq, step.call), 0
                self._add_reply(reply)
            self._add_observation(reply, made, step.observation.text, new if step is steps[-1] else ())
            made += 1
        return reply, made

    def _idle_before(self, seq: int) -> int:
        """Return the number of consecutive replies without a call before this step."""
        idle = 0
        while (reply := self._context.earlier_replies.get(seq - 1 - idle)) is not None and not reply.calls:
            idle += 1
        return idle

    def _offer(self, tools: Sequence[ToolDefinition] | None) -> list[ToolDefinition]:
        """Replace the tools by ``tools`` and return the new ones.

        Tools that were offered before keep their place, so that the provider's prefix cache stays valid.
        """
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
        """Return the model's reply. If the request is too long, compact the conversation first.

        Raises:
            ContextLengthExceeded: Nothing is left to remove, or ``compaction`` is ``stop``.
        """
        for _ in range(_TRIES):
            counted = self._chat.count(self._conversation.messages, self._tools)
            if self._limit is not None and counted > self._limit:
                await self._make_room(info)
            try:
                return await self._chat.ask(self._conversation.messages, self._tools)
            except ContextLengthExceeded as error:
                counted = self._chat.count(self._conversation.messages, self._tools)
                # Our count may differ from the model's. With the model's limit alone, the same request might be sent.
                self._limit = int(min(counted, error.limit or counted) * _LESS)
                if not await self._make_room(info):
                    raise
                self._context.log(f"the request was too long ({error}); it is cut to about {self._limit} tokens")
        return await self._chat.ask(self._conversation.messages, self._tools)

    async def _make_room(self, info: InfoDict) -> bool:
        """Compact the conversation. Returns False if nothing was changed."""
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
        """Return the argument of ``env.step``: a call of the reply, or a mistake whose text becomes the observation."""
        if not reply.calls:
            return ToolCall.invalid(idle_message(reply, [str(tool["name"]) for tool in self._tools]))
        call = reply.calls[number]
        if call.error is not None:
            return ToolCall.invalid(f"The call of {call.tool or 'a tool'} cannot be read: {call.error}")
        return call.action


def _reply_of(seq: int, call: ToolCall) -> Reply:
    """Return a substitute for the reply that led to ``call``, if the reply was not recorded."""
    made = ModelCall(id=f"step-{seq}", tool=call.tool, arguments=call.arguments)
    return Reply(calls=(made,) if call.tool else ())


def idle_message(reply: Reply, tools: Sequence[str]) -> str:
    """Return the observation after a reply without a call. Its text depends on the cause."""
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
"""The standard tools, in the order in which models read about them."""


class ModelAgent(BaseAgent):
    """Base class of agents that use a model. Subclasses set their tools and settings, and override ``tool_options``."""

    default_tools: ClassVar[tuple[str, ...]] = DEBUGGING_TOOLS
    uses_model = True
    settings_type: ClassVar[type[Settings]] = Settings

    @classmethod
    def arrange_tools(cls, tools: Tools, parameters: Mapping[str, Any]) -> Tools:
        """Add the options of ``tool_options`` to the tools. Options in the manifest take precedence."""
        options = cls.tool_options(cls.settings(parameters))
        return tuple(_with_options(tool, options) for tool in tools)

    @classmethod
    def check_files(cls, parameters: Mapping[str, Any], base: Path | None) -> None:
        """Check the prompt templates."""
        settings = cls.settings(parameters)
        check_template(settings.system_prompt, base, "system")
        check_template(settings.task_prompt, base, "task")

    @classmethod
    def prompt_digests(cls, parameters: Mapping[str, Any], base: Path | None) -> dict[str, str]:
        """Return the digests of the templates ``system`` and ``task``."""
        settings = cls.settings(parameters)
        given = {"system": settings.system_prompt, "task": settings.task_prompt}
        return {name: digest_template(template, base, name) for name, template in given.items()}

    @classmethod
    def settings(cls, parameters: Mapping[str, Any]) -> Settings:
        """Convert ``parameters`` to the agent's settings. Raises ManifestError if they are invalid."""
        return read_settings(cls.settings_type, parameters, agent=cls.name)

    @classmethod
    def tool_options(cls, settings: Settings) -> dict[str, dict[str, Any]]:
        """Return the agent's options for its tools, by tool name."""
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
    """An agent with all tools, including ``pdb``."""

    name = "debug_agent"


class LateDebuggerSettings(Settings, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """``agent.parameters`` of the debug-5 agent.

    Attributes:
        rewrites_before_pdb: Number of successful rewrites after which ``pdb`` is offered.
    """

    rewrites_before_pdb: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 5


class Debug5Agent(ModelAgent):
    """An agent with all tools, which gets ``pdb`` only after its fifth successful rewrite."""

    name = "debug_5_agent"
    settings_type = LateDebuggerSettings

    @classmethod
    def tool_options(cls, settings: Settings) -> dict[str, dict[str, Any]]:
        """Delay ``pdb`` with its option ``afterRewrites``, which the session enforces."""
        assert isinstance(settings, LateDebuggerSettings)
        return {**super().tool_options(settings), "pdb": {"afterRewrites": settings.rewrites_before_pdb}}


class RewriteAgent(ModelAgent):
    """An agent with all tools except ``pdb``, even if the manifest lists it."""

    name = "rewrite_agent"
    default_tools = tuple(tool for tool in DEBUGGING_TOOLS if tool != "pdb")
    banned_tools = ("pdb",)


class BashAgent(ModelAgent):
    """An agent with only a shell. It is the baseline for comparisons."""

    name = "bash_agent"
    default_tools = ("bash", "submit")
    banned_tools = tuple(tool for tool in DEBUGGING_TOOLS if tool not in ("bash", "submit"))
