"""A cluster in a few hundred lines of pure Python: an API server, kubelets, agents, and caches that lag behind.

It carries plans out as the operator's executor promises to: in order, nothing after a failure, status only onto the
version it was made from. What must never happen is asserted where it would.
"""

from datetime import datetime, timedelta

import msgspec

from dgym.wire import EndReason, Outcome
from dgym.wire.assignments import AssignmentState, AssignmentStatus
from dgym_operator.controllers import AgentView, EpisodeInput, TaskState, attempt_of, is_true
from dgym_operator.controllers import plan as act
from dgym_operator.controllers.episode import agent_request, assigned_status, decide, still_wants
from dgym_operator.objects import EpisodeView, Pod
from tests.unit.reconcile.reconcile_builders import NOW, UID, condition, ended, episode, message, pod, up, waiting

replace = msgspec.structs.replace
GRACE = timedelta(seconds=5)
WORK = (
    AssignmentState.PREPARING,
    AssignmentState.RUNNING,
    AssignmentState.CLOSING,
    AssignmentState.STORING,
    AssignmentState.FINISHED,
)


class PodModel:
    """A pod on its node."""

    def __init__(self, attempt: int, uid: str, now: datetime) -> None:
        self.attempt, self.uid, self.created = attempt, uid, now
        self.state = "new"
        self.deleting: datetime | None = None
        self.text = ""
        self.changed = now

    def become(self, state: str, now: datetime) -> None:
        self.state, self.changed = state, now

    @property
    def is_over(self) -> bool:
        return self.state in ("ended", "drained", "evicted", "init failed")

    def show(self) -> Pod:
        seen = self._show()
        metadata = replace(
            seen.metadata, uid=self.uid, creation_timestamp=self.created, deletion_timestamp=self.deleting
        )
        moved = tuple(replace(each, last_transition_time=self.changed) for each in seen.status.conditions)
        return replace(seen, metadata=metadata, status=replace(seen.status, conditions=moved))

    def _show(self) -> Pod:
        attempt = self.attempt
        scheduled, ready = condition("PodScheduled"), condition("Ready")
        match self.state:
            case "unschedulable":
                return pod(attempt, conditions=[condition("PodScheduled", "False", reason="Unschedulable")])
            case "pulling":
                return pod(attempt, waiting("sandbox", "ImagePullBackOff", "no image"), conditions=[scheduled])
            case "init failed":
                return pod(attempt, init=[ended("install", 1)], phase="Failed", conditions=[scheduled])
            case "ready":
                return pod(attempt, *map(up, ("sandbox", "verifier", "sidecar")), conditions=[scheduled, ready])
            case "sandbox ended":
                return pod(attempt, ended("sandbox", 137), up("verifier"), up("sidecar"), conditions=[scheduled])
            case "drained":
                target = condition("DisruptionTarget", reason="EvictionByEvictionAPI")
                return pod(attempt, conditions=[scheduled, target], phase="Failed")
            case "evicted":
                return pod(attempt, phase="Failed", reason="Evicted", message="Pod ephemeral local storage usage")
            case "ended":
                sidecar = ended("sidecar", 0, message=self.text)
                terminated = replace(sidecar.state.terminated, finished_at=self.changed)
                sidecar = replace(sidecar, state=replace(sidecar.state, terminated=terminated))
                return pod(attempt, ended("sandbox", 0), sidecar, phase="Succeeded", conditions=[scheduled])
        return pod(attempt)


class AgentModel:
    """An agent pod: what it says of the episode."""

    def __init__(self) -> None:
        self.lost_since: datetime | None = None
        self.said: AssignmentStatus | None = None
        self.since = NOW

    def say(self, state: AssignmentState, now: datetime, **more) -> None:
        assert self.said is not None
        self.said, self.since = replace(self.said, state=state, **more), now


