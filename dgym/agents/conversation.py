"""The messages of one episode.

They are only appended to, so that a provider's prefix cache holds. ``compact`` is the exception.
"""

from collections.abc import Callable, Sequence

import msgspec

from dgym.llm import Message, Reply, write_result

Count = Callable[[Sequence[Message]], int]

HEAD = 2
"""The system message and the task message."""
_SHORTEST = 200
"""Characters of a text that always stay."""
_OBSERVATION_SHARE = 4
"""One observation takes at most a quarter of the window."""
_NOTHING = "(no answer)"
_STUB = "[An old observation of {:,} characters was removed to make room. Call the tool again to see it.]"


class Conversation:
    """Appends turns: the model's reply as it was received, and one message for each of its calls.

    Args:
        messages: The system message and the task message, or all messages of an episode that resumes.
        count: Counts the tokens of messages.
    """

    def __init__(self, messages: Sequence[Message], count: Count) -> None:
        self.messages = list(messages)
        self._count = count

    def add_reply(self, reply: Reply) -> None:
        """Append the model's reply."""
        content = reply.content or reply.text or reply.refusal
        calls = () if reply.in_text else reply.calls
        # Not every server accepts a message that has neither text nor a call.
        content = content or ("" if calls else _NOTHING)
        self.messages.append(Message(role="assistant", content=content, calls=calls, extra=reply.extra))

    def add_observation(self, reply: Reply, number: int, text: str, *, window: int) -> None:
        """Append the observation of the reply's call ``number``, or of a reply without a call.

        Its middle is left out where it would take more than a quarter of ``window`` tokens.
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
        """Make room for the next request, which must not exceed ``limit`` tokens; returns False if nothing was found.

        The oldest observations become stubs until a third of ``limit`` is free, so that the prefix changes rarely. If
        that does not suffice, the observations of the last reply follow, and the newest one loses its middle.
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
