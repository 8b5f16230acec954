"""Calls to pods over plain HTTP: agents and sidecars. Every call has a deadline, every answer a bound."""

import aiohttp

_ANSWER_LIMIT = 16 * 1024**2
_MESSAGE_LIMIT = 500


class CallFailed(Exception):
    """Base of what can go wrong; the call is made again later, since all of them may be repeated."""


class Unreachable(CallFailed):
    """No answer: the pod is gone, starting, or cut off."""


class Refused(CallFailed):
    """An answer, and not the one that was hoped for."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class PodCaller:
    """One session for all pods."""

    def __init__(self, session: aiohttp.ClientSession, *, deadline_seconds: float) -> None:
        self._session = session
        self._deadline = aiohttp.ClientTimeout(total=deadline_seconds, connect=min(3.0, deadline_seconds))

    async def call(self, method: str, url: str, *, token: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Status below 300, and the body.

        Raises:
            CallFailed: no answer, or one that is an error.
        """
        headers = {"Authorization": f"Bearer {token}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            async with self._session.request(
                method, url, data=body, headers=headers, timeout=self._deadline, allow_redirects=False
            ) as response:
                answer = await _read(response)
                if response.status >= 300:
                    raise Refused(response.status, answer[:_MESSAGE_LIMIT].decode("utf-8", "replace"))
                return response.status, answer
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(f"{method} {url}: {str(error) or type(error).__name__}") from error


async def _read(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > _ANSWER_LIMIT:
            raise Refused(response.status, f"the answer has more than {_ANSWER_LIMIT:,} bytes")
    return bytes(body)