class EpisodeModel:
    """One Episode with everything around it."""

    def __init__(self, **spec) -> None:
        self.now = NOW
        self.truth: EpisodeView | None = episode(age=0, **spec)
        self.pods: dict[str, PodModel] = {}
        self.agents = {"a1": AgentModel(), "a2": AgentModel()}
        self.quota_full = False
        self.slots = True
        self.writes: list[str] = []
        self.served: set[int] = set()
        self.made: list[int] = []
        self.stored: set[int] = set()
        self.past: list[tuple[EpisodeView, dict[str, Pod]]] = []
        self.seen = self.truth
        self.change_leader(0, 0)

    # Caches

    def record(self) -> None:
        now = (self.truth or self.seen, {name: each.show() for name, each in self.pods.items()})
        if not self.past or self.past[-1] != now:
            self.past.append(now)

    def sync(self, episodes: bool = True, pods: bool = True) -> None:
        self.record()
        if episodes:
            self.gone = self.truth is None
            self.seen = self.truth or self.seen
        if pods:
            self.seen_pods = {name: each.show() for name, each in self.pods.items()}

    def change_leader(self, episode_age: int, pods_age: int) -> None:
        """A new leader knows nothing but its caches, each as old as it happens to be; no agent has spoken to it."""
        self.record()
        self.seen = self.past[max(0, len(self.past) - 1 - episode_age)][0]
        self.seen_pods = dict(self.past[max(0, len(self.past) - 1 - pods_age)][1])
        self.gone = False
        self.awaits_report = True
        self.absent: set[str] = set()
        self.failure: act.CreateFailure | None = None

    # The operator

    def view(self) -> EpisodeInput:
        return EpisodeInput(
            episode=self.seen,
            pods=tuple(self.seen_pods.values()),
            task=TaskState(state="found", uid="task-uid"),
            may_create=self.slots,
            create_failure=self.failure,
            agent=self._agent_view(),
            absent=frozenset(self.absent),
        )

    def operate(self) -> act.Plan:
        """One decision, carried out."""
        if self.gone:
            return act.Plan()
        view = self.view()
        plan = decide(view, self.now)
        assert plan == decide(view, self.now)
        for action in plan.actions:
            if not self._carry_out(action):
                break
        self.record()
        return plan

    def dispatch(self) -> None:
        view = self.view()
        ready = agent_request(view, self.now)
        agent = next((uid for uid, each in self.agents.items() if each.lost_since is None), None)
        if ready is not None and agent is not None:
            status = assigned_status(view, ready, agent, self.now)
            if self._patch(status, "assigned"):
                self.served.add(view.attempt)
        self.record()

    def _carry_out(self, action: act.Action) -> bool:
        match action:
            case act.PatchStatus():
                kind = "finished" if is_true(action.status.conditions, "Finished") else "patch"
                return self._patch(action.status, "progress" if action.progress else kind)
            case act.CreatePod():
                return self._create(action)
            case act.DeletePod():
                self._delete(action)
            case act.LookUpPod():
                if action.name in self.pods:
                    self.seen_pods[action.name] = self.pods[action.name].show()
                else:
                    self.absent.add(action.name)
            case act.DeleteEpisode():
                assert action.uid == UID
                self.writes.append("DELETE episode")
                for found in self.pods.values():
                    # The garbage collector: an old view of the pods may have left one.
                    self.delete_pod(found)
                self.truth, self.gone = None, True
        return True

    def _patch(self, status, what: str) -> bool:
        assert status != self.seen.status, "a write that changes nothing"
        if self.truth is None or self.truth.metadata.resource_version != self.seen.metadata.resource_version:
            return False
        before = self.truth.status
        observed = replace(before, observed_generation=status.observed_generation)
        assert status == observed or not is_true(before.conditions, "Finished"), "a finished episode is written again"
        assert status.attempt >= before.attempt
        assert status.attempt <= before.attempt + 1
        if status.assignment is not None and status.assignment.epoch != (before.assignment or status.assignment).epoch:
            assert status.assignment.epoch > before.epoch, "an epoch is used twice"
        assert status.epoch >= before.epoch
        if status.pod_name is None and before.pod_name is not None:
            assert before.attempt not in self.stored, "a stored verdict is discarded"
        if what == "finished":
            assert status.completion_time is not None
        if status.reason == "SandboxLost" and before.pod_name is not None:
            assert not self._goes_on(before.pod_name), "an attempt that goes on is given up"
        version = str(int(self.truth.metadata.resource_version) + 1)
        self.truth = replace(self.truth, metadata=replace(self.truth.metadata, resource_version=version), status=status)
        self.seen = self.truth
        self.writes.append(f"PATCH {what}")
        return True

    def _goes_on(self, name: str) -> bool:
        found, agent = self.pods.get(name), self._assigned()
        failed = agent is not None and agent.said is not None and agent.said.state is AssignmentState.FAILED
        return found is not None and not found.is_over and found.deleting is None and not failed

    def _create(self, action: act.CreatePod) -> bool:
        if self.truth is None or not still_wants(self.truth, UID, action.attempt):
            return False
        if action.name in self.pods:
            return True
        if self.quota_full:
            failure = act.CreateFailure(reason="QuotaExceeded", message="full", since=self.now, passes=True)
            self.failure = self.failure.followed_by(failure) if self.failure else failure
            return True
        assert action.attempt not in self.served, "a second pod of an attempt that was served"
        assert not self.finished, "a pod for what is finished"
        self.failure = None
        self.made.append(action.attempt)
        self.pods[action.name] = PodModel(action.attempt, f"{action.name}-{len(self.made)}", self.now)
        self.seen_pods[action.name] = self.pods[action.name].show()
        self.writes.append("POST pod")
        return True

    def _delete(self, action: act.DeletePod) -> None:
        found = self.pods.get(action.name)
        if found is None or found.uid != action.uid:
            self.seen_pods.pop(action.name, None)
            return
        if self.truth is None:
            return
        status = self.truth.status
        over = is_true(status.conditions, "Finished") or status.attempt > found.attempt
        closed = status.attempt == found.attempt and status.pod_name is None
        assert over or closed or status.ending is not None, "the pod of an attempt that goes on is deleted"
        self.writes.append("DELETE pod")
        self.delete_pod(found)
        self.seen_pods[action.name] = found.show()

    # Kubelets, agents, users

    @property
    def current(self) -> PodModel | None:
        """The newest pod."""
        return max(self.pods.values(), key=lambda each: each.attempt, default=None)

    def delete_pod(self, found: PodModel) -> None:
        found.deleting = found.deleting or self.now + GRACE

    def reap(self) -> None:
        """Kubelets carry deletions out."""
        for name, found in list(self.pods.items()):
            if found.deleting is not None:
                if found.is_over or found.state == "new":
                    del self.pods[name]
                else:
                    found.become("ended", self.now)

    def progress_pod(self) -> None:
        found = self.current
        if found is not None and found.deleting is None and found.state in ("new", "unschedulable", "pulling"):
            found.become("ready", self.now)

    def serve(self) -> None:
        """The assigned agent hears of its assignment and takes one step on."""
        agent, found = self._assigned(), self.current
        if agent is None or self.truth is None or agent.lost_since is not None:
            return
        status = self.truth.status
        key = (status.attempt, status.assignment.epoch)
        if agent.said is None or (agent.said.attempt, agent.said.epoch) != key:
            first = AssignmentStatus(episode_uid=UID, attempt=key[0], epoch=key[1], state=WORK[0])
            agent.said, agent.since = first, self.now
        elif status.assignment.mode == "recover":
            self._recover(agent, status.attempt)
        elif agent.said.state in WORK[:-1]:
            if found is None or found.state not in ("ready", "sandbox ended"):
                agent.say(AssignmentState.FAILED, self.now, reason=EndReason.SANDBOX_LOST)
                return
            state = WORK[WORK.index(agent.said.state) + 1]
            result = {"reason": EndReason.RESOLVED, "outcome": Outcome(resolved=True, score=3, max_score=3)}
            agent.say(state, self.now, **(result if state is AssignmentState.FINISHED else {}))
            if state is AssignmentState.FINISHED:
                self.stored.add(found.attempt)
                found.text = message(attempt=found.attempt)
                found.become("ended", self.now)

    def _recover(self, agent: AgentModel, attempt: int) -> None:
        if agent.said.state not in WORK[:-1]:
            return
        if attempt in self.stored:
            result = {"reason": EndReason.RESOLVED, "outcome": Outcome(resolved=True, score=3, max_score=3)}
            agent.say(AssignmentState.FINISHED, self.now, **result)
        else:
            agent.say(AssignmentState.FAILED, self.now, reason=EndReason.SANDBOX_LOST)

    def fail_model(self) -> None:
        agent = self._assigned()
        if agent is not None and agent.said is not None and agent.said.state in WORK[:2]:
            agent.say(AssignmentState.FAILED, self.now, reason=EndReason.MODEL_ERROR)

    def edit(self, **spec) -> None:
        assert self.truth is not None
        metadata = self.truth.metadata
        version = str(int(metadata.resource_version) + 1)
        metadata = replace(metadata, resource_version=version, generation=metadata.generation + 1)
        self.truth = replace(self.truth, metadata=metadata, spec=replace(self.truth.spec, **spec))

    def pass_time(self, seconds: float) -> None:
        """Agents are asked all the time."""
        self.now += timedelta(seconds=seconds)
        self.awaits_report = False

    @property
    def finished(self) -> bool:
        return self.truth is None or is_true(self.truth.status.conditions, "Finished")

    def settle(self, rounds: int = 80, seconds: float = 60) -> None:
        """Nothing goes wrong any more."""
        self.quota_full, self.slots = False, True
        for agent in self.agents.values():
            agent.lost_since = None
        if self.truth is not None and self.truth.spec.suspend:
            self.edit(suspend=False)
        for _ in range(rounds):
            self.sync()
            self.operate()
            self.dispatch()
            self.progress_pod()
            self.serve()
            self.reap()
            self.pass_time(seconds)
            if self.finished and not self.pods:
                return

    def _assigned(self) -> AgentModel | None:
        assignment = self.truth.status.assignment if self.truth is not None else None
        return self.agents[assignment.agent_pod_uid] if assignment is not None else None

    def _agent_view(self) -> AgentView | None:
        assignment = self.seen.status.assignment
        if assignment is None or self.awaits_report:
            return None
        agent = self.agents[assignment.agent_pod_uid]
        if agent.lost_since is not None:
            return AgentView(lost_since=agent.lost_since)
        return AgentView(status=agent.said, since=agent.since)


def attempts(model: EpisodeModel) -> list[int]:
    """Attempts of the pods that are there and not over."""
    return [attempt_of(each.show()) for each in model.pods.values() if not each.is_over and each.deleting is None]
