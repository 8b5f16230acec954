"""Stand-in for the API server and the kubelet, in front of the operator's and agent pod's code that serves results."""

import asyncio
import base64
import contextlib
import hashlib
import threading
from random import Random

import msgspec
import pytest
from aiohttp import WSMsgType, web

from dgym.episodes.agent_pod import AgentPodApi, Assignments, Breakers, Metrics, Tokens
from dgym.kube import Client, ClusterAccess, Credentials, SystemClock
from dgym.results import StoredResult, open_store
from dgym.wire.assignments import RESULTS_AUDIENCE, make_results_token
from dgym_operator.app._results import ResultsApi
from dgym_operator.cache import AgentPods
from dgym_operator.objects import Pod
from dgym_operator.settings import Settings

KEY = b"the key of the cluster"
TENANT, READER = "the token of a tenant", "the token of dgym-results"
SYSTEM = "dgym-system"
POD = {"metadata": {"name": "operator-0"}, "status": {"phase": "Running"}}


class Cluster:
    """The stand-in. Its attributes determine the responses, and tests change them."""

    def __init__(self):
        self.objects = {}
        self.pods = [POD]
        self.token = TENANT
        self.users = {(TENANT, ""): "tenant", (READER, RESULTS_AUDIENCE): "system:serviceaccount:dgym-system:reader"}
        self.readers = {"tenant", "system:serviceaccount:dgym-system:reader"}
        self.reviewed = []
        self.requestable = False
        self.logs = {}
        self.server, self.port = "", 0
        self.forwarded_to = None
        self.error = b""
        self.forbidden = ""

    def episode(self, name, uid="uid-1", labels=None, **status):
        metadata = {"name": name, "namespace": "default", "uid": uid, "labels": labels or {}}
        self.objects["episodes", name] = {"metadata": metadata, "spec": {}, "status": status}

    def application(self):
        app = web.Application(middlewares=[self.authorize])
        app.router.add_get("/apis/dgym.dev/v1alpha1/namespaces/default/{kind}", self.listed)
        app.router.add_get("/apis/dgym.dev/v1alpha1/namespaces/default/{kind}/{name}", self.one)
        app.router.add_get("/api/v1/namespaces/dgym-system/secrets/dgym-key", self.key)
        app.router.add_post("/api/v1/namespaces/dgym-system/serviceaccounts/dgym-results/token", self.request_token)
        app.router.add_post("/apis/authentication.k8s.io/v1/tokenreviews", self.review_token)
        app.router.add_post("/apis/authorization.k8s.io/v1/subjectaccessreviews", self.review_access)
        app.router.add_get("/api/v1/namespaces/dgym-system/pods", self.agents)
        app.router.add_get("/api/v1/namespaces/dgym-system/pods/{name}/portforward", self.forward)
        app.router.add_get("/api/v1/namespaces/default/pods/{name}/log", self.log)
        return app

    @web.middleware
    async def authorize(self, request, handler):
        if self.forbidden and request.path.startswith("/api/") and request.path.endswith(self.forbidden):
            message = f'{self.forbidden} is forbidden: User "me" cannot do that'
            return web.json_response({"kind": "Status", "reason": "Forbidden", "message": message}, status=403)
        return await handler(request)

    async def listed(self, request):
        kind, selector = request.match_info["kind"], request.query.get("labelSelector", "")
        label, _, value = selector.partition("=")
        items = [each for (of, _), each in self.objects.items() if of == kind]
        items = [each for each in items if not label or each["metadata"]["labels"].get(label) == value]
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})

    async def one(self, request):
        found = self.objects.get((request.match_info["kind"], request.match_info["name"]))
        return web.json_response(found) if found else missing(request.match_info["name"])

    async def key(self, _):
        return web.json_response({"data": {"key": base64.b64encode(KEY).decode()}})

    async def request_token(self, request):
        assert (await request.json())["spec"]["audiences"] == [RESULTS_AUDIENCE]
        if not self.requestable:
            status = {"kind": "Status", "reason": "Forbidden", "message": "serviceaccounts is forbidden"}
            return web.json_response(status, status=403)
        return web.json_response({"status": {"token": READER}}, status=201)

    async def review_token(self, request):
        spec = (await request.json())["spec"]
        (audience,) = spec.get("audiences", [""])
        user = self.users.get((spec["token"], audience))
        status = {"authenticated": True, "user": {"username": user, "groups": ["all"]}} if user else {}
        return web.json_response({"status": status}, status=201)

    async def review_access(self, request):
        spec = (await request.json())["spec"]
        self.reviewed.append(spec)
        return web.json_response({"status": {"allowed": spec["user"] in self.readers}}, status=201)

    async def agents(self, _):
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": self.pods})

    async def log(self, request):
        text = self.logs.get((request.match_info["name"], request.query["container"]))
        return web.Response(body=text) if text is not None else missing(request.match_info["name"])

    async def forward(self, request):
        """Forward a port as the kubelet does: a port has two channels, and each channel begins with the port number."""
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        self.forwarded_to = int(request.query["ports"])
        for channel in (0, 1):
            await socket.send_bytes(bytes([channel]) + self.forwarded_to.to_bytes(2, "little"))
        if self.error:
            await socket.send_bytes(b"\x01" + self.error)
            return socket
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        answers = asyncio.create_task(self._answers(reader, socket))
        try:
            async for message in socket:
                assert message.type is WSMsgType.BINARY
                assert message.data[0] == 0
                writer.write(message.data[1:])
                await writer.drain()
        finally:
            answers.cancel()
            await asyncio.wait({answers})
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        return socket

    @staticmethod
    async def _answers(reader, socket):
        # The chunks are small and have arbitrary boundaries.
        while data := await reader.read(1000):
            await socket.send_bytes(b"\x00" + data)


