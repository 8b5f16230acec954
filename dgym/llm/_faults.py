"""Failures of requests to models, and retries: limited in number, with exponential back-off and jitter.

docs/models.md contains the same table.
"""

import asyncio
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

LONGEST_WAIT = 300.0
"""Seconds. If the provider asks for a longer wait, as with a daily limit, the request fails at once."""


class Fault(StrEnum):
    """Kinds of failed requests. Mistakes of the model, such as invalid calls, are not failures but part of a reply."""

    RATE_LIMITED = "rate limited"
    OVERLOADED = "server error"
    CONNECTION = "connection failed"
    TIMEOUT = "timed out"
    BAD_REPLY = "unusable reply"
    FILTERED = "content filtered"
    TOO_LONG = "context too long"
    NO_QUOTA = "no quota"
    UNAUTHORIZED = "not authorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not found"
    REJECTED = "request rejected"


class FaultRetries(msgspec.Struct, frozen=True):
    """The retries after a fault.

    Attributes:
        tries: Maximum number of tries, including the first.
        first_wait: Seconds before the second try. The wait doubles with each try, and has jitter.
        longest_wait: Maximum wait in seconds.
    """

    tries: int
    first_wait: float = 1.0
    longest_wait: float = 60.0


TREATMENTS: Mapping[Fault, FaultRetries] = {
    Fault.RATE_LIMITED: FaultRetries(tries=8, first_wait=2.0),
    Fault.OVERLOADED: FaultRetries(tries=6),
    Fault.CONNECTION: FaultRetries(tries=6),
    Fault.TIMEOUT: FaultRetries(tries=3),
    Fault.BAD_REPLY: FaultRetries(tries=4),
    Fault.FILTERED: FaultRetries(tries=2),
    Fault.UNAUTHORIZED: FaultRetries(tries=1),
    Fault.TOO_LONG: FaultRetries(tries=1),
    Fault.NO_QUOTA: FaultRetries(tries=1),
    Fault.FORBIDDEN: FaultRetries(tries=1),
    Fault.NOT_FOUND: FaultRetries(tries=1),
    Fault.REJECTED: FaultRetries(tries=1),
}

REMEDIES: Mapping[Fault, str] = {
    Fault.RATE_LIMITED: "lower requests_per_minute, tokens_per_minute or max_concurrency of the model, or retry later",
    Fault.OVERLOADED: "the provider has a temporary problem; retry later",
    Fault.CONNECTION: "check the endpoint's address and port, the network and HTTPS_PROXY",
    Fault.TIMEOUT: "raise timeout_seconds, or check that the endpoint answers",
    Fault.BAD_REPLY: "the endpoint does not implement the Chat Completions API of OpenAI; its URL often ends in /v1",
    Fault.FILTERED: "the provider's content filter refused the request; the provider can change the filter",
    Fault.TOO_LONG: "set context_limit to the limit of the model, or lower max_tokens in generate_kwargs",
    Fault.NO_QUOTA: "the account has no quota left; check plan and billing at the provider",
    Fault.UNAUTHORIZED: "check api_key (is the environment variable the right one?), or for Azure: az login and scope",
    Fault.FORBIDDEN: "the key is valid but is not allowed to use this model; check its rights and region",
    Fault.NOT_FOUND: "check model (on Azure: the name of the deployment) and endpoint (an address often ends in /v1)",
    Fault.REJECTED: "put the parameter that the message names under ignore_kwargs, or correct generate_kwargs",
}

_LENGTH_CODES = {"context_length_exceeded", "exceed_context_size_error", "string_above_max_length"}
_LENGTH_WORDS = re.compile(
    r"context[ _-]?(length|window|size)|maximum (model|context|input|prompt) length|prompt is too long"
    r"|too many (input )?tokens|input (is|was) too long|max_model_len",
    re.IGNORECASE,
)
_LENGTH_NUMBER = re.compile(
    r"(?:context|model|input|prompt)[ _-]?(?:length|window|size|limit)\D{0,24}?(\d{3,9})", re.IGNORECASE
)
_FILTER_CODES = {"content_filter", "content_policy_violation", "responsibleaipolicyviolation", "invalid_prompt"}
_QUOTA_CODES = {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "insufficient_credits"}


class RequestFailed(Exception):
    """A failed request, independent of the HTTP library.

    Attributes:
        fault: Kind of the failure.
        message: Description of the failure.
        status: HTTP status; None without a response.
        wait: Seconds that the server asked to wait; None if it did not.
        limit: Maximum number of tokens that the server reported; None if it did not.
        tries: Number of tries so far.
    """

    def __init__(
        self,
        fault: Fault,
        message: str,
        *,
        status: int | None = None,
        wait: float | None = None,
        limit: int | None = None,
    ) -> None:
        super().__init__(message)
        self.fault = fault
        self.message = message
        self.status = status
        self.wait = wait
        self.limit = limit
        self.tries = 1


