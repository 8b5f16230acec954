"""Tests of a pooled sidecar: it waits without an attempt, and one call binds it to an attempt."""

import asyncio
import json
import signal

import msgspec
import pytest

from dgym.wire import calls
from dgym.wire.calls import Call
from dgym.wire.http import ReleaseRequest, Role, make_token, token_digest
from dgym.wire.signing import content_digest, outcome_is_signed, sign_request
from tests.fakes.pooled_pods import BIND_TOKEN, PooledPod, recorded_bind

HALF_OPEN = 120
"""Fewer than the limit of one address. From two addresses, these are almost as many as the port accepts."""


@pytest.fixture
def pooled(new_pod):
    """``pooled(answer_seconds=0.1)``: a new pod of a sandbox pool."""
    return lambda **settings: new_pod(kind=PooledPod, **settings)


@pytest.fixture
async def waiting(pooled):
    """A pod whose sidecar waits. It is not ready because it has no runners."""
    pod = pooled()
    pod.process = pod.start_process()
    await pod.listening()
    return pod


async def connect(pod, address="127.0.0.1"):
    host, _, port = pod.url.removeprefix("http://").partition(":")
    return await asyncio.open_connection(host, int(port), local_addr=(address, 0))


async def answer(reader):
    """Status and body of the only answer on a connection that closes after it."""
    head, _, body = (await asyncio.wait_for(reader.read(), 90)).partition(b"\r\n\r\n")
    return int(head.split()[1]), msgspec.json.decode(body)


async def send(pod, data):
    reader, writer = await connect(pod)
    writer.write(data)
    try:
        return await answer(reader)
    finally:
        writer.close()


async def is_closed(reader):
    try:
        return await asyncio.wait_for(reader.read(), 90) == b""
    except ConnectionError:
        return True


def entries(pod):
    return [json.loads(line) for line in (pod.directory / "sidecar.log").read_text().splitlines()]


async def test_a_bound_sidecar_serves_a_whole_episode(pooled, helpers):
    pod = pooled()
    process = await pod.wait()
    assert await pod.bind() == (200, {"running": False})
    pod.operate()
    client = await pod.prepare()
    env = pod.connect()
    await env.reset(options={"eval": True})
    await env.step(helpers.repair)
    *_, info = await env.step("submit")
    assert info["resolved"]
    outcome = (await client.call(calls.RESULT)).result
    assert await pod.bind() == (200, {"running": False})
    await client.call(calls.RELEASE, ReleaseRequest(result_uri="file:///result.json"))
    assert await asyncio.to_thread(process.wait, 90) == 0
    assert outcome_is_signed(b"key", outcome, episode_uid="uid", attempt=3)
    assert not outcome_is_signed(b"key", outcome, episode_uid="uid", attempt=1)
    termination = pod.termination_message()
    assert (termination.episode_uid, termination.attempt, termination.outcome.resolved) == ("uid", 3, True)
    messages = [entry["message"] for entry in entries(pod)]
    bound = messages.index("bound")
    assert not any("episode" in entry or "attempt" in entry for entry in entries(pod)[:bound])
    for entry in entries(pod)[bound:]:
        assert (entry["namespace"], entry["episode"], entry["attempt"]) == ("default", "calc", 3)
    log = (pod.directory / "sidecar.log").read_text()
    for token in (BIND_TOKEN, *pod.tokens.values()):
        assert token not in log
        assert token_digest(token) not in log


async def test_an_unbound_sidecar_serves_only_probes_and_bind(waiting):
    assert (await waiting.raw("GET", calls.HEALTH))[0] == 200
    status, body = await waiting.raw("GET", calls.READY)
    assert (status, body) == (503, b"the sandbox's runner has not started yet\n")
    for call in vars(calls).values():
        if isinstance(call, Call) and call.path != calls.BIND.path:
            for token in (BIND_TOKEN, waiting.tokens[call.roles[0]]):
                status, body = await waiting.raw(call.method, call.path.format(seq=1), token=token)
                assert (status, body["code"]) == (401, "unauthenticated"), call.path
    assert (await waiting.raw("GET", calls.BIND.path, token=BIND_TOKEN))[0] == 401
    assert await waiting.bind() == (200, {"running": False})