def missing(name):
    status = {"kind": "Status", "reason": "NotFound", "message": f"{name} not found", "details": {"name": name}}
    return web.json_response(status, status=404)


@contextlib.asynccontextmanager
async def listening(app):
    runner = web.AppRunner(app, handle_signals=False)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield runner.addresses[0][1]
    await runner.cleanup()


@contextlib.asynccontextmanager
async def operator_at(server, agent_port):
    """The operator's server of results, with a single agent pod."""
    clock = SystemClock()
    access = ClusterAccess(server=server, credentials=Credentials("Bearer operator"))
    async with Client(access, clock=clock, random=Random(1)) as client:
        agents = AgentPods(clock, port=agent_port, silence_seconds=60)
        ready = {"phase": "Running", "podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
        metadata = {"name": "agent-0", "namespace": SYSTEM, "uid": "uid-agent", "resourceVersion": "1"}
        agents.observe_pod(msgspec.convert({"metadata": metadata, "status": ready}, Pod))
        app = web.Application()
        app.router.add_routes(ResultsApi(client, agents, Settings(namespace=SYSTEM), clock).routes())
        yield app


@pytest.fixture
def cluster(tmp_path, kubeconfig):
    """The stand-in, with an agent pod that serves a results store."""
    standin, ready, done = Cluster(), threading.Event(), None
    tokens = tmp_path / "tokens"
    tokens.mkdir()
    (tokens / "results-token-sha256").write_text(hashlib.sha256(make_results_token(KEY).encode()).hexdigest())
    standin.store = tmp_path / "store"
    loop = asyncio.new_event_loop()

    async def serve():
        nonlocal done
        done = asyncio.Event()
        async with (
            Assignments(lambda *_: asyncio.sleep(0), slots=1) as assignments,
            contextlib.AsyncExitStack() as stack,
        ):
            api = AgentPodApi(
                assignments, open_store(str(standin.store)), Tokens(tokens), Metrics(), breakers=Breakers()
            )
            async with listening(api.application()) as agent, listening(standin.application()) as port:
                server = standin.server = f"http://127.0.0.1:{port}"
                kubeconfig(server, token=TENANT)
                operator = await stack.enter_async_context(operator_at(server, agent))
                standin.port = await stack.enter_async_context(listening(operator))
                ready.set()
                await done.wait()
        # If the task that accepts a connection is cancelled, the connection is not closed.
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=10)

    def run():
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(90)
    yield standin
    loop.call_soon_threadsafe(done.set)
    thread.join(90)


@pytest.fixture
def stored(cluster):
    """A function that puts an attempt into the store."""

    def put(episode, uid="uid-1", attempt=1, *, root=None, patch="", **fields):
        path = (root or cluster.store) / "default" / episode / uid / str(attempt)
        path.mkdir(parents=True)
        result = StoredResult(namespace="default", episode=episode, attempt=attempt, **fields)
        (path / "result.json").write_bytes(msgspec.json.encode(result))
        (path / "trajectory.jsonl").write_text('{"version": 1}\n')
        (path / "patch.diff").write_text(patch)
        (path / "episode.log").write_text(f"log of {episode} {attempt}\n")
        return path

    return put


RESOLVED = {"resolved": True, "reason": "Resolved", "score": 2, "max_score": 2}
