"""The lease of an external driver: its calls renew it, and an episode whose lease has expired is ended."""

import asyncio
import contextlib
import time
from collections.abc import Iterator


class DriverLease:
    """Counts the driver's calls and the time without one, by this machine's clock."""

    def __init__(self) -> None:
        self._calls = 0
        self._renewed = time.monotonic()

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """A call of the driver: the lease does not run while it is served, and is renewed at its end."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            self._renewed = time.monotonic()

    async def expired(self, seconds: float) -> None:
        """Wait until there has been no call for ``seconds``, counted from now on."""
        self._renewed = time.monotonic()
        while True:
            left = seconds if self._calls else self._renewed + seconds - time.monotonic()
            if left <= 0:
                return
            await asyncio.sleep(left)
