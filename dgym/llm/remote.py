"""A model behind HTTP: limits, endpoints, retries, and the reply with its times and price."""

import asyncio
import contextlib
import hashlib
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Protocol

import msgspec

from dgym.errors import ContentFiltered, ContextLengthExceeded, ModelError, ModelMisconfigured, ModelUnavailable
from dgym.llm import completions, responses
from dgym.llm.config import DEFAULT_TRIES, ModelSettings, mask
from dgym.llm.faults import REMEDIES, TREATMENTS, Fault, RequestFailed, Retrying, Treatment
from dgym.llm.limits import Limits
from dgym.llm.protocol import Message, Reply, ToolDefinition, Usage, Waiting
from dgym.llm.tokens import TokenCounter

_LOG = logging.getLogger("dgym.llm")
_TRIES_BEFORE_MOVING = 3
_ERRORS: Mapping[Fault, type[ModelError]] = {
    Fault.FILTERED: ContentFiltered,
    **dict.fromkeys(
        (Fault.RATE_LIMITED, Fault.OVERLOADED, Fault.CONNECTION, Fault.TIMEOUT, Fault.NO_QUOTA), ModelUnavailable
    ),
    **dict.fromkeys((Fault.UNAUTHORIZED, Fault.FORBIDDEN, Fault.NOT_FOUND, Fault.REJECTED), ModelMisconfigured),
}
"""Errors of failed requests; of the other faults: ``ModelError``."""
NOTICED_SECONDS = 15.0
"""A request that waits as long reports what for."""


