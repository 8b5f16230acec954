"""One episode's conversation with its model: the token budget, the deadline, and the record of its exchanges."""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal

import msgspec

from dgym.agents.telemetry import describe_chat
from dgym.errors import PersonLeft
from dgym.llm import Message, Model, ModelCall, Reply, ToolDefinition, Waiting
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
    those sent for the first time, whose numbers go on from the last one of the exchange before. Calls have ``raw`` only
    where their arguments could not be read.
    """

    sent: tuple[tuple[int, int], ...]
    messages: tuple[Message, ...] = ()


class Transcript:
    """Numbers the messages of one episode."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._count = 0

    def restore(self, exchanges: Iterable[Exchange]) -> None:
        """Go on from exchanges that an earlier worker wrote into the same trajectory."""
        for exchange in exchanges:
            for message in exchange.messages:
                self._numbers.setdefault(_key(message), self._count)
                self._count += 1

    def record(self, messages: Sequence[Message], reply: Reply) -> Exchange:
        """The exchange in which ``messages`` were sent and ``reply`` came back."""
        numbers, new = [], []
        for sent in messages:
            message = msgspec.structs.replace(sent, calls=_recorded(sent.calls))
            key = _key(message)
            number = self._numbers.get(key)
            if number is None:
                number = self._numbers[key] = self._count
                self._count += 1
                new.append(message)
            numbers.append(number)
        fields = msgspec.structs.asdict(reply) | {"calls": _recorded(reply.calls)}
        return Exchange(sent=tuple(ranges(numbers)), messages=tuple(new), **fields)


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
    """The calls without the text of those that could be read, which says no more than their arguments."""
    return tuple(call if call.arguments is None else msgspec.structs.replace(call, raw="") for call in calls)


_REPLY_SHARE = 5
_REPLY_TOKENS = (1_024, 16_384)
"""Where no limit of replies is configured, a fifth of the context window is kept for one, within these bounds."""


class Chat:
    """An agent's access to its model.

    ``listener`` gets every exchange before the agent gets the reply, ``waiting`` what a request waits for. ``deadline``
    is the time of the event loop at which the episode ends and requests to the model are cancelled; None before the
    reset.
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
        self._listener = listener
        self._waiting = waiting
        self._transcript = Transcript()

    def resume(
        self, exchanges: Iterable[Exchange], *, input_tokens: int, output_tokens: int, price: Decimal | None
    ) -> None:
        """Go on from the exchanges and the usage of an earlier worker."""
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
        self._listener(self._transcript.record(messages, reply))
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
