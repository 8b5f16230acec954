"""Serves stored results to users whom the API server authenticates and authorizes.

``GET`` requests below ``RESULTS_PATH`` require the user's bearer token for the API server, or a token for the audience
``RESULTS_AUDIENCE``. A user with the right to ``get`` ``episodes/results`` in a namespace may read its results. The
operator fetches them from an agent pod, because only the operator has the token of agent pods.
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
from dgym.wire.assignments import LIST_RESULTS, READ_RESULT, RESULTS_AUDIENCE, RESULTS_PATH, make_results_token
from dgym.wire.http import CallError, ErrorCode, error_body
from dgym.wire.server import refusal
from dgym_operator.actions import KeyUnusable, read_key
from dgym_operator.cache import AgentPod, AgentPods
from dgym_operator.settings import Settings

_SCHEME = "bearer "
_DECIDED_FOR_SECONDS = 15.0
_MOST_DECISIONS = 1024
_REVIEWERS = 8
_READERS = 8
"""Concurrent requests of one namespace. The limit keeps slow readers of one namespace from blocking others."""
_STALLED_SECONDS = 60.0
_KEY_SECONDS = 60.0
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
"""A part of a path in the store. It excludes ``.``, ``..`` and slashes."""


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
    """Checks with a TokenReview and a SubjectAccessReview if a user may read the results of a namespace.

    A decision is cached for 15 s. An expired token or a revoked right still works for this time.
    """

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._decisions: OrderedDict[tuple[bytes, str], tuple[float, CallError | None]] = OrderedDict()
        self._reviewers = asyncio.Semaphore(_REVIEWERS)

    async def check(self, authorization: str, namespace: str) -> None:
        """Check that the bearer token in the header may read the results of the namespace.

        Raises:
            CallError: The token has no access, or the API server did not decide.
        """
        token = authorization[len(_SCHEME) :].strip()
        if authorization[: len(_SCHEME)].lower() != _SCHEME or not token:
            raise CallError(ErrorCode.UNAUTHENTICATED, "a bearer token for the API server is required")
        key = (hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest(), namespace)
        until, refused = self._decisions.get(key, (float("-inf"), None))
        if self._clock.monotonic() >= until:
            refused = await self._review(token, namespace)
            self._decisions[key] = (self._clock.monotonic() + _DECIDED_FOR_SECONDS, refused)
            self._decisions.move_to_end(key)
            if len(self._decisions) > _MOST_DECISIONS:
                self._decisions.popitem(last=False)
        if refused is not None:
            raise CallError(refused.code, str(refused))

    async def _review(self, token: str, namespace: str) -> CallError | None:
        try:
            async with self._reviewers:
                user = await self._user(token, [RESULTS_AUDIENCE]) or await self._user(token, [])
                if user is None:
                    return CallError(ErrorCode.UNAUTHENTICATED, "the API server does not accept the token")
                allowed = await self._allowed(user, namespace)
        except Forbidden as error:
            raise CallError(ErrorCode.INTERNAL, f"the operator lacks the rights of rbac.aggregate: {error}") from error
        except ApiError as error:
            raise CallError(ErrorCode.BUSY, f"the API server does not review the token: {error}") from error
        if allowed:
            return None
        return CallError(
            ErrorCode.FORBIDDEN,
            f"user {user.get('username', '')} may not get episodes/results in namespace {namespace};"
            " the ClusterRoles view and edit there include it",
        )

    async def _user(self, token: str, audiences: list[str]) -> dict[str, Any] | None:
        """Return the user of a token for one of the audiences, or for the API server if there are no audiences."""
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

    def __init__(self, client: Client, agent_pods: AgentPods, settings: Settings, clock: Clock) -> None:
        self._reviews = Reviews(client, clock)
        self._client = client
        self._agent_pods = agent_pods
        self._settings = settings
        self._clock = clock
        self._key = b""
        self._key_until = float("-inf")
        self._readers: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_READERS))

    def routes(self) -> list[web.RouteDef]:
        """Return the routes for the operator's server. The path of a namespace only checks the access."""
        paths = (RESULTS_PATH + "/{namespace}", LIST_RESULTS.path, READ_RESULT.path)
        return [web.get(path, self._serve, allow_head=False) for path in paths]

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        try:
            parts = list(request.match_info.values())
            if not all(_PART.fullmatch(part) for part in parts):
                raise CallError(ErrorCode.NOT_FOUND, "the path does not exist")
            namespace = request.match_info["namespace"]
            await self._reviews.check(request.headers.get("Authorization", ""), namespace)
            if len(parts) == 1:
                return web.Response()
            async with self._readers[namespace]:
                return await self._fetch(request, namespace)
        except CallError as error:
            return refusal(error_body(error.code, str(error)))

    async def _fetch(self, request: web.Request, namespace: str) -> web.StreamResponse:
        agent_pod, token = (
            self._agent_pod(namespace),
            make_results_token(await self._obtain_key(), self._pool(namespace)),
        )
        limits = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=_STALLED_SECONDS)
        headers = {"Authorization": f"Bearer {token}", "Accept-Encoding": "identity"}
        url = f"{agent_pod.url}{request.path}"
        response: web.StreamResponse | None = None
        try:
            async with aiohttp.request("GET", url, headers=headers, timeout=limits, allow_redirects=False) as answer:
                if answer.status == ErrorCode.UNAUTHENTICATED.status:
                    raise CallError(ErrorCode.INTERNAL, f"agent pod {agent_pod.name} refuses the operator's token")
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
                # The Content-Length was already sent, so the client detects that the rest is missing.
                raise
            text = str(error) or type(error).__name__
            raise CallError(ErrorCode.BUSY, f"agent pod {agent_pod.name} does not answer: {text}") from error

    def _pool(self, namespace: str) -> str:
        pool = self._settings.agent_pools.of(namespace)
        if pool is None:
            raise CallError(ErrorCode.NOT_FOUND, f"no pool of agent pods serves the namespace {namespace}")
        return pool

    def _agent_pod(self, namespace: str) -> AgentPod:
        """Return an agent pod of the namespace's pool, preferably a ready one. Others may be able to answer too."""
        pool = self._pool(namespace)
        found = [agent_pod for agent_pod in self._agent_pods if agent_pod.url and agent_pod.pool == pool]
        if not found:
            raise CallError(ErrorCode.BUSY, f"no agent pod of namespace {namespace} runs")
        return max(found, key=lambda agent_pod: agent_pod.ready)

    async def _obtain_key(self) -> bytes:
        if self._clock.monotonic() >= self._key_until:
            try:
                self._key = await read_key(self._client, self._settings)
            except (ApiError, KeyUnusable) as error:
                raise CallError(ErrorCode.BUSY, f"the operator has no usable key: {error}") from error
            self._key_until = self._clock.monotonic() + _KEY_SECONDS
        return self._key
