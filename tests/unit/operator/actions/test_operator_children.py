"""Tests of the creation of a set's children: it is parallel, starts slowly, and stops after a refusal."""

import asyncio

import msgspec
import pytest

from dgym.kube import Forbidden
from dgym_operator.actions import SetExecutor, Writes
from dgym_operator.controllers import CreateEpisode, Plan
from tests.fakes.kube_clocks import settle


class Api:
    """An API server that answers when the test calls ``answer``. It refuses some children."""

    def __init__(self, refused=()):
        self.refused = refused
        self.waiting = []
        self.created = []

    async def create(self, _resource, body, *, decode, namespace, **_options):
        answer = asyncio.get_running_loop().create_future()
        self.waiting.append(answer)
        await answer
        name = body["metadata"]["name"]
        if name in self.refused:
            raise Forbidden("exceeded quota", status=403, reason="Forbidden")
        self.created.append(name)
        metadata = {**body["metadata"], "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": "7"}
        return msgspec.convert({"metadata": metadata, "spec": body["spec"]}, decode)

    def answer(self):
        """Answer all requests and return their number."""
        waiting, self.waiting = self.waiting, []
        for answer in waiting:
            answer.set_result(None)
        return len(waiting)


@pytest.fixture
def start(cache, events, objects):
    def begin(api, count):
        writes = Writes(api, lambda: True)
        executor = SetExecutor(cache=cache, client=api, writes=writes, events=events)
        actions = tuple(
            CreateEpisode(name=f"all-{index}", index=index, sample=0, task="bug", task_uid="uid-bug")
            for index in range(count)
        )
        return asyncio.ensure_future(executor.apply(objects.episode_set("all"), Plan(actions=actions)))

    return begin


async def rounds(api):
    """Return the number of concurrent requests in each round, until no request is left."""
    found = []
    await settle()
    while count := api.answer():
        found.append(count)
        await settle()
    return found


async def test_twice_as_many_at_a_time_after_each_success(start, cache):
    api = Api()
    done = start(api, 100)
    assert await rounds(api) == [1, 2, 4, 8, 16, 32, 32, 5]
    assert await done is None
    assert len(api.created) == 100
    # Only this leader can have written the status of these Episodes.
    assert all(cache.memory.has_written(f"uid-all-{index}") for index in range(100))


async def test_creation_stops_after_a_refusal(start, cache):
    api = Api(refused=("all-5",))
    done = start(api, 100)
    assert await rounds(api) == [1, 2, 4]
    with pytest.raises(Forbidden):
        await done
    assert sorted(api.created) == [f"all-{index}" for index in (0, 1, 2, 3, 4, 6)]
    assert cache.memory.refused["uid-all"] == "exceeded quota"


async def test_a_leader_that_stops_creates_no_more(cache, events, objects):
    api = Api()
    writes = Writes(api, lambda: True)
    executor = SetExecutor(cache=cache, client=api, writes=writes, events=events)
    action = CreateEpisode(name="all-0", index=0, sample=0, task="bug", task_uid="uid-bug")
    writes.stop()
    with pytest.raises(Exception, match="does not lead"):
        await executor.apply(objects.episode_set("all"), Plan(actions=(action,)))
    assert not api.waiting
