"""The interface between agents and models. Trajectories contain its structs as JSON, with names in camelCase."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

Role = Literal["system", "user", "assistant", "tool"]

ITEMS = "output"
"""Field of ``Message.extra`` with the items of a Responses API response. They replace the message's other fields."""
ToolDefinition = Mapping[str, Any]
"""A tool as in ``info["tools"]``: ``name``, ``description`` and ``parameters``, a JSON Schema."""


class ModelCall(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A tool call as the model wrote it. It is not validated: the tool may not exist, the arguments may be invalid.

    Attributes:
        id: Identifies the call in the reply.
        tool: Name of the tool; empty if it could not be read.
        arguments: The decoded arguments. None if they could not be decoded, or if ``raw`` is a line of text.
        raw: What the model sent: the JSON text of the arguments, or the whole call if the model calls tools by text.
        error: Why ``raw`` could not be decoded, as a message for the model. None if it was decoded.
        extra: Provider-specific fields that are sent back with the call, such as signatures.
    """

    id: str
    tool: str
    arguments: dict[str, Any] | None = None
    raw: str = ""
    error: str | None = None
    extra: dict[str, Any] = {}

    @property
    def action(self) -> dict[str, Any] | str:
        """The argument for ``env.step``: a mapping, or the line of text. Only valid if ``error`` is None."""
        return {"tool": self.tool, "arguments": self.arguments} if self.arguments is not None else self.raw


class Message(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One message of a conversation.

    Attributes:
        role: ``system``, ``user``, ``assistant`` or ``tool``.
        content: The text.
        calls: The calls of an assistant message. Each is followed by one message of role ``tool`` with its ``call_id``.
        call_id: ``ModelCall.id`` of the call, in a message of role ``tool``.
        extra: Fields that the server sent with the message and that are sent back, such as reasoning and signatures.
    """

    role: Role
    content: str
    calls: tuple[ModelCall, ...] = ()
    call_id: str | None = None
    extra: dict[str, Any] = {}


class TokenUsage(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Number of tokens and their price.

    Attributes:
        input_tokens: Tokens of the request.
        output_tokens: Tokens of the reply.
        cached_tokens: The part of ``input_tokens`` that was read from the provider's cache.
        reasoning_tokens: The part of ``output_tokens`` that is reasoning.
        price: Decimal number as text, in the currency of the configuration. None if no price is configured.
        exact: False if the model did not report its usage and the numbers are estimates.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    price: str | None = None
    exact: bool = True

    @property
    def total_tokens(self) -> int:
        """Tokens that count against a token budget."""
        return self.input_tokens + self.output_tokens


class Reply(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The reply of a model.

    Attributes:
        text: The text without reasoning and without calls.
        content: The content as it was received and as it is sent back. Empty if it is equal to ``text``.
        reasoning: The reasoning, if the server returns it.
        calls: The calls. There may be none or several.
        in_text: Whether the calls were written in the content.
        extra: Fields that are sent back with the message.
        usage: Tokens and price.
        finish_reason: Why the reply ended, as in chat completions: ``stop``, ``length``, ``tool_calls``, ...
        refusal: Text of the model's refusal to continue; empty if it did not refuse.
        seconds_model: Duration of the successful request.
        seconds_queue: Time spent waiting for rate limits, for a free place and between tries.
        tries: Number of requests, including failed ones.
        model: Model name that the server reports.
        system_fingerprint: Version that the server reports.
    """

    text: str = ""
    content: str = ""
    reasoning: str = ""
    calls: tuple[ModelCall, ...] = ()
    in_text: bool = False
    extra: dict[str, Any] = {}
    usage: TokenUsage = TokenUsage()
    finish_reason: str = "stop"
    refusal: str = ""
    seconds_model: float = 0.0
    seconds_queue: float = 0.0
    tries: int = 1
    model: str = ""
    system_fingerprint: str = ""


Waiting = Callable[[str], None]
"""Called with the reason for which a request waits, and with an empty text when the wait has ended."""


class Model(Protocol):
    """A model. One object may be used by any number of episodes at the same time."""

    @property
    def name(self) -> str:
        """The model's name in the configuration."""
        ...

    @property
    def context_limit(self) -> int | None:
        """Maximum number of tokens of prompt and reply together; None if unknown."""
        ...

    @property
    def reply_limit(self) -> int | None:
        """Maximum number of tokens of a reply, for which a prompt must leave room; None if not configured."""
        ...

    @property
    def tool_calling(self) -> Literal["native", "text"]:
        """``native``: tools are in the request's ``tools``. ``text``: the system message describes them."""
        ...

    @property
    def interactive(self) -> bool:
        """Whether the replies come from a person at the terminal. Such episodes run alone, in the main process."""
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
        """Send a request and return the reply.

        Args:
            messages: The conversation.
            tools: The tools that the model may call.
            session: Identifies the episode. It is the same for all requests of an episode.
            seed: Seed of the sampling, if given.
            temperature: Temperature of the sampling, if given.
            waiting: Called with the reason of a long wait, and with an empty text when the wait has ended.

        Raises:
            ContextLengthExceeded: The messages are too long for the model. Shorten them and call again.
            ContentFiltered: The provider refused the messages or filtered every reply.
            ModelError: Another failure, after all retries.
            HumanQuit: The person who acts as the model has quit.
        """
        ...

    def count_tokens(self, messages: Sequence[Message], tools: Sequence[ToolDefinition] = ()) -> int:
        """Return the number of tokens of a request, by the configured tokenizer or as an estimate.

        Both are corrected by the numbers that the model reported for earlier requests.
        """
        ...

    def release(self, session: str) -> None:
        """Release the resources of an episode that has ended. It does not count as load of its endpoint any more."""
        ...

    async def close(self) -> None:
        """Close connections. May be called more than once."""
        ...
