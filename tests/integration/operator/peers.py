"""Fakes of the operator's peers other than the API server: a kubelet, sidecars and agent pods."""

import asyncio
import base64
import contextlib
import inspect
import itertools
import json
import os
import ssl
import time
from datetime import UTC, datetime
from typing import Any, ClassVar

import aiohttp
import msgspec
from aiohttp import web

from dgym.wire import AttemptOutcome, EndReason
from dgym.wire.assignments import (
    HOUR_SECONDS,
    Assignment,
    AssignmentMode,
    AssignmentState,
    ModelOutage,
    make_agent_pod_key,
    make_assign_token,
)
from dgym.wire.http import AttemptState, BindRequest, Role, TerminatedResponse, WireMessage
from dgym.wire.outcome import TerminationMessage, encode_termination
from dgym.wire.signing import SIGNATURE_HEADER, content_digest, read_request, sign_answer
from tests.simulation import reports

GROUP = "/apis/dgym.dev/v1alpha1"
MERGE = "application/merge-patch+json"
DEADLINE = 90.0
_addresses = itertools.count(1)


def loopback_address() -> str:
    """A loopback address that only this process uses, so that pods of concurrent test runs do not share an address."""
    high, low = divmod(os.getpid(), 256)
    return f"127.{1 + high % 250}.{low}.{1 + next(_addresses) % 250}"


