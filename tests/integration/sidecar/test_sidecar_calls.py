"""Tests of calls that are lost, repeated, out of order, late, too large or not allowed for the caller."""

import asyncio
import contextlib
import io

import aiohttp
import msgspec
import pytest

from dgym import AsyncRepoEnv
from dgym.env import read_steps
from dgym.errors import AccessRefused, ConflictError, EpisodeOver, ManifestError, Superseded
from dgym.session import EpisodeLimits
from dgym.wire import calls
from dgym.wire.http import BODY_LIMIT, EPOCH_HEADER, ReleaseRequest, Role
from tests.fakes.pods import epochs_of

COUNT = {"command": "echo x >> count.txt; wc -l < count.txt"}


async def begin(pod, **prepared):
    await pod.prepare(**prepared)
    env = pod.connect()
    await env.reset()
    return env


class LossyProxy:
    """A proxy that forwards each request. For the next ``losses`` answers it closes the connection instead."""

    def __init__(self, url):
        self._port = int(url.rpartition(":")[2])
        self.losses = 0
        self.lost = 0
        self._connections = []

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader, writer):
        self._connections.append(asyncio.ensure_future(self._serve(reader, writer)))

    async def _serve(self, reader, writer):
        with contextlib.suppress(OSError), contextlib.closing(writer):
            upstream, sending = await asyncio.open_connection("127.0.0.1", self._port)
            pump = asyncio.ensure_future(self._pump(reader, sending))
            try:
                while answer := await upstream.read(65536):
                    if self.losses:
                        self.losses -= 1
                        self.lost += 1
                        break
                    writer.write(answer)
                    await writer.drain()
            finally:
                pump.cancel()
                sending.close()

    async def _pump(self, reader, sending):
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                sending.write(data)
                await sending.drain()


async def test_lost_answers_do_not_repeat_steps(pod):
    await pod.prepare()
    async with LossyProxy(pod.url) as proxy:
        env = pod.connect(url=proxy.url)
        proxy.losses = 2
        await env.reset()
        for expected in ("1", "2", "3"):
            proxy.losses = 2
            observation, *_ = await env.step({"tool": "bash", "arguments": COUNT})
            assert observation["text"].strip().endswith(expected)
        proxy.losses = 2
        result = await env.finish()
        assert proxy.lost == 10
        await env.close()
    assert pod.file("count.txt") == "x\nx\nx\n"
    assert result.steps == 3


async def test_a_step_asked_for_again_is_answered_from_the_record(pod):
    env = await begin(pod)
    await env.step({"tool": "bash", "arguments": COUNT})
    first = await pod.step(1, "bash", COUNT)
    assert first[0] == 200
    assert first[1]["step"]["observation"]["text"].strip().endswith("1")
    assert await pod.step(1, "bash", COUNT) == first

    slow = {"command": f"sleep 0.2; {COUNT['command']}"}
    together = await asyncio.gather(*(pod.step(2, "bash", slow) for _ in "abc"))
    assert [status for status, _ in together] == [200, 200, 200]
    assert len({body["step"]["observation"]["text"] for _, body in together}) == 1
    assert pod.file("count.txt") == "x\nx\n"


async def test_an_action_in_each_of_its_forms_is_one_call(pod):
    await begin(pod)

    async def send(seq, **body):
        return await pod.raw("POST", f"/v1/steps/{seq}", role=Role.DRIVE, data=msgspec.json.encode(body))

    status, first = await send(1, action="view calc.py")
    assert (status, first["step"]["call"]) == (200, {"tool": "view", "arguments": {"path": "calc.py"}})
    for same in (
        {"tool": "", "arguments": {"action": "view calc.py"}},
        {"action": {"tool": "view", "arguments": {"path": "calc.py"}}},
        {"tool": "view", "arguments": {"path": "calc.py"}},
    ):
        assert (await send(1, **same))[1]["step"] == first["step"]
    _, unread = await send(2, action="fly away")
    assert unread["step"]["call"] == {"tool": "", "arguments": {"action": "fly away"}}
    assert "Unknown tool `fly`" in unread["step"]["observation"]["text"]
    _, peeked = await pod.raw(
        "POST", calls.PEEK.path, role=Role.DRIVE, data=msgspec.json.encode({"action": "view calc.py"})
    )
    assert peeked["observation"]["text"] == first["step"]["observation"]["text"]
    status, refused = await send(3, arguments={})
    assert (status, refused["code"]) == (400, "invalid_argument")
    assert "neither `tool` nor `action`" in refused["message"]


