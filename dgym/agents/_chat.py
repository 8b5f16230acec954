"""The conversation of one episode with its model: messages, budgets, deadline, and the record of requests and replies.

Span attributes of requests follow the semantic conventions of OpenTelemetry for generative AI.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from dgym.errors import HumanQuit
from dgym.llm import Message, Model, ModelCall, Reply, ToolDefinition, Waiting, write_arguments, write_result
from dgym.tracing import OpenSpan, capturing, clean, genai_span
from dgym.wire import EndReason

Count = Callable[[Sequence[Message]], int]
HEAD = 2
"""The system message and the task message."""
_SHORTEST = 200
"""Texts are not shortened to fewer characters than this."""
_OBSERVATION_SHARE = 4
"""An observation takes at most this fraction of the window: a quarter."""
_NOTHING = "(no answer)"
_STUB = "[An old observation of {:,} characters was removed to make room. Call the tool again to see it.]"
CONTENT_CHARACTERS = 65_536
"""Maximum size of a prompt in a span. If a prompt is longer, its newest messages that fit are recorded."""


class StopEpisode(Exception):
    """The agent stops for a reason that the environment cannot determine. The workspace is scored."""

    def __init__(self, reason: EndReason) -> None:
        super().__init__(reason)
        self.reason = reason


class Exchange(Reply, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One request to the model and its reply, as recorded in the trajectory before the first call of the reply.

    The messages of an episode are numbered from 0 in the order in which they were first sent.

    Attributes:
        sent: Numbers of the request's messages in order, as ranges that include both ends.
        messages: The messages that were sent for the first time. Their numbers continue after those of earlier
            exchanges. The ``raw`` of a call is left out if its arguments determine it.
        removed: Numbers of messages of the previous request that a compaction replaced, as ranges.
        tools: Names of the tools in the order in which they were sent. Empty if they are equal to those of the previous
            exchange.
        tools_digest: SHA-256 of the tools' schemas as JSON; empty without tools.
    """

    sent: tuple[tuple[int, int], ...]
    messages: tuple[Message, ...] = ()
    removed: tuple[tuple[int, int], ...] = ()
    tools: tuple[str, ...] = ()
    tools_digest: str = ""


