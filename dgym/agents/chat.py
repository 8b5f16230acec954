"""One episode's conversation with its model: its budgets, its deadline, and the record of its exchanges."""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal

import msgspec

from dgym.agents.telemetry import describe_chat
from dgym.errors import PersonLeft
from dgym.llm import Message, Model, ModelCall, Reply, ToolDefinition, Waiting, write_arguments
from dgym.tracing import genai_span
from dgym.wire import EndReason


class StopEpisode(Exception):
    """The agent is done for a reason that the environment cannot know; what is in the workspace is scored."""

    def __init__(self, reason: EndReason) -> None:
        super().__init__(reason)
        self.reason = reason


class Exchange(Reply, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One request to the model and its reply, as the trajectory records them.

    ``sent`` are the numbers of the request's messages, in order, as ranges with both ends included; ``messages`` are
    those sent for the first time, whose numbers go on from the last one of the exchange before. ``removed`` are the
    numbers of the messages that the request before had and that a compaction replaced. ``tools`` are the names of the
    tools in the order in which they were sent, where they differ from those of the exchange before; ``tools_digest`` is
    the SHA-256 of their schemas as JSON.
    """

    sent: tuple[tuple[int, int], ...]
    messages: tuple[Message, ...] = ()
    removed: tuple[tuple[int, int], ...] = ()
    tools: tuple[str, ...] = ()
    tools_digest: str = ""


class Transcript:
    """Numbers the messages of one episode."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._messages: list[Message] = []
        self._last: list[int] = []
        self.tools: tuple[str, ...] = ()
        """The names of the tools of the last request."""

    def restore(self, exchanges: Iterable[Exchange]) -> None:
        """Go on from exchanges that an earlier worker wrote into the same trajectory."""
        for exchange in exchanges:
            for message in exchange.messages:
                self._add(message)
            self._last = _numbers(exchange.sent)
            self.tools = exchange.tools or self.tools

    def request(self, exchange: Exchange) -> list[Message] | None:
        """The messages of a recorded request; None where the record of one is lost."""
        numbers = _numbers(exchange.sent)
        if not numbers or max(numbers) >= len(self._messages):
            return None
        return [self._messages[number] for number in numbers]

    def record(self, messages: Sequence[Message], reply: Reply, definitions: Sequence[ToolDefinition] = ()) -> Exchange:
        """The exchange in which ``messages`` and tools were sent and ``reply`` came back."""
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
    """The SHA-256 of tools with their schemas, in order; empty without tools."""
    if not definitions:
        return ""
    return hashlib.sha256(msgspec.json.encode(definitions, order="deterministic")).hexdigest()


def _numbers(sent: Iterable[tuple[int, int]]) -> list[int]:
    return [number for first, last in sent for number in range(first, last + 1)]


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
    return hashlib.blake2b(msgspec.json.encode(message, order="deterministic"), digest_size=16).digest()


def _recorded(calls: Iterable[ModelCall]) -> tuple[ModelCall, ...]:
    """The calls without ``raw`` where it follows from their arguments."""
    return tuple(msgspec.structs.replace(call, raw="") if call.raw == write_arguments(call) else call for call in calls)


_REPLY_SHARE = 5
_REPLY_TOKENS = (1_024, 16_384)
"""Where no limit of replies is configured, a fifth of the context window is kept for one, within these bounds."""


class Chat:
    """An agent's access to its model.

    ``listener`` gets every exchange before the agent gets the reply, ``waiting`` what a request waits for. ``deadline``
    is the time of the event loop at which the episode ends and requests to the model are cancelled; None before the
    reset. ``earlier_cost`` is that of all attempts so far, in the currency of ``cost_limit``.
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
        """Go on from the exchanges and the usage of an earlier worker; ``cost`` is that of all attempts, if known."""
        self.input_tokens, self.output_tokens, self.price = input_tokens, output_tokens, price
        # The exchanges that are recorded again were paid in an earlier attempt.
        self._earlier_cost = max(Decimal(0), max(self._earlier_cost, cost) - (price or 0))
        self._transcript.restore(exchanges)

    def request(self, reply: Reply) -> list[Message] | None:
        """The messages to which ``reply`` was the answer, if it was recorded by an earlier worker."""
        return self._transcript.request(reply) if isinstance(reply, Exchange) else None

    @property
    def cost(self) -> Decimal | None:
        """What all attempts have cost; None for a model without prices."""
        return self._earlier_cost + (self.price or 0) if self.price is not None or self._earlier_cost else None

    @property
    def last_tools(self) -> tuple[str, ...]:
        """The names of the tools of the last request, in their order."""
        return self._transcript.tools

    async def ask(self, messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> Reply:
        """The model's reply.

        Raises:
            StopEpisode: The token budget or the cost limit is used up, the deadline has passed, or the person who
                answers has left.
            ContextLengthExceeded: The messages are too long; leave some out and ask again.
            ModelError: The model does not answer.
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
        except PersonLeft:
            raise StopEpisode(EndReason.CANCELLED) from None
        self._account(reply)
        self._listener(self._transcript.record(messages, reply, tools))
        return reply

    def count(self, messages: Sequence[Message], tools: Sequence[ToolDefinition] = ()) -> int:
        """Tokens of a request, exact or estimated."""
        return self.model.count_tokens(messages, tools)

    @property
    def prompt_limit(self) -> int | None:
        """How many tokens a request may have, with room left for the reply; None where the window is not known."""
        window = self.model.context_limit
        if window is None:
            return None
        low, high = _REPLY_TOKENS
        reply = self.model.reply_limit or min(high, max(low, window // _REPLY_SHARE))
        return max(window - reply, window // 2)

    def close(self) -> None:
        """End the episode's use of the model."""
        self.model.release(self._session)

    def _account(self, reply: Reply) -> None:
        usage = reply.usage
        self.input_tokens += usage.input_tokens
        self.output_tokens += usage.output_tokens
        if usage.price is not None:
            self.price = (self.price or Decimal(0)) + Decimal(usage.price)