async def test_a_number_used_for_another_call_and_a_gap_are_conflicts(pod):
    env = await begin(pod)
    await env.step({"tool": "bash", "arguments": COUNT})
    for seq, arguments, code in ((1, {"command": "true"}, "conflict"), (0, COUNT, "conflict"), (3, COUNT, "gap")):
        status, body = await pod.step(seq, "bash", arguments)
        assert (status, body["code"], body["retryable"]) == (409, code, False)
    waiting = {"command": "echo > begun; until [ -e go ]; do sleep 0.01; done"}
    running = asyncio.ensure_future(pod.step(2, "bash", waiting))
    await asyncio.wait_for(_exists(pod, "begun"), 90)
    status, body = await pod.step(2, "bash", {"command": "true"})
    assert (status, body["code"]) == (409, "conflict")
    (pod.directory / "sandbox-files" / "go").touch()
    assert (await running)[0] == 200


async def _exists(pod, name):
    while not (pod.directory / "sandbox-files" / name).exists():
        await asyncio.sleep(0.01)


async def test_a_superseded_driver_is_refused_even_while_its_call_runs(pod, helpers):
    await pod.prepare(epoch=1)
    old = pod.connect(epoch=1, reset_key="k")
    await old.reset()
    running = asyncio.ensure_future(old.step("bash echo > begun; until [ -e go ]; do sleep 0.01; done"))
    await asyncio.wait_for(_exists(pod, "begun"), 90)
    new = pod.connect(epoch=2, reset_key="k")
    taking_over = asyncio.ensure_future(new.reset())
    # The reset waits for the step. This call announces the new driver immediately.
    status, _ = await pod.raw("GET", calls.STEPS.path, role=Role.DRIVE, headers={EPOCH_HEADER: epochs_of(2).drive})
    assert status == 200
    (pod.directory / "sandbox-files" / "go").touch()
    with pytest.raises(Superseded):
        await running
    with pytest.raises(Superseded):
        await old.finish()
    await taking_over
    await new.reset()
    assert new.trajectory()[-1].call.tool == "bash"


async def test_an_external_driver_does_not_supersede_the_agent_pod(pod):
    client = await pod.prepare(epoch=1, driver_idle_seconds=60.0)
    env = pod.connect(epoch=2**53)
    await env.reset()
    assert [step.seq for step in await read_steps(client, 0)] == [0]


async def test_a_reset_with_another_key_is_a_conflict(pod):
    await begin(pod)
    with pytest.raises(ConflictError, match="another key"):
        await pod.connect().reset()
    status, body = await pod.raw("POST", "/v1/reset", role=Role.DRIVE)
    assert (status, body["code"]) == (400, "invalid_argument")


async def test_calls_in_the_wrong_order_report_the_missing_call(pod):
    env = pod.connect()
    with pytest.raises(ConflictError, match="not prepared"):
        await env.reset()
    with pytest.raises(EpisodeOver):
        await env.step("submit")
    await pod.prepare()
    status, body = await pod.step(1, "bash", COUNT)
    assert (status, body["code"]) == (409, "conflict")
    assert "not reset" in body["message"]


