"""Agents that ask a model: their settings, their loop, and which tools each has.

The loop shows the model the state of the episode, makes the call of its reply, and asks again. It ends when the
environment ends the episode, or when ``Chat`` refuses a request (budget, deadline).
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec

from dgym.agents.base import AgentContext, BaseAgent, Env, Tools
from dgym.agents.chat import Chat, StopEpisode
from dgym.agents.memory import NO_CALL, Memory, fit
from dgym.agents.prompt import InlineTemplate, Prompt, check_template
from dgym.api import ToolSpec
from dgym.env import InfoDict
from dgym.errors import ContextLengthExceeded, ManifestError
from dgym.llm import Message, Reply
from dgym.wire import EndReason, ToolCall

_SNAKE = re.compile(r"_([a-z0-9])")


class Settings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """``agent.parameters`` of an agent that asks a model.

    The last ``memory_size`` steps are in the prompt in full; ``reset_history_after_rewrite`` drops them at each change
    of a file. ``eval_on_reset`` and ``eval_on_rewrite`` run the task's tests without a call. ``tree_depth`` levels of
    the repository are shown. ``max_idle_replies`` replies without a call, one after the other, end the episode.
    ``system_prompt`` and ``task_prompt`` are templates in place of dgym's own: paths, from the manifest's directory, or
    ``{inline: TEXT}``.
    """

    memory_size: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 20
    reset_history_after_rewrite: bool = False
    eval_on_reset: bool = True
    eval_on_rewrite: bool = True
    tree_depth: Annotated[int, msgspec.Meta(ge=0, le=20)] = 2
    max_idle_replies: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 3
    system_prompt: str | InlineTemplate | None = None
    task_prompt: str | InlineTemplate | None = None


S = TypeVar("S", bound=Settings)


def read_settings(kind: type[S], parameters: Mapping[str, Any], *, agent: str) -> S:
    """``parameters`` as settings; names in snake_case are accepted too.

    Raises:
        ManifestError: A name is unknown, or a value is wrong.
    """
    given = {_SNAKE.sub(lambda match: match[1].upper(), name): value for name, value in parameters.items()}
    known = [field.encode_name for field in msgspec.structs.fields(kind)]
    for name in given:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"known are: {', '.join(known)}"
            raise ManifestError(f"agent {agent} has no parameter {name!r}; {hint}")
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$.")
        raise ManifestError(f"agent.parameters.{place.rstrip('`')} of agent {agent}: {what}") from None


_SCALES = (1.0, 0.5, 0.25, 0.1, 0.0)
"""Factors by which the sections of the task message shrink, in this order, until the newest step fits."""
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
        self._memory = Memory(settings.memory_size)
        self._limit = chat.prompt_limit

    async def run(self) -> None:
        """Drive the episode to its end; resumes an episode that an earlier worker began."""
        evaluate = self._settings.eval_on_reset and "eval" in self._context.tools
        _, info = await self._env.reset(seed=self._context.seed, options={"eval": evaluate})
        history = self._env.history()
        forgetful = self._settings.reset_history_after_rewrite
        self._memory.restore(history, self._context.said, clear_at_change=forgetful)
        over = bool(history) and history[-1].observation.end_reason is not None
        idle = 0
        while not over:
            reply = await self._ask(info)
            idle = 0 if reply.calls else idle + 1
            observation, _, terminated, truncated, latest = await self._env.step(action(reply))
            # A step returns the tools only when they have changed.
            info.update(latest)
            if observation.get("diff") and forgetful:
                self._memory.clear()
            self._memory.add(reply, observation["text"])
            over = terminated or truncated
            if idle == self._settings.max_idle_replies and not over:
                raise StopEpisode(EndReason.NO_TOOL_CALL)

    async def _ask(self, info: InfoDict) -> Reply:
        """The model's reply; a request that exceeds its context is cut and sent again."""
        views = await self._views(info)
        messages = self._messages(info, views)
        for _ in range(_TRIES - 1):
            try:
                return await self._chat.ask(messages, info["tools"])
            except ContextLengthExceeded as error:
                counted = self._chat.count(messages, info["tools"])
                # The model counts differently, so its limit alone might lead to the same request again.
                self._limit = int(min(counted, error.limit or counted) * _LESS)
                refused, messages = messages, self._messages(info, views)
                if messages == refused:
                    self._context.log(f"the prompt was too long ({error}), and no more of it can be left out")
                    raise
                self._context.log(f"the prompt was too long ({error}); it is cut to about {self._limit} tokens")
        return await self._chat.ask(messages, info["tools"])

    def _messages(self, info: InfoDict, views: dict[str, str]) -> list[Message]:
        def count(messages: Sequence[Message]) -> int:
            return self._chat.count(messages, info["tools"])

        messages: list[Message] = []
        for scale in _SCALES:
            head = self._prompt.head(
                info, views, eval_on_rewrite=self._settings.eval_on_rewrite, window=self._limit, scale=scale
            )
            messages = fit(head, self._memory.turns, self._limit, count)
            if self._limit is None or count(messages) <= self._limit:
                break
        return messages

    async def _views(self, info: InfoDict) -> dict[str, str]:
        """The directory tree and the file in focus, as they are now."""
        depth = self._settings.tree_depth
        tree = await self._peek("listdir", path=".", depth=depth) if depth else ""
        focus = info.get("focus_file")
        return {"tree": tree, "file": await self._peek("view", path=focus) if focus else ""}

    async def _peek(self, tool: str, **arguments: object) -> str:
        seen = await self._env.peek({"tool": tool, "arguments": arguments})
        return str(seen["text"]) if seen["ok"] else ""


def action(reply: Reply) -> ToolCall | dict[str, object] | str:
    """The argument of ``env.step``: the reply's first call, or its mistake, which becomes an observation."""
    if not reply.calls:
        return ToolCall.mistake(NO_CALL)
    call = reply.calls[0]
    if call.error is not None:
        return ToolCall.mistake(f"The call of {call.tool or 'a tool'} cannot be read: {call.error}")
    return call.action


DEBUGGING_TOOLS = ("pdb", "view", "rewrite", "eval", "listdir", "grep", "submit")


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