class Api:
    """A client of the API server that sends and returns plain JSON."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self.url = url

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(cls, server):
        connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=server.ca_file))
        headers = {"Authorization": f"Bearer {server.token}"}
        async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
            yield cls(session, server.url)

    async def call(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        data = None if body is None else json.dumps(body)
        async with self._session.request(method, self.url + path, data=data, headers={"Content-Type": kind}) as answer:
            text = await answer.text()
            if answer.status >= 300:
                raise aiohttp.ClientResponseError(
                    answer.request_info, answer.history, status=answer.status, message=text
                )
            return json.loads(text)

    async def find(self, path: str) -> Any:
        """Return the object, or None if the request fails."""
        with contextlib.suppress(aiohttp.ClientResponseError):
            return await self.call("GET", path)
        return None

    async def items(self, path: str) -> list[Any]:
        return (await self.call("GET", path))["items"]

    async def watch(self, path: str):
        """Yield (event type, object) for each existing object and for each later change."""
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._session.get(f"{self.url}{path}?watch=1", timeout=timeout, read_bufsize=2**22) as answer:
            try:
                async for line in answer.content:
                    event = json.loads(line)
                    yield event["type"], event["object"]
            finally:
                # A TLS shutdown would wait for a server that still sends, until after the end of the test's event loop.
                if answer.connection is not None and answer.connection.transport is not None:
                    answer.connection.transport.abort()


async def until(condition, what: str, seconds: float = DEADLINE):
    """Wait until the condition is true and return its value. Polls without a pause: state changes in milliseconds."""
    async with asyncio.timeout(seconds) as deadline:
        try:
            while True:
                found = condition()
                if inspect.isawaitable(found):
                    found = await found
                if found:
                    return found
                await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            if deadline.expired():
                raise AssertionError(f"not in {seconds} s: {what}") from None
            raise


class Sidecars:
    """One server for all sidecars of a test. The destination address of a call identifies the pod."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.statuses: dict[str, int] = {}
        self.answers: dict[str, WireMessage] = {
            "terminated": TerminatedResponse(expected=True),
            "state": AttemptState(),
        }
        self.forging: set[str] = set()
        self.keys: dict[str, str] = {}
        self.pooled: dict[str, str] = {}
        self.bound: list[tuple[str, int]] = []
        self.port = 0
        self._starts: list[asyncio.Task[None]] = []
        application = web.Application()
        application.router.add_route("*", "/v1/{verb}", self._answer)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)

    async def start(self) -> None:
        await self._runner.setup()
        site = web.TCPSite(self._runner, loopback_address(), 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def listen(self, key: str) -> str:
        """Add a sidecar with the key ``key`` for the role "operate", and return its address."""
        address = loopback_address()
        self.keys[address] = key
        # If its start is cancelled, a site is never closed. Kubelets are cancelled at the end of a test.
        self._starts.append(asyncio.ensure_future(web.TCPSite(self._runner, address, self.port).start()))
        await asyncio.shield(self._starts[-1])
        return address

    async def stop(self) -> None:
        await asyncio.gather(*self._starts, return_exceptions=True)
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        address = request.transport.get_extra_info("sockname")[0]
        verb = request.match_info["verb"]
        authorization, key = request.headers["Authorization"], self.keys[address]
        data = await request.read()
        if verb == "bind":
            key = self.pooled.get(address, key)
        signed = read_request({Role.OPERATE: key}, authorization, request.method, request.raw_path)
        if signed is None:
            raise web.HTTPUnauthorized
        assert signed.content == content_digest(data)
        if verb == "bind" and self.statuses.get(verb, 200) == 200:
            bound = msgspec.json.decode(data, type=BindRequest)
            self.keys[address], self.pooled[address] = bound.operate_sha256, key
            self.bound.append((bound.episode, bound.attempt))
        self.calls.append((verb, address))
        body, status = msgspec.json.encode(self.answers.get(verb, {})), self.statuses.get(verb, 200)
        signature = sign_answer("0" * 64 if verb in self.forging else key, authorization, status, body)
        return web.Response(body=body, status=status, headers={SIGNATURE_HEADER: signature})


class Kubelet:
    """Starts and ends the pods of one namespace: it writes the status that a kubelet would report."""

    def __init__(self, api: Api, namespace: str, sidecars: Sidecars) -> None:
        self._api = api
        self._sidecars = sidecars
        self.path = f"/api/v1/namespaces/{namespace}/pods"
        self.starting = True
        self.started: dict[str, str] = {}
        self.running: set[str] = set()
        self.most_running = 0
        self._seen: set[str] = set()
        self._states: dict[str, dict[str, Any]] = {}

    async def run(self) -> None:
        async with contextlib.aclosing(self._api.watch(self.path)) as events:
            async for kind, pod in events:
                await self._see(kind, pod["metadata"], is_gated=bool(pod["spec"].get("schedulingGates")))

    async def _see(self, kind: str, metadata: dict[str, Any], *, is_gated: bool) -> None:
        name = metadata["name"]
        is_sandbox = metadata.get("labels", {}).get("app.kubernetes.io/component") == "sandbox"
        if kind == "DELETED":
            self.running.discard(name)
        elif metadata.get("deletionTimestamp"):
            with contextlib.suppress(aiohttp.ClientResponseError):
                await self._api.call("DELETE", f"{self.path}/{name}?gracePeriodSeconds=0")
        elif is_sandbox and not is_gated and metadata["uid"] not in self._seen:
            self._seen.add(metadata["uid"])
            self.running.add(name)
            self.most_running = max(self.most_running, len(self.running))
            if self.starting:
                await self.start(name)

    async def start(self, name: str, address: str = "") -> None:
        """Schedule the pod and report that it is ready."""
        with contextlib.suppress(aiohttp.ClientResponseError):  # the pod may be deleted
            await self.schedule(name)
            self.started[name] = address or await self._sidecars.listen(await self._operate_key(name))
            await self.report(name, **reports.running(self.started[name], datetime.now(UTC)))

    async def _operate_key(self, name: str) -> str:
        """The token digest in the sidecar's environment: of the operator's token, or of a pooled pod's bind token."""
        pod = await self._api.call("GET", f"{self.path}/{name}")
        containers = [*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())]
        variables = next(each["env"] for each in containers if each["name"] == "sidecar")
        names = ("DGYM_SIDECAR_OPERATE_SHA256", "DGYM_SIDECAR_BIND_SHA256")
        return next(each["value"] for each in variables if each["name"] in names)

    async def schedule(self, name: str) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": "node-1"}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        await self._api.call("POST", f"{self.path}/{name}/binding", body)

    async def end(self, name: str, message: str = "", *, container: str = "sidecar", reason: str = "Completed") -> None:
        """Report that a container terminated, with a termination message. The pod ends with its sidecar."""
        if container == "sidecar":
            self.running.discard(name)
        now = datetime.now(UTC)
        states = self._states.setdefault(name, dict.fromkeys(reports.CONTAINERS, reports.RUNNING))
        states[container] = reports.terminated(now, 0 if reason == "Completed" else 137, reason, message)
        await self.report(name, **reports.status(states, now))

    async def report(self, name: str, **status: Any) -> None:
        await self._api.call("PATCH", f"{self.path}/{name}/status", {"status": status}, MERGE)


