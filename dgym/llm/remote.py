"""A model behind HTTP: limits, endpoints, retries, and the reply with its times and price."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from dgym.errors import ContentFiltered, ContextLengthExceeded, ModelError
from dgym.llm.config import DEFAULT_TRIES, ModelSettings
from dgym.llm.endpoints import Endpoints
from dgym.llm.faults import REMEDIES, TREATMENTS, Fault, RequestFailed, Treatment
from dgym.llm.limits import Limits
from dgym.llm.messages import request_body
from dgym.llm.protocol import Message, Reply, ToolDefinition, Usage
from dgym.llm.replies import read_reply
from dgym.llm.retry import Retrying
from dgym.llm.secrets import mask
from dgym.llm.tokens import TokenCounter

_LOG = logging.getLogger("dgym.llm")
_TRIES_BEFORE_MOVING = 3


class Connection(Protocol):
    """One endpoint."""

    async def send(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> bytes:
        """The response's body, or ``RequestFailed``."""
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
    ) -> None:
        self.name = name
        self.settings = settings
        self._connect = connect
        self._connections: dict[str, Connection] = {}
        self._endpoints = Endpoints(settings.urls)
        self._counter = counter or TokenCounter()
        self._limits = limits or limits_of(settings)
        self._retrying = retrying or Retrying(max_tries=settings.max_tries, treatments=treatments_of(settings))
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
    ) -> Reply:
        """Ask the model; see ``dgym.llm.Model``."""
        body = request_body(self.settings, messages, tools, seed=seed, temperature=temperature)
        expected = self._counter.count(messages, tools)
        request = _Request(self, body, session, expected)
        started = time.monotonic()
        try:
            (reply, reported), tries = await self._retrying.run(request.send, request.watch)
        except RequestFailed as failure:
            raise self._error(failure) from None
        if reported is not None:
            self._counter.learn(messages, tools, reported.input_tokens)
        return msgspec.structs.replace(
            reply,
            usage=reported or self._estimate(expected, reply),
            tries=tries,
            seconds_model=round(request.seconds, 6),
            seconds_queue=round(max(0.0, time.monotonic() - started - request.seconds), 6),
        )

    async def try_once(
        self, body: Mapping[str, Any], session: str, expected: int
    ) -> tuple[tuple[Reply, Usage | None], float]:
        """One request, within the limits, at the session's endpoint, and the seconds it took."""
        async with self._limits.place():
            reserved = expected + self._last_output
            await self._limits.admit(reserved)
            headers = {self.settings.session_header: session}
            connection = self._connection(self._endpoints.choose(session))
            started = time.monotonic()
            found = read_reply(await connection.send(body, headers), self.settings)
            seconds = time.monotonic() - started
        if found[1] is not None:
            self._limits.correct(reserved, found[1].total_tokens)
            self._last_output = found[1].output_tokens
        return found, seconds

    def noticed(self, failure: RequestFailed, wait: float, session: str) -> None:
        """Record a failed try before its retry."""
        why = mask(failure.message, self.settings.secrets)
        _LOG.info("model %s: %s (%s), try %d; again in %.1f s", self.name, failure.fault, why, failure.tries, wait)
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
        said = "".join([reply.reasoning, reply.text, *(call.tool + call.raw for call in reply.calls)])
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
        return ContentFiltered(text) if failure.fault is Fault.FILTERED else ModelError(text)


class _Request:
    """One call of ``complete`` across its tries."""

    def __init__(self, model: RemoteModel, body: Mapping[str, Any], session: str, expected: int) -> None:
        self._model = model
        self._body = body
        self._session = session
        self._expected = expected
        self.seconds = 0.0

    async def send(self) -> tuple[Reply, Usage | None]:
        found, self.seconds = await self._model.try_once(self._body, self._session, self._expected)
        return found

    def watch(self, failure: RequestFailed, wait: float) -> None:
        self._model.noticed(failure, wait, self._session)


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
