"""How a request is made: throttled, timed, and repeated as long as that does no harm."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

from dgym.kube.clock import Clock
from dgym.kube.errors import ApiError, ConnectionLost, ServerUnavailable, TooManyRequests, Unauthorized
from dgym.kube.resources import Resource
from dgym.kube.throttle import Backoff, TokenBucket
from dgym.kube.transport import Answer, Lines, Request, Transport

Observe = Callable[[str, Resource, int, float], None]
"""Called once per request with verb, resource, HTTP status (0: no answer) and seconds."""

_TRIES = 4
_BACKOFF = Backoff(base=0.5, limit=5.0)
_LONGEST_WAIT = 30.0
"""A server that wants more patience than this gets it from the caller's queue, not from a worker that sleeps."""


class Caller:
    """Sends requests through a transport."""

    def __init__(
        self, transport: Transport, *, bucket: TokenBucket, clock: Clock, random: Random, observe: Observe | None
    ) -> None:
        self._transport = transport
        self._bucket = bucket
        self._clock = clock
        self._random = random
        self._observe = observe

    async def open(self) -> None:
        """Connections may be made from now on."""
        await self._transport.open()

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()

    async def call(
        self, verb: str, resource: Resource, request: Request, *, repeatable: bool, throttle: bool = False
    ) -> Answer:
        """The answer of the last try.

        Args:
            verb: For the metrics.
            resource: For the metrics.
            request: What to send.
            repeatable: Whether it does no harm to do it twice.
            throttle: Whether every try takes a token.
        """
        failures = 0
        while True:
            if throttle:
                await self._bucket.take()
            started = self._clock.monotonic()
            try:
                answer = await self._transport.send(request)
            except ApiError as error:
                self._tell(verb, resource, error.status, started)
                failures += 1
                wait = self._wait(error, failures, repeatable)
                if wait is None:
                    raise
            else:
                self._tell(verb, resource, answer.status, started)
                return answer
            await self._clock.sleep(wait)

    @asynccontextmanager
    async def stream(self, verb: str, resource: Resource, request: Request, *, silence: float) -> AsyncIterator[Lines]:
        """The lines of an answer that goes on. Never repeated: whoever reads it knows from where to go on."""
        started, opened = self._clock.monotonic(), False
        try:
            async with self._transport.stream(request, silence=silence) as lines:
                self._tell(verb, resource, 200, started)
                opened = True
                yield lines
        except ApiError as error:
            if not opened:
                self._tell(verb, resource, error.status, started)
                if isinstance(error, Unauthorized):
                    self._transport.expire_credentials()
            raise

    def _tell(self, verb: str, resource: Resource, status: int, started: float) -> None:
        if self._observe is not None:
            self._observe(verb, resource, status, self._clock.monotonic() - started)

    def _wait(self, error: ApiError, failures: int, repeatable: bool) -> float | None:
        if isinstance(error, Unauthorized) and failures == 1:
            self._transport.expire_credentials()
            return 0.0
        # Refused for being too many, a request had no effect: it may be repeated whatever it was.
        passes = isinstance(error, TooManyRequests) or (
            repeatable and isinstance(error, (ServerUnavailable, ConnectionLost))
        )
        if failures >= _TRIES or not passes or (error.retry_after or 0.0) > _LONGEST_WAIT:
            return None
        delay = _BACKOFF.delay(failures, self._random)
        if error.retry_after is not None:
            delay = max(delay, error.retry_after + self._random.random())
        return delay
