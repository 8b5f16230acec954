"""Scripted server of OpenAI's chat completions and Responses API over real HTTP, including Azure's URLs.

    python tests/fakes/openai_server.py --port 0 --fault rate_limit --fault reset

prints its address and serves until it is interrupted. The name of the model in a request selects the policy
(``debugger``, ``rewriter``, ``scripted``, ``erratic-7``). Tests run it in their own loop
(``async with FakeOpenAI() as server``) or, for programs that they start, in a thread
(``with FakeOpenAI().in_thread() as server``).
"""

import argparse
import asyncio
import contextlib
import random
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from aiohttp import web

from tests.fakes import openai_responses
from tests.fakes.openai_answers import Answer, Call, prompt_tokens, render
from tests.fakes.openai_faults import MISTAKES, Fault, fail
from tests.fakes.openai_policies import Request, find_policy

__all__ = ["Answer", "Call", "FakeOpenAI", "Fault", "Received"]

MODELS = ("debugger", "rewriter", "erratic-1")


@dataclass(frozen=True)
class Received:
    """A received request, including requests that failed."""

    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: dict[str, Any]
    session: str
    raw: bytes = b""

    @property
    def chat(self) -> dict[str, Any]:
        """The body in the form of a chat completion request."""
        return openai_responses.as_chat(self.body) if "input" in self.body else self.body


@dataclass
class _Session:
    answered: int = 0
    answers_sent: int = 0
    last_body: dict[str, Any] = field(default_factory=dict)
    last_answer: Answer | None = None
    last_tokens: int = 0


class FakeOpenAI:
    """The server.

    ``script`` contains the answers of every session in order, for any model name. ``faults`` apply to the next
    requests, one each (None: no fault). ``fault_rate`` is the probability of transient faults, with the random
    ``seed``. ``received`` keeps the last ``remember`` requests, or all if it is None.
    """

    def __init__(
        self,
        *,
        script: Sequence[Answer] | None = None,
        faults: Iterable[Fault | str | None] = (),
        fault_rate: float = 0.0,
        seed: int = 0,
        api_key: str | None = None,
        context_limit: int | None = None,
        latency: float = 0.0,
        usage: bool = True,
        remember: int | None = None,
    ) -> None:
        self.faults = deque(Fault(fault) if isinstance(fault, str) else fault for fault in faults)
        self.received: list[Received] = []
        self._remember = remember
        self.most_at_once = 0
        self.url = ""
        self.port = 0
        self._script = script
        self._chance = random.Random(seed)
        self._fault_rate = fault_rate
        self._api_key = api_key
        self._context_limit = context_limit
        self._latency = latency
        self._usage = usage
        self._sessions: dict[str, _Session] = {}
        self._now = 0
        self._runner: web.AppRunner | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_post("/openai/deployments/{deployment}/chat/completions", self._complete)
        app.router.add_post("/v1/responses", self._complete)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/healthz", self._healthy)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self.url = f"http://{host}:{self.port}/v1"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @contextlib.contextmanager
    def in_thread(self) -> Iterator[Self]:
        """Serve from a separate thread while the block runs."""
        ready, loop = threading.Event(), asyncio.new_event_loop()

        def serve() -> None:
            loop.run_until_complete(self.start())
            loop.call_soon(ready.set)
            loop.run_forever()
            loop.run_until_complete(self.stop())
            loop.close()

        thread = threading.Thread(target=serve, name="fake-openai", daemon=True)
        thread.start()
        try:
            if not ready.wait(90):
                raise RuntimeError("the server did not start")
            yield self
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(90)

    def answer_as(self, other: "FakeOpenAI", session: str) -> None:
        """Continue a session of ``other``, which has stopped."""
        self._sessions[session] = other._sessions[session]

    async def _healthy(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": name, "object": "model"} for name in MODELS]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        async with self._counted():
            body = await request.json()
            received = Received(
                path=request.path,
                query=dict(request.query),
                headers={key.lower(): value for key, value in request.headers.items()},
                body=body,
                session=request.headers.get("X-Session-Id", ""),
                raw=await request.read(),
            )
            self.received.append(received)
            if self._remember is not None:
                del self.received[: -self._remember or None]
            if self._latency:
                await asyncio.sleep(self._latency)
            fault = self._fault(received)
            if fault is not None and fault.kind not in MISTAKES:
                return await fail(fault, request, limit=self._context_limit)
            return await self._answer(received, MISTAKES[fault.kind] if fault else None)

    @contextlib.asynccontextmanager
    async def _counted(self) -> AsyncIterator[None]:
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        try:
            yield
        finally:
            self._now -= 1

    def _fault(self, received: Received) -> Fault | None:
        if self._api_key is not None and self._key_of(received) != self._api_key:
            return Fault("unauthorized")
        if self.faults:
            return self.faults.popleft()
        if self._context_limit is not None and prompt_tokens(received.chat) > self._context_limit:
            return Fault("context_length")
        if self._chance.random() < self._fault_rate:
            return Fault(self._chance.choice(["server_error", "reset", "rate_limit", "not_json"]), retry_after="0.01")
        return None

    def _key_of(self, received: Received) -> str:
        return received.headers.get("api-key") or received.headers.get("authorization", "").removeprefix("Bearer ")

    async def _answer(self, received: Received, mistake: Answer | None) -> web.StreamResponse:
        session = self._sessions.setdefault(received.session, _Session())
        answer = mistake
        if answer is not None:
            session.answers_sent += 1
        else:
            # A client that lost the answer or was restarted repeats the request and gets the same answer.
            if session.last_answer is not None and session.last_body == received.body:
                answer = session.last_answer
            else:
                session.answers_sent += 1
                answer = self._decide(received, session.answered)
                session.last_body, session.last_answer = received.body, answer
                session.answered += 1
                await asyncio.sleep(answer.seconds if answer is not None else 0.0)
        if answer is None:
            error = {"message": f"The model {received.body.get('model')!r} does not exist", "code": "model_not_found"}
            return web.json_response({"error": error}, status=404)
        if received.path.endswith("/responses"):
            if (problem := openai_responses.problem(received.body)) is not None:
                return web.json_response({"error": {"message": problem, "type": "invalid_request_error"}}, status=400)
            make = openai_responses.render
        else:
            make = render
        document = make(answer, received.body, session.answers_sent, usage=self._usage, cached=session.last_tokens)
        session.last_tokens = prompt_tokens(received.chat)
        return web.json_response(document)

    def _decide(self, received: Received, answered: int) -> Answer | None:
        if self._script is not None:
            return self._script[min(answered, len(self._script) - 1)]
        policy = find_policy(str(received.body.get("model")))
        return policy(Request(received.chat, answered)) if policy is not None else None


async def _serve(server: FakeOpenAI, host: str, port: int) -> None:
    await server.start(host, port)
    print(server.url, flush=True)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="A scripted OpenAI-compatible server.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--api-key", help="refuse other keys")
    parser.add_argument("--context-limit", type=int, help="refuse longer prompts")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each answer")
    parser.add_argument("--fault", action="append", default=[], help="happens to the next request; may be repeated")
    parser.add_argument("--fault-rate", type=float, default=0.0, help="the share of requests that fail by chance")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    server = FakeOpenAI(
        faults=given.fault,
        fault_rate=given.fault_rate,
        seed=given.seed,
        api_key=given.api_key,
        context_limit=given.context_limit,
        latency=given.latency,
        remember=0,
    )
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(server, given.host, given.port))


if __name__ == "__main__":
    main()
