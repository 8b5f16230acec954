"""The loop of an agent that thinks: show the model how things stand, make the call it answers with, again.

It ends when the environment says that the episode is over, or when ``Chat`` refuses to ask (budget, deadline).
"""

from collections.abc import Sequence

from dgym.agents.base import AgentContext, Env
from dgym.agents.chat import Chat
from dgym.agents.memory import NO_CALL, Memory, fit
from dgym.agents.prompt import Prompt
from dgym.agents.settings import Settings
from dgym.env import InfoDict
from dgym.errors import ContextLengthExceeded
from dgym.llm import Message, Reply
from dgym.wire import ToolCall

_SCALES = (1.0, 0.5, 0.25, 0.1, 0.0)
"""How far the sections of the task message shrink, one after the other, where the newest step would not fit."""
_TRIES = 8
_LESS = 0.7
"""What is left of a request that the model finds too long, and what may be used of a limit that it names."""


class Loop:
    """One episode of one agent."""

    def __init__(self, env: Env, chat: Chat, context: AgentContext, settings: Settings) -> None:
        self._env = env
        self._chat = chat
        self._context = context
        self._settings = settings
        self._prompt = Prompt(settings, base=context.base, count=chat.count)
        self._memory = Memory(settings.memory_size)
        self._limit = chat.prompt_limit

    async def run(self) -> None:
        """Drive the episode to its end; an episode that an earlier worker began goes on where it stands."""
        evaluate = self._settings.eval_on_reset and "eval" in self._context.tools
        _, info = await self._env.reset(seed=self._context.seed, options={"eval": evaluate})
        history = self._env.history()
        forgetful = self._settings.reset_history_after_rewrite
        self._memory.restore(history, self._context.said, clear_at_change=forgetful)
        over = bool(history) and history[-1].observation.end_reason is not None
        while not over:
            reply = await self._ask(info)
            observation, _, terminated, truncated, latest = await self._env.step(action(reply))
            # A step gives the tools only where there are others.
            info.update(latest)
            if observation.get("diff") and forgetful:
                self._memory.clear()
            self._memory.add(reply, observation["text"])
            over = terminated or truncated

    async def _ask(self, info: InfoDict) -> Reply:
        """The model's reply; a request that it finds too long is cut and sent again."""
        views = await self._look(info)
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
            head = self._prompt.head(info, views, window=self._limit, scale=scale)
            messages = fit(head, self._memory.turns, self._limit, count)
            if self._limit is None or count(messages) <= self._limit:
                break
        return messages

    async def _look(self, info: InfoDict) -> dict[str, str]:
        """The directory tree and the file in focus, as they are now."""
        depth = self._settings.tree_depth
        tree = await self._peek("listdir", path=".", depth=depth) if depth else ""
        focus = info.get("focus_file")
        return {"tree": tree, "file": await self._peek("view", path=focus) if focus else ""}

    async def _peek(self, tool: str, **arguments: object) -> str:
        seen = await self._env.peek({"tool": tool, "arguments": arguments})
        return str(seen["text"]) if seen["ok"] else ""


def action(reply: Reply) -> ToolCall | dict[str, object] | str:
    """What to give to ``env.step``: the reply's first call, or its mistake, which the model sees as an observation."""
    if not reply.calls:
        return ToolCall.mistake(NO_CALL)
    call = reply.calls[0]
    if call.error is not None:
        return ToolCall.mistake(f"The call of {call.tool or 'a tool'} cannot be read: {call.error}")
    return call.action
