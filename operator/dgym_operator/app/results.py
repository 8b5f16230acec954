"""Stored results for users, who prove to the API server who they are and what they may read.

``GET`` below ``RESULTS_PATH`` takes the user's bearer token for the API server, or one for the audience
``RESULTS_AUDIENCE``. Whoever may ``get`` ``episodes/results`` in a namespace gets its results from an agent pod; only
the operator has the token of agent pods.
"""

import asyncio
import hashlib
import re
from collections import OrderedDict, defaultdict
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from dgym.api import GROUP
from dgym.kube import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS, ApiError, Client, Clock, Forbidden
from dgym.wire.assignments import RESULTS_AUDIENCE, RESULTS_PATH, make_results_token
from dgym.wire.http import ErrorCode, error_body
from dgym_operator.actions import KeyUnusable, read_key
from dgym_operator.cache import Agent, Agents
from dgym_operator.settings import Settings

_SCHEME = "bearer "
_DECIDED_FOR_SECONDS = 15.0
_MOST_DECISIONS = 1024
_REVIEWERS = 8
_READERS = 8
"""Requests of one namespace at a time: slow readers of one must not keep others from theirs."""
_STALLED_SECONDS = 60.0
_KEY_SECONDS = 60.0
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
"""A part of a path in the store; none is ``.`` or ``..``, and none has a slash."""