class Transcript:
    """Numbers the messages of one episode and creates its exchanges."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._messages: list[Message] = []
        self._last: list[int] = []
        self.tools: tuple[str, ...] = ()
        """Names of the tools of the last request."""

    def restore(self, exchanges: Iterable[Exchange]) -> None:
        """Continue after the recorded exchanges of a resumed episode."""
        for exchange in exchanges:
            for message in exchange.messages:
                self._add(message)
            self._last = _numbers(exchange.sent)
            self.tools = exchange.tools or self.tools

    def request(self, exchange: Exchange) -> list[Message] | None:
        """Return the messages of a recorded request, or None if one of them was not recorded."""
        numbers = _numbers(exchange.sent)
        if not numbers or max(numbers) >= len(self._messages):
            return None
        return [self._messages[number] for number in numbers]

    def record(self, messages: Sequence[Message], reply: Reply, definitions: Sequence[ToolDefinition] = ()) -> Exchange:
        """Return the exchange for a request with these messages and tools, and its reply."""
        tools = [str(tool["name"]) for tool in definitions]
        numbers, new = [], []
        for sent in messages:
            message = msgspec.structs.replace(sent, calls=_recorded(sent.calls))
            number = self._numbers.get(_key(message))
            if number is None:
                number = self._add(message)
                new.append(message)
            numbers.append(number)
        removed = sorted({old for old, now in zip(self._last, numbers, strict=False) if old != now})
        changed = () if tuple(tools) == self.tools else tuple(tools)
        self._last, self.tools = numbers, tuple(tools)
        return Exchange(
            sent=tuple(ranges(numbers)),
            messages=tuple(new),
            removed=tuple(ranges(removed)),
            tools=changed,
            tools_digest=digest_tools(definitions),
            **msgspec.structs.asdict(reply),
        )

    def _add(self, message: Message) -> int:
        self._messages.append(message)
        return self._numbers.setdefault(_key(message), len(self._messages) - 1)


def digest_tools(definitions: Sequence[ToolDefinition]) -> str:
    """Return the SHA-256 of the tools with their schemas, in order; empty without tools."""
    if not definitions:
        return ""
    return hashlib.sha256(msgspec.json.encode(definitions, order="deterministic")).hexdigest()


def _numbers(sent: Iterable[tuple[int, int]]) -> list[int]:
    return [number for first, last in sent for number in range(first, last + 1)]


def ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the ranges of consecutive numbers: 0 1 2 7 8 becomes (0, 2), (7, 8)."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def _key(message: Message) -> bytes:
    return hashlib.blake2b(msgspec.json.encode(message, order="deterministic"), digest_size=16).digest()


def _recorded(calls: Iterable[ModelCall]) -> tuple[ModelCall, ...]:
    """Return the calls without ``raw`` if it can be derived from their arguments."""
    return tuple(msgspec.structs.replace(call, raw="") if call.raw == write_arguments(call) else call for call in calls)


_REPLY_SHARE = 5

_REPLY_TOKENS = (1_024, 16_384)
"""If no reply limit is configured, a fifth of the context window is reserved for the reply, within these bounds."""


class Chat:
    """An agent's access to its model.

    Args:
        model: The model.
        session: Identifies the episode to the model, for caching.
        seed: Sent with every request, if given.
        temperature: Sent with every request, if given.
        token_budget: Tokens of the episode, input and output together. None: unlimited.
        cost_limit: Limit of the cost of all attempts. None: unlimited.
        earlier_cost: Cost of earlier attempts, in the currency of ``cost_limit``.
        listener: Called with every exchange, before the agent gets the reply.
        waiting: Called with the reason for which a request waits.

    Attributes:
        deadline: Time of the event loop at which the episode ends and requests are cancelled. None before the reset.
        input_tokens: Input tokens so far.
        output_tokens: Output tokens so far.
        price: Price of the tokens so far; None for a model without prices.
    """

    def __init__(
        self,
        model: Model,
        *,
        session: str,
        seed: int | None = None,
        temperature: str | None = None,
        token_budget: int | None = None,
        cost_limit: Decimal | None = None,
        earlier_cost: Decimal = Decimal(0),
        listener: Callable[[Exchange], None] = lambda _: None,
        waiting: Waiting = lambda _: None,
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
        self._cost_limit = cost_limit
        self._earlier_cost = earlier_cost
        self._listener = listener
        self._waiting = waiting
        self._transcript = Transcript()

    def resume(
        self,
        exchanges: Iterable[Exchange],
        *,
        input_tokens: int,
        output_tokens: int,
        price: Decimal | None,
        cost: Decimal = Decimal(0),
    ) -> None:
        """Continue after the exchanges and the usage of a resumed episode.

        Args:
            exchanges: The recorded exchanges.
            input_tokens: Input tokens of these exchanges.
            output_tokens: Output tokens of these exchanges.
            price: Price of these exchanges.
            cost: Cost of all attempts, if known.
        """
        self.input_tokens, self.output_tokens, self.price = input_tokens, output_tokens, price
        # `price` is part of the cost of earlier attempts, and must not be counted twice.
        self._earlier_cost = max(Decimal(0), max(self._earlier_cost, cost) - (price or 0))
        self._transcript.restore(exchanges)

    def request(self, reply: Reply) -> list[Message] | None:
        """Return the messages of the request that led to ``reply``, or None if they were not recorded."""
        return self._transcript.request(reply) if isinstance(reply, Exchange) else None

    @property
    def cost(self) -> Decimal | None:
        """Cost of all attempts; None for a model without prices."""
        return self._earlier_cost + (self.price or 0) if self.price is not None or self._earlier_cost else None

    @property
    def last_tools(self) -> tuple[str, ...]:
        """Names of the tools of the last request, in order."""
        return self._transcript.tools

    async def ask(self, messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> Reply:
        """Send the messages to the model, record the exchange, and return the reply.

        Raises:
            StopEpisode: The token budget or the cost limit is used up, the deadline has passed, or the person who acts
                as the model has quit.
            ContextLengthExceeded: The request is too long. Remove messages and try again.
            ModelError: The request failed.
        """
        if self._token_budget is not None and self.input_tokens + self.output_tokens >= self._token_budget:
            raise StopEpisode(EndReason.TOKEN_BUDGET_EXHAUSTED)
        if self._cost_limit is not None and (self.cost or 0) >= self._cost_limit:
            raise StopEpisode(EndReason.COST_LIMIT_REACHED)
        limit = asyncio.timeout_at(self.deadline)
        try:
            with genai_span("chat", self.model.name, kind="client") as asking:
                async with limit:
                    reply = await self.model.complete(
                        messages,
                        tools,
                        session=self._session,
                        seed=self._seed,
                        temperature=self._temperature,
                        waiting=self._waiting,
                    )
                if asking is not None:
                    describe_chat(asking, self.model, messages, reply, seed=self._seed, temperature=self._temperature)
        except TimeoutError:
            if limit.expired():
                raise StopEpisode(EndReason.DEADLINE_EXCEEDED) from None
            raise
        except HumanQuit:
            raise StopEpisode(EndReason.CANCELLED) from None
        self._account(reply)
        self._listener(self._transcript.record(messages, reply, tools))
        return reply

    def count(self, messages: Sequence[Message], tools: Sequence[ToolDefinition] = ()) -> int:
        """Return the number of tokens of a request, exact or estimated."""
        return self.model.count_tokens(messages, tools)

    @property
    def prompt_limit(self) -> int | None:
        """Maximum number of tokens of a request that leaves room for the reply; None if the window is unknown."""
        window = self.model.context_limit
        if window is None:
            return None
        low, high = _REPLY_TOKENS
        reply = self.model.reply_limit or min(high, max(low, window // _REPLY_SHARE))
        return max(window - reply, window // 2)

    def close(self) -> None:
        """Release the resources that the model holds for the episode."""
        self.model.release(self._session)

    def _account(self, reply: Reply) -> None:
        usage = reply.usage
        self.input_tokens += usage.input_tokens
        self.output_tokens += usage.output_tokens
        if usage.price is not None:
            self.price = (self.price or Decimal(0)) + Decimal(usage.price)


class Conversation:
    """The messages of an episode. Each turn appends the model's reply unchanged, and one message per call of it.

    Args:
        messages: The system message and the task message, or all messages of a resumed episode.
        count: Counts the tokens of messages.
    """

    def __init__(self, messages: Sequence[Message], count: Count) -> None:
        self.messages = list(messages)
        self._count = count

    def add_reply(self, reply: Reply) -> None:
        """Append the model's reply."""
        content = reply.content or reply.text or reply.refusal
        calls = () if reply.in_text else reply.calls
        # Some servers reject a message that has neither text nor a call.
        content = content or ("" if calls else _NOTHING)
        self.messages.append(Message(role="assistant", content=content, calls=calls, extra=reply.extra))

    def add_observation(self, reply: Reply, number: int, text: str, *, window: int) -> None:
        """Append the observation of call ``number`` of the reply, or of a reply without a call.

        If the observation has more than a quarter of ``window`` tokens, its middle is left out.
        """
        call = reply.calls[number] if number < len(reply.calls) else None
        if call is None:
            made = Message(role="user", content=text)
        elif reply.in_text:
            made = Message(role="user", content=write_result(call.tool, text))
        else:
            made = Message(role="tool", content=text, call_id=call.id)
        self.messages.append(self._shortened(made, window // _OBSERVATION_SHARE))

    def compact(self, limit: int) -> bool:
        """Shorten the messages so that the next request does not exceed ``limit`` tokens.

        The oldest observations are replaced by stubs until a third of ``limit`` is free. Freeing that much at once
        keeps changes of the prefix rare. If this is not enough, the observations of the last reply are replaced too,
        and the middle of the newest one is left out.

        Returns:
            False if nothing was changed.
        """
        before = list(self.messages)
        total = self._count(before)
        if total <= limit:
            return False
        found = [
            index
            for index, message in enumerate(before)
            if index >= HEAD and message.role != "assistant" and len(message.content) > _SHORTEST
        ]
        last_reply = max((index for index, message in enumerate(before) if message.role == "assistant"), default=0)
        for index in found:
            if total <= (limit * 2 // 3 if index < last_reply else limit) or index == len(before) - 1:
                break
            old = before[index]
            stub = msgspec.structs.replace(old, content=_STUB.format(len(old.content)))
            self.messages[index] = stub
            total -= self._count([old]) - self._count([stub])
        excess = self._count(self.messages) - limit
        if excess > 0 and found and found[-1] == len(before) - 1:
            newest = self.messages[-1]
            self.messages[-1] = self._shortened(newest, max(1, self._count([newest]) - excess))
        return self.messages != before

    def _shortened(self, message: Message, tokens: int) -> Message:
        def size(text: str) -> int:
            return self._count([msgspec.structs.replace(message, content=text)])

        return msgspec.structs.replace(message, content=shorten_to_tokens(message.content, tokens, size))


def shorten(text: str, characters: int) -> str:
    """Shorten ``text`` to about this many characters. Its middle is replaced by a mark that shows the cut."""
    keep = max(characters, _SHORTEST)
    if len(text) <= keep + 64:
        return text
    half = keep // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters left out …]\n{text[-half:]}"


def shorten_to_tokens(text: str, tokens: int, count: Callable[[str], int]) -> str:
    """Shorten ``text`` to ``tokens``, or to the shortest result of ``shorten``. Empty if ``tokens`` is not positive."""
    if tokens <= 0:
        return ""
    size, keep = count(text), len(text)
    shortened = text
    while size > tokens and keep > _SHORTEST:
        keep = max(_SHORTEST, min(keep * 9 // 10, keep * tokens // size))
        shortened = shorten(text, keep)
        size = count(shortened)
    return shortened


def describe_chat(
    asking: OpenSpan,
    model: Model,
    messages: Sequence[Message],
    reply: Reply,
    *,
    seed: int | None,
    temperature: str | None,
) -> None:
    """Set the attributes of a completed request. Its texts are included only if the user has enabled capturing."""
    usage = reply.usage
    asking.set("gen_ai.provider.name", "human" if model.interactive else "openai")
    asking.set("gen_ai.request.model", model.name)
    asking.set("gen_ai.request.seed", seed)
    asking.set("gen_ai.request.temperature", None if temperature is None else float(temperature))
    asking.set("gen_ai.response.finish_reasons", (clean(reply.finish_reason, 64),))
    asking.set("gen_ai.usage.input_tokens", usage.input_tokens)
    asking.set("gen_ai.usage.output_tokens", usage.output_tokens)
    asking.set("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens or None)
    asking.set("dgym.price", usage.price)
    asking.set("dgym.tries", reply.tries)
    asking.set("dgym.queue_seconds", reply.seconds_queue)
    if capturing():
        asking.set("gen_ai.input.messages", _json(newest([_message(each) for each in messages])))
        asking.set("gen_ai.output.messages", _json([_reply(reply)]))


def newest(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the last messages that fit into ``CONTENT_CHARACTERS``, in order."""
    room, kept = CONTENT_CHARACTERS, []
    for message in reversed(messages):
        room -= len(_json(message))
        if room < 0:
            break
        kept.append(message)
    return kept[::-1]


def _message(message: Message) -> dict[str, Any]:
    if message.role == "tool":
        answer = {"type": "tool_call_response", "id": message.call_id, "response": clean(message.content)}
        return {"role": "tool", "parts": [answer]}
    return {"role": message.role, "parts": [*_text(message.content), *_calls(message.calls)]}


def _reply(reply: Reply) -> dict[str, Any]:
    reasoning = [{"type": "reasoning", "content": clean(reply.reasoning)}] if reply.reasoning else []
    parts = [*reasoning, *_text(reply.text), *_calls(reply.calls)]
    return {"role": "assistant", "parts": parts, "finish_reason": clean(reply.finish_reason)}


def _text(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "content": clean(text)}] if text else []


def _calls(calls: Sequence[Any]) -> list[dict[str, Any]]:
    return [
        {
            "type": "tool_call",
            "id": clean(call.id),
            "name": clean(call.tool),
            "arguments": clean(call.raw) if call.arguments is None else call.arguments,
        }
        for call in calls
    ]


def _json(value: Any) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=repr).decode()
    except UnicodeEncodeError:
        # The arguments of a call contain an unpaired surrogate.
        return clean(repr(value))