async def test_an_equal_preparation_is_idempotent_and_a_different_one_is_a_conflict(pod):
    client = await pod.prepare(instructions="one")
    await pod.prepare(instructions="one", limits=EpisodeLimits(deadline_seconds=60))
    status, body = await pod.raw("PUT", "/v1/workspace", role=Role.PREPARE, data=b"tar")
    assert (status, body["code"]) == (409, "conflict")
    request = {"task": {"metadata": {"name": "x"}, "spec": {}}, "tools": ["view"]}
    status, body = await pod.raw("POST", "/v1/prepare", role=Role.PREPARE, data=msgspec.json.encode(request))
    assert (status, body["code"]) == (409, "conflict")
    await client.close()


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"task": {"metadata": {"name": "x"}, "spec": {"entrypoint": 7}}}, "entrypoint"),
        ({"tools": []}, "tools"),
        ({"tools": ["no_such_tool"]}, "no_such_tool"),
        ({"tools": ["os:system"]}, "os:system"),
        ({"maxSteps": 0}, "maxSteps"),
        ({"task": {"metadata": {"name": "x"}, "spec": {"source": {"files": []}}}}, "upload"),
        ({"workspaceSha256": "0" * 64}, "SHA-256"),
    ],
)
async def test_a_wrong_preparation_names_what_is_wrong(new_pod, change, fragment):
    pod = await new_pod().start(runners=False, operated=False)
    request = {"task": {"metadata": {"name": "x"}, "spec": {}}, "tools": ["view"], **change}
    status, body = await pod.raw("POST", "/v1/prepare", role=Role.PREPARE, data=msgspec.json.encode(request))
    assert status in (400, 409)
    assert fragment in body["message"]


CALLS = [
    ("PUT", "/v1/workspace", Role.PREPARE),
    ("PUT", "/v1/trajectory", Role.PREPARE),
    ("POST", "/v1/prepare", Role.PREPARE),
    ("POST", "/v1/apply-solution", Role.PREPARE),
    ("POST", "/v1/release", Role.PREPARE),
    ("GET", "/v1/result", Role.PREPARE),
    ("GET", "/v1/spans", Role.PREPARE),
    ("POST", "/v1/reset", Role.DRIVE),
    ("POST", "/v1/steps/1", Role.DRIVE),
    ("POST", "/v1/peek", Role.DRIVE),
    ("GET", "/v1/tools", Role.DRIVE),
    ("GET", "/v1/steps", Role.DRIVE, Role.PREPARE),
    ("GET", "/v1/patch", Role.DRIVE),
    ("POST", "/v1/finish", Role.DRIVE),
    ("POST", "/v1/terminated", Role.OPERATE),
    ("POST", "/v1/running", Role.OPERATE),
    ("POST", "/v1/pause", Role.OPERATE),
    ("POST", "/v1/cancel", Role.OPERATE),
    ("GET", "/v1/state", Role.OPERATE),
]


@pytest.mark.attack("tokens")
async def test_each_call_accepts_only_tokens_of_its_roles(new_pod):
    pod = await new_pod().start(runners=False, operated=False)
    for method, path, *roles in CALLS:
        assert (await pod.raw(method, path))[1]["code"] == "unauthenticated"
        assert (await pod.raw(method, path, token="guess"))[1]["code"] == "unauthenticated"
        assert (await pod.raw(method, path, headers={"Authorization": "Basic eDp5"}))[0] == 401
        for other in Role:
            if other not in roles:
                assert (await pod.raw(method, path, role=other))[1]["code"] == "forbidden"
    env = AsyncRepoEnv.connect(pod.url, "guess")
    with pytest.raises(AccessRefused):
        await env.reset()
    with pytest.raises(AccessRefused):
        await env.apply_solution()
    await env.close()


async def test_probes_do_not_need_a_token(new_pod):
    pod = await new_pod().start(runners=False, operated=False)
    assert (await pod.raw("GET", "/healthz"))[0] == 200
    status, body = await pod.raw("GET", "/readyz")
    assert (status, b"runner has not started yet" in body) == (503, True)
    status, body = await pod.raw("GET", "/v1/elsewhere")
    assert (status, body["code"]) == (404, "not_found")


