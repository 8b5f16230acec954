"""Tests of lost agent pods and operators during an episode: it finishes, and each step is executed once.

The module has a separate release that watches a single namespace, so that other tests' episodes do not interfere.
"""

import json

import pytest

from tests.e2e.cluster.episodes import STEPS, begin, episode, inline_source, replay, task_spec
from tests.e2e.cluster.release import installed
from tests.e2e.cluster.support import new_namespace, run, unique, until
from tests.e2e.programs import EXPECTED, PROGRAMS, Outcome, calls, task

OPERATOR = "app.kubernetes.io/name=dgym,app.kubernetes.io/component=operator"
AGENT = "app.kubernetes.io/name=dgym,app.kubernetes.io/component=agent"


@pytest.fixture(scope="module")
def watched():
    """The only namespace that this module's release watches."""
    with new_namespace("e2e-watched") as kubectl:
        yield kubectl


@pytest.fixture(scope="module")
def release(watched):
    """A release with two agent pods, so that the second can take over from the first."""
    with installed("faults", watch=watched.namespace, agents=2) as release:
        yield release


def check_each_step_once(release, kubectl, name, tmp_path, steps=STEPS, attempt=1):
    """Check the workspace's file, as ``cat`` showed it, and the trajectory. Returns the status."""
    status = kubectl.finished(name)
    assert status["reason"] == "Resolved", kubectl.explain(name)
    assert status["attempt"] == attempt
    run("dgym", "results", name, *release.client_flags(kubectl.namespace), "--directory", str(tmp_path))
    (trajectory,) = tmp_path.rglob(f"{attempt}/trajectory.jsonl")
    lines = [json.loads(line) for line in trajectory.read_text().splitlines()][1:]
    assert [line["seq"] for line in lines] == list(range(steps + 4))
    (shown,) = [
        line["observation"]["text"]
        for line in lines
        if line["call"] and line["call"]["arguments"].get("command") == "cat counter.txt"
    ]
    assert [int(word) for word in shown.split() if word.isdecimal()] == list(range(1, steps + 1)), shown
    assert status["outcome"]["steps"] == steps + 3
    return status


def serving(release, kubectl, name):
    """The agent pod that serves the episode."""
    uid = kubectl.status(name)["assignment"]["agentPodUID"]
    return next(pod for pod in release.kubectl.items("pods", AGENT) if pod["metadata"]["uid"] == uid)


def test_the_agent_pod_is_deleted(release, watched, tmp_path):
    name = begin(watched)
    before = watched.status(name)["assignment"]
    pod = serving(release, watched, name)["metadata"]["name"]
    release.kubectl("delete", "pod", pod, "--grace-period=0", "--force", "--wait=false")
    status = check_each_step_once(release, watched, name, tmp_path)
    assert status["assignment"]["epoch"] > before["epoch"]
    assert status["assignment"]["agentPodUID"] != before["agentPodUID"]
    release.wait()


def test_the_agent_container_is_restarted_in_place(release, watched, tmp_path):
    name = begin(watched)
    before = watched.status(name)["assignment"]
    pod = serving(release, watched, name)["metadata"]["name"]
    for _ in range(2):
        # The first SIGTERM starts draining, the second stops the wait for episodes.
        release.kubectl("exec", pod, "--", "python", "-c", "import os; os.kill(1, 15)", check=False)
    status = check_each_step_once(release, watched, name, tmp_path)
    assert status["assignment"]["agentPodUID"] == before["agentPodUID"]
    (container,) = release.kubectl.get("pod", pod)["status"]["containerStatuses"]
    assert container["restartCount"] >= 1
    release.wait()


def test_the_leader_is_deleted(release, watched, tmp_path):
    name = begin(watched)
    leader = until(release.leader, what="a leader")
    release.kubectl("delete", "pod", leader, "--grace-period=0", "--force", "--wait=false")
    check_each_step_once(release, watched, name, tmp_path)
    assert until(release.leader, what="another leader") != leader
    release.wait()


