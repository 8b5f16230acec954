"""Retries of failed requests: bounded in number, with exponential backoff and jitter."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from dgym.llm.faults import LONGEST_WAIT, TREATMENTS, Fault, RequestFailed, Treatment

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
