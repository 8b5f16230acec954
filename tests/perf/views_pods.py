"""Pods as a watch returns them: the operator's manifest with the fields that API server, scheduler and kubelet add."""

from typing import Any

from dgym.api import API_VERSION, BENCHMARK_LABEL, INDEX_LABEL, SAMPLE_LABEL, SET_LABEL, TASK_LABEL, DebugTaskSpec
from dgym_operator.render import PodContext, Renderer
from dgym_operator.settings import Settings

_NODES = 50
_DEFAULTS = {
    "schedulerName": "default-scheduler",
    "serviceAccountName": "default",
    "serviceAccount": "default",
    "preemptionPolicy": "PreemptLowerPriority",
    "priority": 0,
}
_TOLERATED = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_ATOMIC = ("initContainerStatuses", "containerStatuses", "tolerations", "command")
_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")


def running_pod(renderer: Renderer, number: int) -> dict[str, Any]:
    """The ready pod of an episode of a set. Names, ids, times and addresses differ from those of other pods."""
    episode, uid = f"swe-nightly-{number:05}", _uid(number)
    context = PodContext(
        name=f"{episode}-1",
        namespace="team-research",
        episode=episode,
        episode_uid=uid,
        attempt=1,
        task=DebugTaskSpec(),
        delivered=False,
        digests=dict.fromkeys(("prepare", "drive", "operate"), f"{number:064x}"),
        labels={
            SET_LABEL: "swe-nightly",
            INDEX_LABEL: str(number),
            SAMPLE_LABEL: str(number % 4),
            TASK_LABEL: f"django-django-{number // 4:05}",
            BENCHMARK_LABEL: "swe-bench-verified",
        },
        active_deadline_seconds=5400,
        settings=Settings(sandbox_image="registry.example/sandbox:1", sidecar_image="registry.example/sidecar:1"),
    )
    pod = renderer.render("restricted", context)
    owner = {"apiVersion": API_VERSION, "kind": "Episode", "name": episode, "uid": uid, "controller": True}
    pod["metadata"] |= {
        "uid": _uid(number + 10**6),
        "resourceVersion": str(48_000_000 + number),
        "generation": 1,
        "creationTimestamp": _time(number),
        "ownerReferences": [owner],
    }
    _default(pod["spec"])
    status = _status(pod["spec"], number)
    pod["metadata"]["managedFields"] = [
        _managed("dgym-operator", {"metadata": {"labels": pod["metadata"]["labels"]}, "spec": pod["spec"]}, number),
        _managed("kubelet", {"status": status}, number) | {"subresource": "status"},
    ]
    return {**pod, "status": status}


def _default(spec: dict[str, Any]) -> None:
    """Add the fields that the API server and the scheduler set."""
    spec.update(_DEFAULTS, nodeName="node-0042.pool-a.internal")
    evict = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    spec["tolerations"] = [*spec["tolerations"], *({"key": key, **evict} for key in _TOLERATED)]
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        container.setdefault("terminationMessagePath", "/dev/termination-log")


def _status(spec: dict[str, Any], number: int) -> dict[str, Any]:
    address = f"10.{number // 65536}.{number // 256 % 256}.{number % 256}"
    host = f"10.200.0.{number % _NODES}"
    changed = {"lastProbeTime": None, "observedGeneration": 1, "status": "True"}
    return {
        "phase": "Running",
        "observedGeneration": 1,
        "conditions": [
            {"type": kind, **changed, "lastTransitionTime": _time(number + place)}
            for place, kind in enumerate(_CONDITIONS)
        ],
        "hostIP": host,
        "hostIPs": [{"ip": host}],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": _time(number),
        "qosClass": "Burstable",
        "initContainerStatuses": [_container(each, number, init=True) for each in spec.get("initContainers", ())],
        "containerStatuses": [_container(each, number, init=False) for each in spec["containers"]],
    }


def _container(container: dict[str, Any], number: int, *, init: bool) -> dict[str, Any]:
    container_id = f"containerd://{number:064x}"
    ended = {
        "containerID": container_id,
        "exitCode": 0,
        "reason": "Completed",
        "startedAt": _time(number + 1),
        "finishedAt": _time(number + 2),
    }
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": f"{container['image'].rpartition(':')[0]}@sha256:{7:064x}",
        "containerID": container_id,
        "ready": True,
        "restartCount": 0,
        "started": not init,
        "state": {"terminated": ended} if init else {"running": {"startedAt": _time(number + 3)}},
        "lastState": {},
        "allocatedResources": container["resources"].get("requests", {}),
        "resources": container["resources"],
        "user": {"linux": {"uid": 10001, "gid": 10000, "supplementalGroups": [10000]}},
        "volumeMounts": [{"recursiveReadOnly": "Disabled", **mount} for mount in container["volumeMounts"]],
    }


def _managed(manager: str, applied: dict[str, Any], number: int) -> dict[str, Any]:
    about = {"manager": manager, "operation": "Update", "apiVersion": "v1", "time": _time(number)}
    return about | {"fieldsType": "FieldsV1", "fieldsV1": _fields(applied)}


def _fields(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return {f"f:{key}": {} if key in _ATOMIC else _fields(item) for key, item in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        key = next(iter(value[0]))
        return {f'k:{{"{key}":"{item.get(key)}"}}': {".": {}, **_fields(item)} for item in value}
    return {}


def _uid(number: int) -> str:
    digits = f"{number * 2654435761 % 2**128:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _time(number: int) -> str:
    return f"2026-01-31T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}Z"