class Agent:
    """A fake agent pod. It keeps its assignments, and plays them while ``playing`` is true."""

    results: ClassVar[dict[tuple[str, int], dict[str, Any]]] = {}
    """The results store of all agent pods, by UID and attempt."""

    def __init__(self, api: Api, namespace: str, kubelet: Kubelet, *, name: str, port: int, slots: int = 8) -> None:
        self._api = api
        self._namespace = namespace
        self._kubelet = kubelet
        self._application = web.Application(client_max_size=2**24)
        self._application.router.add_get("/v1/assignments", self._report)
        self._application.router.add_put("/v1/assignments/{uid}", self._assign)
        self._application.router.add_delete("/v1/assignments/{uid}", self._withdraw)
        self._runner: web.AppRunner | None = None
        self.key = ""
        self._playing: set[asyncio.Task[None]] = set()
        self.name = name
        self.uid = ""
        self.address = loopback_address()
        self.port = port
        self.slots = slots
        self.draining = False
        self.playing = True
        self.outages: tuple[ModelOutage, ...] = ()
        self.store_problem = ""
        self.reported = 0
        self.refusals: list[str] = []
        self.given: list[Assignment] = []
        self._assignments = reports.Assignments()
        self.held = self._assignments.held
        self.withdrawn: list[str] = []

    async def start(self) -> None:
        """Start the pod and its server."""
        await self.listen()
        pods = f"/api/v1/namespaces/{self._namespace}/pods"
        spec = {"containers": [{"name": "agent", "image": "agent"}]}
        metadata = {"name": self.name, "labels": reports.AGENT_LABELS}
        pod = await self._api.call("POST", pods, {"metadata": metadata, "spec": spec})
        self.uid = pod["metadata"]["uid"]
        await self._kubelet.schedule(self.name)
        await self._kubelet.report(self.name, **reports.running(self.address, datetime.now(UTC), ("agent",)))

    async def listen(self) -> None:
        self._runner = web.AppRunner(self._application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, self.address, self.port).start()

    async def hang_up(self) -> None:
        """Stop the agent process without a change of the pod's status."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        for task in self._playing:
            task.cancel()
        self._assignments.clear()

    async def restart(self) -> None:
        """Start a new process in the same pod. It reads the current Secrets."""
        await self.hang_up()
        self.key = ""
        await self.listen()

    async def finish(
        self, uid: str, reason: EndReason = EndReason.RESOLVED, *, message: bool = True, price: str | None = None
    ) -> None:
        """Store the outcome and end the sidecar."""
        held = self.held[uid]
        outcome = await self._signed(held, reason, price)
        stored = msgspec.structs.replace(outcome, result_uri="file:///results/x")
        ending = TerminationMessage(episode_uid=uid, attempt=held.attempt, outcome=stored, price=price)
        await self._kubelet.end(held.pod_name, encode_termination(ending).decode() if message else "")
        self.results[uid, held.attempt] = {"steps": 3, "outcome": outcome}
        self.set_state(uid, AssignmentState.FINISHED, **self.results[uid, held.attempt])

    async def _signed(self, held: Assignment, reason: EndReason, price: str | None) -> AttemptOutcome:
        """The outcome with the signature of the episode's sidecar."""
        secret = await self._api.call("GET", f"/api/v1/namespaces/{self._namespace}/secrets/dgym-key")
        counts: dict[str, Any] = {"score": 1, "max_score": 1, "steps": 3, "price": price}
        key = base64.b64decode(secret["data"]["key"])
        return reports.signed_outcome(key, held.episode_uid, held.attempt, reason, **counts)

    def set_state(
        self, uid: str, state: AssignmentState, reason: EndReason | None = None, message: str = "", **more: Any
    ) -> None:
        if reason is None:
            more["message"] = message
        else:
            more["outcome"] = AttemptOutcome(resolved=False, reason=reason, message=message)
        self._assignments.set(self.held[uid], state, **more)

    async def _authenticated(self, request: web.Request) -> None:
        if not self.key:
            secret = await self._api.call("GET", f"/api/v1/namespaces/{self._namespace}/secrets/dgym-agent-keys")
            self.key = make_agent_pod_key(base64.b64decode(secret["data"]["pool-key"]).decode(), self.uid)
        token, now = request.headers.get("Authorization", "").removeprefix("Bearer "), int(time.time()) // HOUR_SECONDS
        if token not in (make_assign_token(self.key, now - 1), make_assign_token(self.key, now)):
            self.refusals.append(request.path)
            raise web.HTTPUnauthorized

    async def _report(self, request: web.Request) -> web.Response:
        await self._authenticated(request)
        report = self._assignments.report(
            self.slots, draining=self.draining, outages=self.outages, store_problem=self.store_problem
        )
        self.reported += 1
        return web.Response(body=msgspec.json.encode(report), content_type="application/json")

    async def _assign(self, request: web.Request) -> web.Response:
        await self._authenticated(request)
        assignment = msgspec.json.decode(await request.read(), type=Assignment)
        newer = self._assignments.is_newer(assignment)
        self.given.append(assignment)
        self.held[assignment.episode_uid] = assignment
        if assignment.mode is AssignmentMode.RECOVER:
            self._recover(assignment)
        elif newer:
            self.set_state(assignment.episode_uid, AssignmentState.RUNNING)
            if self.playing:
                task = asyncio.ensure_future(self.finish(assignment.episode_uid))
                self._playing.add(task)
                task.add_done_callback(self._playing.discard)
        return web.json_response({})

    def _recover(self, assignment: Assignment) -> None:
        stored = self.results.get((assignment.episode_uid, assignment.attempt))
        if stored is not None:
            self.set_state(assignment.episode_uid, AssignmentState.FINISHED, **stored)
        else:
            self.set_state(assignment.episode_uid, AssignmentState.FAILED, reason=EndReason.SANDBOX_LOST)

    async def _withdraw(self, request: web.Request) -> web.Response:
        await self._authenticated(request)
        uid = request.match_info["uid"]
        self.withdrawn.append(uid)
        self._assignments.drop(uid)
        return web.json_response({})
