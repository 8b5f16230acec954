"""Tests of Episodes on a real API server: status and Events that users see, failures, and the number of writes."""

import msgspec
import pytest

from dgym.wire import EndReason
from dgym.wire.assignments import AssignmentState, OmittedStep
from dgym.wire.http import AttemptState, TerminatedResponse
from tests.integration.operator.conftest import POLICY, TASK, get
from tests.integration.operator.peers import MERGE, until


async def reason_is(installation, name, reason):
    return await installation.status(name, f"{name}: {reason}", lambda status: status.get("reason") == reason)


async def test_an_episode_ends_with_its_outcome(installation):
    agent = await installation.start_agent()
    operator = await installation.start_operator()
    await installation.episode("fix", ttlSecondsAfterFinished=3600)
    status = (await installation.finished("fix"))["status"]
    assert (status["reason"], status["outcome"]["resolved"]) == ("Resolved", True)
    assert status["outcome"]["resultURI"] == "file:///results/x"
    assert status["assignment"] == {**status["assignment"], "agentPodUID": agent.uid, "epoch": 1}
    (given,) = agent.given
    assert given.task["spec"]["source"] == {"files": [{"path": "calc.py", "content": "x = 1\n"}]}
    assert (given.attempt, given.epoch, given.remaining_seconds) == (1, 1, 3600.0)
    await until(installation.is_empty, "the pod is deleted")
    await until(lambda: given.episode_uid in agent.withdrawn, "the agent may forget it")
    assert agent.refusals == []
    for path in ("/healthz", "/readyz"):
        assert await get(operator, path) == (200, "ok\n")
    lines = (await get(operator, "/metrics"))[1].splitlines()
    label = f'episode_namespace="{installation.namespace}"'
    assert f'dgym_episodes{{{label},reason="Resolved",state="finished"}} 1.0' in lines
    assert f'dgym_episodes_finished_total{{{label},reason="Resolved"}} 1.0' in lines
    assert 'dgym_slots{state="free"} 8.0' in lines
    assert "dgym_operator_is_leader 1.0" in lines


async def test_the_first_real_cause_of_waiting_is_shown_and_cured(installation):
    await installation.start_agent()
    await installation.start_operator()
    files = {"source": {"configMapRef": {"name": "files", "items": [{"key": "calc", "path": "src/calc.py"}]}}}
    await installation.episode("later", task=None, taskRef={"name": "bug"})
    await installation.episode("without-files", task={**TASK, **files})
    await reason_is(installation, "later", "WaitingForTask")
    await reason_is(installation, "without-files", "TaskNotFound")
    await installation.create("DebugTask", "bug", TASK)
    data = {"metadata": {"name": "files"}, "data": {"calc": "x = 2\n"}}
    await installation.api.call("POST", installation.core("configmaps"), data)
    for name in ("later", "without-files"):
        assert (await installation.finished(name))["status"]["reason"] == "Resolved"
    (given,) = [each for each in installation.agents[0].given if each.episode == "without-files"]
    assert given.task["spec"]["source"] == {"files": [{"path": "src/calc.py", "content": "x = 2\n"}]}


async def test_an_episode_ends_if_its_config_map_is_deleted_after_the_pod_was_created(installation):
    await installation.start_operator(msgspec.structs.replace(POLICY, ending_seconds=0.5))
    maps = installation.core("configmaps")
    for name in ("whole", "part"):
        await installation.api.call("POST", maps, {"metadata": {"name": name}, "data": {"calc": "", "more": ""}})
        reference = {"name": name, "items": [{"key": "calc", "path": "calc.py"}]}
        await installation.episode(f"no-{name}", task={**TASK, "source": {"configMapRef": reference}})
    await until(lambda: len(installation.kubelet.started) == 2, "both have pods and no agent")
    await installation.api.call("DELETE", f"{maps}/whole")
    await installation.api.call("PATCH", f"{maps}/part", {"data": {"calc": None}}, MERGE)
    await installation.start_agent()
    for name, problem in {
        "no-whole": "task no-whole: ConfigMap whole, the source of calc, does not exist in its namespace",
        "no-part": "task no-part: ConfigMap part has no key 'calc'",
    }.items():
        finished = await installation.finished(name)
        assert finished["status"]["reason"] == "SourceFailed"
        assert finished["status"]["outcome"]["message"] == problem