def test_operators_that_are_away_while_an_agent_submits_cost_no_outcome(release, watched, tmp_path):
    name = begin(watched)
    release.kubectl("scale", "deployment", "--selector", OPERATOR, "--replicas=0")
    # No operator reports the end of the sandbox. So the sidecar waits after the sandbox's time to stop has passed.
    pod = watched.status(name)["podName"]
    until(lambda: not container(watched, pod, "sidecar")["ready"], what="a sidecar that waits")
    assert "terminated" in container(watched, pod, "sandbox")["state"]
    assert "running" in container(watched, pod, "sidecar")["state"]
    release.kubectl("scale", "deployment", "--selector", OPERATOR, "--replicas=2")
    check_each_step_once(release, watched, name, tmp_path)
    release.wait()


def container(kubectl, pod, name):
    """A container's status."""
    statuses = kubectl.get("pod", pod)["status"]["containerStatuses"]
    return next(status for status in statuses if status["name"] == name)


def test_an_episode_is_deleted_in_the_middle(release, watched):
    name = begin(watched, steps=200)
    watched("delete", "episode", name, "--timeout=60s")
    until(lambda: not watched.items("pods", f"dgym.dev/episode={name}"), what="its pod to go")
    # The slot is free again: the next episode runs.
    follower = unique("follower")
    watched.apply(episode(follower, task=task_spec(inline_source())))
    assert watched.finished(follower)["reason"] == "Resolved"


def test_an_episode_is_cancelled_in_the_middle(release, watched):
    name = begin(watched, steps=200)
    run("dgym", "cancel", name, *release.client_flags(watched.namespace, system=False))
    status = watched.finished(name)
    assert status["reason"] == "Cancelled"
    assert status["outcome"]["steps"] >= 3
    assert status["outcome"]["maxScore"] == 1, "a cancelled episode is scored where there is anything to score"


def test_an_episode_is_suspended_and_goes_on_where_it_was(release, watched, tmp_path):
    name = begin(watched)

    def suspend(value):
        watched("patch", "episode", name, "--type=merge", "--patch", json.dumps({"spec": {"suspend": value}}))

    suspend(True)
    until(lambda: watched.status(name).get("reason") == "Suspended", what="the suspension")
    suspended = watched.status(name)
    until(lambda: not watched.items("pods", f"dgym.dev/episode={name}"), what="its pod to go")
    assert (suspended["attempt"], suspended["replay"]["attempt"]) == (1, 1)
    # At least three steps of half a second, measured by the sidecar.
    assert 1 <= suspended["activeSeconds"] <= 30
    suspend(False)
    status = check_each_step_once(release, watched, name, tmp_path, attempt=2)
    assert status.get("failures", 0) == status.get("disruptions", 0) == 0


def test_an_upgrade_in_the_middle(release, watched, tmp_path):
    """Agent pods drain, and their running episodes continue."""
    name = begin(watched)
    release.upgrade({"operator": {"logLevel": "DEBUG"}, "agents": {"podAnnotations": {"rolled": "yes"}}})
    check_each_step_once(release, watched, name, tmp_path)


@pytest.fixture
def attacked(watched):
    """Start an episode for each program that attacks its sandbox. Returns the episodes' names by program."""
    names = {program: unique(program) for program in PROGRAMS}
    for program, name in names.items():
        watched.apply(episode(name, agent=replay(*calls(program)), task=task()))
    return names


@pytest.mark.attack("killed-sandbox")
def test_a_program_that_attacks_its_sandbox_has_the_outcome_that_it_has_on_a_laptop(
    release, watched, attacked, tmp_path
):
    ends, seen = {}, {}
    for program, name in attacked.items():
        status = watched.finished(name, 400)
        run("dgym", "results", name, *release.client_flags(watched.namespace), "--directory", str(tmp_path / program))
        result = json.loads(next((tmp_path / program).rglob("result.json")).read_text())
        clean = bool((result["integrity"] or {}).get("clean"))
        outcome = status["outcome"]
        counts = (outcome.get(field, 0) for field in ("score", "maxScore", "steps"))
        ends[program] = Outcome(status["reason"], *counts, clean=clean)
        seen[program] = (status.get("message"), status.get("poisonedSteps"), result.get("notes"))
    assert ends == EXPECTED, seen
