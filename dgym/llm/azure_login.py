"""Tokens for Azure without keys: ``az login``, managed identities and workload identities."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from dgym.errors import ModelConfigError
from dgym.llm.faults import Fault, RequestFailed


def token_source(scope: str) -> Callable[[], Awaitable[str]]:
    """A function that returns a token for ``scope`` which is valid now; it asks for a new one when that is needed.

    Raises:
        ModelConfigError: The package is missing.
    """
    try:
        from azure.core.exceptions import ClientAuthenticationError
        from azure.identity import DefaultAzureCredential, get_bearer_token_provider
    except ModuleNotFoundError:
        raise ModelConfigError("scope needs a package; install it with: pip install 'dgym[azure]'") from None
    # The package keeps a token until shortly before its end. Its own asynchronous form would need another HTTP client.
    provider: Any = get_bearer_token_provider(DefaultAzureCredential(), scope)
    lock = asyncio.Lock()

    async def get_token() -> str:
        async with lock:
            try:
                return str(await asyncio.to_thread(provider))
            except ClientAuthenticationError as error:
                raise RequestFailed(Fault.UNAUTHORIZED, f"no Azure login: {_first_line(error)}") from None

    return get_token


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
