"""Tests of Events: a real API server stores them, and kubectl shows them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random
from typing import Any

import pytest

from dgym.kube import CONFIG_MAPS, EVENTS, Client, EventRecorder
from tests.fakes.kube_clocks import HastyClock
from tests.support.apiserver import ApiServer

Until = Callable[[Callable[[], bool]], Awaitable[None]]


@pytest.fixture
async def recorder(client: Client, clock: HastyClock) -> EventRecorder:
    return EventRecorder(
        client, controller="dgym.dev/operator", instance="operator-0", clock=clock, random=Random(1), limit=20
    )


@pytest.fixture
async def running(recorder: EventRecorder) -> AsyncIterator[EventRecorder]:
    task = asyncio.create_task(recorder.run())
    yield recorder
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled(), task.exception()


@pytest.fixture
async def regarding(client: Client, api_namespace: str, thing: Any) -> Any:
    body = CONFIG_MAPS.manifest(metadata={"name": "a"})
    return await client.create(CONFIG_MAPS, body, namespace=api_namespace, decode=thing)


def events(server: ApiServer, namespace: str) -> list[dict[str, Any]]:
    return list(server.request("GET", EVENTS.url(namespace))["items"])


def counts(server: ApiServer, namespace: str) -> dict[str, int]:
    return {each["reason"]: each.get("series", {}).get("count", 1) for each in events(server, namespace)}


async def test_recorded_events_are_shown_by_kubectl(
    running: EventRecorder, regarding: Any, api_server: ApiServer, api_namespace: str, until: Until
) -> None:
    running.record(CONFIG_MAPS, regarding, reason="Started", message="it runs now")
    running.record(CONFIG_MAPS, regarding, reason="Broken", message="it broke: " + "x" * 3000, type="Warning")
    await until(lambda: len(events(api_server, api_namespace)) == 2)
    shown = api_server.kubectl("-n", api_namespace, "describe", "configmap", "a").stdout
    assert "Started" in shown
    assert "it runs now" in shown
    assert "dgym.dev/operator" in shown
    assert "Warning" in shown


async def test_the_same_again_is_a_count(
    running: EventRecorder, regarding: Any, api_server: ApiServer, api_namespace: str, until: Until, clock: HastyClock
) -> None:
    for _ in range(5):
        running.record(CONFIG_MAPS, regarding, reason="Waiting", message="no slot")
    running.record(CONFIG_MAPS, regarding, reason="Other", message="one")
    await until(lambda: counts(api_server, api_namespace) == {"Waiting": 5, "Other": 1})
    running.record(CONFIG_MAPS, regarding, reason="Waiting", message="no slot")
    await until(lambda: counts(api_server, api_namespace) == {"Waiting": 6, "Other": 1})
    clock.jump(1000)
    running.record(CONFIG_MAPS, regarding, reason="Waiting", message="no slot")
    await until(lambda: len(events(api_server, api_namespace)) == 3)


async def test_a_series_whose_event_was_deleted_starts_again(
    running: EventRecorder, client: Client, regarding: Any, api_server: ApiServer, api_namespace: str, until: Until
) -> None:
    running.record(CONFIG_MAPS, regarding, reason="Waiting", message="no slot")
    await until(lambda: len(events(api_server, api_namespace)) == 1)
    name = events(api_server, api_namespace)[0]["metadata"]["name"]
    await client.delete(EVENTS, name, namespace=api_namespace, decode=bytes)
    running.record(CONFIG_MAPS, regarding, reason="Waiting", message="no slot")
    await until(lambda: counts(api_server, api_namespace) == {"Waiting": 2})


async def test_recording_does_not_block_and_drops_events_beyond_the_limit(
    recorder: EventRecorder, regarding: Any
) -> None:
    for number in range(100):
        recorder.record(CONFIG_MAPS, regarding, reason="Much", message=str(number))
    recorder.record(CONFIG_MAPS, regarding, reason="Much", message="0")
    assert recorder.dropped == {"Normal": 80, "Warning": 0}


async def test_no_warning_is_dropped_for_a_normal_event(recorder: EventRecorder, regarding: Any) -> None:
    for number in range(20):
        recorder.record(CONFIG_MAPS, regarding, reason="Much", message=str(number))
    for number in range(25):
        recorder.record(CONFIG_MAPS, regarding, reason="Bad", message=str(number), type="Warning")
    assert recorder.dropped == {"Normal": 20, "Warning": 5}


async def test_warnings_are_sent_first(
    recorder: EventRecorder, regarding: Any, api_server: ApiServer, api_namespace: str, until: Until
) -> None:
    for number in range(5):
        recorder.record(CONFIG_MAPS, regarding, reason="Much", message=str(number))
    recorder.record(CONFIG_MAPS, regarding, reason="Bad", message="it broke", type="Warning")
    task = asyncio.create_task(recorder.run())
    await until(lambda: len(events(api_server, api_namespace)) == 6)
    task.cancel()
    await asyncio.wait((task,))
    sent = sorted(events(api_server, api_namespace), key=lambda each: int(each["metadata"]["resourceVersion"]))
    assert [each["reason"] for each in sent] == ["Bad"] + ["Much"] * 5


async def test_refused_events_do_not_stop_later_events(
    bad_server: Any, bad_client: Client, regarding: Any, clock: HastyClock, until: Until
) -> None:
    bad_server.others = [bad_server.status(403, "Forbidden"), bad_server.status(500), bad_server.page()]
    recorder = EventRecorder(bad_client, controller="c", instance="i", clock=clock, random=Random(1), qps=1.0)
    task = asyncio.create_task(recorder.run())
    for number in range(20):
        recorder.record(CONFIG_MAPS, regarding, reason="Any", message=str(number))
    await until(lambda: bad_server.counts["others"] == 20)
    assert recorder.dropped == {"Normal": 2, "Warning": 0}
    assert sum(clock.slept) == pytest.approx(15.0)
    task.cancel()
    await asyncio.wait((task,))
