"""Tests of the proof that a pod belongs to an Episode. Its name, labels and owner are not sufficient."""

import msgspec
import pytest

from dgym.api import PROOF_ANNOTATION, DebugTask, Episode
from dgym.kube import AlreadyExists
from dgym_operator.actions import PodMaker, SandboxPoolClaims, Unmet, key_id
from dgym_operator.cache import AgentPods, Cache
from dgym_operator.controllers import CreatePod, DeletePod, Policy
from dgym_operator.controllers.episode import decide
from dgym_operator.objects import Pod, PodAnnotations, PodLabels
from dgym_operator.pod_identity import make_proof, proof_is_valid
from dgym_operator.render import Renderer
from dgym_operator.settings import Settings

KEY, OTHER_KEY = bytes(32), bytes(range(32))
ABOUT = {"namespace": "team", "episode_uid": "uid-fix", "attempt": 1}
READY = {"phase": "Running", "podIP": "10.0.0.9", "conditions": [{"type": "Ready", "status": "True"}]}
PROOF = make_proof(KEY, {}, **ABOUT)


def with_proof(pod, proof, *, uid=None, key=""):
    metadata = msgspec.structs.replace(
        pod.metadata,
        uid=uid or pod.metadata.uid,
        annotations=PodAnnotations(proof=proof),
        labels=PodLabels(attempt="1", key=key),
    )
    return msgspec.structs.replace(pod, metadata=metadata)


@pytest.fixture
def cache(cache):
    cache.key, cache.key_id = KEY, key_id(KEY)
    return cache


@pytest.fixture
def shown(cache, objects, clock):
    """Returns the view and the actions for an Episode, after the watch has shown a pod of this name and owner."""

    def show(proof, *, key="", uid=None, status=READY, **of_episode):
        episode = objects.episode("fix", spec={"task": {}}, **of_episode)
        cache.pods.put(with_proof(objects.pod("fix-1", owner="fix", **status), proof, key=key, uid=uid))
        view = cache.episode_input(episode, may_create=True)
        return view, decide(view, clock.now()).actions

    return show


@pytest.mark.parametrize("change", [{"namespace": "other"}, {"episode_uid": "uid-other"}, {"attempt": 2}])
def test_a_proof_is_valid_only_for_its_attempt_and_key(change):
    assert proof_is_valid(KEY, PROOF, **ABOUT)
    assert not proof_is_valid(KEY, PROOF, **{**ABOUT, **change})
    assert not proof_is_valid(OTHER_KEY, PROOF, **ABOUT)


@pytest.mark.parametrize("proof", ["", "x", PROOF[:-1], PROOF[:64] + "." + "0" * 64, "0" * 64 + PROOF[64:]])
def test_malformed_proofs_are_invalid(proof):
    assert not proof_is_valid(KEY, proof, **ABOUT)


def test_a_pod_with_a_valid_proof_is_used(shown):
    view, _ = shown(PROOF)
    assert view.pod is not None


def test_a_pod_without_a_proof_is_ignored_and_not_deleted(shown):
    message = {"reason": "Resolved", "message": "an outcome of its own"}
    ended = {"name": "sidecar", "state": {"terminated": {"exitCode": 0, "message": str(message)}}}
    view, actions = shown("", status={**READY, "containerStatuses": [ended]})
    assert (view.pod, view.pods, view.unusable_pods) == (None, (), ())
    # The API server refuses the name, and the status of the Episode then shows the cause.
    assert actions == (CreatePod(name="fix-1", attempt=1),)


@pytest.mark.parametrize("proof", ["", make_proof(OTHER_KEY, {}, **ABOUT)])
@pytest.mark.parametrize("key", [KEY, OTHER_KEY])
def test_a_pod_with_an_invalid_proof_is_deleted_and_its_state_is_ignored(shown, proof, key):
    view, actions = shown(proof, key=key_id(key))
    assert view.pod is None
    assert actions[0] == DeletePod(name="fix-1", uid="uid-fix-1")


def test_a_copied_proof_on_another_pod_is_invalid(shown, cache, objects):
    made = with_proof(objects.pod("fix-1", owner="fix"), PROOF)
    cache.memory.record_created("uid-fix", 1, made)
    assert shown(PROOF)[0].pod is not None
    view, actions = shown(PROOF, uid="uid-of-a-copy")
    assert view.pod is None
    assert actions[0] == DeletePod(name="fix-1", uid="uid-of-a-copy")


def test_the_pod_with_the_uid_in_status_does_not_need_a_proof(shown):
    reference = {"name": "fix-1", "uid": "uid-fix-1"}
    view, _ = shown("", attempt=1, podName="fix-1", podRef=reference)
    assert view.pod is not None
    view, _ = shown("", uid="uid-of-another", attempt=1, podName="fix-1", podRef=reference)
    assert view.pod is None


class Server:
    """Answers every creation of a pod with 409. Reads return ``pod``."""

    def __init__(self):
        self.pod = None
        self.manifest = None

    async def create(self, _resource, manifest, **_options):
        self.manifest = manifest
        raise AlreadyExists("fix-1")

    async def get(self, *_args, **_options):
        return self.pod

    async def ensure(self, _namespace):
        """Stand in for the creation of a NetworkPolicy."""


class Reader:
    """Returns the Episode's own task."""

    async def task(self, episode):
        return DebugTask(metadata=episode.metadata, spec=episode.spec.task)

    async def with_files(self, task):
        return task


EPISODE = msgspec.convert(
    {
        "apiVersion": "dgym.dev/v1alpha1",
        "kind": "Episode",
        "metadata": {"name": "fix", "namespace": "team", "uid": "uid-fix"},
        "spec": {"task": {"entrypoint": "pytest", "source": {"files": [{"path": "a.py", "content": ""}]}}},
    },
    Episode,
)


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def create(server):
    settings = Settings(sandbox_image="sandbox", sidecar_image="sidecar")
    maker = PodMaker(
        client=server,
        writes=server,
        reader=Reader(),
        policies=server,
        renderer=Renderer(),
        settings=settings,
        key=KEY,
        claims=SandboxPoolClaims(
            cache=Cache(None, AgentPods(None, port=1, silence_seconds=1.0), Policy()),
            writes=server,
            missed=lambda _: None,
        ),
    )
    return lambda: maker.create(EPISODE, name="fix-1", attempt=1, deadline_seconds=60)


async def test_a_pod_that_an_earlier_call_has_made_is_recognized(create, server, objects):
    server.pod = objects.pod("fix-1", owner="fix")
    with pytest.raises(Unmet):
        await create()
    server.pod = with_proof(server.pod, server.manifest["metadata"]["annotations"][PROOF_ANNOTATION])
    assert await create() is server.pod


async def test_a_pod_with_name_and_owner_alone_is_named_with_the_remedy(create, server, objects):
    server.pod = objects.pod("fix-1", owner="fix")
    with pytest.raises(Unmet, match="kubectl delete pod fix-1 -n team") as caught:
        await create()
    assert (caught.value.reason, caught.value.is_temporary) == ("PodRejected", True)
    server.pod = Pod(metadata=msgspec.structs.replace(server.pod.metadata, owner_references=()))
    with pytest.raises(Unmet, match="without an owner, already exists; delete it") as caught:
        await create()
    assert not caught.value.is_temporary
