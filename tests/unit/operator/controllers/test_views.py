"""Tests of the stored fields of a pod, and of the memory that they take."""

import gc
import tracemalloc
from datetime import UTC, datetime

import msgspec
import pytest

from dgym_operator.controllers import attempt_of
from dgym_operator.objects import EpisodeView, Pod
from dgym_operator.render import Renderer
from tests.perf.views_pods import running_pod

PODS = 40
MOST_BYTES = 2000


def seen(manifest) -> Pod:
    return msgspec.json.decode(msgspec.json.encode(manifest), type=Pod)


def test_fields_of_a_running_pod():
    manifest = running_pod(Renderer(), 3)

    pod = seen(manifest)

    assert pod.key == ("team-research", "swe-nightly-00003-1")
    assert (pod.metadata.uid, pod.metadata.resource_version) == (manifest["metadata"]["uid"], "48000003")
    assert pod.metadata.creation_timestamp == datetime(2026, 1, 31, 0, 0, 3, tzinfo=UTC)
    owner = pod.metadata.controller
    assert (owner.kind, owner.name) == ("Episode", "swe-nightly-00003")
    assert owner.uid == manifest["metadata"]["ownerReferences"][0]["uid"]
    assert attempt_of(pod) == 1
    assert (pod.status.phase, pod.status.pod_ip, pod.ready) == ("Running", "10.0.0.3", True)
    assert pod.condition("PodScheduled").last_transition_time == datetime(2026, 1, 31, 0, 0, 7, tzinfo=UTC)
    install, sandbox = pod.container("install").state, pod.container("sandbox").state
    assert (install.terminated.exit_code, install.terminated.reason, install.waiting) == (0, "Completed", None)
    assert install.terminated.finished_at == datetime(2026, 1, 31, 0, 0, 5, tzinfo=UTC)
    assert (sandbox.terminated, sandbox.waiting) == (None, None)


@pytest.mark.parametrize("status", ["True", "False", "Unknown", "Perhaps"])
def test_unknown_values_do_not_prevent_decoding_a_pod(status):
    pod = seen(
        {
            "metadata": {"name": "p", "namespace": "ns", "ownerReferences": [{"kind": "New", "name": "n", "uid": "u"}]},
            "status": {
                "phase": "Paused",
                "conditions": [
                    {"type": "example.com/gate", "status": "True"},
                    {"type": "Ready", "status": status, "reason": "NewReason", "message": "m"},
                ],
                "containerStatuses": [{"name": "mesh-proxy", "state": {"paused": {}, "terminated": {"exitCode": 3}}}],
            },
        }
    )

    assert pod.condition("example.com/gate") is None
    assert pod.ready == (status == "True")
    assert (pod.condition("Ready").status == "False") == (status == "False")
    assert (pod.condition("Ready").reason, pod.condition("Ready").message) == ("NewReason", "m")
    assert pod.status.phase not in ("", "Pending", "Running", "Failed", "Succeeded")
    assert pod.container("mesh-proxy").state.terminated.exit_code == 3
    assert attempt_of(pod) == 0
    assert pod.metadata.controller is None


def test_a_pod_without_a_status_has_no_phase():
    pod = seen({"metadata": {"name": "p"}})
    assert (pod.status.phase, pod.ready, pod.container("sandbox")) == ("", False, None)


def test_labels_of_other_objects_are_all_kept():
    manifest = {"metadata": {"name": "e", "labels": {"a": "b", "dgym.dev/index": "3"}}, "spec": {}}
    episode = msgspec.json.decode(msgspec.json.encode(manifest), type=EpisodeView)
    assert episode.metadata.labels == {"a": "b", "dgym.dev/index": "3"}


def test_ten_thousand_pods_take_twenty_megabytes():
    renderer = Renderer()
    bodies = [msgspec.json.encode(running_pod(renderer, number)) for number in range(PODS)]
    decoder = msgspec.json.Decoder(Pod)
    decoder.decode(bodies[0])
    gc.collect()

    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = [decoder.decode(body) for body in bodies]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert (after - before) / len(kept) < MOST_BYTES
