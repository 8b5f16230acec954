"""Tests of a program in the sandbox that answers on the sidecar's port instead of the sidecar."""

import gzip
import tracemalloc

import msgspec
import pytest
from aiohttp import web

from dgym.errors import AccessRefused, SandboxLost
from dgym.wire import EndReason, Result, calls
from dgym.wire.client import PodClient, PodTransport
from dgym.wire.http import FinishRequest, FinishResponse, ReleaseRequest, Role, token_digest
from dgym.wire.signing import SIGNATURE_HEADER, WINDOW_SECONDS, content_digest, sign_answer, sign_request, signing_time
from tests.fakes.pods import epochs_of

FORGED = msgspec.json.encode(
    FinishResponse(result=Result(resolved=True, score=1, max_score=1, reason=EndReason.RESOLVED))
)


@pytest.fixture
async def impostor():
    """A server that answers each request with a forged outcome: its URL and the requests that it received."""
    received = []

    async def answer(request):
        received.append((request.method, request.raw_path, dict(request.headers), await request.read()))
        guessed = sign_answer("0" * 64, request.headers["Authorization"], 200, FORGED)
        headers = {SIGNATURE_HEADER: guessed} if len(received) % 2 else {}
        return web.Response(body=FORGED, headers=headers, content_type="application/json")

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", received
    await runner.cleanup()


@pytest.mark.attack("impostor")
async def test_a_forged_outcome_is_refused_and_a_captured_request_cannot_be_reused(new_pod, impostor):
    url, received = impostor
    pod = await new_pod().start(operated=False, runners=False)
    for role, ask, body in (
        (Role.DRIVE, calls.FINISH, FinishRequest()),
        (Role.PREPARE, calls.RELEASE, ReleaseRequest()),
    ):
        client = PodClient(url, pod.tokens[role], epoch=getattr(epochs_of(1), role))
        for _ in range(2):
            with pytest.raises(SandboxLost, match="without the signature"):
                await client.call(ask, body)
        await client.close()
        for method, path, headers, sent in received:
            seen = repr((path, headers, sent))
            assert pod.tokens[role] not in seen
            assert token_digest(pod.tokens[role]) not in seen
            stolen = {name: headers[name] for name in ("Authorization", "Dgym-Epoch")}
            # The stolen header is not valid for another call, body or epoch, nor as a bearer token.
            assert (await pod.raw("POST", calls.CANCEL.path, headers=stolen))[0] == 401
            assert (await pod.raw("GET", calls.TOOLS.path, headers=stolen))[0] == 401
            assert (await pod.raw(method, path, headers=stolen | {"Dgym-Epoch": getattr(epochs_of(2), role)}))[0] == 401
            bearer = {"Authorization": headers["Authorization"].replace("Dgym", "Bearer")}
            assert (await pod.raw(method, path, headers=bearer))[0] == 401
        received.clear()


@pytest.mark.attack("impostor")
@pytest.mark.parametrize("compressed", [False, True])
async def test_an_endless_answer_does_not_use_much_memory(compressed):
    bomb = gzip.compress(bytes(2**26)) if compressed else b"x" * 2**16
    sent = 0

    async def answer(request):
        nonlocal sent
        response = web.StreamResponse(headers={"Content-Encoding": "gzip"} if compressed else {})
        await response.prepare(request)
        while sent < 2**24:
            await response.write(bomb)
            sent += len(bomb)
            if compressed:
                break
        return response

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    transport = PodTransport(answer_limit=2**20)
    client = PodClient(f"http://127.0.0.1:{runner.addresses[0][1]}", "token", transport=transport)
    tracemalloc.start()
    try:
        with pytest.raises(SandboxLost, match="without the signature" if compressed else "more than 1,048,576 bytes"):
            await client.call(calls.RESULT)
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()
        await transport.close()
        await runner.cleanup()
    assert sent < 2**24


@pytest.mark.attack("tokens")
async def test_a_signed_request_is_accepted_only_once_and_only_with_its_body(new_pod):
    pod = await new_pod().start(operated=False, runners=False)

    async def send(authorization, data=b"{}"):
        return await pod.raw("POST", calls.PREPARE.path, headers={"Authorization": authorization}, data=data)

    def signed(data=b"{}"):
        return sign_request(pod.tokens[Role.PREPARE], "POST", calls.PREPARE.path, content=content_digest(data))

    first = signed()
    status, body = await send(first)
    assert (status, body["code"]) == (400, "invalid_argument")
    assert "received before" in (await send(first))[1]["message"]
    assert "does not have the signed digest" in (await send(signed(), b'{"other": 1}'))[1]["message"]


@pytest.mark.attack("tokens")
@pytest.mark.parametrize("seconds", [-WINDOW_SECONDS - 60, WINDOW_SECONDS + 60])
async def test_a_request_outside_of_the_window_is_refused(new_pod, seconds):
    pod = await new_pod().start(operated=False, runners=False)
    token, now = pod.tokens[Role.DRIVE], signing_time()
    old = sign_request(token, "GET", calls.TOOLS.path, content=content_digest(b""), now=now + seconds)
    status, body = await pod.raw("GET", calls.TOOLS.path, headers={"Authorization": old})
    assert status == 401
    assert "clocks differ" in body["message"]


@pytest.mark.attack("tokens")
async def test_the_digest_of_a_token_is_not_accepted_as_a_token(new_pod):
    pod = await new_pod().start(operated=False, runners=False)
    client = PodClient(pod.url, token_digest(pod.tokens[Role.PREPARE]))
    with pytest.raises(AccessRefused):
        await client.call(calls.RESULT)
    await client.close()
