"""Faults of requests to models, the treatment of each, and retries: bounded in number, with backoff and jitter.

docs/models.md has the same table.
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
"""Seconds. A request whose provider demands a longer pause (a daily limit) fails at once."""


class Fault(StrEnum):
    """Kinds of failed requests. A model's own mistakes are not among them: they are part of a reply."""

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


class Treatment(msgspec.Struct, frozen=True):
    """How often a request with this fault is made in all, and the waits in between: doubling, with jitter."""

    tries: int
    first_wait: float = 1.0
    longest_wait: float = 60.0


TREATMENTS: Mapping[Fault, Treatment] = {
    Fault.RATE_LIMITED: Treatment(tries=8, first_wait=2.0),
    Fault.OVERLOADED: Treatment(tries=6),
    Fault.CONNECTION: Treatment(tries=6),
    Fault.TIMEOUT: Treatment(tries=3),
    Fault.BAD_REPLY: Treatment(tries=4),
    Fault.FILTERED: Treatment(tries=2),
    Fault.UNAUTHORIZED: Treatment(tries=1),
    Fault.TOO_LONG: Treatment(tries=1),
    Fault.NO_QUOTA: Treatment(tries=1),
    Fault.FORBIDDEN: Treatment(tries=1),
    Fault.NOT_FOUND: Treatment(tries=1),
    Fault.REJECTED: Treatment(tries=1),
}

REMEDIES: Mapping[Fault, str] = {
    Fault.RATE_LIMITED: "lower requests_per_minute, tokens_per_minute or max_concurrency of the model, or run it later",
    Fault.OVERLOADED: "the provider has trouble; run it later",
    Fault.CONNECTION: "check the endpoint's address and port, the network and HTTPS_PROXY",
    Fault.TIMEOUT: "raise timeout_seconds, or look whether the endpoint answers at all",
    Fault.BAD_REPLY: "the endpoint does not speak the chat completions of OpenAI; an address often ends in /v1",
    Fault.FILTERED: "the provider's content filter objects; its operator can change the filter",
    Fault.TOO_LONG: "set context_limit to what the model takes, or lower max_tokens in generate_kwargs",
    Fault.NO_QUOTA: "the account has no quota left; check plan and billing at the provider",
    Fault.UNAUTHORIZED: "check api_key (is the environment variable the right one?), or for Azure: az login and scope",
    Fault.FORBIDDEN: "the key is known but may not use this model; check its rights and region",
    Fault.NOT_FOUND: "check model (on Azure: the name of the deployment) and endpoint (an address often ends in /v1)",
    Fault.REJECTED: "put the parameter it names under ignore_kwargs, or correct generate_kwargs",
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
    """One failed request, independent of the HTTP library.

    ``wait`` is what the server asked for, in seconds, ``limit`` the number of tokens it says fit, ``tries`` how often
    the request was made in all.
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
    """Classify an answer with an error status, or with an error in place of a reply.

    ``body`` is the error's object where there is one, or text.
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
    said = message if message.startswith(str(status)) else f"{status} {message or 'with no explanation'}"
    limit = _named_limit(message) if fault is Fault.TOO_LONG else None
    return RequestFailed(fault, said, status=status, wait=requested_wait(headers), limit=limit)


def _fault(status: int, codes: set[str], message: str) -> Fault:
    if codes & _QUOTA_CODES or status == 402:
        return Fault.NO_QUOTA
    if status in (400, 403, 413, 422) or status < 400:
        if codes & _FILTER_CODES:
            return Fault.FILTERED
        if codes & _LENGTH_CODES or _LENGTH_WORDS.search(message) or status == 413:
            return Fault.TOO_LONG
    # Some gateways answer 200 with an error inside, whose code is the status.
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
    """The pause that ``Retry-After`` asks for, in seconds or as a date, or in milliseconds in its sibling."""
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
    """Makes a request until it succeeds or its faults have used up their tries."""

    def __init__(
        self,
        *,
        max_tries: int,
        treatments: Mapping[Fault, Treatment] = TREATMENTS,
        sleep: Sleep = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._max_tries = max_tries
        self._treatments = treatments
        self._sleep = sleep
        self._chance = chance

    async def run(self, request: Callable[[], Awaitable[T]], watcher: Watcher) -> tuple[T, int]:
        """The value of ``request`` and the number of tries. Raises the last ``RequestFailed``."""
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
        """Seconds until the next try: what the server asked for and a little more, else doubling between half and full.

        Jitter keeps episodes that failed at the same moment from retrying at the same moment.
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
