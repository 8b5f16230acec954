"""Tests of namespaces that are deleted and created again while the operator leads."""

import asyncio
import contextlib
from random import Random

import msgspec
import pytest

from dgym.api import SandboxPoolSpec, TaskRef
from dgym.kube import Forbidden, NotFound
from dgym_operator.app._health import Announcer
from dgym_operator.app._namespaces import Claims, Namespaces, State
from dgym_operator.cache import Informers
from dgym_operator.objects import Meta, SandboxPoolView
from dgym_operator.settings import Settings
from tests.fakes.kube_clocks import ManualClock, settle

REFUSED = Forbidden("episodes is forbidden", status=403, reason="Forbidden")


@pytest.fixture
def informers(client, cache, clock):
    return Informers(client, cache, Settings(watch_namespaces="team-a,team-b"), clock, Random(1))


@pytest.fixture
def served():
    return []


class Leases:
    """An API server that has only Leases."""

    def __init__(self):
        self.holders = {}
        self.version = 0

    async def get(self, _resource, _name, *, namespace, decode):
        if namespace not in self.holders:
            raise NotFound("no such lease", status=404)
        return self._answer(namespace, decode)

    async def create(self, _resource, body, *, namespace, decode, priority):
        self.holders[namespace] = body["spec"]["holderIdentity"]
        return self._answer(namespace, decode)

    async def patch(self, _resource, _name, body, *, namespace, decode, priority):
        return await self.create(_resource, body, namespace=namespace, decode=decode, priority=priority)

    def _answer(self, namespace, decode):
        self.version += 1
        spec = {"holderIdentity": self.holders[namespace], "leaseDurationSeconds": 120}
        return msgspec.convert({"metadata": {"resourceVersion": str(self.version)}, "spec": spec}, decode)


@pytest.fixture
def leases():
    return Leases()


@pytest.fixture
def time():
    return ManualClock()


@pytest.fixture
async def namespaces(cache, informers, leases, events, served, time):
    settings = Settings(watch_namespaces="team-a,team-b")
    claims = Claims(leases, identity=settings.installation, duration_seconds=120.0, clock=time, random=Random(1))
    announcer = Announcer(settings, events)
    made = Namespaces(
        settings, cache=cache, informers=informers, claims=claims, announcer=announcer, served=served.append
    )
    task = asyncio.ensure_future(made.run())
    await settle()
    yield made
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def answer(informers, namespace, refusal=None):
    """Let all lists of the namespace succeed, or fail with ``refusal``."""
    for (_, where), reflector in informers.by_name.items():
        if where == namespace:
            reflector.refusal = refusal
            if refusal is None:
                reflector.synced.set()
    informers.changed()
    await settle()


async def test_a_namespace_is_served_once_all_its_objects_are_known(namespaces, informers, served):
    informers.by_name["episodes", "team-a"].synced.set()
    informers.changed()
    await settle()
    assert not namespaces.serves("team-a")
    await answer(informers, "team-a")
    assert namespaces.serves("team-a")
    assert served == ["team-a"]
    assert namespaces.states() == {"team-a": State.SERVED, "team-b": State.PENDING}


async def test_a_missing_namespace_is_reported_once_and_the_other_is_served(
    namespaces, informers, served, events, caplog
):
    await answer(informers, "team-b", REFUSED)
    await answer(informers, "team-a")
    await answer(informers, "team-b", REFUSED)
    assert namespaces.serves("team-a")
    assert not namespaces.serves("team-b")
    assert events.dropped["Warning"] == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "namespace team-b of watchNamespaces is not served" in caplog.text


async def test_a_namespace_that_exists_again_is_served_again(namespaces, informers, served, events):
    await answer(informers, "team-b", REFUSED)
    await answer(informers, "team-b")
    assert namespaces.serves("team-b")
    assert served == ["team-b"]
    assert sum(events.dropped.values()) == 2