async def test_a_repetition_is_answered_alike_and_another_attempt_is_a_conflict(waiting):
    answers = await asyncio.gather(*(waiting.bind() for _ in range(8)))
    assert answers == [(200, {"running": False})] * 8
    others = [
        {"episode": "default/other"}, {"episode_uid": "other"}, {"attempt": 4}, {"prepare_sha256": "a" * 64},
        {"drive_sha256": "a" * 64}, {"operate_sha256": "a" * 64},
    ]  # fmt: skip
    for change in others:
        status, body = await waiting.bind(**change)
        assert (status, body["code"]) == (409, "conflict"), change
    assert (await waiting.raw("GET", calls.STATE.path, role=Role.OPERATE))[0] == 200
    assert await waiting.bind() == (200, {"running": False})


async def test_only_one_of_several_concurrent_binds_succeeds(waiting):
    answers = await asyncio.gather(*(waiting.bind(attempt=number) for number in range(1, 9)))
    assert sorted(status for status, _ in answers) == [200] + [409] * 7
    bound = next(number for number, (status, _) in enumerate(answers, 1) if status == 200)
    assert (await waiting.bind(attempt=bound))[0] == 200


@pytest.mark.attack("tokens")
async def test_only_the_bind_token_can_bind_and_it_cannot_make_other_calls(waiting):
    wrong = [
        *waiting.tokens.values(),
        token_digest(BIND_TOKEN),
        *(make_token(b"key", episode_uid="pool-pod", attempt=0, role=role) for role in (Role.PREPARE, Role.DRIVE)),
        make_token(b"key", episode_uid="another-pod", attempt=0, role=Role.OPERATE),
    ]
    for bound in (False, True):
        for token in wrong:
            status, body = await waiting.bind(token=token)
            assert (status, body["code"]) == (401, "unauthenticated")
        if not bound:
            assert (await waiting.bind())[0] == 200
    for path in (calls.TERMINATED.path, calls.CANCEL.path, calls.RELEASE.path):
        assert (await waiting.raw("POST", path, token=BIND_TOKEN))[0] == 401


@pytest.mark.attack("tokens")
async def test_a_recording_of_the_call_binds_nothing(pooled, tmp_path, waiting):
    recording = recorded_bind(waiting.binding())
    assert (await send(waiting, recording))[0] == 200
    status, body = await send(waiting, recording)
    assert (status, body["message"]) == (401, "the request was received before")

    (tmp_path / "refused").mkdir()
    other = pooled(directory=tmp_path / "refused")
    other.start_process()
    await other.listening()
    # The first request is refused too, but it counts as received.
    refused = recorded_bind(other.binding(drive_sha256=token_digest(BIND_TOKEN)))
    assert (await send(other, refused))[1]["code"] == "invalid_argument"
    assert (await send(other, refused))[1]["message"] == "the request was received before"
    # The body is signed too.
    changed = recorded_bind(other.binding()).replace(b'"attempt":3', b'"attempt":4')
    assert "does not have the signed digest" in (await send(other, changed))[1]["message"]
    assert (await other.bind())[0] == 200


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"attempt": 0}, "attempt"),
        ({"operate_sha256": "A" * 64}, "operateSha256"),
        ({"prepare_sha256": "a" * 64, "drive_sha256": "a" * 64}, "must differ"),
        ({"prepare_sha256": token_digest(BIND_TOKEN)}, "prepareSha256 is the digest of the token that binds"),
        ({"operate_sha256": token_digest(BIND_TOKEN)}, "operateSha256 is the digest of the token that binds"),
    ],
)
async def test_an_invalid_bind_request_is_refused(waiting, change, fragment):
    data = msgspec.json.encode(msgspec.to_builtins(waiting.binding()) | _camel(change))
    status, body = await waiting.raw("POST", calls.BIND.path, token=BIND_TOKEN, data=data)
    assert (status, body["code"]) == (400, "invalid_argument")
    assert fragment in body["message"]
    assert (await waiting.raw("GET", calls.STATE.path, role=Role.OPERATE))[0] == 401
    assert (await waiting.bind())[0] == 200


