"""One episode's conversation with its model: the token budget, the deadline, and a record of everything said."""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any, cast

import msgspec

from dgym.agents.base import StopEpisode
from dgym.errors import PersonLeft
from dgym.llm import Message, Model, ModelCall, Reply, Role, ToolDefinition, Usage
from dgym.wire import EndReason


class RecordedCall(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A call as the model wrote it; ``raw`` and ``error`` where it could not be read."""

    id: str
    tool: str
    arguments: dict[str, Any] | None = None
    raw: str = ""
    error: str | None = None


class RecordedMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One message that was sent."""

    role: str
    content: str
    calls: tuple[RecordedCall, ...] = ()
    call_id: str | None = None


class RecordedUsage(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Tokens and price of one exchange."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    price: str | None = None
    exact: bool = True


class Exchange(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One request to the model and its reply.

    ``sent`` are the numbers of the request's messages, in order, as ranges with both ends included; ``messages`` are
    those sent for the first time, whose numbers go on from the last one of the exchange before.
    """

    sent: tuple[tuple[int, int], ...]
    messages: tuple[RecordedMessage, ...] = ()
    text: str = ""
    reasoning: str = ""
    calls: tuple[RecordedCall, ...] = ()
    refusal: str = ""
    finish_reason: str = "stop"
    usage: RecordedUsage = RecordedUsage()
    seconds_model: float = 0.0
    seconds_queue: float = 0.0
    tries: int = 1


class Transcript:
    """Numbers the messages of one episode."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._count = 0

    def restore(self, exchanges: Iterable[Exchange]) -> None:
        """Go on from exchanges that an earlier worker wrote into the same trajectory."""
        for exchange in exchanges:
            for message in exchange.messages:
                self._numbers.setdefault(_key(_sent(message)), self._count)
                self._count += 1

    def record(self, messages: Sequence[Message], reply: Reply) -> Exchange:
        """The exchange in which ``messages`` were sent and ``reply`` came back."""
        numbers, new = [], []
        for message in messages:
            key = _key(message)
            number = self._numbers.get(key)
            if number is None:
                number = self._numbers[key] = self._count
                self._count += 1
                new.append(_message(message))
            numbers.append(number)
        return Exchange(
            sent=tuple(ranges(numbers)),
            messages=tuple(new),
            text=reply.text,
            reasoning=reply.reasoning,
            calls=_calls(reply.calls),
            refusal=reply.refusal,
            finish_reason=reply.finish_reason,
            usage=_usage(reply.usage),
            seconds_model=round(reply.seconds_model, 6),
            seconds_queue=round(reply.seconds_queue, 6),
            tries=reply.tries,
        )


def reply_of(exchange: Exchange) -> Reply:
    """What the model answered, as far as the trajectory keeps it."""
    return Reply(
        text=exchange.text,
        reasoning=exchange.reasoning,
        calls=_model_calls(exchange.calls),
        refusal=exchange.refusal,
        finish_reason=exchange.finish_reason,
    )


def ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Runs of consecutive numbers: 0 1 2 7 8 is (0, 2), (7, 8)."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def _key(message: Message) -> bytes:
    if message.calls:
        # The text of a call that could be read is not kept, and says no more than its arguments.
        calls = tuple(
            call if call.arguments is None else msgspec.structs.replace(call, raw="") for call in message.calls
        )
        message = msgspec.structs.replace(message, calls=calls)
    return hashlib.blake2b(msgspec.json.encode(message, order="deterministic"), digest_size=16).digest()


def _sent(message: RecordedMessage) -> Message:
    return Message(
        role=cast("Role", message.role),
        content=message.content,
        calls=_model_calls(message.calls),
        call_id=message.call_id,
    )


def _model_calls(calls: Iterable[RecordedCall]) -> tuple[ModelCall, ...]:
    return tuple(
        ModelCall(id=call.id, tool=call.tool, arguments=call.arguments, raw=call.raw, error=call.error)
        for call in calls
    )


def _message(message: Message) -> RecordedMessage:
    return RecordedMessage(
        role=message.role, content=message.content, calls=_calls(message.calls), call_id=message.call_id
    )


def _calls(calls: Iterable[ModelCall]) -> tuple[RecordedCall, ...]:
    return tuple(
        RecordedCall(
            id=call.id,
            tool=call.tool,
            arguments=call.arguments,
            raw=call.raw if call.arguments is None else "",
            error=call.error,
        )
        for call in calls
    )


def _usage(usage: Usage) -> RecordedUsage:
    return RecordedUsage(**{name: getattr(usage, name) for name in RecordedUsage.__struct_fields__})


_REPLY_SHARE = 5
_REPLY_TOKENS = (1_024, 16_384)
"""Where no limit of replies is configured, a fifth of the context window is kept for one, within these bounds."""


class Chat:
    """What agents ask their model through.

    ``listener`` is told of every exchange before its reply is acted on. ``deadline`` is the time of the event loop at
    which the episode ends, whatever the model is doing then; None before the reset.
    """

    def __init__(
        self,
        model: Model,
        *,
        session: str,
        seed: int | None = None,
        temperature: str | None = None,
        token_budget: int | None = None,
        listener: Callable[[Exchange], None] = lambda _: None,
    ) -> None:
        self.model = model
        self.deadline: float | None = None
        self.input_tokens = 0
        self.output_tokens = 0
        self.price: Decimal | None = None
        self._session = session
        self._seed = seed
        self._temperature = temperature
        self._token_budget = token_budget
        self._listener = listener
        self._transcript = Transcript()

    def resume(
        self, exchanges: Iterable[Exchange], *, input_tokens: int, output_tokens: int, price: Decimal | None
    ) -> None:
        """Go on from what an earlier worker said and used."""
        self.input_tokens, self.output_tokens, self.price = input_tokens, output_tokens, price
        self._transcript.restore(exchanges)

    async def ask(self, messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> Reply:
        """The model's reply.

        Raises:
            StopEpisode: The token budget is used up, the deadline has passed, or the person who answers has left.
            ContextLengthExceeded: The messages are too long; leave some out and ask again.
            ModelError: The model does not answer.
        """
        if self._token_budget is not None and self.input_tokens + self.output_tokens >= self._token_budget:
            raise StopEpisode(EndReason.TOKEN_BUDGET_EXHAUSTED)
        limit = asyncio.timeout_at(self.deadline)
        try:
            async with limit:
                reply = await self.model.complete(
                    messages, tools, session=self._session, seed=self._seed, temperature=self._temperature
                )
        except TimeoutError:
            if limit.expired():
                raise StopEpisode(EndReason.DEADLINE_EXCEEDED) from None
            raise
        except PersonLeft:
            raise StopEpisode(EndReason.CANCELLED) from None
        self._account(reply)
        self._listener(self._transcript.record(messages, reply))
        return reply

    def count(self, messages: Sequence[Message], tools: Sequence[ToolDefinition] = ()) -> int:
        """Tokens of a request, exact or estimated."""
        return self.model.count_tokens(messages, tools)

    @property
    def prompt_limit(self) -> int | None:
        """How many tokens a request may have, with room left for the reply; None where nobody knows."""
        window = self.model.context_limit
        if window is None:
            return None
        low, high = _REPLY_TOKENS
        reply = self.model.reply_limit or min(high, max(low, window // _REPLY_SHARE))
        return max(window - reply, window // 2)

    def close(self) -> None:
        """The episode has ended."""
        self.model.release(self._session)

    def _account(self, reply: Reply) -> None:
        usage = reply.usage
        self.input_tokens += usage.input_tokens
        self.output_tokens += usage.output_tokens
        if usage.price is not None:
            self.price = (self.price or Decimal(0)) + Decimal(usage.price)