def classify(status: int, body: Any, headers: Mapping[str, str]) -> RequestFailed:
    """Return the exception for a response with an error status, or with an error instead of a reply.

    Args:
        status: HTTP status.
        body: The decoded error object, or text.
        headers: Headers of the response.
    """
    details = body if isinstance(body, dict) else {}
    nested = details.get("error")
    if isinstance(nested, dict):
        details = nested
    elif isinstance(nested, str):
        details = {"message": nested, **{key: value for key, value in details.items() if key != "error"}}
    codes = {str(details.get(key, "")).lower() for key in ("code", "type")}
    inner = details.get("innererror")
    if isinstance(inner, dict):
        codes.add(str(inner.get("code", "")).lower())
    message = " ".join(str(details.get("message") or body or "").split())[:1000]
    fault = _fault(status, codes, message)
    description = message if message.startswith(str(status)) else f"{status} {message or 'with no explanation'}"
    limit = _named_limit(message) if fault is Fault.TOO_LONG else None
    return RequestFailed(fault, description, status=status, wait=requested_wait(headers), limit=limit)


def _fault(status: int, codes: set[str], message: str) -> Fault:
    if codes & _QUOTA_CODES or status == 402:
        return Fault.NO_QUOTA
    if status in (400, 403, 413, 422) or status < 400:
        if codes & _FILTER_CODES:
            return Fault.FILTERED
        if codes & _LENGTH_CODES or _LENGTH_WORDS.search(message) or status == 413:
            return Fault.TOO_LONG
    # Some gateways respond with 200 and an error object whose code is the status.
    if status < 400:
        inside = next((int(code) for code in codes if code.isdigit() and 400 <= int(code) < 600), None)
        return _BY_STATUS.get(inside, Fault.BAD_REPLY) if inside else Fault.BAD_REPLY
    return _BY_STATUS.get(status, Fault.OVERLOADED if status >= 500 else Fault.REJECTED)


_BY_STATUS: Mapping[int, Fault] = {
    401: Fault.UNAUTHORIZED,
    403: Fault.FORBIDDEN,
    404: Fault.NOT_FOUND,
    405: Fault.NOT_FOUND,
    408: Fault.TIMEOUT,
    409: Fault.OVERLOADED,
    425: Fault.OVERLOADED,
    429: Fault.RATE_LIMITED,
    500: Fault.OVERLOADED,
    502: Fault.OVERLOADED,
    503: Fault.OVERLOADED,
    504: Fault.TIMEOUT,
    529: Fault.OVERLOADED,
}


def requested_wait(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Return the seconds to wait according to ``Retry-After`` or ``Retry-After-Ms``; None without these headers.

    ``Retry-After`` is a number of seconds or a date (RFC 9110, section 10.2.3).
    """
    lowered = {key.lower(): value for key, value in headers.items()}
    exact = _number(lowered.get("retry-after-ms"))
    if exact is not None:
        return exact / 1000
    text = lowered.get("retry-after")
    return None if text is None else _after(text, now)


def _after(text: str, now: float | None) -> float | None:
    seconds = _number(text)
    if seconds is not None:
        return seconds
    from email.utils import parsedate_to_datetime
    from time import time

    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - (time() if now is None else now))
    except (ValueError, TypeError, OverflowError):
        return None


def _number(text: str | None) -> float | None:
    if text is None or not re.fullmatch(r"\s*\d{1,9}(\.\d{1,9})?\s*", text):
        return None
    return float(text)


def _named_limit(message: str) -> int | None:
    found = _LENGTH_NUMBER.search(message)
    return int(found.group(1)) if found else None


T = TypeVar("T")

Sleep = Callable[[float], Awaitable[None]]
Watcher = Callable[[RequestFailed, float], None]
"""Called before each retry with the fault and the wait in seconds."""


class Retrying:
    """Repeats a request until it succeeds or its tries are used up."""

    def __init__(
        self,
        *,
        max_tries: int,
        treatments: Mapping[Fault, FaultRetries] = TREATMENTS,
        sleep: Sleep = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._max_tries = max_tries
        self._treatments = treatments
        self._sleep = sleep
        self._chance = chance

    async def run(self, request: Callable[[], Awaitable[T]], watcher: Watcher) -> tuple[T, int]:
        """Call ``request`` until it succeeds.

        Returns:
            The result of ``request``, and the number of tries.

        Raises:
            RequestFailed: The failure of the last try.
        """
        seen: Counter[Fault] = Counter()
        while True:
            try:
                return await request(), seen.total() + 1
            except RequestFailed as failure:
                seen[failure.fault] += 1
                failure.tries = seen.total()
                if not self._again(failure, seen):
                    raise
                wait = self.wait(failure, seen[failure.fault])
                watcher(failure, wait)
            await self._sleep(wait)

    def wait(self, failure: RequestFailed, times: int) -> float:
        """Return the seconds until the next try.

        This is slightly more than the server asked for, or 50 to 100 percent of a wait that doubles with each failure.
        The jitter prevents episodes that failed at the same time from retrying at the same time.
        """
        if failure.wait:
            return failure.wait + self._chance() * min(1.0, max(0.1, failure.wait / 10))
        treatment = self._treatments[failure.fault]
        full = min(treatment.longest_wait, treatment.first_wait * 2.0 ** (times - 1))
        return full * (0.5 + self._chance() / 2)

    def _again(self, failure: RequestFailed, seen: Counter[Fault]) -> bool:
        if failure.wait is not None and failure.wait > LONGEST_WAIT:
            return False
        return seen[failure.fault] < self._treatments[failure.fault].tries and seen.total() < self._max_tries
