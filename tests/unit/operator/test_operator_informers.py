import asyncio
from random import Random

import pytest

from dgym.kube import Forbidden, WatchSettings
from dgym_operator.cache import Informers
from dgym_operator.settings import Settings


@pytest.fixture
def informers(client, cache, clock):
    return Informers(client, cache, Settings(), clock, Random(1))


def test_what_was_never_listed_is_not_ready(informers):
    assert informers.check() == "episodes in all namespaces have not been listed yet"


def test_a_kind_of_which_nothing_is_heard_is_ready_until_its_stream_must_have_been_opened_anew(informers, clock):
    for reflector in informers.by_name.values():
        reflector.synced.set()
    # A stream may be silent for so long; then it is dropped and opened again, with some pauses.
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