class Connection(Protocol):
    """One endpoint."""

    async def send(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> bytes:
        """The body of the response.

        Raises:
            RequestFailed: There is none: no connection, no response in time, an error's status.
        """
        ...

    async def close(self) -> None:
        """Close what is open."""
        ...


Connect = Callable[[str], Connection]


class RemoteModel:
    """Implements ``dgym.llm.Model``. Belongs to one event loop."""

    interactive = False

    def __init__(
        self,
        name: str,
        settings: ModelSettings,
        connect: Connect,
        *,
        counter: TokenCounter | None = None,
        limits: Limits | None = None,
        retrying: Retrying | None = None,
        noticed_seconds: float = NOTICED_SECONDS,
    ) -> None:
        self.name = name
        self.settings = settings
        self.failures: Counter[Fault] = Counter()
        """Requests that failed, those that were repeated too."""
        self._connect = connect
        self._connections: dict[str, Connection] = {}
        self._endpoints = Endpoints(settings.urls)
        self._counter = counter or TokenCounter()
        self._limits = limits or limits_of(settings)
        self._retrying = retrying or Retrying(max_tries=settings.max_tries, treatments=treatments_of(settings))
        self._noticed_seconds = noticed_seconds
        self._learned_limit: int | None = None
        self._last_output = 0

    @property
    def context_limit(self) -> int | None:
        """The configured limit, or the one the provider named when it was passed."""
        return self.settings.context_limit or self._learned_limit

    @property
    def reply_limit(self) -> int | None:
        """What ``generate_kwargs`` allows a reply."""
        return self.settings.reply_limit

    @property
    def tool_calling(self) -> Literal["native", "text"]:
        """As configured."""
        return self.settings.tool_calling

    def count_tokens(self, messages: Sequence[Message], tools: Sequence[ToolDefinition] = ()) -> int:
        """Tokens of a request."""
        return self._counter.count(messages, tools)

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition],
        *,
        session: str,
        seed: int | None = None,
        temperature: str | None = None,
        waiting: Waiting = lambda _: None,
    ) -> Reply:
        """Ask the model; see ``dgym.llm.Model``."""
        body = self.body(messages, tools, seed=seed, temperature=temperature)
        expected = self._counter.count(messages, tools)
        started = time.monotonic()
        wait = _Wait(waiting, self._noticed_seconds)
        try:
            (reply, reported), tries = await self._retrying.run(
                partial(self._try_once, body, tools, session, expected, wait),
                partial(self._before_retry, session, wait),
            )
        except RequestFailed as failure:
            raise self._error(failure) from None
        finally:
            wait.end()
        if reported is not None:
            self._counter.learn(messages, tools, reported.input_tokens)
        return msgspec.structs.replace(
            reply,
            usage=reported or self._estimate(expected, reply),
            tries=tries,
            seconds_queue=round(max(0.0, time.monotonic() - started - reply.seconds_model), 6),
        )

    @property
    def _uses_responses(self) -> bool:
        return self.settings.api == "responses"

    def body(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition],
        *,
        seed: int | None,
        temperature: str | None,
    ) -> dict[str, Any]:
        """The body of a request."""
        if self._uses_responses:
            return responses.request_body(self.settings, messages, tools, temperature=temperature)
        return completions.request_body(self.settings, messages, tools, seed=seed, temperature=temperature)

    async def _try_once(
        self,
        body: Mapping[str, Any],
        tools: Sequence[ToolDefinition],
        session: str,
        expected: int,
        wait: "_Wait",
    ) -> tuple[Reply, Usage | None]:
        """One request, within the limits, at the session's endpoint."""
        async with contextlib.AsyncExitStack() as stack:
            with wait.noticed(f"all of its {self.settings.max_concurrency} places are taken (max_concurrency)"):
                await stack.enter_async_context(self._limits.place())
            reserved = expected + self._last_output
            of_limit = "its limit of requests or tokens per minute is reached"
            await self._limits.admit(reserved, before_wait=partial(wait.begin, of_limit))
            headers = {self.settings.session_header: session}
            connection = self._connection(self._endpoints.choose(session))
            started = time.monotonic()
            wait.tries += 1
            try:
                with wait.noticed(
                    f"no answer yet, try {wait.tries}, timeout_seconds {self.settings.timeout_seconds:g}"
                ):
                    answer = await connection.send(body, headers)
                read_reply = responses.read_reply if self._uses_responses else completions.read_reply
                reply, reported = read_reply(answer, self.settings, tools)
            except RequestFailed as failure:
                self.failures[failure.fault] += 1
                raise
            seconds = time.monotonic() - started
        if reported is not None:
            self._limits.correct(reserved, reported.total_tokens)
            self._last_output = reported.output_tokens
        return msgspec.structs.replace(reply, seconds_model=round(seconds, 6)), reported

    def _before_retry(self, session: str, wait: "_Wait", failure: RequestFailed, seconds: float) -> None:
        why = mask(failure.message, self.settings.secrets)
        _LOG.info("model %s: %s (%s), try %d; again in %.1f s", self.name, failure.fault, why, failure.tries, seconds)
        wait.begin(f"{failure.fault}, try {failure.tries}", seconds)
        if failure.fault is Fault.CONNECTION and failure.tries == _TRIES_BEFORE_MOVING:
            self._endpoints.leave(session)

    def release(self, session: str) -> None:
        """Forget the episode's endpoint."""
        self._endpoints.release(session)

    async def close(self) -> None:
        """Close the connections to all endpoints."""
        while self._connections:
            _, connection = self._connections.popitem()
            await connection.close()

    def _connection(self, url: str) -> Connection:
        if url not in self._connections:
            self._connections[url] = self._connect(url)
        return self._connections[url]

    def _estimate(self, expected: int, reply: Reply) -> Usage:
        said = "".join([reply.reasoning, reply.content or reply.text, *(call.tool + call.raw for call in reply.calls)])
        made = self._counter.count_reply(said)
        return Usage(
            input_tokens=expected,
            output_tokens=made,
            price=self.settings.price(expected, made, 0),
            exact=False,
        )

    def _error(self, failure: RequestFailed) -> ModelError:
        why = mask(failure.message, self.settings.secrets)
        tried = f" after {failure.tries} tries" if failure.tries > 1 else ""
        text = f"model {self.name}: {failure.fault}{tried}: {why}; {REMEDIES[failure.fault]}"
        if failure.fault is Fault.TOO_LONG:
            self._learned_limit = failure.limit or self._learned_limit
            return ContextLengthExceeded(text, limit=failure.limit)
        return _ERRORS.get(failure.fault, ModelError)(text)


