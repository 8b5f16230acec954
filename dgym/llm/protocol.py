"""The protocol between agents and models. Trajectories hold its structs as JSON, in camelCase."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

Role = Literal["system", "user", "assistant", "tool"]

ITEMS = "output"
"""Field of ``extra`` with the items of a response of the Responses API, which stand for the whole message."""
ToolDefinition = Mapping[str, Any]
"""A tool as ``info["tools"]`` lists it: ``name``, ``description`` and ``parameters``, a JSON Schema."""


class ModelCall(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A call of a tool as the model wrote it. It is not checked: the tool may not exist, the arguments may be wrong.

    ``raw`` is what the model sent: the JSON text of the arguments, or the whole line where a model calls tools by text.
    ``error`` says, in words for the model, why ``raw`` cannot be read; ``arguments`` is None then. ``extra`` are fields
    of the provider's own that are sent back with the call, such as signatures.
    """

    id: str
    tool: str
    arguments: dict[str, Any] | None = None
    raw: str = ""
    error: str | None = None
    extra: dict[str, Any] = {}

    @property
    def action(self) -> dict[str, Any] | str:
        """What to give to ``env.step``: a mapping, or the line of text as it was written. Not for a call in error."""
        return {"tool": self.tool, "arguments": self.arguments} if self.arguments is not None else self.raw


class Message(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One message of a conversation.

    ``calls`` belong to the assistant's messages. Each is answered by one message of role ``tool`` with its ``call_id``.
    ``extra`` are fields that the model's server sent with the message and gets back: its reasoning, and signatures.
    """

    role: Role
    content: str
    calls: tuple[ModelCall, ...] = ()
    call_id: str | None = None
    extra: dict[str, Any] = {}


class Usage(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Tokens and their price. ``exact`` is false where the model reported nothing and the numbers are estimates.

    ``cached_tokens`` are part of ``input_tokens``, ``reasoning_tokens`` of ``output_tokens``. ``price`` is a decimal
    number as text, in the currency of the configuration; None where no price is configured.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    price: str | None = None
    exact: bool = True

    @property
    def total_tokens(self) -> int:
        """What counts against a token budget."""
        return self.input_tokens + self.output_tokens


class Reply(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a model answered.

    ``reasoning`` is kept apart from ``text``; ``refusal`` is the model's own refusal to go on, as text. No call and
    several calls are both possible. ``content`` is the message as it was received and as it is sent back, where it is
    not ``text``; ``extra`` are the fields that are sent back with it. ``in_text``: the calls were written in the
    content. ``tries`` counts requests, ``seconds_queue`` holds the waiting for a rate limit, a free place and between
    tries; ``seconds_model`` is the time of the request that succeeded. ``model`` and ``system_fingerprint`` are what
    the server reports of itself.
    """

    text: str = ""
    content: str = ""
    reasoning: str = ""
    calls: tuple[ModelCall, ...] = ()
    in_text: bool = False
    extra: dict[str, Any] = {}
    usage: Usage = Usage()
    finish_reason: str = "stop"
    refusal: str = ""
    seconds_model: float = 0.0
    seconds_queue: float = 0.0
    tries: int = 1
    model: str = ""
    system_fingerprint: str = ""


Waiting = Callable[[str], None]
"""Called with what a request to a model waits for; with an empty text when it waits no longer."""


class Model(Protocol):
    """A model that answers. One object may serve any number of episodes at the same time.

    An ``interactive`` model is a person at the terminal: its episodes run alone, in the main process.
    """

    @property
    def name(self) -> str:
        """The name in the configuration."""
        ...

    @property
    def context_limit(self) -> int | None:
        """How many tokens prompt and reply may have together; None where it is not known."""
        ...

    @property
    def reply_limit(self) -> int | None:
        """How many tokens a reply may have, so that a prompt leaves room for it; None where nothing is configured."""
        ...

    @property
    def tool_calling(self) -> Literal["native", "text"]:
        """Whether tools are described in the request's ``tools``, or in the system message and called by text."""
        ...

    @property
    def interactive(self) -> bool:
        """Whether a person answers."""
        ...

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition],
        *,
        session: str,
        seed: int | None = None,
        temperature: str | None = None,
        waiting: Waiting = lambda _: None,
    ) -> Reply:
        """The reply to ``messages``; ``session`` is the same for all requests of an episode.

        ``waiting`` is called with the cause of a wait that is long, and with an empty text once it is over.

        Raises:
            ContextLengthExceeded: The messages are too long for the model; trim them and call again.
            ContentFiltered: The provider refuses the messages or filtered every reply.
            ModelError: Another fault, after every allowed retry.
            PersonLeft: The person who plays the model has left.
        """
        ...

    def count_tokens(self, messages: Sequence[Message], tools: Sequence[ToolDefinition] = ()) -> int:
        """Tokens of a request: by the model's tokenizer where one is configured, else estimated.

        Estimates learn from what the model reports for earlier requests.
        """
        ...

    def release(self, session: str) -> None:
        """The episode ``session`` has ended: it no longer counts as load of the endpoint it used."""
        ...

    async def close(self) -> None:
        """Close connections. May be called more than once."""
        ...
