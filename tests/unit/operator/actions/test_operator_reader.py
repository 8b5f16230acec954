"""Tests of the reader: Episodes and tasks are read from the API server unless the cache is sufficient."""

import json

import msgspec
import pytest

from dgym.api import EpisodeSpec
from dgym.kube import NotFound
from dgym_operator.actions import ApiReader, Unmet
from dgym_operator.actions._reader import KeptTasks
from dgym_operator.objects import EpisodeView, TaskView

TASK = {"entrypoint": "pytest", "instructions": "mend it"}


def view_of(found, kind):
    return msgspec.json.decode(json.dumps(found), type=kind)


class Api:
    """An API server with Episodes and tasks. It records each request."""

    def __init__(self):
        self.objects = {}
        self.asked = []

    def put(self, kind, name, spec, version="5", **status):
        metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", "resourceVersion": version}
        found = {"apiVersion": "dgym.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec, "status": status}
        self.objects[kind, name] = found
        return found

    async def get(self, resource, name, *, decode, namespace):
        self.asked.append((resource.kind, name))
        if (resource.kind, name) not in self.objects:
            raise NotFound(f"{namespace}/{name}", status=404)
        data = json.dumps(self.objects[resource.kind, name]).encode()
        return data if decode is bytes else msgspec.json.decode(data, type=decode)


@pytest.fixture
def api():
    return Api()


@pytest.fixture
def reader(api, cache):
    return ApiReader(api, cache)


@pytest.fixture
def episode(api, cache):
    """Creates an Episode in the API server and in the cache. The cached Episode may be older."""

    def make(spec, **status):
        found = api.put("Episode", "fix", spec, **status)
        view = view_of(found, EpisodeView)
        cache.episodes.put(view)
        return view

    return make


REFERRED = {"taskRef": {"name": "bug"}, "agent": {"name": "solution"}, "tools": ["pdb", {"name": "view"}]}
INLINE = {"task": TASK, "agent": {"name": "solution"}}


async def test_an_episode_that_another_replica_may_have_written_is_read(reader, episode, api):
    view = episode(REFERRED)
    api.put("Episode", "fix", REFERRED, "6", attempt=1, podName="fix-1")
    read, _ = await reader.episode(view)
    assert (read.status.pod_name, api.asked) == ("fix-1", [("Episode", "fix")])


async def test_an_episode_that_this_leader_wrote_is_not_read_again(reader, episode, api, cache):
    view = episode(REFERRED)
    cache.memory.record_written(view)
    read, full = await reader.episode(view)
    assert (read, api.asked) == (view, [])
    assert [tool if isinstance(tool, str) else tool.name for tool in full.spec.tools] == ["pdb", "view"]
    assert (full.spec.task_ref.name, full.spec.agent.name, full.metadata.uid) == ("bug", "solution", "uid-fix")


async def test_every_field_of_the_spec_is_carried(reader, episode, cache):
    numbers = ("startTimeoutSeconds", "activeDeadlineSeconds", "driverIdleTimeoutSeconds", "ttlSecondsAfterFinished")
    limits = dict.fromkeys((*numbers, "backoffLimit", "maxDisruptions", "priority"), 7)
    names = {"podTemplate": "large", "queueName": "night", "podOverrides": {"runtimeClassName": "gvisor"}}
    spec = {**REFERRED, "suspend": True, "cancel": True, **limits, **names}
    view = episode(spec)
    _, asked = await reader.episode(view)
    cache.memory.record_written(view)
    _, carried = await reader.episode(view)
    assert carried.spec == asked.spec
    assert {*spec, "task"} == set(EpisodeSpec.__struct_encode_fields__)


async def test_versions_that_do_not_compare_prove_nothing(reader, api, cache):
    view = view_of(api.put("Episode", "fix", REFERRED, "abc"), EpisodeView)
    cache.episodes.put(view)
    cache.memory.record_written(view)
    await reader.episode(view)
    assert api.asked == [("Episode", "fix")]


async def test_an_inline_task_is_asked_for_once(reader, episode, api, cache):
    view = episode(INLINE)
    cache.memory.record_written(view)
    for _ in range(3):
        _, full = await reader.episode(view)
        assert full.spec.task.instructions == "mend it"
    assert api.asked == [("Episode", "fix")]


async def test_a_task_is_read_once_for_each_uid(reader, episode, api, cache):
    _, full = await reader.episode(episode(REFERRED))
    found = api.put("DebugTask", "bug", TASK)
    cache.tasks.put(view_of(found, TaskView))
    for _ in range(3):
        assert (await reader.task(full)).spec.instructions == "mend it"
    found["metadata"] |= {"uid": "uid-another", "resourceVersion": "9"}
    found["spec"] = {**TASK, "instructions": "another"}
    cache.tasks.put(view_of(found, TaskView))
    assert (await reader.task(full)).spec.instructions == "another"
    assert api.asked.count(("DebugTask", "bug")) == 2


async def test_a_task_that_is_gone_is_not_remembered(reader, episode, api, cache):
    _, full = await reader.episode(episode(REFERRED))
    view = view_of(api.put("DebugTask", "bug", TASK), TaskView)
    cache.tasks.put(view)
    await reader.task(full)
    cache.tasks.remove(view)
    del api.objects["DebugTask", "bug"]
    with pytest.raises(Unmet, match="DebugTask bug does not exist in namespace"):
        await reader.task(full)


async def test_tools_that_break_the_rules_are_refused(reader, episode, cache):
    view = episode({**REFERRED, "tools": [{"name": 5}]})
    cache.memory.record_written(view)
    with pytest.raises(Unmet, match=r"spec\.tools"):
        await reader.episode(view)
    view = episode({**REFERRED, "tools": ["pdb", "pdb"]})
    with pytest.raises(Unmet, match="tool"):
        await reader.episode(view)


def test_the_tasks_that_were_not_used_for_the_longest_time_give_way():
    kept = KeptTasks(100)
    for name in ("a", "b", "c"):
        kept.put(name, name, 40)
        kept.get("a")
    assert [kept.get(name) for name in ("a", "b", "c")] == ["a", None, "c"]
    kept.put("c", "changed", 90)
    assert [kept.get(name) for name in ("a", "b", "c")] == [None, None, "changed"]