async def test_pods_that_the_namespace_does_not_admit(installation):
    await installation.start_agent()
    api, namespace = installation.api, f"/api/v1/namespaces/{installation.namespace}"
    quotas = f"{namespace}/resourcequotas"
    await api.call("POST", quotas, {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}})
    status = {"status": {"hard": {"pods": "0"}, "used": {"pods": "0"}}}
    await api.call("PATCH", f"{quotas}/none/status", status, MERGE)
    enforced = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    await api.call("PATCH", namespace, enforced, MERGE)
    await installation.start_operator()
    await installation.episode("restricted")
    await installation.episode("baseline", podTemplate="baseline")
    waiting = await reason_is(installation, "restricted", "QuotaExceeded")
    assert "exceeded quota: none" in waiting["status"]["conditions"][0]["message"]
    tried = ("create", "pods", "restricted-1", 403)
    times = installation.writes().count(tried)
    await until(lambda: installation.writes().count(tried) >= times + 3, "it is tried again")
    assert await installation.get("restricted") == waiting
    await api.call("DELETE", f"{quotas}/none")
    assert (await installation.finished("restricted"))["status"]["reason"] == "Resolved"
    rejected = (await installation.finished("baseline"))["status"]
    assert rejected["reason"] == "PodRejected"
    assert "violates PodSecurity" in next(
        each["message"] for each in rejected["conditions"] if each["type"] == "Finished"
    )


async def test_temporary_failures_of_creation_are_retried(installation):
    api, namespace = installation.api, f"/api/v1/namespaces/{installation.namespace}"
    await installation.start_agent()
    ranges = f"{namespace}/limitranges"
    default = {"limits": [{"type": "Container", "default": {"cpu": "5m"}}]}
    await api.call("POST", ranges, {"metadata": {"name": "low"}, "spec": default})
    metadata = {"name": "again-1", "finalizers": ["dgym.dev/test"]}
    earlier = {"metadata": metadata, "spec": {"containers": [{"name": "a", "image": "a"}]}}
    await api.call("POST", installation.kubelet.path, earlier)
    await api.call("DELETE", f"{installation.kubelet.path}/again-1?gracePeriodSeconds=0")
    await installation.start_operator()
    causes = {"limited": "a LimitRange's default", "again": "pod again-1, without an owner, is still being deleted"}
    for name in causes:
        await installation.episode(name)
    waiting = await reason_is(installation, "limited", "PodNotCreated")
    assert causes["limited"] in waiting["status"]["conditions"][0]["message"]
    await api.call("DELETE", f"{ranges}/low")
    await installation.status("again", "its cause", lambda status: causes["again"] in str(status.get("conditions")))
    await api.call("PATCH", f"{installation.kubelet.path}/again-1", {"metadata": {"finalizers": None}}, MERGE)
    for name in causes:
        assert (await installation.finished(name))["status"]["reason"] == "Resolved"


