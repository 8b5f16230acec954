"""Tests of operators that are lost, away or replaced during an episode: it finishes, and each step is executed once."""

from tests.e2e.cluster.episodes import begin
from tests.e2e.cluster.support import until

OPERATOR = "app.kubernetes.io/name=dgym,app.kubernetes.io/component=operator"


def test_the_leader_is_deleted(release, watched, check_each_step_once):
    name = begin(watched)
    leader = until(release.leader, what="a leader")
    release.kubectl("delete", "pod", leader, "--grace-period=0", "--force", "--wait=false")
    check_each_step_once(name)
    assert until(release.leader, what="another leader") != leader
    release.wait()


def test_an_outcome_is_kept_if_no_operator_runs_at_the_submission(release, watched, check_each_step_once):
    name = begin(watched)
    release.kubectl("scale", "deployment", "--selector", OPERATOR, "--replicas=0")
    # No operator reports the end of the sandbox. So the sidecar waits after the sandbox's time to stop has passed.
    pod = watched.status(name)["podName"]
    until(lambda: not container(watched, pod, "sidecar")["ready"], what="a sidecar that waits")
    assert "terminated" in container(watched, pod, "sandbox")["state"]
    assert "running" in container(watched, pod, "sidecar")["state"]
    release.kubectl("scale", "deployment", "--selector", OPERATOR, "--replicas=2")
    check_each_step_once(name)
    release.wait()


def container(kubectl, pod, name):
    """A container's status."""
    statuses = kubectl.get("pod", pod)["status"]["containerStatuses"]
    return next(status for status in statuses if status["name"] == name)


def test_an_upgrade_in_the_middle(release, watched, check_each_step_once):
    """Agent pods drain, and their running episodes continue."""
    name = begin(watched)
    release.upgrade({"operator": {"logLevel": "DEBUG"}, "agents": {"podAnnotations": {"rolled": "yes"}}})
    check_each_step_once(name)