class _Refusal(Exception):
    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class _TokenStatus(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: dict[str, Any] = {}


class _TokenReview(msgspec.Struct, frozen=True):
    status: _TokenStatus = _TokenStatus()


class _AccessStatus(msgspec.Struct, frozen=True):
    allowed: bool = False
    denied: bool = False


class _AccessReview(msgspec.Struct, frozen=True):
    status: _AccessStatus = _AccessStatus()


class Reviews:
    """Who may read the results of a namespace: a TokenReview and a SubjectAccessReview.

    A decision is kept for 15 s: a token that has expired, or a right that was taken away, still works for so long.
    """

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._decisions: OrderedDict[tuple[bytes, str], tuple[float, _Refusal | None]] = OrderedDict()
        self._reviewers = asyncio.Semaphore(_REVIEWERS)

    async def check(self, authorization: str, namespace: str) -> None:
        """Return if the bearer token in the header may read the results of the namespace.

        Raises:
            _Refusal: It may not, or the API server does not decide.
        """
        token = authorization[len(_SCHEME) :].strip()
        if authorization[: len(_SCHEME)].lower() != _SCHEME or not token:
            raise _Refusal(ErrorCode.UNAUTHENTICATED, "a bearer token for the API server is required")
        key = (hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest(), namespace)
        until, refusal = self._decisions.get(key, (float("-inf"), None))
        if self._clock.monotonic() >= until:
            refusal = await self._review(token, namespace)
            self._decisions[key] = (self._clock.monotonic() + _DECIDED_FOR_SECONDS, refusal)
            self._decisions.move_to_end(key)
            if len(self._decisions) > _MOST_DECISIONS:
                self._decisions.popitem(last=False)
        if refusal is not None:
            raise _Refusal(refusal.code, str(refusal))

    async def _review(self, token: str, namespace: str) -> _Refusal | None:
        try:
            async with self._reviewers:
                user = await self._user(token, [RESULTS_AUDIENCE]) or await self._user(token, [])
                if user is None:
                    return _Refusal(ErrorCode.UNAUTHENTICATED, "the API server does not accept the token")
                allowed = await self._allowed(user, namespace)
        except Forbidden as error:
            raise _Refusal(ErrorCode.INTERNAL, f"the operator lacks the rights of rbac.aggregate: {error}") from error
        except ApiError as error:
            raise _Refusal(ErrorCode.BUSY, f"the API server does not review the token: {error}") from error
        if allowed:
            return None
        return _Refusal(
            ErrorCode.FORBIDDEN,
            f"user {user.get('username', '')} may not get episodes/results in namespace {namespace};"
            " the ClusterRoles view and edit there include it",
        )

    async def _user(self, token: str, audiences: list[str]) -> dict[str, Any] | None:
        """The user of a token for one of the audiences; without any, for the API server."""
        body = TOKEN_REVIEWS.manifest(spec={"token": token, **({"audiences": audiences} if audiences else {})})
        review = await self._client.create(TOKEN_REVIEWS, body, decode=_TokenReview, priority=None)
        return review.status.user if review.status.authenticated and review.status.user.get("username") else None

    async def _allowed(self, user: dict[str, Any], namespace: str) -> bool:
        resource = {"group": GROUP, "resource": "episodes", "subresource": "results", "verb": "get"}
        spec = {
            "user": user["username"],
            "groups": user.get("groups") or [],
            "uid": user.get("uid") or "",
            "extra": user.get("extra") or {},
            "resourceAttributes": {**resource, "namespace": namespace},
        }
        body = SUBJECT_ACCESS_REVIEWS.manifest(spec=spec)
        review = await self._client.create(SUBJECT_ACCESS_REVIEWS, body, decode=_AccessReview, priority=None)
        return review.status.allowed and not review.status.denied


class ResultsApi:
    """Serves stored results on every replica, from an agent pod of the namespace."""

    def __init__(self, client: Client, agents: Agents, settings: Settings, clock: Clock) -> None:
        self._reviews = Reviews(client, clock)
        self._client = client
        self._agents = agents
        self._settings = settings
        self._clock = clock
        self._key = b""
        self._key_until = float("-inf")
        self._readers: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_READERS))

    def routes(self) -> list[web.RouteDef]:
        """What the operator's server serves; the namespace alone answers whether its results may be read."""
        paths = ("/{namespace}", "/{namespace}/{episode}", "/{namespace}/{episode}/{uid}/{attempt}/{file}")
        return [web.get(RESULTS_PATH + path, self._serve, allow_head=False) for path in paths]

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        try:
            parts = list(request.match_info.values())
            if not all(_PART.fullmatch(part) for part in parts):
                raise _Refusal(ErrorCode.NOT_FOUND, "there is nothing here")
            namespace = request.match_info["namespace"]
            await self._reviews.check(request.headers.get("Authorization", ""), namespace)
            if len(parts) == 1:
                return web.Response()
            async with self._readers[namespace]:
                return await self._fetch(request, namespace, "/".join(parts))
        except _Refusal as error:
            body = msgspec.json.encode(error_body(error.code, str(error)))
            return web.Response(body=body, status=error.code.status, content_type="application/json")

    async def _fetch(self, request: web.Request, namespace: str, path: str) -> web.StreamResponse:
        agent, token = self._agent(namespace), make_results_token(await self._obtain_key(), self._pool(namespace))
        limits = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=_STALLED_SECONDS)
        headers = {"Authorization": f"Bearer {token}", "Accept-Encoding": "identity"}
        url = f"{agent.url}{RESULTS_PATH}/{path}"
        response: web.StreamResponse | None = None
        try:
            async with aiohttp.request("GET", url, headers=headers, timeout=limits, allow_redirects=False) as answer:
                if answer.status == ErrorCode.UNAUTHENTICATED.status:
                    raise _Refusal(ErrorCode.INTERNAL, f"agent pod {agent.name} refuses the operator's token")
                response = web.StreamResponse(status=answer.status, headers={"X-Content-Type-Options": "nosniff"})
                response.content_type = answer.content_type
                response.content_length = answer.content_length
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    async with asyncio.timeout(_STALLED_SECONDS):
                        await response.write(chunk)
                await response.write_eof()
                return response
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if response is not None:
                # The length is announced already, so that the reader sees that the rest is missing.
                raise
            text = str(error) or type(error).__name__
            raise _Refusal(ErrorCode.BUSY, f"agent pod {agent.name} does not answer: {text}") from error

    def _pool(self, namespace: str) -> str:
        pool = self._settings.agent_pools.of(namespace)
        if pool is None:
            raise _Refusal(ErrorCode.NOT_FOUND, f"no pool of agents serves the namespace {namespace}")
        return pool

    def _agent(self, namespace: str) -> Agent:
        """One that is ready where there is one; another, whose store is away for assignments, may answer too."""
        pool = self._pool(namespace)
        found = [agent for agent in self._agents if agent.url and agent.pool == pool]
        if not found:
            raise _Refusal(ErrorCode.BUSY, f"no agent pod of namespace {namespace} runs")
        return max(found, key=lambda agent: agent.ready)

    async def _obtain_key(self) -> bytes:
        if self._clock.monotonic() >= self._key_until:
            try:
                self._key = await read_key(self._client, self._settings)
            except (ApiError, KeyUnusable) as error:
                raise _Refusal(ErrorCode.BUSY, f"the operator has no usable key: {error}") from error
            self._key_until = self._clock.monotonic() + _KEY_SECONDS
        return self._key