async def test_episodes_that_can_never_run_end_immediately(installation):
    await installation.start_agent()
    pod = {"metadata": {"name": "taken-1"}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
    await installation.api.call("POST", installation.kubelet.path, pod)
    await installation.start_operator()
    await installation.episode("taken")
    await installation.episode("unknown-template", podTemplate="retsricted")
    await installation.episode("local", task={"source": {"localPath": "repository"}})
    await installation.episode("bare", task={"requirements": ["pytest", "numpy>=1.26"]})
    await installation.episode("labelled", podOverrides={"labels": {"team": "research"}})
    taken, unknown, local = [await installation.finished(name) for name in ("taken", "unknown-template", "local")]
    bare, labelled = [await installation.finished(name) for name in ("bare", "labelled")]
    assert bare["status"]["reason"] == "InvalidSpec"
    assert "requirements: the task has requirements (numpy>=1.26) but no image" in str(bare["status"]["conditions"])
    assert "dgym image build" in str(bare["status"]["conditions"])
    assert labelled["status"]["reason"] == "InvalidSpec"
    assert "spec.podOverrides.labels: 'team' is not allowed" in str(labelled["status"]["conditions"])
    assert taken["status"]["reason"] == "PodRejected"
    assert unknown["status"]["reason"] == "InvalidSpec"
    assert "did you mean 'restricted'" in str(unknown["status"]["conditions"])
    assert local["status"]["reason"] == "InvalidSpec"
    assert list(await installation.pods()) == ["taken-1"]


async def test_a_lost_sandbox_is_replaced_by_a_second_attempt(installation):
    agent = await installation.start_agent()
    agent.playing = False
    await installation.start_operator()
    uid = (await installation.episode("fix"))["metadata"]["uid"]
    await until(lambda: uid in agent.held, "assigned")
    await installation.kubelet.end("fix-1", reason="OOMKilled")
    await until(lambda: uid in agent.held and agent.held[uid].attempt == 2, "a second attempt")
    await agent.finish(uid)
    status = (await installation.finished("fix"))["status"]
    assert (status["reason"], status["attempt"], status["failures"]) == ("Resolved", 2, 1)
    assert status["podName"] == "fix-2"


async def test_an_attempt_ends_when_its_sandbox_terminates_also_without_a_report(installation):
    agent = await installation.start_agent()
    agent.playing = False
    await installation.start_operator()
    uid = (await installation.episode("fix"))["metadata"]["uid"]
    await until(lambda: uid in agent.held, "assigned")
    installation.sidecars.answers["terminated"] = TerminatedResponse(expected=False, poisoned_step=3, known=True)
    await installation.kubelet.end("fix-1", container="sandbox", reason="OOMKilled")
    await until(lambda: uid in agent.held and agent.held[uid].attempt == 2, "a second attempt")
    assert agent.held[uid].poisoned_steps == (OmittedStep(step=3, reason="OOMKilled"),)
    verbs = [verb for verb, _ in installation.sidecars.calls]
    assert (verbs[0], set(verbs[1:])) == ("terminated", {"state"})
    await agent.finish(uid)
    status = (await installation.finished("fix"))["status"]
    assert (status["reason"], status["attempt"], status.get("failures", 0)) == ("Resolved", 2, 0)
    assert status["poisonedSteps"] == [{"attempt": 1, "step": 3, "reason": "OOMKilled"}]


async def test_a_suspended_episode_resumes_with_its_steps_and_its_remaining_time(installation):
    agent = await installation.start_agent()
    agent.playing = False
    await installation.start_operator()
    uid = (await installation.episode("fix", activeDeadlineSeconds=600))["metadata"]["uid"]
    await until(lambda: uid in agent.held, "assigned")
    path = installation.path("episodes", "fix")
    installation.sidecars.answers["state"] = AttemptState(elapsed_seconds=90.9, remaining_seconds=509.1, running=True)
    await installation.api.call("PATCH", path, {"spec": {"suspend": True}}, MERGE)
    suspended = (await reason_is(installation, "fix", "Suspended"))["status"]
    assert (suspended["activeSeconds"], suspended["replay"]["attempt"], suspended.get("failures", 0)) == (90, 1, 0)
    assert await installation.is_empty()
    assert {verb for verb, _ in installation.sidecars.calls} == {"state"}  # on a busy machine the request is repeated
    await installation.api.call("PATCH", path, {"spec": {"suspend": False}}, MERGE)
    await until(lambda: uid in agent.held and agent.held[uid].attempt == 2, "resumed")
    given = agent.held[uid]
    assert (given.replay_attempt, given.remaining_seconds, given.poisoned_steps) == (1, 510.0, ())
    await agent.finish(uid)
    assert (await installation.finished("fix"))["status"]["reason"] == "Resolved"


@pytest.mark.parametrize("answer", ["a refusal", "one without the sidecar's signature"])
async def test_the_call_terminated_is_repeated_until_the_sidecar_answers(installation, answer):
    agent = await installation.start_agent()
    agent.playing = False
    await installation.start_operator()
    if answer == "a refusal":
        installation.sidecars.statuses["terminated"] = 503
    else:
        installation.sidecars.forging.add("terminated")
    uid = (await installation.episode("fix"))["metadata"]["uid"]
    await until(lambda: uid in agent.held, "assigned")
    await installation.kubelet.end("fix-1", container="sandbox")
    calls = installation.sidecars.calls
    await until(lambda: len(calls) >= 2, "it is told again")
    installation.sidecars.statuses["terminated"] = 200
    installation.sidecars.forging.clear()
    called = len(calls)
    await until(lambda: len(calls) > called, "the call is repeated")
    assert set(calls) == {("terminated", installation.kubelet.started["fix-1"])}
    await agent.finish(uid)
    assert (await installation.finished("fix"))["status"]["reason"] == "Resolved"


async def test_cancelled_before_it_began_and_in_the_middle(installation):
    agent = await installation.start_agent()
    agent.playing = False
    await installation.start_operator()
    await installation.episode("pending", task=None, taskRef={"name": "nowhere"})
    uid = (await installation.episode("running"))["metadata"]["uid"]
    await until(lambda: uid in agent.held, "assigned")
    for name in ("pending", "running"):
        await installation.api.call("PATCH", installation.path("episodes", name), {"spec": {"cancel": True}}, MERGE)
    assert (await installation.finished("pending"))["status"]["reason"] == "Cancelled"
    await until(lambda: [call for call, _ in installation.sidecars.calls] == ["cancel"], "told once")
    assert (await installation.get("running"))["status"]["ending"]["cause"] == "user"
    await agent.finish(uid, EndReason.CANCELLED)
    assert (await installation.finished("running"))["status"]["reason"] == "Cancelled"
    assert list(await installation.pods()) in (["running-1"], [])


async def test_an_evicted_pod_counts_as_a_disruption_and_not_as_a_failure(installation):
    agent = await installation.start_agent()
    agent.playing = False
    await installation.start_operator()
    uid = (await installation.episode("fix", backoffLimit=0))["metadata"]["uid"]
    await until(lambda: uid in agent.held, "assigned")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "fix-1"}}
    await installation.api.call("POST", f"{installation.kubelet.path}/fix-1/eviction", eviction)
    agent.set_state(uid, AssignmentState.FAILED, reason=EndReason.SANDBOX_LOST, message="the sidecar does not answer")
    await until(lambda: agent.held.get(uid) is not None and agent.held[uid].attempt == 2, "it begins in a new pod")
    await agent.finish(uid)
    status = (await installation.finished("fix"))["status"]
    assert (status["reason"], status["attempt"], status["disruptions"]) == ("Resolved", 2, 1)
    assert status["failures"] == 0


