"""The body of an assignment to an agent. Pure: everything in it was read before."""

from collections.abc import Mapping

import msgspec

from dgym.api import DebugTask, Episode, PodOverrides
from dgym.api import labels as keys
from dgym.api.quantities import parse_quantity
from dgym.wire.assignments import Assignment, AssignmentMode
from dgym.wire.http import NamedTool, Role, make_token
from dgym_operator.render import DEFAULT, sandbox_resources


def build_assignment(
    episode: Episode,
    task: DebugTask,
    *,
    attempt: int,
    epoch: int,
    pod_name: str,
    sidecar_url: str,
    remaining_seconds: float,
    key: bytes,
) -> Assignment:
    """All that an agent needs for one attempt."""
    metadata, spec = episode.metadata, episode.spec
    uid = metadata.uid or ""
    return Assignment(
        namespace=metadata.namespace or "",
        episode=metadata.name,
        episode_uid=uid,
        attempt=attempt,
        epoch=epoch,
        pod_name=pod_name,
        sidecar_url=sidecar_url,
        prepare_token=make_token(key, episode_uid=uid, attempt=attempt, role=Role.PREPARE),
        drive_token=make_token(key, episode_uid=uid, attempt=attempt, role=Role.DRIVE),
        task=msgspec.to_builtins(_with_resources(task, spec.pod_overrides)),
        agent=msgspec.to_builtins(spec.agent) if spec.agent is not None else None,
        tools=tuple(
            tool if isinstance(tool, str) else NamedTool(name=tool.name, options=tool.options) for tool in spec.tools
        ),
        sample=_sample(metadata.labels),
        remaining_seconds=remaining_seconds,
        mode=AssignmentMode.RUN if spec.agent is not None else AssignmentMode.PREPARE,
    )


def _with_resources(task: DebugTask, overrides: PodOverrides) -> DebugTask:
    """The task with the resources of its pod: the runner holds programs to that memory.

    A task with the same memory is not changed and keeps its digest, by which results are compared.
    """
    given, effective = task.spec.resources, sandbox_resources(task.spec.resources, overrides)
    memory = given.limits.get("memory", DEFAULT.limits["memory"])
    if parse_quantity(effective.limits["memory"]) == parse_quantity(memory):
        return task
    return msgspec.structs.replace(task, spec=msgspec.structs.replace(task.spec, resources=effective))


def _sample(labels: Mapping[str, str]) -> int:
    text = labels.get(keys.SAMPLE, "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