async def test_a_namespace_deleted_while_served_is_not_served(namespaces, informers):
    await answer(informers, "team-a")
    await answer(informers, "team-a", REFUSED)
    assert not namespaces.serves("team-a")


async def test_a_namespace_of_another_installation_is_served_once_it_is_released(
    namespaces, informers, leases, served, events, caplog, time
):
    leases.holders["team-a"] = "other/dgym-operator"
    await answer(informers, "team-a")
    await answer(informers, "team-b")
    assert namespaces.states() == {"team-a": State.HELD, "team-b": State.SERVED}
    assert events.dropped["Warning"] == 1
    assert "the installation other/dgym-operator serves it" in caplog.text
    leases.holders["team-a"] = ""
    await time.advance(60)
    assert served == ["team-b", "team-a"]
    assert leases.holders == {"team-a": "dgym/dgym-operator", "team-b": "dgym/dgym-operator"}


async def test_a_namespace_whose_lease_expired_is_taken_over(namespaces, informers, leases, time):
    leases.holders["team-a"] = "other/dgym-operator"
    await answer(informers, "team-a")
    await time.advance(100)
    assert not namespaces.serves("team-a")
    await time.advance(100)
    assert namespaces.serves("team-a")


async def test_without_the_right_to_its_lease_it_is_not_served(namespaces, informers, leases, monkeypatch, caplog):
    async def refuse(*_, **__):
        raise Forbidden("leases is forbidden", status=403)

    monkeypatch.setattr(leases, "create", refuse)
    await answer(informers, "team-a")
    assert namespaces.states()["team-a"] is State.REFUSED
    assert "cannot claim it by the Lease dgym-owner" in caplog.text


@pytest.fixture
def everywhere(client, cache, clock, leases, events, served, time):
    """``Namespaces`` of an installation that serves all namespaces."""
    settings, informers = Settings(), Informers(client, cache, Settings(), clock, Random(1))
    for reflector in informers.by_name.values():
        reflector.synced.set()
    claims = Claims(leases, identity=settings.installation, duration_seconds=120.0, clock=time, random=Random(1))
    announcer = Announcer(settings, events)
    return Namespaces(
        settings, cache=cache, informers=informers, claims=claims, announcer=announcer, served=served.append
    )


async def test_only_namespaces_with_objects_are_claimed(everywhere, cache, objects, leases):
    episode = objects.episode("fix")
    await everywhere.begin()
    assert everywhere.serves("team")
    assert leases.holders == {"team": "dgym/dgym-operator"}
    cache.episodes.remove(episode)
    task = asyncio.ensure_future(everywhere.run())
    await settle()
    task.cancel()
    await asyncio.wait((task,))
    assert everywhere.states() == {}


async def test_a_pool_alone_is_something(everywhere, cache, leases):
    metadata = Meta(name="warm", namespace="team", uid="uid-warm", resource_version="1")
    pool = SandboxPoolView(metadata=metadata, spec=SandboxPoolSpec(task_ref=TaskRef(name="bug")))
    cache.sandbox_pools.put(pool)
    await everywhere.begin()
    task = asyncio.ensure_future(everywhere.run())
    await settle()
    assert everywhere.serves("team")
    assert leases.holders == {"team": "dgym/dgym-operator"}
    cache.sandbox_pools.remove(pool)
    task.cancel()
    await asyncio.wait((task,))


async def test_a_namespace_that_was_empty_for_a_short_time_is_served_again_immediately(
    everywhere, cache, objects, leases, time
):
    episode = objects.episode("fix")
    await everywhere.begin()
    task = asyncio.ensure_future(everywhere.run())
    await settle()
    cache.episodes.remove(episode)
    await time.advance(40)
    assert everywhere.states() == {}
    objects.episode("next")
    assert everywhere.serves("team")
    await time.advance(80)
    assert everywhere.serves("team")
    assert leases.holders == {"team": "dgym/dgym-operator"}
    task.cancel()
    await asyncio.wait((task,))