async def test_deleted_in_the_middle_and_made_again(installation):
    agent = await installation.start_agent()
    agent.playing = False
    await installation.start_operator()
    uid = (await installation.episode("fix"))["metadata"]["uid"]
    await until(lambda: uid in agent.held, "assigned")
    await installation.api.call("DELETE", installation.path("episodes", "fix"))
    await until(lambda: uid in agent.withdrawn, "the agent drops it")
    # This API server has no garbage collector, so the old Episode's pod stays until the test deletes it.
    assert list(await installation.pods()) == ["fix-1"]
    agent.playing = True
    again = (await installation.episode("fix"))["metadata"]["uid"]
    await installation.api.call("DELETE", f"{installation.kubelet.path}/fix-1?gracePeriodSeconds=0")
    finished = await installation.finished("fix")
    assert (finished["metadata"]["uid"], finished["status"]["reason"]) == (again, "Resolved")


async def test_with_head_start_0_pods_wait_for_slots_in_the_order_of_priority(installation):
    agent = await installation.start_agent(slots=1)
    agent.playing = False
    await installation.start_operator(head_start=0)
    first = (await installation.episode("first"))["metadata"]["uid"]
    await until(lambda: first in agent.held, "the first is assigned")
    await installation.episode("low")
    await installation.episode("high", priority=5)

    def has_message(status):
        messages = [each.get("message", "") for each in status.get("conditions", [])]
        return any("all slots of the agent pods are used" in each for each in messages)

    for name in ("low", "high"):
        await reason_is(installation, name, "WaitingForSlot")
        await installation.status(name, "it shows what holds it", has_message)
    assert list(await installation.pods()) == ["first-1"]
    agent.playing = True
    await agent.finish(first)
    await installation.finished("low")
    assert list(dict.fromkeys(given.episode for given in agent.given)) == ["first", "high", "low"]
    assert installation.kubelet.most_running <= 2


