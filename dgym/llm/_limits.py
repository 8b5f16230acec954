"""Limits of a model: requests per minute, tokens per minute, and concurrent requests.

The number of tokens of a request is estimated before it is sent.
"""

import asyncio
import contextlib
import hashlib
import os
import random
import tempfile
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from dgym.decoding import DECODE_ERRORS
from dgym.errors import ModelConfigError
from dgym.llm._calls import write_arguments
from dgym.llm._config import Secret, mask
from dgym.llm._protocol import ITEMS, Message, ToolDefinition
from dgym.locks import acquire, try_acquire

_MINUTE = 60.0
_POLL_SECONDS = 0.05
_CLOCK_SLACK_SECONDS = 60.0
_BYTES_PER_TOKEN = 3.5
_PER_MESSAGE = 4
_PER_REQUEST = 3
_LEARNING = 0.3
_FACTORS = (0.25, 4.0)
_REMEMBERED = 20_000
CountText = Callable[[str], int]


class Rate:
    """A limit per minute. Its state is one number: the time until which admitted requests have used up the rate."""

    def __init__(self, per_minute: int) -> None:
        burst = max(1, per_minute // 10)
        self._each = _MINUTE / (per_minute - burst + 1)
        self._ahead = self._each * (burst - 1)

    def reserve(self, paid_until: float, now: float, cost: int) -> tuple[float, float]:
        """Return the new state, and the seconds to wait before a request of ``cost`` may be sent."""
        paid_until = max(paid_until, now)
        wait = max(0.0, paid_until - self._ahead - now)
        return paid_until + cost * self._each, wait

    def correct(self, paid_until: float, difference: int) -> float:
        """Return the state after a request has cost ``difference`` more than was reserved."""
        return paid_until + difference * self._each


class _State(msgspec.Struct):
    """The state that processes share.

    Attributes:
        requests: State of the ``Rate`` of requests.
        tokens: State of the ``Rate`` of tokens.
        offset: Difference between the wall clock and the monotonic clock. It identifies the boot of the machine, at
            which the monotonic clock restarts and the other numbers become invalid.
    """

    requests: float = 0.0
    tokens: float = 0.0
    offset: float = 0.0


class ModelLimits:
    """The limits of one model."""

    def __init__(
        self,
        identity: str,
        *,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        max_concurrency: int | None = None,
        directory: Path | None = None,
    ) -> None:
        self._requests = Rate(requests_per_minute) if requests_per_minute else None
        self._tokens = Rate(tokens_per_minute) if tokens_per_minute else None
        self._places = max_concurrency
        # Episodes of this process first wait in this queue, so that only few of them poll the lock files.
        self._queue = asyncio.Semaphore(max_concurrency or 1)
        self._directory: Path | None = None
        if self._requests or self._tokens or self._places:
            digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
            self._directory = (directory or limits_directory()) / digest
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for one of the places for in-flight requests, and hold it for the duration of the context."""
        if self._places is None or self._directory is None:
            yield
            return
        async with self._queue:
            descriptor = await self._acquire_place(self._directory, self._places)
            try:
                yield
            finally:
                os.close(descriptor)

    async def admit(self, tokens: int, *, before_wait: Callable[[float], None] = lambda _: None) -> None:
        """Wait until a request of about this many tokens may be sent. ``before_wait`` is called with the seconds."""
        if self._directory is None or not (self._requests or self._tokens):
            return
        now = time.monotonic()
        with self._shared(self._directory) as state:
            wait = 0.0
            if self._requests:
                state.requests, wait = self._requests.reserve(state.requests, now, 1)
            if self._tokens:
                state.tokens, more = self._tokens.reserve(state.tokens, now, tokens)
                wait = max(wait, more)
        if wait > 0:
            before_wait(wait)
            await asyncio.sleep(wait)

    def correct(self, reserved: int, used: int) -> None:
        """Replace the ``reserved`` tokens of an admitted request by the ``used`` tokens."""
        if self._directory is not None and self._tokens and reserved != used:
            with self._shared(self._directory) as state:
                state.tokens = self._tokens.correct(state.tokens, used - reserved)

    async def _acquire_place(self, directory: Path, places: int) -> int:
        while True:
            for number in random.sample(range(places), places):
                descriptor = try_acquire(directory / f"place-{number}")
                if descriptor is not None:
                    return descriptor
            await asyncio.sleep(random.uniform(0.5, 1.5) * _POLL_SECONDS)  # noqa: S311 - no secret

    @contextlib.contextmanager
    def _shared(self, directory: Path) -> Iterator[_State]:
        """Lock and yield the state. It is written back at the end of the context."""
        descriptor = acquire(directory / "state")
        try:
            state = _decode(os.pread(descriptor, 4096, 0))
            yield state
            data = msgspec.json.encode(state)
            os.pwrite(descriptor, data, 0)
            os.ftruncate(descriptor, len(data))
        finally:
            os.close(descriptor)


def _decode(data: bytes) -> _State:
    offset = time.time() - time.monotonic()
    try:
        state = msgspec.json.decode(data, type=_State)
    except DECODE_ERRORS:
        return _State(offset=offset)
    return state if abs(state.offset - offset) < _CLOCK_SLACK_SECONDS else _State(offset=offset)


def limits_directory() -> Path:
    """Return the directory that the user's processes share. Most systems clear it at boot."""
    root = Path(tempfile.gettempdir()) / f"dgym-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    # Another user may have created a directory or a symbolic link of this name in the public temporary directory.
    if root.is_symlink() or root.stat().st_uid != os.getuid():
        return Path(tempfile.mkdtemp(prefix="dgym-"))
    return root / "limits"


def estimate_text(text: str) -> int:
    """Estimate the tokens of a text by its bytes. English has about 4 bytes per token, code and other scripts fewer."""
    return int(len(text.encode("utf-8", "replace")) / _BYTES_PER_TOKEN) + 1


class TokenCounter:
    """Counts the tokens of requests. Counts are corrected by a factor, which is learned from reported numbers."""

    def __init__(self, count_text: CountText = estimate_text) -> None:
        self._count_text = count_text
        self._factor = 1.0
        self._learned = False

    def count(self, messages: Sequence[Message], tools: Sequence[ToolDefinition] = ()) -> int:
        """Return the number of tokens of a request that the model will probably report."""
        return round(self._raw(messages, tools) * self._factor)

    def count_reply(self, text: str) -> int:
        """Return the number of tokens of a reply."""
        return round(self._count_text(text) * self._factor) if text else 0

    def calibrate(self, messages: Sequence[Message], tools: Sequence[ToolDefinition], reported: int) -> None:
        """Correct the factor by the number of tokens that the model reported for a request."""
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
    """Return the counting function of a tokenizer.

    Args:
        name: The path of a ``tokenizer.json``, or a name on the Hugging Face Hub.
        token: Hugging Face token, for tokenizers that are not public.

    Raises:
        ModelConfigError: The package ``tokenizers`` is not installed, or the tokenizer cannot be loaded.
    """
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        raise ModelConfigError(
            f"the tokenizer {name!r} needs a package; install it with: pip install 'dgym[tokenizers]'"
        ) from None
    path = Path(name).expanduser()
    # Threads of the tokenizer would only compete with the episodes, and cause warnings after a fork.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        if path.is_file():
            tokenizer = Tokenizer.from_file(str(path))
        else:
            tokenizer = Tokenizer.from_pretrained(name, token=token.reveal() if token else None)
    except Exception as error:  # the errors of the package do not have a common base class
        why = mask(
            str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__, filter(None, [token])
        )
        raise ModelConfigError(
            f"the tokenizer {name!r} cannot be loaded: {why[:300]}; check the name, HF_TOKEN and HF_HUB_OFFLINE, "
            "or leave tokenizer out for estimates"
        ) from None

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    return _CachedCount(count)


class _CachedCount:
    """Caches counts, because a request repeats nearly all texts of the previous one. Stores hashes instead of texts."""

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
