"""Tests of the retries of calls, with a server that sends scripted answers."""

import msgspec
import pytest
from aiohttp import web

from dgym.episodes.agent_pod._assignments import SharedResources
from dgym.episodes.agent_pod._session import PodSession
from dgym.errors import InfrastructureError, SandboxLost, Superseded
from dgym.wire.assignments import Assignment
from dgym.wire.calls import Call
from dgym.wire.client import PodClient, RetryLimits
from dgym.wire.http import Accepted, Epochs, ErrorCode, Role, error_body, token_digest
from dgym.wire.signing import sign_answer

QUICK = RetryLimits(silence_seconds=60, running_seconds=60, first_pause_seconds=0.01, longest_pause_seconds=0.05)
SHORT = msgspec.structs.replace(QUICK, silence_seconds=0.4, running_seconds=0.4)


@pytest.fixture
async def scripted():
    """``url, requests = await scripted(*answers)``: an answer is (status, body). The last answer is repeated."""
    runners = []

    async def start(*answers):
        requests = []

        async def handle(request):
            requests.append((request.method, request.path, dict(request.headers), await request.read()))
            status, body = answers[min(len(requests), len(answers)) - 1]
            if status == 0:
                request.transport.close()
            authorization, status = request.headers["Authorization"], status or 200
            signature = sign_answer(token_digest("token"), authorization, status, body)
            return web.Response(status=status, body=body, headers={"Dgym-Signature": signature})

        application = web.Application()
        application.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        runners.append(runner)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}", requests

    yield start
    for runner in runners:
        await runner.cleanup()


CALL = Call(method="POST", path="/v1/x", roles=(Role.DRIVE,), summary="", request=Accepted, response=Accepted)
GOOD = (200, b"{}")
RUNNING = (202, b'{"running": true}')
BUSY = (503, msgspec.json.encode(error_body(ErrorCode.BUSY, "wait")))


async def ask(url, *, retry_limits=QUICK, **options):
    client = PodClient(url, "token", retry_limits=retry_limits, **options)
    try:
        return await client.call(CALL, Accepted(running=True))
    finally:
        await client.close()


@pytest.mark.parametrize("first", [RUNNING, BUSY, (0, b""), (502, b"<html>Bad Gateway</html>")])
async def test_a_call_is_repeated_until_it_is_answered(scripted, first):
    url, requests = await scripted(first, first, GOOD)
    assert await ask(url, epoch="4.proof") == Accepted()
    assert len(requests) >= 3
    assert len({(method, path, body) for method, path, _, body in requests}) == 1
    assert len({headers["Authorization"] for _, _, headers, _ in requests}) == len(requests)
    assert {headers["Dgym-Epoch"] for _, _, headers, _ in requests} == {"4.proof"}


@pytest.mark.parametrize(
    ("answer", "expected"), [(BUSY, "wait"), ((0, b""), "does not answer"), (RUNNING, "does not end")]
)
async def test_repetitions_end_after_the_retry_limits(scripted, answer, expected):
    url, requests = await scripted(answer)
    with pytest.raises(SandboxLost, match=expected):
        await ask(url, retry_limits=SHORT)
    assert len(requests) > 2


async def test_a_refused_connection_counts_as_no_answer():
    with pytest.raises(SandboxLost, match="does not answer"):
        await ask("http://127.0.0.1:1", retry_limits=SHORT)


async def test_a_refusal_is_final(scripted):
    url, requests = await scripted((409, msgspec.json.encode(error_body(ErrorCode.SUPERSEDED, "gone"))))
    with pytest.raises(Superseded, match="gone"):
        await ask(url)
    assert len(requests) == 1


@pytest.mark.parametrize("answer", [(200, b"nonsense"), (404, b"nginx"), (400, b'{"code": "new"}'), (301, b"")])
async def test_an_answer_outside_of_the_protocol_raises_infrastructure_error(scripted, answer):
    url, _ = await scripted(answer)
    with pytest.raises(InfrastructureError):
        await ask(url)


def session(url, retry_limits):
    assignment = Assignment(
        namespace="default",
        episode="calc",
        episode_uid="uid",
        attempt=1,
        epoch=1,
        epochs=Epochs(prepare="1.proof", drive="1.proof"),
        sidecar_url=url,
        prepare_token="token",
        drive_token="token",
        task={},
    )
    shared = SharedResources(store=None, sources=None, models=None, metrics=None, retry_limits=retry_limits)
    return PodSession(assignment, shared, None)


async def release(url, retry_limits):
    preparation = session(url, retry_limits)
    try:
        await preparation.release(result_uri="file:///result.json", reason=None, message="")
    finally:
        await preparation.close()


async def test_releasing_a_missing_pod_succeeds(scripted):
    await release("http://127.0.0.1:1", SHORT)
    url, _ = await scripted((409, msgspec.json.encode(error_body(ErrorCode.SUPERSEDED, "gone"))))
    with pytest.raises(Superseded):
        await release(url, QUICK)


@pytest.mark.parametrize("code", [ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN])
async def test_a_release_refused_by_another_pod_at_the_address_succeeds(scripted, code):
    url, requests = await scripted((code.status, msgspec.json.encode(error_body(code, "another's token"))))
    await release(url, QUICK)
    assert len(requests) == 1