async def test_pods_that_cannot_start_do_not_use_slots(installation):
    installation.kubelet.starting = False
    await installation.start_agent(slots=1)
    await installation.start_operator(head_start=0, max_stuck_pods=2)
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no such node"}
    for name in ("bad-1", "bad-2"):
        await installation.episode(name, priority=1000)
        await until(lambda pod=f"{name}-1": pod in installation.kubelet.running, f"{name} has a pod")
        await installation.kubelet.report(f"{name}-1", conditions=[scheduled])
    await installation.episode("good")

    def holds(status):
        messages = [each.get("message", "") for each in status.get("conditions", [])]
        return any("has 2 pods or more that cannot start, such as bad-1-1 (Unschedulable)" in each for each in messages)

    await installation.status("good", "its wait has its cause", holds)
    installation.kubelet.starting = True
    await installation.api.call("PATCH", installation.path("episodes", "bad-1"), {"spec": {"cancel": True}}, MERGE)
    assert (await installation.finished("good"))["status"]["reason"] == "Resolved"
    await reason_is(installation, "bad-2", "Unschedulable")


async def test_concurrent_pulls_of_images_are_limited(installation):
    installation.kubelet.starting = False
    await installation.start_agent(slots=9)
    await installation.start_operator(max_concurrent_pulls=1, image_mirrors={"docker.io": "mirror.example"})
    await installation.episode("first", task={**TASK, "image": "team/first"})
    await until(lambda: "first-1" in installation.kubelet.running, "the first has a pod")
    await installation.episode("other", task={**TASK, "image": "team/other"})

    def holds(status):
        messages = [each.get("message", "") for each in status.get("conditions", [])]
        return any("no node is known to have its image; at most 1 is pulled" in each for each in messages)

    await installation.status("other", "its wait has its cause", holds)
    (pod,) = (await installation.pods()).values()
    images = {each["name"]: each["image"] for each in pod["spec"]["containers"]}
    assert images["sandbox"] == "mirror.example/team/first"
    installation.kubelet.starting = True
    await installation.kubelet.start("first-1")
    await installation.finished("other")


async def test_a_model_that_fails_is_tried_again_in_the_same_pod(installation):
    agent = await installation.start_agent()
    agent.playing = False
    await installation.start_operator()
    uid = (await installation.episode("fix"))["metadata"]["uid"]
    await until(lambda: uid in agent.held, "assigned")
    agent.set_state(uid, AssignmentState.FAILED, reason=EndReason.MODEL_ERROR, message="the model does not answer")
    await until(lambda: uid in agent.held and agent.held[uid].epoch == 2, "assigned again")
    await agent.finish(uid)
    status = (await installation.finished("fix"))["status"]
    assert (status["reason"], status["attempt"], status["assignment"]["failures"]) == ("Resolved", 1, 1)


async def test_the_network_policy_is_created_before_the_first_pod(installation):
    await installation.start_agent()
    await installation.start_operator()
    await installation.episode("fix")
    await installation.finished("fix")
    writes = installation.writes()
    policy = next(number for number, write in enumerate(writes) if write[1] == "networkpolicies")
    pod = next(number for number, write in enumerate(writes) if write[:2] == ("create", "pods") and write[2] == "fix-1")
    assert policy < pod
