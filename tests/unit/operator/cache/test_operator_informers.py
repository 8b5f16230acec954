import asyncio
import json
from random import Random

import msgspec
import pytest

from dgym.kube import Forbidden, WatchSettings
from dgym.kube._resources import ListMeta, Page
from dgym_operator.cache import Informers
from dgym_operator.settings import Settings


@pytest.fixture
def informers(client, cache, clock):
    return Informers(client, cache, Settings(), clock, Random(1))


def test_an_informer_without_a_list_is_not_ready(informers):
    assert informers.check() == "episodes in all namespaces have not been listed yet"


def test_a_silent_watch_is_ready_until_it_must_have_been_reopened(informers, clock):
    for reflector in informers.by_name.values():
        reflector.synced.set()
    # A stream may be silent for this time. Then it is closed and opened again after some pauses.
    clock.seconds += 2 * WatchSettings().silence_seconds
    assert informers.check() is None
    clock.seconds += 1
    assert informers.check() == "episodes in all namespaces have had no update for 181 s"


REFUSED = Forbidden("episodes is forbidden", status=403, reason="Forbidden")


@pytest.fixture
def of_two_namespaces(client, cache, clock):
    made = Informers(client, cache, Settings(watch_namespaces="team-a,team-b"), clock, Random(1))
    for (_, namespace), reflector in made.by_name.items():
        reflector.answered.set()
        if namespace == "team-b":
            reflector.refusal = REFUSED
        else:
            reflector.synced.set()
    return made


async def test_a_namespace_that_is_gone_holds_nothing_up(of_two_namespaces):
    async with asyncio.timeout(90):
        await of_two_namespaces.synced()
    assert of_two_namespaces.check() is None
    assert of_two_namespaces.complete("team-a")
    assert not of_two_namespaces.complete("team-b")
    assert of_two_namespaces.refusal("team-b") is REFUSED


def test_without_the_right_to_see_agents_nothing_is_ready(of_two_namespaces):
    agents = of_two_namespaces.by_name["agents", "dgym"]
    agents.synced.clear()
    agents.refusal = REFUSED
    assert of_two_namespaces.check() == "agents in dgym have not been listed yet"


class Lists:
    """An API server that lists Episodes and counts the lists."""

    def __init__(self):
        self.items = []
        self.lists = 0

    async def pages(self, _resource, *, decode, namespace, limit):
        self.lists += 1
        yield Page(ListMeta(), [msgspec.Raw(json.dumps(item).encode()) for item in self.items])


@pytest.fixture
def lists():
    return Lists()


@pytest.fixture
def followed(lists, cache, clock):
    """Returns informers of one namespace whose watch has shown everything up to a version."""
    made = Informers(lists, cache, Settings(watch_namespaces="team"), clock, Random(1))

    def reach(version):
        made.by_name["episodes", "team"]._version = version
        return made

    return reach


async def test_a_new_leader_does_not_list_if_its_watch_has_reached_the_handover(followed, lists, objects, cache, clock):
    episode = objects.episode("fix")
    note = followed("1").handover()
    assert json.loads(note) == {"team": episode.metadata.resource_version}
    await followed(str(int(episode.metadata.resource_version) + 3)).catch_up(note)
    assert lists.lists == 0


@pytest.mark.parametrize("note", ["", "{}", "no json", '{"team": "9000"}', '{"other": "1"}', '{"team": "x"}'])
async def test_all_is_listed_where_the_watch_may_lack_something(followed, lists, objects, cache, note):
    old = objects.episode("fix")
    metadata = {"name": "fix", "namespace": "team", "uid": "uid-fix", "resourceVersion": "8000"}
    spec = {"taskRef": {"name": "bug"}}
    lists.items = [
        {"metadata": metadata, "spec": spec, "status": {"attempt": 2}},
        {"metadata": metadata | {"name": "unreadable", "uid": "uid-2"}, "spec": {"priority": "high"}},
    ]
    await followed("7").catch_up(note)
    assert (lists.lists, cache.episodes.get(old.key).status.attempt) == (1, 2)
    assert cache.episodes.get(("team", "unreadable")) is None


def test_the_handover_is_empty_after_a_recently_failed_write(followed, objects, cache, clock):
    objects.episode("fix")
    cache.memory.failed_write_at = clock.monotonic()
    assert followed("9").handover() == ""
    clock.seconds += 121
    assert followed("9").handover() != ""