async def test_bodies_that_are_too_large_or_no_json_are_refused(new_pod):
    pod = await new_pod().start(runners=False, operated=False)
    status, body = await pod.raw("POST", "/v1/finish", role=Role.DRIVE, data=io.BytesIO(b"x" * (BODY_LIMIT + 1)))
    assert (status, body["code"]) == (413, "too_large")

    async def endless():
        for _ in range(BODY_LIMIT // 65536 + 1):
            yield b"x" * 65536

    # The body has no Content-Length, so the sidecar may answer and close while the client is still sending.
    with contextlib.suppress(aiohttp.ClientConnectionError):
        status, body = await pod.raw("POST", "/v1/finish", role=Role.DRIVE, data=endless())
        assert (status, body["code"]) == (413, "too_large")
    headers = {"Content-Length": str(3 * 1024**3)}
    with contextlib.suppress(aiohttp.ClientConnectionError):
        status, body = await pod.raw("PUT", "/v1/workspace", role=Role.PREPARE, headers=headers, data=b"tar")
        assert (status, body["code"]) == (413, "too_large")
    for data in (b"{", b'{"reason": "\xff"}', b'{"reason": ' + b"[" * 100_000):
        status, body = await pod.raw("POST", "/v1/finish", role=Role.DRIVE, data=data)
        assert (status, body["code"]) == (400, "invalid_argument")
    status, body = await pod.raw("POST", "/v1/steps/one", role=Role.DRIVE)
    assert (status, body["code"]) == (400, "invalid_argument")
    status, body = await pod.raw("GET", "/v1/steps?start=-1", role=Role.DRIVE)
    assert (status, body["code"]) == (400, "invalid_argument")
    status, body = await pod.raw("GET", "/v1/tools", role=Role.DRIVE, headers={"Dgym-Epoch": "two"})
    assert (status, body["code"]) == (400, "invalid_argument")


async def test_a_call_that_takes_long_is_asked_again_until_it_is_answered(new_pod):
    pod = await new_pod(answer_seconds=0.1).start()
    await pod.prepare(setupCommands=["sleep 0.5"])
    env = pod.connect()
    await env.reset()
    slow = {"command": f"until [ -e go ]; do sleep 0.02; done; {COUNT['command']}"}
    for _ in range(2):
        status, body = await pod.step(1, "bash", slow)
        assert (status, body) == (202, {"running": True})
    (pod.directory / "sandbox-files" / "go").touch()
    observation, *_ = await env.step({"tool": "bash", "arguments": slow})
    assert observation["text"].strip().endswith("1")
    assert pod.file("count.txt") == "x\n"
    assert "+x" in await env.patch()
    assert (await env.finish()).steps == 1


async def test_an_unknown_tool_raises_manifest_error(pod):
    with pytest.raises(ManifestError, match="no_such"):
        await pod.prepare(tools=("no_such",))


async def test_an_agent_pod_prepares_and_collects_an_externally_driven_episode(pod, helpers):
    observer = await pod.prepare(epoch=3)
    env = pod.connect()
    await env.reset()
    waiting = asyncio.ensure_future(observer.call(calls.RESULT))
    await env.step(helpers.repair)
    assert [step.seq for step in await read_steps(observer, 1)] == [1]
    result = await env.finish()
    assert (await waiting).result == result
    await observer.call(calls.RELEASE, ReleaseRequest(result_uri="file:///result.json"))
    await observer.call(calls.RELEASE, ReleaseRequest(result_uri="file:///result.json"))


async def test_an_assigned_driver_supersedes_a_driver_without_an_assignment(pod):
    await pod.prepare()
    env = pod.connect(reset_key="k")
    await env.reset()
    await pod.connect(reset_key="k", epoch=1).reset()
    with pytest.raises(Superseded):
        await env.step("view calc.py")
