"""Estimates of a request's tokens before it is sent."""

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from dgym.errors import ModelConfigError
from dgym.llm.calls import write_arguments
from dgym.llm.config import Secret, mask
from dgym.llm.protocol import ITEMS, Message, ToolDefinition

_BYTES_PER_TOKEN = 3.5
_PER_MESSAGE = 4
_PER_REQUEST = 3
_LEARNING = 0.3
_FACTORS = (0.25, 4.0)
_REMEMBERED = 20_000

CountText = Callable[[str], int]


def estimate_text(text: str) -> int:
    """Tokens of ``text`` by its bytes: English has four to a token, code and other scripts fewer."""
    return int(len(text.encode("utf-8", "replace")) / _BYTES_PER_TOKEN) + 1


class TokenCounter:
    """Counts requests; a factor between what it counted and what the model reported corrects later counts."""

    def __init__(self, count_text: CountText = estimate_text) -> None:
        self._count_text = count_text
        self._factor = 1.0
        self._learned = False

    def count(self, messages: Sequence[Message], tools: Sequence[ToolDefinition] = ()) -> int:
        """Tokens of a request as the model will probably count them."""
        return round(self._raw(messages, tools) * self._factor)

    def count_reply(self, text: str) -> int:
        """Tokens of a reply."""
        return round(self._count_text(text) * self._factor) if text else 0

    def learn(self, messages: Sequence[Message], tools: Sequence[ToolDefinition], reported: int) -> None:
        """The model reported ``reported`` tokens for this request."""
        raw = self._raw(messages, tools)
        if reported <= 0:
            return
        seen = min(max(reported / raw, _FACTORS[0]), _FACTORS[1])
        self._factor = self._factor + _LEARNING * (seen - self._factor) if self._learned else seen
        self._learned = True

    def _raw(self, messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> int:
        total = _PER_REQUEST + sum(self._message(message) for message in messages)
        if tools:
            total += self._count_text(msgspec.json.encode(tuple(dict(tool) for tool in tools)).decode())
        return total

    def _message(self, message: Message) -> int:
        if ITEMS in message.extra:
            return _PER_MESSAGE + self._count_text(msgspec.json.encode(message.extra[ITEMS], enc_hook=repr).decode())
        total = _PER_MESSAGE + (self._count_text(message.content) if message.content else 0)
        total += sum(
            self._count_text(f"{call.tool} {call.raw or write_arguments(call)}") + _PER_MESSAGE
            for call in message.calls
        )
        if message.extra:
            total += self._count_text(msgspec.json.encode(message.extra, enc_hook=repr).decode())
        return total


def load_tokenizer(name: str, token: Secret | None) -> CountText:
    """The counting function of a tokenizer: a ``tokenizer.json`` on disk, or a name on the Hugging Face Hub.

    Raises:
        ModelConfigError: The package is missing, or there is no such tokenizer, or it cannot be fetched.
    """
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        raise ModelConfigError(
            f"the tokenizer {name!r} needs a package; install it with: pip install 'dgym[tokenizers]'"
        ) from None
    path = Path(name).expanduser()
    # Several threads of the tokenizer's own would only compete with the episodes, and warn after a fork.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        if path.is_file():
            tokenizer = Tokenizer.from_file(str(path))
        else:
            tokenizer = Tokenizer.from_pretrained(name, token=token.reveal() if token else None)
    except Exception as error:  # its errors have no common class
        why = mask(
            str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__, filter(None, [token])
        )
        raise ModelConfigError(
            f"the tokenizer {name!r} cannot be loaded: {why[:300]}; check the name, HF_TOKEN and HF_HUB_OFFLINE, "
            "or leave tokenizer out for estimates"
        ) from None

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    return _Remembering(count)


class _Remembering:
    """Counts a text once: every request repeats nearly all of the one before. Remembers digests and not the texts."""

    def __init__(self, count: CountText) -> None:
        self._count = count
        self._known: OrderedDict[tuple[int, int], int] = OrderedDict()

    def __call__(self, text: str) -> int:
        key = (hash(text), len(text))
        if key not in self._known:
            self._known[key] = self._count(text)
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return self._known[key]
