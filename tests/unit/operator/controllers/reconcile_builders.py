"""Builders of objects as the watches show them, with short defaults for the tests."""

from datetime import UTC, datetime, timedelta

import msgspec

from dgym.api import (
    INDEX_LABEL,
    RETRY_KEY,
    AgentPodAssignment,
    AgentSpec,
    Condition,
    EpisodeSetSpec,
    EpisodeSpec,
    EpisodeStatus,
    Stages,
    TaskRef,
)
from dgym.wire import AttemptOutcome, EndReason, Outcome
from dgym.wire.assignments import AssignmentState, AssignmentStatus
from dgym.wire.outcome import TerminationMessage, encode_termination
from dgym_operator.controllers import Action, AgentPodView, Emit, EpisodeInput, PatchStatus, Plan, TaskState
from dgym_operator.controllers.episode import agent_pod_request, assigned_status, decide
from dgym_operator.objects import (
    Container,
    ContainerState,
    EpisodeSetView,
    EpisodeSpecView,
    EpisodeView,
    Meta,
    Pod,
    PodAnnotations,
    PodCondition,
    PodLabels,
    PodMeta,
    PodStatus,
    SetMeta,
    TaskSpecView,
    TaskView,
    Terminated,
    Waiting,
)

replace = msgspec.structs.replace
NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
UID = "11111111-2222"
AGENT = "agent-uid-1"
FOUND = TaskState(state="found", uid="task-uid")
MISSING = TaskState(state="missing")


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def in_(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def episode(
    status: EpisodeStatus | None = None, *, age: float = 60, labels=None, deleting=False, driven=True, **spec
) -> EpisodeView:
    spec.setdefault("task_ref", TaskRef(name="bug"))
    spec.setdefault("agent", AgentSpec(name="solution") if driven else None)
    return EpisodeView(
        metadata=Meta(
            name="e",
            namespace="ns",
            uid=UID,
            generation=1,
            resource_version="1",
            labels=labels or {},
            creation_timestamp=ago(age),
            deletion_timestamp=NOW if deleting else None,
        ),
        spec=EpisodeSpecView(**spec),
        status=status or EpisodeStatus(),
    )


def view(status: EpisodeStatus | None = None, *pods: Pod, **more) -> EpisodeInput:
    names = set(EpisodeInput.__struct_fields__)
    given = {name: more.pop(name) for name in list(more) if name in names}
    given.setdefault("task", FOUND)
    if status is not None and status.assignment is not None:
        # Unless the test sets it, the operator has contact with the agent pod.
        given.setdefault("agent_pod", AgentPodView())
    return EpisodeInput(episode=episode(status, **more), pods=pods, **given)


def running(*, attempt: int = 1, epoch: int = 1, assigned: float = 20, **more) -> EpisodeStatus:
    """Return the status of an attempt that an agent pod serves."""
    assignment = AgentPodAssignment(agent_pod_uid=AGENT, epoch=epoch, **more.pop("assignment", {}))
    ready = Condition(type="SandboxReady", status="True", reason="PodReady", last_transition_time=ago(assigned + 1))
    return EpisodeStatus(
        conditions=(ready, *more.pop("conditions", ())),
        reason=more.pop("reason", "Running"),
        attempt=attempt,
        pod_name=f"e-{attempt}",
        task_uid=more.pop("task_uid", "task-uid"),
        assignment=assignment,
        epoch=epoch,
        start_time=ago(assigned),
        stages=Stages(assigned=ago(assigned)),
        observed_generation=1,
        **more,
    )


def between(*, attempt: int = 1, failures: int = 1, ended: float = 20, reason: str = "SandboxLost", **more):
    """Return the status between two attempts."""
    condition = Condition(type="SandboxReady", status="False", reason=reason, last_transition_time=ago(ended))
    return EpisodeStatus(
        conditions=(condition,), reason=reason, attempt=attempt, failures=failures, observed_generation=1, **more
    )


def waiting(name: str, reason: str, message: str = "") -> Container:
    return Container(name=name, state=ContainerState(waiting=Waiting(reason=reason, message=message)))


def ended(name: str, exit_code: int = 0, *, reason: str = "", message: str = "", at: float = 0) -> Container:
    state = Terminated(exit_code=exit_code, reason=reason, message=message, finished_at=ago(at))
    return Container(name=name, state=ContainerState(terminated=state))


def up(name: str) -> Container:
    return Container(name=name)


UP = (up("sandbox"), up("verifier"), up("sidecar"))


def condition(kind: str, status: str = "True", *, reason: str = "", message: str = "", age: float = 10) -> PodCondition:
    return PodCondition(type=kind, status=status, reason=reason, message=message, last_transition_time=ago(age))


def pod(
    attempt: int = 1,
    *containers: Container,
    age: float = 20,
    init=(),
    conditions=(),
    deleting: float | None = None,
    grace: int | None = None,
    key: str = "",
    proof: str = "",
    **more,
) -> Pod:
    """``deleting`` is the time since ``grace`` ended, in seconds.

    ``key`` is the id of the key that the pod was made with.
    """
    return Pod(
        metadata=PodMeta(
            name=f"e-{attempt}",
            namespace="ns",
            uid=f"pod-uid-{attempt}",
            labels=PodLabels(attempt=str(attempt), key=key),
            annotations=PodAnnotations(proof=proof),
            creation_timestamp=ago(age),
            deletion_timestamp=ago(deleting) if deleting is not None else None,
            deletion_grace_period_seconds=grace,
        ),
        status=PodStatus(
            phase=more.pop("phase", "Pending"),
            pod_ip=more.pop("pod_ip", "10.0.0.7"),
            conditions=tuple(conditions),
            init_container_statuses=tuple(init),
            container_statuses=containers,
            **more,
        ),
    )


def ready_pod(attempt: int = 1, *, ready: float = 10, **more) -> Pod:
    conditions = (condition("PodScheduled", age=ready + 2), condition("Ready", age=ready))
    return pod(attempt, *UP, conditions=conditions, phase="Running", **more)


def message(reason: EndReason = EndReason.RESOLVED, *, attempt: int = 1, uid: str = UID, **fields) -> str:
    if reason is EndReason.RESOLVED:
        fields = {"resolved": True, "score": 3, "max_score": 3, **fields}
    so_far = {name: fields.pop(name) for name in ("elapsed_seconds", "price") if name in fields}
    outcome = AttemptOutcome(**{"resolved": False, "reason": reason, **fields})
    termination = TerminationMessage(episode_uid=uid, attempt=attempt, outcome=outcome, **so_far)
    return encode_termination(termination).decode()


def termination_text(*, attempt: int = 1, **fields) -> str:
    """Return the termination message of a sidecar without an outcome."""
    return encode_termination(TerminationMessage(episode_uid=UID, attempt=attempt, **fields)).decode()


def ended_pod(text: str = "", *, attempt: int = 1, at: float = 0, **more) -> Pod:
    """Return a pod whose sidecar has ended with this message."""
    containers = (ended("sandbox", 137, at=at), ended("verifier", 0, at=at), ended("sidecar", 0, message=text, at=at))
    return pod(attempt, *containers, phase="Succeeded", **more)


def report(
    state: AssignmentState,
    *,
    attempt: int = 1,
    epoch: int = 1,
    since: float = 0,
    reason: EndReason | None = None,
    outcome: Outcome = Outcome(resolved=False),  # noqa: B008 - immutable
    **more,
) -> AgentPodView:
    status = AssignmentStatus(episode_uid=UID, attempt=attempt, epoch=epoch, state=state, **more)
    if reason is not None:
        ended = AttemptOutcome.of(outcome, reason=reason, message=outcome.message or status.message)
        status = replace(status, outcome=ended, message="")
    return AgentPodView(status=status, since=ago(since))


def solved() -> Outcome:
    return Outcome(resolved=True, score=3, max_score=3, steps=4, result_uri="file:///r")


def writes(plan: Plan) -> tuple[Action, ...]:
    """Return all actions except Events."""
    return tuple(action for action in plan.actions if not isinstance(action, Emit))


def written(plan: Plan) -> EpisodeStatus:
    """Return the only status that the plan writes."""
    (patch,) = [action for action in plan.actions if isinstance(action, PatchStatus)]
    return patch.status


def status_after_attempt(seen: EpisodeInput, now: datetime = NOW) -> EpisodeStatus:
    """Return the status after the attempt's pod has ended and an agent pod has found no outcome in the store."""
    status = _next_status(seen, now)
    if status.ending is None:
        return status
    seen = replace(seen, episode=replace(seen.episode, status=status))
    if agent_pod_request(seen, now + timedelta(seconds=seen.policy.report_seconds)) is None:
        seen = replace(seen, pods=(), absent=frozenset({seen.pod_name}))
        status = _next_status(seen, now)
        if status.ending is None:
            return status
    now += timedelta(seconds=seen.policy.report_seconds)
    request = agent_pod_request(seen, now)
    assert request is not None
    assert request.cause == "Recover"
    assigned = assigned_status(seen, request, "another", now)
    nothing = report(
        AssignmentState.FAILED, attempt=seen.attempt, epoch=request.epoch, reason=EndReason.SANDBOX_LOST, message="none"
    )
    return written(decide(replace(seen, episode=replace(seen.episode, status=assigned), agent_pod=nothing), now))


def _next_status(seen: EpisodeInput, now: datetime) -> EpisodeStatus:
    patches = [action for action in decide(seen, now).actions if isinstance(action, PatchStatus)]
    return patches[0].status if patches else seen.episode.status


def the_condition(status: msgspec.Struct, kind: str) -> Condition | None:
    return next((each for each in status.conditions if each.type == kind), None)


def task(name: str, *, labels=None, age: float = 100, uid: str | None = None, image: str | None = None) -> TaskView:
    metadata = Meta(
        name=name, namespace="ns", uid=uid or f"uid-{name}", labels=labels or {}, creation_timestamp=in_(-age)
    )
    return TaskView(metadata=metadata, spec=TaskSpecView(image=image))


def episode_set(*names: str, status=None, template=None, retry="", **spec) -> EpisodeSetView:
    if names:
        spec["tasks"] = tuple(TaskRef(name=name) for name in names)
    return EpisodeSetView(
        metadata=SetMeta(
            name="s",
            namespace="ns",
            uid="set-uid-1234",
            resource_version="1",
            generation=1,
            creation_timestamp=NOW,
            annotations={RETRY_KEY: retry} if retry else {},
        ),
        spec=EpisodeSetSpec(template=template or EpisodeSpec(), **spec),
        **({"status": status} if status else {}),
    )


def child(
    index: int, *, status: EpisodeStatus | None = None, suspend=False, cancel=False, uid: str = "", labels=None
) -> EpisodeView:
    labels = {INDEX_LABEL: str(index), **(labels or {})}
    return EpisodeView(
        metadata=Meta(name=f"s-{index}", namespace="ns", uid=uid or f"child-{index}", labels=labels),
        spec=EpisodeSpecView(suspend=suspend, cancel=cancel),
        status=status or EpisodeStatus(),
    )


def finished(reason: str = "Resolved") -> EpisodeStatus:
    solved = "True" if reason == "Resolved" else "False"
    return EpisodeStatus(
        reason=reason,
        conditions=(
            Condition(type="Finished", status="True", reason=reason),
            Condition(type="Resolved", status=solved, reason="Solved"),
        ),
    )
