"""One episode's conversation with its model: the token budget, the deadline, and a record of everything said."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal

from dgym.agents.base import StopEpisode
from dgym.agents.exchange import Exchange, Transcript
from dgym.errors import PersonLeft
from dgym.llm import Message, Model, Reply, ToolDefinition
from dgym.wire import EndReason

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
