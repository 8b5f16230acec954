"""Requests to OpenAI-compatible servers and to Azure OpenAI. Only this module uses the package ``openai``.

The retries of the package are disabled, because ``dgym.llm._faults`` implements retries and records the waits. For
Azure OpenAI without keys, the package ``azure-identity`` supports ``az login``, managed identities and workload
identities.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import cache
from typing import Any

import httpx2 as httpx  # the HTTP library of the openai package
import openai

from dgym.errors import ModelConfigError
from dgym.llm._config import ModelSettings, Secret
from dgym.llm._faults import Fault, RequestFailed, classify

GetToken = Callable[[], Awaitable[str]]

_NO_KEY = "none"
"""Key for servers that do not need one. With an empty key, the package would send them OPENAI_API_KEY."""

_CONNECT_SECONDS = 30.0

_LARGEST_REPLY = 16 * 1024**2
"""Maximum size of a response in bytes. The longest reply of a model with token probabilities is smaller."""


@cache
def _tls() -> ssl.SSLContext:
    """Return the TLS settings of all connections: the package would read the certificates again for each."""
    return httpx.create_ssl_context()


class OpenAIConnection:
    """Connections to one endpoint.

    Args:
        settings: The settings of the model.
        url: URL of the endpoint.
        get_token: Returns a token for the Authorization header. Default: ``settings.api_key`` is used.
        capture: If given, it is called with the body of each request, and the request is not sent.
    """

    def __init__(
        self,
        settings: ModelSettings,
        url: str,
        get_token: GetToken | None = None,
        capture: Callable[[bytes], None] | None = None,
    ) -> None:
        self._model = settings.model
        self._api = settings.api
        self._seconds = settings.timeout_seconds
        self._http = openai.DefaultAsyncHttpxClient(
            timeout=openai.Timeout(settings.timeout_seconds, connect=min(_CONNECT_SECONDS, settings.timeout_seconds)),
            # Otherwise prompts and keys could be sent to another server than the configured one.
            follow_redirects=False,
            # A small compressed body may expand to a gigabyte.
            headers={"Accept-Encoding": "identity"},
            verify=_tls(),
        )
        before = _sender(settings.headers) if capture is None else _capture_hook(capture)
        self._http.event_hooks = {"request": [before], "response": [_bound]}
        self._client = _client(settings, url, get_token, self._http)

    async def send(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> bytes:
        """Send one request and return the body of the response.

        Raises:
            RequestFailed: The connection failed, the response did not arrive in time, or its status is an error.
        """
        try:
            # The timeout of the package only limits the time between bytes. A slow response would never reach it.
            async with asyncio.timeout(self._seconds):
                # As extra_body, the body is sent unchanged. As arguments, the package would copy every message of a
                # long conversation, and reject parameters that only some servers support.
                if self._api == "responses":
                    answer = await self._client.responses.with_raw_response.create(
                        model=self._model, input=[], extra_body=dict(body), extra_headers=dict(headers)
                    )
                    return answer.content
                response = await self._client.chat.completions.with_raw_response.create(
                    model=self._model, messages=[], extra_body=dict(body), extra_headers=dict(headers)
                )
                return response.content
        except (openai.APITimeoutError, TimeoutError):
            raise RequestFailed(Fault.TIMEOUT, "no answer in time") from None
        except openai.APIConnectionError as error:
            if isinstance(error.__cause__, RequestFailed):
                raise error.__cause__ from None
            raise RequestFailed(Fault.CONNECTION, _innermost(error)) from None
        except openai.APIStatusError as error:
            raise _refused(error) from None
        except openai.APIError as error:
            raise RequestFailed(Fault.BAD_REPLY, error.message) from None

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()


def _client(
    settings: ModelSettings, url: str, get_token: GetToken | None, http: openai.DefaultAsyncHttpxClient
) -> openai.AsyncOpenAI:
    key = settings.api_key.reveal() if settings.api_key else None
    if settings.is_azure:
        return openai.AsyncAzureOpenAI(
            azure_endpoint=url,
            api_version=settings.api_version,
            api_key=key,
            azure_ad_token_provider=get_token,
            max_retries=0,
            http_client=http,
        )
    return openai.AsyncOpenAI(base_url=url, api_key=get_token or key or _NO_KEY, max_retries=0, http_client=http)


def _sender(headers: Mapping[str, Secret]) -> Callable[[Any], Awaitable[None]]:
    """Return a hook that adds the configured headers directly before sending, so that request logs do not have them."""

    async def add(request: Any) -> None:
        request.headers.update({name: secret.reveal() for name, secret in headers.items()})

    return add


def _capture_hook(keep: Callable[[bytes], None]) -> Callable[[Any], Awaitable[None]]:
    """Return a hook that calls ``keep`` with the body of the request, and aborts the request before it is sent."""

    async def end(request: Any) -> None:
        keep(request.content)
        raise RequestFailed(Fault.REJECTED, "the request is shown and not sent")

    return end


async def _bound(response: Any) -> None:
    """Limit the size of a response. A hook that is called before the body is read."""
    encoding = response.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise RequestFailed(
            Fault.BAD_REPLY,
            f"the answer is compressed ({encoding[:40]}), which the request does not allow; disable compression",
        )
    response.stream = _BoundedStream(response.stream)


class _BoundedStream(httpx.AsyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = _LARGEST_REPLY
        async for chunk in self._stream:
            left -= len(chunk)
            if left < 0:
                raise RequestFailed(Fault.BAD_REPLY, f"the answer has more than {_LARGEST_REPLY:,} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def _refused(error: openai.APIStatusError) -> RequestFailed:
    elsewhere = error.response.headers.get("location")
    if error.status_code < 400 and elsewhere:
        return RequestFailed(Fault.NOT_FOUND, f"{error.status_code} the endpoint redirects to {elsewhere}")
    return classify(error.status_code, error.body or error.response.text, error.response.headers)


def _innermost(error: BaseException) -> str:
    """Return the message of the innermost cause, such as the error of the operating system."""
    while error.__cause__ is not None or error.__context__ is not None:
        error = error.__cause__ or error.__context__ or error
    return str(error) or type(error).__name__


def token_source(scope: str) -> Callable[[], Awaitable[str]]:
    """Return a function that returns a valid token for ``scope`` and renews it when necessary.

    Raises:
        ModelConfigError: The package ``azure-identity`` is not installed.
    """
    try:
        from azure.core.exceptions import ClientAuthenticationError
        from azure.identity import DefaultAzureCredential, get_bearer_token_provider
    except ModuleNotFoundError:
        raise ModelConfigError("scope needs a package; install it with: pip install 'dgym[azure]'") from None
    # The package caches a token until shortly before it expires. Its asynchronous API would need another HTTP client.
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
