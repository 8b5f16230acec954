"""The requests of an episode, put together again from the exchanges that its trajectory records."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from dgym.agents.chat import Exchange
from dgym.llm import Message, render_call

_MOST_MESSAGES = 10_000
"""Messages in one request. An episode of 1,000 steps has about 2,000."""
_MOST_IN_ALL = 4_000_000
"""Messages in all requests of a trajectory: what its reader spends on a hostile one."""


class SentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request as it was sent.

    Attributes:
        numbers: The numbers of its messages, in order. A message's number is its place in ``known``.
        new: The numbers that the request before did not have.
        removed: How many messages of the request before were replaced by stubs.
        tools: The names of the tools, in order.
        known: Every message that was sent until then, and maybe later ones.
        exchange: The record of the request, with the reply.
    """

    numbers: tuple[int, ...]
    new: frozenset[int]
    removed: int
    tools: tuple[str, ...]
    known: Sequence[Message]
    exchange: Exchange

    @property
    def messages(self) -> list[Message]:
        """The messages, in order."""
        return [self.known[number] for number in self.numbers]


def sent_requests(exchanges: Iterable[Exchange | None]) -> Iterator[SentRequest | None]:
    """The request of each exchange.

    None where it cannot be put together: the record of a message is lost, or there are more messages than an agent
    sends. An exchange that is None could not be read; neither it nor a later one has a request, because its messages
    are not known.
    """
    known: list[Message] = []
    before: frozenset[int] = frozenset()
    tools: tuple[str, ...] = ()
    left = _MOST_IN_ALL
    for exchange in exchanges:
        if exchange is None:
            left = 0
            yield None
            continue
        known += exchange.messages
        tools = exchange.tools or tools
        count = sum(max(0, last - first + 1) for first, last in exchange.sent)
        in_range = all(0 <= first <= last < len(known) for first, last in exchange.sent)
        if not in_range or count > min(left, _MOST_MESSAGES):
            yield None
            continue
        left -= count
        numbers = tuple(number for first, last in exchange.sent for number in range(first, last + 1))
        present = frozenset(numbers)
        removed = sum(max(0, last - first + 1) for first, last in exchange.removed)
        yield SentRequest(
            numbers=numbers, new=present - before, removed=removed, tools=tools, known=known, exchange=exchange
        )
        before = present


def asking_steps(steps: Iterable[Sequence[Exchange | None]]) -> list[int | None]:
    """For each step, given by its exchanges, the place of the step whose last reply has its call.

    That is the step itself, or an earlier one where a reply has several calls; None where no model made the call.
    """
    found: list[int | None] = []
    asked, left = None, 0
    for place, exchanges in enumerate(steps):
        if exchanges:
            last = exchanges[-1]
            asked, left = place, max(1, len(last.calls) if last is not None else 0)
        found.append(asked if left > 0 else None)
        left -= 1
    return found


def message_parts(message: Message) -> list[tuple[str, str]]:
    """What a message holds, as it was sent: name and text of each part.

    The fields that the server gets back come first, then the text, whose name is empty, then the calls.
    """
    parts = [
        (name, value if isinstance(value, str) else msgspec.json.encode(value).decode())
        for name, value in message.extra.items()
    ]
    parts.append(("", message.content))
    functions = [render_call(call)["function"] for call in message.calls]
    parts += [(f"call {function['name']}", function["arguments"]) for function in functions]
    return [(name, text) for name, text in parts if text]