class _Wait:
    """What one request waits for, reported where the wait is long."""

    def __init__(self, report: Waiting, noticed_seconds: float) -> None:
        self.tries = 0
        self._report = report
        self._noticed = noticed_seconds
        self._began = time.monotonic()
        self._reported = False

    def begin(self, cause: str, seconds: float) -> None:
        """A wait of that many seconds begins."""
        if time.monotonic() - self._began + seconds >= self._noticed:
            self._notice(f"{cause}, again in {seconds:.0f} s")

    @contextlib.contextmanager
    def noticed(self, cause: str) -> Iterator[None]:
        """Report the cause if the context lasts."""
        timer = asyncio.get_running_loop().call_later(self._noticed, self._notice, cause)
        try:
            yield
        finally:
            timer.cancel()

    def end(self) -> None:
        """The request is answered, or given up."""
        if self._reported:
            self._report("")

    def _notice(self, cause: str) -> None:
        self._reported = True
        self._report(f"waiting for the model: {cause}")


def limits_of(settings: ModelSettings) -> Limits:
    """The limits of a model, shared by everything on this machine that uses the same addresses and key."""
    key = settings.api_key.reveal() if settings.api_key else settings.scope or ""
    return Limits(
        "\n".join([settings.model, key, *settings.urls]),
        requests_per_minute=settings.requests_per_minute,
        tokens_per_minute=settings.tokens_per_minute,
        max_concurrency=settings.max_concurrency,
    )


def treatments_of(settings: ModelSettings) -> Mapping[Fault, Treatment]:
    """The table, changed where the settings ask for it.

    More tries than by default are meant for what passes with time; with a login by token, one refused token is renewed.
    """
    changed = dict(TREATMENTS)
    if settings.max_tries > DEFAULT_TRIES:
        for fault in (Fault.RATE_LIMITED, Fault.OVERLOADED, Fault.CONNECTION):
            changed[fault] = msgspec.structs.replace(changed[fault], tries=settings.max_tries)
    if settings.scope is not None:
        changed[Fault.UNAUTHORIZED] = Treatment(tries=2)
    return changed


_REMEMBERED = 10_000
"""Sessions that were never released are forgotten from this number on, the least recently used first."""

_AVOIDED_SECONDS = 60.0


class Endpoints:
    """The endpoints of one model, and the episodes on each."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = tuple(urls)
        self._chosen: OrderedDict[str, str] = OrderedDict()
        self._loads = Counter(dict.fromkeys(self._urls, 0))
        self._avoided_until: dict[str, float] = {}

    def choose(self, session: str) -> str:
        """The endpoint of the episode; the least loaded if it has none yet."""
        if session in self._chosen:
            self._chosen.move_to_end(session)
        else:
            self._put(session, self._urls)
            if len(self._chosen) > _REMEMBERED:
                self.release(next(iter(self._chosen)))
        return self._chosen[session]

    def leave(self, session: str) -> None:
        """The episode's endpoint does not answer: give it another, and let new episodes avoid it for a while."""
        broken = self._chosen.get(session)
        others = [url for url in self._urls if url != broken]
        if broken is not None and others:
            self._avoided_until[broken] = time.monotonic() + _AVOIDED_SECONDS
            self.release(session)
            self._put(session, others)

    def release(self, session: str) -> None:
        """The episode has ended."""
        url = self._chosen.pop(session, None)
        if url is not None:
            self._loads[url] -= 1

    def loads(self) -> dict[str, int]:
        """How many episodes each endpoint has."""
        return dict(self._loads)

    def _put(self, session: str, urls: Sequence[str]) -> None:
        """Among equals the session decides, because other processes that count for themselves have episodes too."""
        now = time.monotonic()

        def order(url: str) -> tuple[bool, int, bytes]:
            avoided = self._avoided_until.get(url, now) > now
            return avoided, self._loads[url], hashlib.sha256(f"{session} {url}".encode()).digest()

        url = min(urls, key=order)
        self._chosen[session] = url
        self._loads[url] += 1
