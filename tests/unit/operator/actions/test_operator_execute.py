from dataclasses import replace

import msgspec
import pytest

from dgym.kube import PODS, Conflict, ConnectionLost, NotFound
from dgym_operator.actions import ApiReader, EpisodeExecutor, NotLeading, ProgressBudget, Writes
from dgym_operator.actions._episodes import DEFER_SECONDS
from dgym_operator.app._health import show_waiting
from dgym_operator.controllers import DeletePod, Emit, PatchStatus, Plan
from dgym_operator.objects import Pod, PodMeta


@pytest.fixture
def progress(clock):
    return ProgressBudget(clock, 1.0)


@pytest.fixture
def executor(cache, client, events, progress):
    writes = Writes(client, lambda: False)
    return EpisodeExecutor(
        cache=cache,
        client=client,
        writes=writes,
        reader=ApiReader(client, cache),
        pods=None,
        sidecars=None,
        events=events,
        progress=progress,
        quota_refused=lambda *_: None,
        pod_created=lambda *_: None,
    )


def shown(episode, reason):
    status = msgspec.structs.replace(episode.status, reason=reason)
    warning = Emit(type="Warning", reason=reason, message="there is none")
    return Plan(actions=(PatchStatus(status=status, progress=True), warning), requeue_after=60.0)


async def test_actions_after_a_deferred_write_are_deferred(objects, executor, events, progress):
    episode = objects.episode("fix")
    assert progress.allows()
    for _ in range(3):
        assert await executor.apply(episode, shown(episode, "WaitingForTask")) >= DEFER_SECONDS
    assert not sum(events.dropped.values())


async def test_an_unchanged_status_is_not_written_and_later_actions_are_applied(objects, executor, events, progress):
    episode = objects.episode("fix", reason="WaitingForTask")
    assert progress.allows()
    assert await executor.apply(episode, shown(episode, "WaitingForTask")) == 60.0
    assert events.dropped == {"Normal": 0, "Warning": 1}


async def test_deferred_writes_wait_longer_if_more_are_waiting(objects, executor, events, clock):
    due = {f"fix-{number}": clock.monotonic() for number in range(40)}
    looks = 0
    while due:
        name = min(due, key=due.get)
        clock.seconds = max(clock.seconds, due.pop(name))
        looks += 1
        episode = objects.episode(name)
        written = dict(events.dropped)
        try:
            wait = await executor.apply(episode, shown(episode, "WaitingForTask"))
        except NotLeading:
            continue  # the write was attempted
        assert events.dropped == written
        due[name] = clock.monotonic() + wait
    assert looks <= 4 * 40


class RecordedWrites:
    """Records the statuses of writes to an API server that does not answer."""

    def __init__(self):
        self.statuses = []

    async def patch_status(self, _resource, _item, body):
        self.statuses.append(body["status"])
        raise ConnectionLost("no answer")


async def test_a_leader_without_a_key_writes_waiting_for_slot(cache, objects, clock):
    objects.episode("fix", spec={"task": {}})
    clock.seconds += 60
    writes = RecordedWrites()
    await show_waiting(cache, writes, lambda _namespace: True, "the operator has no usable key")
    (status,) = writes.statuses
    assert (status["reason"], status.get("state")) == ("WaitingForSlot", "Waiting")


class Conflicting:
    """Answers 409 to a deletion.

    ``uid`` is the UID of the object with this name, or None if the object does not exist.
    """

    def __init__(self, uid):
        self._uid = uid

    async def delete(self, *_args, **_options):
        raise Conflict("conflict", status=409)

    async def get(self, _resource, name, *, namespace, **_options):
        if self._uid is None:
            raise NotFound(f"{namespace}/{name}")
        return Pod(metadata=PodMeta(name=name, namespace=namespace, uid=self._uid, resource_version="9"))


@pytest.mark.parametrize("uid", [None, "another", "uid-fix-1"])
async def test_a_conflict_at_a_deletion_removes_the_object_only_if_its_uid_differs(cache, objects, uid):
    pod = objects.pod("fix-1")
    cache.pods.put(pod)
    writes = Writes(Conflicting(uid), lambda: True)
    if uid == "uid-fix-1":
        with pytest.raises(Conflict):
            await writes.delete(PODS, cache.pods, pod.key, "uid-fix-1", decode=Pod)
        assert cache.pods.get(pod.key) is not None
    else:
        await writes.delete(PODS, cache.pods, pod.key, "uid-fix-1", decode=Pod)
        assert cache.pods.get(pod.key) is None


class Gone:
    """Answers the deletion of an object that was deleted earlier, or that is deleted immediately."""

    def __init__(self, answer):
        self._answer = answer

    async def delete(self, *_args, **_options):
        if self._answer is not None:
            raise self._answer


@pytest.mark.parametrize("answer", [NotFound("team/fix-1"), None], ids=["gone before", "gone at once"])
async def test_a_pod_that_is_gone_at_its_deletion_stays_until_the_watch_shows_its_end(
    cache, objects, executor, handlers, answer
):
    episode = objects.episode("fix", attempt=1, podName="fix-1")
    cache.pods.put(objects.pod("fix-1", owner="fix", phase="Running"))
    executor = replace(executor, writes=Writes(Gone(answer), lambda: True))
    await executor.apply(episode, Plan(actions=(DeletePod(name="fix-1", uid="uid-fix-1"),)))
    (pod,) = cache.episode_input(episode, may_create=True).pods
    assert pod.metadata.deletion_timestamp == cache.clock.now()

    ended = {"name": "sidecar", "state": {"terminated": {"exitCode": 0, "message": "the outcome"}}}
    cache.pods.remove(objects.pod("fix-1", owner="fix", phase="Succeeded", containerStatuses=[ended]))
    (pod,) = cache.episode_input(episode, may_create=True).pods
    assert pod.terminated("sidecar").message == "the outcome"
