"""Tests of leader election on a Lease of a real API server. The test advances the clock of each candidate."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random
from typing import Any

import pytest

from dgym.kube import LEASES, Client, LeaderElector, LeadershipLost, LeaseRecord
from tests.fakes.kube_clocks import ManualClock
from tests.support.apiserver import ApiServer

Until = Callable[[Callable[[], bool]], Awaitable[None]]


class Candidate:
    """A leader elector with its own clock. Its work only waits."""

    def __init__(self, client: Client, namespace: str, identity: str) -> None:
        self.clock = ManualClock()
        self.elector = LeaderElector(
            client, name="leader", namespace=namespace, identity=identity, clock=self.clock, random=Random(1)
        )
        self.leading = False
        self.stopping = asyncio.Event()
        self.may_stop = asyncio.Event()
        self.may_stop.set()
        self.task = asyncio.create_task(self.elector.run(self._lead))

    async def _lead(self) -> None:
        self.leading = True
        try:
            await asyncio.Event().wait()
        finally:
            self.stopping.set()
            await self.may_stop.wait()
            self.leading = False

    async def stop(self) -> None:
        self.may_stop.set()
        self.task.cancel()
        await asyncio.wait((self.task,))


@pytest.fixture
async def candidate(client: Client, api_namespace: str) -> AsyncIterator[Callable[[str], Candidate]]:
    made: list[Candidate] = []

    def make(identity: str) -> Candidate:
        made.append(Candidate(client, api_namespace, identity))
        return made[-1]

    yield make
    for each in made:
        await each.stop()


@pytest.fixture
def lease(api_server: ApiServer, api_namespace: str) -> Callable[[], dict[str, Any]]:
    def read() -> dict[str, Any]:
        return dict(api_server.request("GET", LEASES.url(api_namespace, "leader"))["spec"])

    return read


async def turn(until: Until, candidate: Candidate, seconds: float, condition: Callable[[], bool]) -> None:
    """Advance the clock of a candidate until a condition is true, in steps that leave time for its requests."""
    for _ in range(int(seconds)):
        await candidate.clock.advance(1.0)
        # Requests take real time. The candidate sleeps again after the response, or its task ends.
        await until(lambda: candidate.clock.sleepers > 0 or candidate.task.done() or condition())
        if condition():
            return
    assert condition()


async def test_the_second_candidate_leads_after_the_lease_of_the_first_expires(
    candidate: Callable[[str], Candidate], lease: Callable[[], dict[str, Any]], until: Until
) -> None:
    first = candidate("first")
    await until(lambda: first.leading)
    assert first.elector.is_leader()
    assert (lease()["holderIdentity"], lease()["leaseTransitions"], lease()["leaseDurationSeconds"]) == ("first", 0, 15)

    second = candidate("second")
    await until(lambda: second.clock.sleepers > 0)
    assert second.elector.holder == "first"
    for _ in range(14):
        await second.clock.advance(1.0)
        await until(lambda: second.clock.sleepers > 0)
    assert not second.leading
    await turn(until, second, 10, lambda: second.leading)
    assert (lease()["holderIdentity"], lease()["leaseTransitions"]) == ("second", 1)

    # The loop of the first candidate was blocked. Its clock ends its leadership, and then it reads the Lease.
    first.clock.jump(10.0)
    assert not first.elector.is_leader()
    await turn(until, first, 10, first.task.done)
    with pytest.raises(LeadershipLost):
        await first.task
    assert not first.leading
    assert second.elector.is_leader()


async def test_a_leader_that_renews_keeps_the_others_away(
    candidate: Callable[[str], Candidate], lease: Callable[[], dict[str, Any]], until: Until
) -> None:
    first = candidate("first")
    await until(lambda: first.leading)
    second = candidate("second")
    await until(lambda: second.clock.sleepers > 0)
    for _ in range(20):
        for each in (first, second):
            await each.clock.advance(2.0)
            await until(lambda each=each: each.clock.sleepers > 0)  # type: ignore[misc]
    assert first.leading
    assert first.elector.is_leader()
    assert not second.leading
    assert lease()["leaseTransitions"] == 0


async def test_a_leader_that_stops_gives_the_lease_back_once_its_work_has_ended(
    candidate: Callable[[str], Candidate], lease: Callable[[], dict[str, Any]], until: Until
) -> None:
    first = candidate("first")
    await until(lambda: first.leading)
    second = candidate("second")
    await until(lambda: second.clock.sleepers > 0)
    first.may_stop.clear()
    first.task.cancel()
    await first.stopping.wait()
    assert lease()["holderIdentity"] == "first"
    assert first.elector.is_leader()
    first.may_stop.set()
    await asyncio.wait((first.task,))
    assert first.task.cancelled()
    assert not first.elector.is_leader()
    assert lease()["holderIdentity"] == ""
    await turn(until, second, 5, lambda: second.leading)
    assert lease()["leaseTransitions"] == 1


async def test_work_that_fails_ends_the_leadership_with_its_failure(
    client: Client, api_namespace: str, lease: Callable[[], dict[str, Any]]
) -> None:
    async def lead() -> None:
        raise ZeroDivisionError

    elector = LeaderElector(
        client, name="leader", namespace=api_namespace, identity="a", clock=ManualClock(), random=Random(1)
    )
    with pytest.raises(ZeroDivisionError):
        await elector.run(lead)
    assert lease()["holderIdentity"] == ""


async def test_one_of_many_candidates_leads(candidate: Callable[[str], Candidate], until: Until) -> None:
    all_of_them = [candidate(f"c{number}") for number in range(6)]
    await until(lambda: sum(each.leading for each in all_of_them) + sum(e.clock.sleepers > 0 for e in all_of_them) >= 6)
    assert sum(each.leading for each in all_of_them) == 1


async def test_a_deleted_lease_is_created_again(
    candidate: Callable[[str], Candidate], client: Client, api_namespace: str,
    lease: Callable[[], dict[str, Any]], until: Until,
) -> None:  # fmt: skip
    first = candidate("first")
    await until(lambda: first.leading and first.clock.sleepers > 0)
    await client.delete(LEASES, "leader", namespace=api_namespace, decode=bytes)
    await first.clock.advance(3.0)
    await until(lambda: first.clock.sleepers > 0)
    assert first.leading
    assert first.elector.is_leader()
    assert lease()["holderIdentity"] == "first"


async def test_without_an_api_server_a_leader_stops_in_time(bad_server: Any, bad_client: Client, until: Until) -> None:
    async def lease_for_once(request: Any) -> Any:
        from aiohttp import web

        return web.json_response({"metadata": {"resourceVersion": "1"}, "spec": {"holderIdentity": "a"}})

    bad_server.others = [lease_for_once, lease_for_once, bad_server.reset]
    candidate = Candidate(bad_client, "ns", "a")
    await until(lambda: candidate.leading and candidate.clock.sleepers > 0)
    for _ in range(20):
        if candidate.task.done():
            break
        assert candidate.leading
        await candidate.clock.advance(1.0)
        await until(lambda: candidate.clock.sleepers > 0 or candidate.task.done())
    with pytest.raises(LeadershipLost):
        await candidate.task
    assert candidate.clock.time <= 1000 + 10 + 6


@pytest.mark.parametrize("settings", [(10, 15, 2), (15, 10, 10), (15, 10, 0)])
def test_durations_that_would_allow_two_leaders_are_refused(
    client: Client, settings: tuple[float, float, float]
) -> None:
    duration, renew, retry = settings
    with pytest.raises(ValueError, match="Lease"):
        LeaderElector(
            client,
            name="leader",
            namespace="default",
            identity="a",
            clock=ManualClock(),
            random=Random(1),
            duration=duration,
            renew_deadline=renew,
            retry_period=retry,
        )


async def test_a_released_lease_is_taken_at_once(
    candidate: Callable[[str], Candidate], lease: Callable[[], dict[str, Any]], until: Until
) -> None:
    first = candidate("first")
    await until(lambda: first.leading)
    second = candidate("second")
    await until(lambda: second.clock.sleepers > 0)
    await first.stop()
    # The clock of the second candidate does not advance: it reads the Lease through a watch.
    await until(lambda: second.leading)
    assert lease()["holderIdentity"] == "second"


@pytest.fixture
def records(client: Client, api_namespace: str) -> Callable[[str], LeaseRecord]:
    def make(identity: str) -> LeaseRecord:
        return LeaseRecord(
            client,
            name="leader",
            namespace=api_namespace,
            identity=identity,
            duration=15.0,
            valid=10.0,
            clock=ManualClock(),
        )

    return make


@pytest.mark.parametrize(("written", "holder"), [("first", ""), ("second", "second")])
async def test_a_lease_that_was_written_meanwhile_is_released_if_it_is_still_held(
    written: str,
    holder: str,
    client: Client,
    api_namespace: str,
    records: Callable[[str], LeaseRecord],
    lease: Callable[[], dict[str, Any]],
) -> None:
    """A cancelled renewal or another candidate can write the Lease meanwhile."""
    first = records("first")
    assert await first.renew(10)
    spec = {"holderIdentity": written, "renewTime": "2030-01-01T00:00:00.000000Z"}
    await client.patch(LEASES, "leader", {"spec": spec}, namespace=api_namespace, decode=dict[str, Any])
    await first.release(10)
    assert lease()["holderIdentity"] == holder


async def test_only_the_next_holder_gets_the_note_of_a_release(records: Callable[[str], LeaseRecord]) -> None:
    first, second, third = records("first"), records("second"), records("third")
    assert await first.renew(30.0)
    await first.release(30.0, note="all up to 7")
    assert await second.renew(30.0)
    assert (first.handed_over, second.handed_over) == ("", "all up to 7")
    assert await second.renew(30.0)
    await second.release(30.0)
    assert await third.renew(30.0)
    assert third.handed_over == ""


async def test_a_note_from_before_another_holder_is_not_used(
    records: Callable[[str], LeaseRecord], client: Client, api_namespace: str
) -> None:
    first, second = records("first"), records("second")
    assert await first.renew(30.0)
    await first.release(30.0, note="all up to 7")
    # A holder of an older release does not write notes.
    for spec in ({"holderIdentity": "older", "leaseTransitions": 1}, {"holderIdentity": ""}):
        await client.patch(LEASES, "leader", {"spec": spec}, namespace=api_namespace, decode=bytes)
    assert await second.renew(30.0)
    assert second.handed_over == ""
