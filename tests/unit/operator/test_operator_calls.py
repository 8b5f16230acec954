"""Tests of calls to agent pods and sidecars over HTTP."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from random import Random

import aiohttp
import msgspec
import pytest
from aiohttp import web

from dgym.errors import InfrastructureError
from dgym.kube import SystemClock, WorkQueue
from dgym.wire import AttemptOutcome, EndReason, Result, calls
from dgym.wire.assignments import (
    AgentPodReport,
    AssignmentStatus,
    make_agent_pod_key,
    make_assign_token,
    make_pool_key,
    make_results_token,
)
from dgym.wire.client import PodTransport, Unanswered
from dgym.wire.http import (
    AttemptState,
    ErrorCode,
    PauseRequest,
    Role,
    RunningRequest,
    TerminatedResponse,
    error_body,
    make_token,
    token_digest,
)
from dgym.wire.signing import SIGNATURE_HEADER, read_request, sign_answer, sign_outcome
from dgym_operator.actions import KeyUnusable
from dgym_operator.actions._secrets import agent_pod_keys_data, decode_key, secret_manifest
from dgym_operator.calls import AgentPodAddress, AgentPodClient, SidecarCall, SidecarCalls

OVER = msgspec.json.encode(error_body(ErrorCode.ATTEMPT_OVER, "it has ended"))
KEY = b"k" * 32
CLOCK = SystemClock()
OPERATE_KEY = token_digest(make_token(KEY, episode_uid="uid", attempt=1, role=Role.OPERATE))


class Server:
    """Answers every request with the response that the test sets."""

    def __init__(self):
        self.calls = []
        self.bodies = []
        self.status = 200
        self.body = b"{}"
        self.key = OPERATE_KEY
        self.called = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        self.url = ""

    async def start(self):
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self):
        await self._runner.cleanup()

    async def _answer(self, request):
        self.calls.append((request.method, request.path, request.headers.get("Authorization")))
        self.bodies.append(await request.read())
        self.called.set()
        await self.may_answer.wait()
        headers = {}
        if self.key:
            signature = sign_answer(self.key, request.headers["Authorization"], self.status, self.body)
            headers[SIGNATURE_HEADER] = signature
        return web.Response(body=self.body, status=self.status, headers=headers)


@pytest.fixture
async def server():
    made = Server()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def caller():
    async with aiohttp.ClientSession() as session:
        yield PodTransport(session, deadline_seconds=5.0)


class StandingClock:
    """A clock that stands still until the test moves it."""

    def __init__(self):
        self.moment = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self):
        return self.moment


def at(server, *, uid="uid-of-agent", pool=""):
    return AgentPodAddress(server.url, uid, pool)


async def made(queue):
    """Wait until every call is finished."""
    async with asyncio.timeout(90):
        while len(queue) or queue.active:
            await asyncio.sleep(0)


async def test_a_report_is_read_with_the_token_of_the_role(server, caller):
    server.body = b'{"incarnation": "a", "slots": 3, "new": "field"}'
    assert await AgentPodClient(caller, KEY, CLOCK).report(at(server)) == AgentPodReport(incarnation="a", slots=3)
    hour = int(CLOCK.now().timestamp()) // 3600
    key = make_agent_pod_key(make_pool_key(KEY, ""), "uid-of-agent")
    assert server.calls[0][:2] == ("GET", "/v1/assignments")
    assert server.calls[0][2] in [f"Bearer {make_assign_token(key, each)}" for each in (hour - 1, hour)]


async def test_the_token_is_another_for_each_agent_each_pool_and_each_hour(server, caller):
    server.body = b'{"incarnation": "a", "slots": 3}'
    clock = StandingClock()
    client, agents = (
        AgentPodClient(caller, KEY, clock),
        [at(server), at(server, uid="other"), at(server, pool="research")],
    )
    for agent in agents:
        await client.report(agent)
    clock.moment += timedelta(hours=1)
    await client.report(agents[0])
    assert len({token for _, _, token in server.calls}) == len(server.calls) == 4


FORGERIES = [
    {"signature": ""},
    {"signature": "0" * 64},
    {"signature": "\u00e9"},
    {"score": 2, "max_score": 2},
    {"resolved": False},
    {"steps": 1},
    {"input_tokens": 0},
]


@pytest.mark.parametrize("reason", [EndReason.RESOLVED, EndReason.CANCELLED, EndReason.SANDBOX_KILLED])
@pytest.mark.parametrize("changes", FORGERIES)
async def test_an_outcome_needs_the_signature_of_the_sidecar(server, caller, changes, reason):
    def reported(outcome, attempt=1):
        status = AssignmentStatus(episode_uid="uid", attempt=attempt, epoch=1, state="finished", outcome=outcome)
        return msgspec.json.encode(AgentPodReport(incarnation="a", slots=1, assignments=(status,)))

    async def believed():
        return (await AgentPodClient(caller, KEY, CLOCK).report(at(server))).assignments[0]

    counts = {"resolved": True, "score": 1, "max_score": 1, "steps": 3, "input_tokens": 5}
    signature = sign_outcome(OPERATE_KEY, Result(reason=reason, **counts), episode_uid="uid", attempt=1)
    signed = AttemptOutcome(reason=reason, **counts, signature=signature)
    server.body = reported(signed)
    assert (await believed()).outcome == signed
    forged = msgspec.structs.replace(signed, **changes)
    for server.body in (reported(forged), reported(signed, attempt=2)):
        found = await believed()
        assert found.state == "failed"
        assert found.outcome == AttemptOutcome(resolved=False, reason=EndReason.SANDBOX_LOST, message=found.cause)
        assert "without the signature" in found.cause


async def test_a_failure_that_the_agent_pod_observed_needs_no_signature(server, caller):
    outcome = AttemptOutcome(resolved=False, reason=EndReason.SOURCE_FAILED)
    status = AssignmentStatus(episode_uid="uid", attempt=1, epoch=1, state="finished", outcome=outcome)
    report = AgentPodReport(incarnation="a", slots=1, assignments=(status,))
    server.body = msgspec.json.encode(report)
    assert await AgentPodClient(caller, KEY, CLOCK).report(at(server)) == report


@pytest.mark.parametrize("body", [b"<html>", b'{"slots": "many"}', b"\xff"])
async def test_an_invalid_report_is_refused(server, caller, body):
    server.body = body
    with pytest.raises(InfrastructureError, match="cannot be read"):
        await AgentPodClient(caller, KEY, CLOCK).report(at(server))


async def test_errors_contain_the_status_and_text_of_the_answer(server, caller):
    server.status, server.body = 503, b"the store is away"
    with pytest.raises(InfrastructureError, match="503: the store is away"):
        await AgentPodClient(caller, KEY, CLOCK).report(at(server))


async def test_an_unreachable_agent_pod_raises_unanswered(caller, server):
    await server.stop()
    with pytest.raises(Unanswered, match="GET"):
        await AgentPodClient(caller, KEY, CLOCK).report(at(server))


@pytest.mark.parametrize(("status", "times"), [(200, 1), (410, 1), (202, 2), (503, 2)])
async def test_a_call_to_a_sidecar_is_repeated_until_it_is_answered(server, caller, status, times):
    server.status, server.body = status, OVER if status == 410 else b'{"expected": true}'
    queue = WorkQueue(clock=SystemClock(), random=Random(1))
    sidecars = SidecarCalls(caller, KEY, queue, clock=SystemClock())
    call = SidecarCall(calls.TERMINATED, server.url, "uid", 1)
    worker = asyncio.ensure_future(sidecars.work())
    for _ in range(2):
        server.called.clear()
        sidecars.request(call)
        sidecars.request(call)
        await made(queue)
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    token = make_token(KEY, episode_uid="uid", attempt=1, role=Role.OPERATE)
    assert [call[:2] for call in server.calls] == [("POST", "/v1/terminated")] * times
    digests = {Role.OPERATE: token_digest(token)}
    for *target, authorization in server.calls:
        assert token not in authorization
        assert token_digest(token) not in authorization
        assert read_request(digests, authorization, *target).role is Role.OPERATE


@pytest.mark.parametrize(
    ("asked", "answer", "times"),
    [
        (calls.TERMINATED, TerminatedResponse(expected=False, poisoned_step=7), 1),
        (calls.TERMINATED, TerminatedResponse(expected=False, known=True), 1),
        (calls.TERMINATED, TerminatedResponse(expected=False), 2),
        (calls.TERMINATED, TerminatedResponse(expected=True), 1),
        (calls.STATE, AttemptState(elapsed_seconds=12.5, remaining_seconds=7.5, running=True, steps=3), 2),
    ],
    ids=["step known", "between steps", "not known yet", "expected", "clocks"],
)
async def test_a_sidecar_is_asked_until_its_answer_holds(server, caller, asked, answer, times):
    server.body, answers = msgspec.json.encode(answer), []
    queue = WorkQueue(clock=SystemClock(), random=Random(1))
    sidecars = SidecarCalls(caller, KEY, queue, clock=SystemClock(), answered=answers.append)
    worker = asyncio.ensure_future(sidecars.work())
    before, call = SystemClock().now(), SidecarCall(asked, server.url, "uid", 1)
    for _ in range(2):
        sidecars.request(call)
        await made(queue)
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    assert [call[:2] for call in server.calls] == [(asked.method, asked.path)] * times
    assert [(each.call, each.content) for each in answers] == [(call, answer)] * times
    assert all(before <= each.requested <= SystemClock().now() for each in answers)


async def test_an_undecodable_answer_counts_as_no_answer(server, caller, caplog):
    server.body, answers = b'{"expected": "perhaps"}', []
    queue = WorkQueue(clock=SystemClock(), random=Random(1))
    sidecars = SidecarCalls(caller, KEY, queue, clock=SystemClock(), answered=answers.append)
    worker = asyncio.ensure_future(sidecars.work())
    sidecars.request(SidecarCall(calls.TERMINATED, server.url, "uid", 1))
    await made(queue)
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    assert answers == []
    assert "cannot be read" in caplog.text


@pytest.mark.parametrize("key", ["", "0" * 64])
@pytest.mark.parametrize("status", [200, 410])
async def test_an_answer_without_the_signature_of_the_sidecar_acknowledges_nothing(server, caller, caplog, key, status):
    server.status, server.key, server.body = status, key, OVER if status == 410 else b"{}"
    queue = WorkQueue(clock=SystemClock(), random=Random(1))
    sidecars = SidecarCalls(caller, KEY, queue, clock=SystemClock())
    call = SidecarCall(calls.PAUSE, server.url, "uid", 1, PauseRequest(epoch=1))
    worker = asyncio.ensure_future(sidecars.work())

    async def request():
        sidecars.request(call)
        await made(queue)

    await request()
    assert "without the signature" in caplog.text
    server.key = OPERATE_KEY
    for _ in range(2):
        await request()
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    assert len(server.calls) == 2


async def test_the_body_of_a_call_is_sent(server, caller):
    queue = WorkQueue(clock=SystemClock(), random=Random(1))
    sidecars = SidecarCalls(caller, KEY, queue, clock=SystemClock())
    worker = asyncio.ensure_future(sidecars.work())
    observed = RunningRequest(observed=datetime(2026, 1, 1, 12, tzinfo=UTC))
    sidecars.request(SidecarCall(calls.RUNNING, server.url, "uid", 1, observed))
    async with asyncio.timeout(90):
        await server.called.wait()
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    assert server.bodies == [b'{"observed":"2026-01-01T12:00:00Z"}']


async def test_the_same_failure_of_a_sidecar_is_logged_once(server, caller, caplog):
    caplog.set_level(logging.INFO)
    queue = WorkQueue(clock=SystemClock(), random=Random(1))
    sidecars = SidecarCalls(caller, KEY, queue, clock=SystemClock())
    worker = asyncio.ensure_future(sidecars.work())
    for status in (401, 401, 401, 503, 200):
        server.status = status
        sidecars.request(SidecarCall(calls.CANCEL, server.url, "uid", 1))
        await made(queue)
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    logged = [record.getMessage() for record in caplog.records if record.name.startswith("dgym_operator")]
    failed = "a call to a sidecar failed"
    problems = [f"{failed}: the answer has status {status}: {{}}" for status in (401, 503)]
    assert logged == [*problems, "a sidecar was called"]


async def test_a_call_in_flight_is_not_sent_twice(server, caller):
    server.may_answer.clear()
    queue = WorkQueue(clock=SystemClock(), random=Random(1))
    sidecars = SidecarCalls(caller, KEY, queue, clock=SystemClock())
    call = SidecarCall(calls.CANCEL, server.url, "uid", 1)
    worker = asyncio.ensure_future(sidecars.work())
    sidecars.request(call)
    async with asyncio.timeout(90):
        await server.called.wait()
        sidecars.request(call)
        server.may_answer.set()
        while len(queue) or queue.active:
            await asyncio.sleep(0)
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    assert len(server.calls) == 1


def test_secrets_hold_what_agents_and_readers_need():
    assert agent_pod_keys_data(KEY) == {
        "pool-key": make_pool_key(KEY, "").encode(),
        "results-token-sha256": token_digest(make_results_token(KEY)).encode(),
    }
    assert not {*agent_pod_keys_data(KEY).values()} & {*agent_pod_keys_data(KEY, "research").values()}
    assert make_results_token(KEY, "research") != make_results_token(KEY)
    manifest = secret_manifest("dgym-key", "dgym", {"key": KEY})
    assert decode_key(manifest["data"]) == KEY


@pytest.mark.parametrize("data", [{}, {"key": ""}, {"key": "c2hvcnQ="}, {"key": "not base64"}])
def test_an_invalid_key_is_refused(data):
    with pytest.raises(KeyUnusable, match="dgym-key"):
        decode_key(data)
