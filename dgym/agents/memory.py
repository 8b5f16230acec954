"""The last steps of an episode, as messages of a conversation."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from dgym.llm import Message, ModelCall, Reply
from dgym.wire import Step

Turn = tuple[Message, ...]
Count = Callable[[Sequence[Message]], int]

_SHARES = (8, 32)
"""Answers are cut first to an eighth of the limit, then to a thirty-second."""
_SHORTEST = 200
"""Characters of an answer that always stay."""
_CORRECTIONS = 4
"""Counting is not additive: a result that is still too long is made again for a lower limit."""


def fit(head: Sequence[Message], turns: Sequence[Turn], limit: int | None, count: Count) -> list[Message]:
    """The messages to send: all of them within ``limit`` tokens; else old answers are cut, then old turns left out.

    The result exceeds ``limit`` where the head and a short form of the newest turn do.
    """
    messages = _flat(head, turns)
    if limit is None:
        return messages
    total, aim = count(messages), limit
    for _ in range(_CORRECTIONS):
        if total <= limit:
            break
        messages = _fit(head, turns, aim, count)
        total = count(messages)
        aim -= max(1, total - limit)
    return messages


def shorten(text: str, characters: int) -> str:
    """``text`` with about that many characters, head and tail kept and the cut marked."""
    keep = max(characters, _SHORTEST)
    if len(text) <= keep + 64:
        return text
    half = keep // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters left out …]\n{text[-half:]}"


def shorten_to_tokens(text: str, tokens: int, count: Callable[[str], int]) -> str:
    """``text`` within ``tokens``, as far as ``shorten`` goes; empty for no tokens."""
    if tokens <= 0:
        return ""
    size, keep = count(text), len(text)
    shortened = text
    while size > tokens and keep > _SHORTEST:
        keep = max(_SHORTEST, min(keep * 9 // 10, keep * tokens // size))
        shortened = shorten(text, keep)
        size = count(shortened)
    return shortened


def _fit(head: Sequence[Message], turns: Sequence[Turn], limit: int, count: Count) -> list[Message]:
    kept = [list(turn) for turn in turns]
    sizes = [[count([message]) for message in turn] for turn in kept]
    total = count(_flat(head, turns))
    for share in _SHARES:
        for index in range(len(kept) - 1):
            if total <= limit:
                return _flat(head, kept)
            total -= _cut(kept[index], sizes[index], max(1, limit // share), count)
    while total > limit and len(kept) > 1:
        total -= sum(sizes.pop(0))
        del kept[0]
    if kept and total > limit:
        longest = max(sizes[-1])
        _cut(kept[-1], sizes[-1], max(1, longest - (total - limit)), count)
    return _flat(head, kept)


def _cut(turn: list[Message], sizes: list[int], tokens: int, count: Count) -> int:
    """Shorten the answers of ``turn`` that have more than ``tokens``; returns the tokens saved."""
    saved = 0
    for index, message in enumerate(turn):
        if message.role == "assistant" or sizes[index] <= tokens:
            continue

        def size(text: str, message: Message = message) -> int:
            return count([msgspec.structs.replace(message, content=text)])

        turn[index] = msgspec.structs.replace(message, content=shorten_to_tokens(message.content, tokens, size))
        saved += sizes[index]
        sizes[index] = count([turn[index]])
        saved -= sizes[index]
    return saved


def _flat(head: Sequence[Message], turns: Sequence[Sequence[Message]]) -> list[Message]:
    return [*head, *(message for turn in turns for message in turn)]


NO_CALL = "No tool was called. Answer with one call of a tool; submit, where it is among the tools, ends the work."
NOT_EXECUTED = "Not executed: one call at a time, so that you see what it does before the next."
_NOTHING = "(no answer)"


class Memory:
    """The last ``size`` steps: the model's messages and the answers to them."""

    def __init__(self, size: int) -> None:
        self._turns: deque[Turn] = deque(maxlen=size)

    @property
    def turns(self) -> list[Turn]:
        """The steps kept, oldest first."""
        return list(self._turns)

    def add(self, reply: Reply, observation: str) -> None:
        """Add a step: the model's reply and the observation that answers it."""
        said = Message(role="assistant", content=reply.text or reply.refusal or _said_by(reply), calls=reply.calls)
        if not reply.calls:
            self._turns.append((said, Message(role="user", content=observation)))
            return
        answers = [observation, *(NOT_EXECUTED for _ in reply.calls[1:])]
        self._turns.append(
            (
                said,
                *(
                    Message(role="tool", content=answer, call_id=call.id)
                    for call, answer in zip(reply.calls, answers, strict=True)
                ),
            )
        )

    def restore(self, steps: Iterable[Step], said: Mapping[int, Reply], *, clear_at_change: bool = False) -> None:
        """Add the steps of an earlier worker.

        ``said`` holds the model's reply before each step, by ``seq``; a step without one is added with its call alone.
        """
        for step in steps:
            if step.call is None:
                continue
            if clear_at_change and step.observation.diff:
                self.clear()
            call = ModelCall(id=f"step-{step.seq}", tool=step.call.tool, arguments=step.call.arguments)
            known = Reply(text="", calls=(call,) if call.tool else ())
            self.add(said.get(step.seq, known), step.observation.text)

    def clear(self) -> None:
        """Forget everything."""
        self._turns.clear()


def _said_by(reply: Reply) -> str:
    """A message needs a call or text: not every server accepts one that has neither."""
    return "" if reply.calls else _NOTHING
