"""Tests of a program in the pod's network that answers in the sidecar's place: its answers never finish an episode."""

import json
from pathlib import Path

import pytest

from tests.e2e.cluster.episodes import FILES, REPAIR, SUBMIT, episode, replay, shell, task_spec
from tests.e2e.cluster.support import until
from tests.fakes import impostor

PORT = 8080
CODE = Path(impostor.__file__).read_text()
ATTACK = shell(f"python3 impostor.py {PORT} calls.txt")
FLOOD = """
import socket, sys
probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
try:
    probe.connect(("192.0.2.1", 9))
    own = probe.getsockname()[0]
except OSError:
    own = "127.0.0.1"
kept = []
for host in ("127.0.0.1", own):
    for _ in range(400):
        try:
            kept.append(socket.create_connection((host, 8080), 5))
            kept[-1].sendall(b"POST /v1/finish HTTP/1.1\\r\\nX: " + b"x" * 8000)
        except OSError:
            pass
print("flooded", len(kept))
"""


def begin(kubectl, name, *calls):
    """Start an episode of one attempt whose agent makes these calls. Returns the name of its pod once it runs."""
    files = {**FILES, "impostor.py": CODE, "flood.py": FLOOD}
    source = {"files": [{"path": path, "content": content} for path, content in files.items()]}
    kubectl.apply(episode(name, agent=replay(*calls), task=task_spec(source), backoffLimit=0))
    kubectl.reason(name, "Running")
    return kubectl.status(name)["podName"]


def end_the_sidecar(kubectl, pod):
    """Terminate the sidecar before it has an outcome, as a sandbox program could by exhausting its memory."""
    kubectl("exec", pod, "-c", "sidecar", "--", "python3", "-c", "import os; os.kill(1, 15)", check=False)


def check_lost(kubectl, name):
    """The only attempt is lost. No step is blamed, because the sidecar has reported that it received SIGTERM."""
    status = kubectl.finished(name)
    blamed = [each["attempt"] for each in status.get("poisonedSteps", ())]
    assert (status["reason"], status["attempt"], blamed) == ("SandboxLost", 1, []), kubectl.explain(name)
    assert not status.get("outcome", {}).get("resolved")
    assert not status.get("outcome", {}).get("score")


@pytest.mark.attack("impostor")
def test_a_program_of_the_sandbox_on_the_port_of_a_sidecar_that_has_ended(namespace):
    pod = begin(namespace, "inside", ATTACK, SUBMIT)
    waiting = ("exec", pod, "-c", "sandbox", "--", "cat", "/workspace/calls.txt")
    until(lambda: "waiting" in namespace(*waiting, check=False), what="the impostor to wait for the port")
    end_the_sidecar(namespace, pod)
    check_lost(namespace, "inside")


@pytest.mark.attack("impostor")
def test_a_program_that_outlives_sandbox_and_sidecar_on_its_port(namespace, tmp_path):
    pod = begin(namespace, "beside", shell("sleep 600"), SUBMIT)
    containers = namespace.get("pod", pod)["spec"]["containers"]
    image = next(each["image"] for each in containers if each["name"] == "sandbox")
    container = tmp_path / "container.json"
    security = {
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container.write_text(json.dumps({"securityContext": security}))
    debug = ("debug", pod, "--container=impostor", f"--image={image}", "--image-pull-policy=IfNotPresent")
    shape = ("--profile=restricted", f"--custom={container}", "--attach=false")
    namespace(*debug, *shape, "--", "python3", "-c", CODE, str(PORT), "-")
    until(lambda: "waiting" in namespace("logs", pod, "-c", "impostor", check=False), what="the impostor to wait")
    end_the_sidecar(namespace, pod)
    seen = until(lambda: calls(namespace, pod), what="a call that the impostor answers, or the end of its pod")
    check_lost(namespace, "beside")
    assert seen == "gone" or "/v1/" in seen


def calls(kubectl, pod):
    """The calls that the impostor has answered. "gone" if the pod does not exist any more."""
    log = kubectl("logs", pod, "-c", "impostor", check=False)
    if "/v1/" in log:
        return log
    return "" if kubectl.get("pod", pod) else "gone"


@pytest.mark.attack("flood")
@pytest.mark.parametrize("calls", [(REPAIR, SUBMIT), (SUBMIT,)], ids=["repaired", "forged"])
def test_a_flood_of_connections_from_the_pod_does_not_affect_the_sidecar(namespace, calls):
    attack = shell(f"(nohup python3 impostor.py {PORT} calls.txt &) ; python3 flood.py; python3 flood.py")
    begin(namespace, "flooded", attack, *calls)
    status = namespace.finished("flooded")
    honest = "Resolved" if REPAIR in calls else "Unresolved"
    assert status["reason"] == honest, namespace.explain("flooded")
    assert status["attempt"] == 1
