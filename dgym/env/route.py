"""The way of requests to a sidecar: by its address, or through something that stands before it."""

from typing import Any

from dgym.errors import EpisodeOver
from dgym.wire import Result


class Finished(EpisodeOver):
    """The episode has finished, and its sandbox may be gone.

    Attributes:
        result: The verdict, as far as its Episode shows it; None: there is none.
    """

    def __init__(self, message: str, result: Result | None) -> None:
        super().__init__(message)
        self.result = result


class Route:
    """The direct way, by the sidecar's address.

    Attributes:
        url: What stands before the path of a call.
        authorization: The header that holds the signature of a request.
    """

    authorization = "Authorization"

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    async def options(self) -> dict[str, Any]:
        """Arguments of the next request besides those of the call: ``headers``, ``ssl``, ``proxy``."""
        return {}

    async def check(self, status: int | None = None, answer: bytes = b"") -> bool:
        """Whether a request that failed may be repeated: without an answer, or with one that the sidecar did not sign.

        Raises:
            DgymError: The cause, which no repetition cures.
        """
        del answer
        return status in (None, 502, 503, 504)

    async def close(self) -> None:
        """Close what the way needs. Idempotent."""
