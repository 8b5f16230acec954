"""Tests of the limit on images that the cluster pulls at a time."""

import asyncio
import contextlib

import pytest

from dgym_operator.chart_values import decode_mirrors, mirrored
from dgym_operator.dispatch import Dispatcher, candidate_of
from tests.unit.operator.conftest import POLICIES, create_pod, no_image, pulling, serve

STARTED = {"containerStatuses": [{"name": "sandbox", "state": {"running": {}}}]}


@pytest.fixture
def dispatcher(cache, clock, looked_at, again):
    clock.seconds = 0.0

    def enqueue(key, *, low_priority=False):
        (again if low_priority else looked_at).append(key[1])

    return Dispatcher(cache, head_start=0, stuck_limit=9, policies=POLICIES, enqueue=enqueue, pull_limit=2)


@pytest.fixture
def request_pods(dispatcher, objects, cache):
    def request(**images):
        for number, (name, image) in enumerate(images.items()):
            episode = objects.episode(name, created=number, spec={"task": {"image": image}})
            dispatcher.request_pod(episode.key, candidate_of(episode, image=cache.image_of(episode)))
        dispatcher.round()

    return request


def test_the_number_of_concurrent_pulls_is_limited(dispatcher, objects, cache, looked_at, again, request_pods):
    serve(objects, cache, slots=9)
    request_pods(a1="a", b1="b", c1="c", a2="a", d1="d", c2="c")
    assert looked_at == ["a1", "b1", "a2"], "a second sandbox of an image needs no further pull"
    assert sorted(again) == ["c1", "c2", "d1"]
    assert "at most 2 are pulled at a time: raise sandboxes.maxConcurrentPulls" in dispatcher.hold(("team", "c1")).text
    again.clear()
    for name in ("a1", "b1", "a2"):
        create_pod(dispatcher, objects, cache, name, **pulling())
    assert len(looked_at) == 3
    create_pod(dispatcher, objects, cache, "a2", **STARTED)
    assert looked_at[3:] == ["c1", "c2"], "a is there: its other sandbox, on another node, takes no share"
    assert again == [], "a status is written where the cause changes, not with every image"
    request_pods(a3="a", e1="e")
    assert looked_at[5:] == ["a3"]


def test_an_image_that_cannot_be_pulled_or_takes_too_long_holds_no_others(
    dispatcher, objects, cache, clock, looked_at, request_pods
):
    serve(objects, cache, slots=9)
    request_pods(a1="a", b1="b", c1="c", d1="d")
    create_pod(dispatcher, objects, cache, "a1", **no_image())
    assert looked_at == ["a1", "b1", "c1"]
    clock.seconds += 1000
    serve(objects, cache, slots=9)
    create_pod(dispatcher, objects, cache, "b1", **pulling())
    assert looked_at == ["a1", "b1", "c1", "d1"]


def test_no_slots_are_held_for_images_that_wait(dispatcher, objects, cache, looked_at, request_pods):
    serve(objects, cache, slots=3)
    request_pods(a1="a", b1="b", c1="c", a2="a")
    assert looked_at == ["a1", "b1", "a2"]


def test_a_new_leader_finds_the_images_of_the_pods_that_run(dispatcher, objects, cache, looked_at, request_pods):
    serve(objects, cache, slots=9)
    assigned = {"attempt": 1, "podName": "old-1", "assignment": {"agentPodUID": "uid-agent", "epoch": 1}}
    objects.episode("old", spec={"task": {"image": "c"}}, **assigned)
    cache.pods.put(objects.pod("old-1", owner="old", **STARTED))

    async def lead():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(dispatcher.run(), 0.01)

    asyncio.run(lead())
    request_pods(a1="a", b1="b", d1="d", c1="c")
    assert looked_at == ["a1", "b1", "c1"]


def test_the_task_names_the_image_wherever_it_is(cache, objects):
    assert cache.image_of(objects.episode("e", spec={"task": {"image": "x"}})) == "x"
    assert cache.image_of(objects.episode("e", spec={"task": {}})) == ""
    assert cache.image_of(objects.episode("e", spec={"taskRef": {"name": "gone"}})) == ""


MIRRORS = {"docker.io": "mirror.example/docker", "docker.io/swebench": "fast.example:5000", "quay.io": "mirror.example"}


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("python:3.12", "mirror.example/docker/library/python:3.12"),
        ("me/app@sha256:abc", "mirror.example/docker/me/app@sha256:abc"),
        ("docker.io/me/app", "mirror.example/docker/me/app"),
        ("swebench/sweb.eval:latest", "fast.example:5000/sweb.eval:latest"),
        ("swebenchmark/sweb.eval", "mirror.example/docker/swebenchmark/sweb.eval"),
        ("quay.io/team/app:1", "mirror.example/team/app:1"),
        ("quay.io.example/app", "quay.io.example/app"),
        ("localhost/dgym/app", "localhost/dgym/app"),
        ("localhost:5000/app", "localhost:5000/app"),
    ],
)
def test_the_longest_place_with_a_mirror_is_taken(image, expected):
    assert mirrored(image, MIRRORS) == expected


@pytest.mark.parametrize("text", ["[]", "{", '{"docker.io": 1}', '{"docker.io": "https://m"}', '{"docker.io/": "m"}'])
def test_invalid_mirrors_are_refused(text):
    with pytest.raises(ValueError, match=r"imageMirrors: .*; give"):
        decode_mirrors(text)
