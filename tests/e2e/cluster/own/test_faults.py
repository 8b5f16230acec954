"""Tests of lost agent pods and of users' requests during an episode: each step is executed once."""

import json

import pytest

from tests.e2e.cluster.episodes import begin, episode, inline_source, replay, task_spec
from tests.e2e.cluster.support import run, unique, until
from tests.e2e.programs import EXPECTED, PROGRAMS, Outcome, calls, task

AGENT = "app.kubernetes.io/name=dgym,app.kubernetes.io/component=agent"


def serving(release, kubectl, name):
    """The agent pod that serves the episode."""
    uid = kubectl.status(name)["assignment"]["agentPodUID"]
    return next(pod for pod in release.kubectl.items("pods", AGENT) if pod["metadata"]["uid"] == uid)


def test_the_agent_pod_is_deleted(release, watched, check_each_step_once):
    name = begin(watched)
    before = watched.status(name)["assignment"]
    pod = serving(release, watched, name)["metadata"]["name"]
    release.kubectl("delete", "pod", pod, "--grace-period=0", "--force", "--wait=false")
    status = check_each_step_once(name)
    assert status["assignment"]["epoch"] > before["epoch"]
    assert status["assignment"]["agentPodUID"] != before["agentPodUID"]
    release.wait()


def test_the_agent_container_is_restarted_in_place(release, watched, check_each_step_once):
    name = begin(watched)
    before = watched.status(name)["assignment"]
    pod = serving(release, watched, name)["metadata"]["name"]
    for _ in range(2):
        # The first SIGTERM starts draining, the second stops the wait for episodes.
        release.kubectl("exec", pod, "--", "python", "-c", "import os; os.kill(1, 15)", check=False)
    status = check_each_step_once(name)
    assert status["assignment"]["agentPodUID"] == before["agentPodUID"]
    (container,) = release.kubectl.get("pod", pod)["status"]["containerStatuses"]
    assert container["restartCount"] >= 1
    release.wait()


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


def test_a_suspended_episode_resumes_after_its_last_step(release, watched, check_each_step_once):
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
    status = check_each_step_once(name, attempt=2)
    assert status.get("failures", 0) == status.get("disruptions", 0) == 0


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