def _camel(change):
    names = {"prepare_sha256": "prepareSha256", "drive_sha256": "driveSha256", "operate_sha256": "operateSha256"}
    return {names.get(name, name): value for name, value in change.items()}


async def test_a_signal_ends_one_that_waits_without_a_termination_message(pooled, helpers):
    pod = pooled()
    process = await pod.wait()
    process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, 90) == 0
    assert not pod.settings.termination_log.exists()
    await helpers.wait(lambda: all(runner.poll() is not None for runner in pod.runners.values()))


async def test_a_signal_ends_one_that_was_bound_and_never_prepared(waiting):
    assert (await waiting.bind())[0] == 200
    process = waiting.process
    process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, 90) == 0
    assert waiting.termination_message() is None


@pytest.mark.parametrize("bound", [False, True])
async def test_a_restarted_sidecar_cannot_be_bound(waiting, bound):
    if bound:
        assert (await waiting.bind())[0] == 200
    waiting.process.kill()
    await asyncio.to_thread(waiting.process.wait, 90)
    waiting.start_process()
    await waiting.listening(count=2)
    status, body = await waiting.bind()
    assert (status, body["code"]) == (410, "attempt_over")
    assert "restarted" in body["message"]
    status, body = await waiting.raw("GET", calls.READY)
    assert (status, b"restarted" in body) == (503, True)
    assert (await waiting.raw("GET", calls.STATE.path, role=Role.OPERATE))[0] == 401
    assert (await waiting.raw("GET", calls.HEALTH))[0] == 200


@pytest.mark.attack("flood")
async def test_half_open_connections_stop_no_bind_and_belong_to_the_attempt(waiting):
    signed = sign_request(waiting.tokens[Role.OPERATE], "GET", calls.STATE.path, content=content_digest(b""))
    head = f"GET {calls.STATE.path} HTTP/1.1\r\nHost: pod\r\nConnection: close\r\nAuthorization: {signed}\r\n".encode()
    opened = [await connect(waiting, address) for address in ("127.0.0.2", "127.0.0.3") for _ in range(HALF_OPEN)]
    for _, writer in opened:
        writer.write(head)
        await writer.drain()
    assert (await waiting.bind())[0] == 200
    reader, writer = opened[-1]
    writer.write(b"\r\n")
    assert await answer(reader) == (200, await _state(waiting))
    for _, writer in opened:
        writer.close()


async def _state(pod):
    return (await pod.raw("GET", calls.STATE.path, role=Role.OPERATE))[1]


async def test_a_bind_request_that_began_before_another_bind_is_refused(waiting):
    begun = []
    for number in (3, 4):
        recording = recorded_bind(waiting.binding(attempt=number))
        reader, writer = await connect(waiting)
        writer.write(recording[:-1])
        await writer.drain()
        begun.append((reader, writer, recording))
    # The answer shows that both requests have reached the waiting application, because it accepts connections in order.
    assert (await waiting.raw("GET", calls.HEALTH))[0] == 200
    assert (await waiting.bind())[0] == 200
    for (reader, writer, recording), expected in zip(begun, (200, 409), strict=True):
        writer.write(recording[-1:])
        assert (await answer(reader))[0] == expected
        writer.close()


async def test_a_connection_from_before_ends_with_its_answer(waiting):
    probe = f"GET {calls.HEALTH} HTTP/1.1\r\nHost: pod\r\n\r\n".encode()
    reader, writer = await connect(waiting)
    writer.write(probe + probe)
    received = await asyncio.wait_for(reader.read(), 90)
    assert received.count(b"HTTP/1.1 200 OK") == 1
    assert b"Connection: close" in received
    writer.close()


@pytest.mark.attack("tokens")
async def test_the_pod_itself_can_not_bind_it(pooled):
    pod = pooled(allow_local_connections=False)
    pod.start_process()
    await pod.listening()
    reader, writer = await connect(pod)
    writer.write(recorded_bind(pod.binding()))
    assert await is_closed(reader)
    writer.close()
    assert "bound" not in [entry["message"] for entry in entries(pod)]
