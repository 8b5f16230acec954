"""What an agent is told of an episode. Pure: everything that it takes was read before."""

from collections.abc import Mapping

import msgspec

from dgym.api import DebugTask, Episode, PodOverrides
from dgym.api import labels as keys
from dgym.api.quantities import parse_quantity
from dgym.wire.assignments import Assignment, AssignmentMode
from dgym.wire.http import NamedTool, Role, make_token
from dgym_operator.render import DEFAULT, sandbox_resources


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """Which attempt is given, under which epoch, and where its sidecar listens."""

    number: int
    epoch: int
    pod_name: str
    sidecar_url: str
    remaining_seconds: float


def build_assignment(episode: Episode, task: DebugTask, attempt: Attempt, key: bytes) -> Assignment:
    """The whole of what one agent needs for one attempt."""
    metadata, spec = episode.metadata, episode.spec
    uid = metadata.uid or ""
    return Assignment(
        namespace=metadata.namespace or "",
        episode=metadata.name,
        episode_uid=uid,
        attempt=attempt.number,
        epoch=attempt.epoch,
        pod_name=attempt.pod_name,
        sidecar_url=attempt.sidecar_url,
        prepare_token=make_token(key, episode_uid=uid, attempt=attempt.number, role=Role.PREPARE),
        drive_token=make_token(key, episode_uid=uid, attempt=attempt.number, role=Role.DRIVE),
        task=msgspec.to_builtins(_as_run(task, spec.pod_overrides)),
        agent=msgspec.to_builtins(spec.agent) if spec.agent is not None else None,
        tools=tuple(
            tool if isinstance(tool, str) else NamedTool(name=tool.name, options=tool.options) for tool in spec.tools
        ),
        sample=_sample(metadata.labels),
        remaining_seconds=attempt.remaining_seconds,
        mode=AssignmentMode.RUN if spec.agent is not None else AssignmentMode.PREPARE,
    )


def _as_run(task: DebugTask, overrides: PodOverrides) -> DebugTask:
    """The task with the resources that its pod has: its runner holds programs to that memory.

    One that says the same stays as it is, and keeps the digest that results are compared by.
    """
    said, effective = task.spec.resources, sandbox_resources(task.spec.resources, overrides)
    memory = said.limits.get("memory", DEFAULT.limits["memory"])
    if parse_quantity(effective.limits["memory"]) == parse_quantity(memory):
        return task
    return msgspec.structs.replace(task, spec=msgspec.structs.replace(task.spec, resources=effective))


def _sample(labels: Mapping[str, str]) -> int:
    text = labels.get(keys.SAMPLE, "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
