import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgym.llm._faults import (
    LONGEST_WAIT,
    REMEDIES,
    TREATMENTS,
    Fault,
    RequestFailed,
    Retrying,
    classify,
    requested_wait,
)


@pytest.mark.parametrize(
    ("status", "body", "fault"),
    [
        (429, {"message": "Rate limit", "code": "rate_limit_exceeded"}, Fault.RATE_LIMITED),
        (429, {"message": "You exceeded your quota", "type": "insufficient_quota"}, Fault.NO_QUOTA),
        (402, "Payment required", Fault.NO_QUOTA),
        (500, None, Fault.OVERLOADED),
        (502, "<html>", Fault.OVERLOADED),
        (529, {}, Fault.OVERLOADED),
        (599, {}, Fault.OVERLOADED),
        (504, {}, Fault.TIMEOUT),
        (408, {}, Fault.TIMEOUT),
        (401, {"message": "Incorrect API key"}, Fault.UNAUTHORIZED),
        (403, {"message": "no access"}, Fault.FORBIDDEN),
        (404, {"code": "model_not_found"}, Fault.NOT_FOUND),
        (400, {"message": "Unsupported parameter: 'seed'"}, Fault.REJECTED),
        (400, {"code": "context_length_exceeded", "message": "too long"}, Fault.TOO_LONG),
        (400, {"message": "This model's maximum context length is 4096 tokens."}, Fault.TOO_LONG),
        (400, {"message": "prompt is too long: 210000 tokens > 200000 maximum"}, Fault.TOO_LONG),
        (400, {"error": {"message": "the request exceeds the available context size"}}, Fault.TOO_LONG),
        (413, "Request Entity Too Large", Fault.TOO_LONG),
        (400, {"code": "content_filter", "message": "filtered"}, Fault.FILTERED),
        (400, {"innererror": {"code": "ResponsibleAIPolicyViolation"}, "message": ""}, Fault.FILTERED),
        (200, {"error": {"message": "Upstream failed", "code": 502}}, Fault.OVERLOADED),
        (200, {"error": {"message": "slow down", "code": 429}}, Fault.RATE_LIMITED),
        (200, {"error": "something"}, Fault.BAD_REPLY),
        (418, {}, Fault.REJECTED),
    ],
)
def test_every_answer_is_a_known_fault(status, body, fault):
    assert classify(status, body, {}).fault is fault


bodies = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from(["error", "code", "type", "message", "innererror"]), inner)
    ),
)


@given(st.integers(100, 999), bodies)
def test_every_body_is_classified(status, body):
    failure = classify(status, body, {})
    assert failure.fault in Fault
    assert len(failure.message) <= 1100
    assert "\n" not in failure.message


@pytest.mark.parametrize(
    ("message", "limit"),
    [
        ("This model's maximum context length is 4096 tokens. However, you requested 9000", 4096),
        ("maximum context length of only 8192 tokens", 8192),
        ("the request is too long for the context window", None),
    ],
)
def test_the_limit_that_a_provider_names_is_read(message, limit):
    assert classify(400, {"message": message, "code": "context_length_exceeded"}, {}).limit == limit


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "20"}, 20.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "Retry-After": "9"}, 0.25),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:30 GMT"}, 30.0),
        ({"Retry-After": "Wed, 21 Oct 2015 07:00:00 GMT"}, 0.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "-3"}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "1e99"}, None),
    ],
)
def test_the_wait_that_a_server_asks_for_is_read(headers, seconds):
    assert requested_wait(headers, now=1445412480.0) == seconds


class Clock:
    def __init__(self):
        self.waits = []

    async def sleep(self, seconds):
        self.waits.append(seconds)


def failing(*faults, **fields):
    left = [RequestFailed(fault, "x", **fields) for fault in faults]

    async def request():
        if left:
            raise left.pop(0)
        return "done"

    return request


async def run(request, *, max_tries=100, chance=0.0):
    clock = Clock()
    retrying = Retrying(max_tries=max_tries, sleep=clock.sleep, chance=lambda: chance)
    return await retrying.run(request, lambda failure, wait: None), clock.waits


async def test_temporary_faults_are_retried_with_doubling_waits():
    assert await run(failing(*[Fault.OVERLOADED] * 5)) == (("done", 6), [0.5, 1.0, 2.0, 4.0, 8.0])


@pytest.mark.parametrize("fault", list(Fault))
async def test_every_fault_has_a_bounded_number_of_tries_and_a_remedy(fault):
    tries = TREATMENTS[fault].tries
    with pytest.raises(RequestFailed) as caught:
        await run(failing(*[fault] * (tries + 1)))
    assert caught.value.tries == tries
    assert REMEDIES[fault]


async def test_faults_of_several_kinds_share_one_bound():
    faults = [Fault.OVERLOADED, Fault.CONNECTION, Fault.BAD_REPLY, Fault.RATE_LIMITED]
    with pytest.raises(RequestFailed) as caught:
        await run(failing(*faults), max_tries=4)
    assert caught.value.tries == 4


async def test_a_server_that_asks_for_a_wait_gets_it_and_a_little_more():
    _, waits = await run(failing(Fault.RATE_LIMITED, wait=20.0), chance=0.5)
    assert waits == [20.5]


async def test_a_server_that_asks_for_hours_is_not_waited_for():
    with pytest.raises(RequestFailed):
        await run(failing(Fault.RATE_LIMITED, wait=LONGEST_WAIT + 1))


@given(st.floats(0, 0.999), st.integers(1, 20), st.sampled_from(list(Fault)))
def test_waits_stay_between_half_and_full(chance, times, fault):
    treatment = TREATMENTS[fault]
    wait = Retrying(max_tries=5, chance=lambda: chance).wait(RequestFailed(fault, "x"), times)
    assert treatment.first_wait / 2 <= wait <= treatment.longest_wait


def test_the_documentation_states_the_table():
    text = (Path(__file__).parents[3] / "docs" / "models.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"(?m)^\| ([^|]+?) \| [^|]+ \| (\d+) \|", text))
    assert rows == {fault.value: str(treatment.tries) for fault, treatment in TREATMENTS.items()}
