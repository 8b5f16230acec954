"""Tests of attacks from a sandbox on the verifier of its pod and on the network."""

import base64
import json

import pytest

from tests.e2e.cluster.episodes import SUBMIT, episode, inline_source, replay, shell, task_spec
from tests.e2e.cluster.support import Kubectl, run, until
from tests.fakes.shared_objects import COUNT, FOUND, LEAVE

HOSTS = (
    "for file in hosts hostname resolv.conf; do echo '127.0.0.1 answer.test' >> /etc/$file && echo wrote $file; done"
)
TRUSTING = f"""\
import os
import socket
import subprocess
import sys

FOUND = {FOUND!r}


def test_objects():
    found = subprocess.run([sys.executable, "-c", FOUND], capture_output=True, text=True)
    assert found.stdout.strip() == "found {COUNT}"


def test_memory():
    assert os.path.exists("/dev/shm/answer")


def test_names():
    assert socket.gethostbyname("answer.test") == "127.0.0.1"


def test_files_of_the_pod():
    assert any("answer.test" in open("/etc/" + name).read() for name in ("hosts", "hostname", "resolv.conf"))
"""
NAMES = ("test_objects", "test_memory", "test_names", "test_files_of_the_pod")
REACH = """
import json, socket, sys
def reaches(host, port):
    try:
        socket.create_connection((host, int(port)), 4).close()
    except OSError:
        return False
    return True
reached = [place for place in sys.argv[1:] if reaches(*place.rsplit(":", 1))]
name = b"".join(bytes([len(part)]) + part for part in b"kubernetes.default.svc.cluster.local".split(b"."))
query = b"\\x12\\x34\\x01\\x00\\x00\\x01" + bytes(6) + name + b"\\x00\\x00\\x01\\x00\\x01"
def resolves(server):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(4)
        try:
            client.sendto(query, (server, 53))
            return client.recv(512)[:2] == b"\\x12\\x34"
        except OSError:
            return False
print("reached", json.dumps([*reached, *(["dns"] if resolves(sys.argv[1].rsplit(":", 1)[0]) else [])]))
"""


def program(code):
    """A shell command that runs the code unchanged."""
    return f"echo {base64.b64encode(code.encode()).decode()} | base64 -d > /tmp/program.py && python3 /tmp/program.py"


def steps_of(kubectl, name, system, tmp_path):
    """The texts of an episode's observations, and its ``result.json``."""
    places = ("-n", kubectl.namespace, "--system-namespace", system.namespace, "--directory", str(tmp_path))
    run("dgym", "results", name, *places)
    (trajectory,) = tmp_path.rglob("trajectory.jsonl")
    lines = [json.loads(line) for line in trajectory.read_text().splitlines()][1:]
    (result,) = tmp_path.rglob("result.json")
    return [line["observation"]["text"] for line in lines], json.loads(result.read_text())


@pytest.mark.attack("shared-objects")
@pytest.mark.parametrize("template", ["restricted", "baseline"])
def test_the_verifier_does_not_find_anything_that_the_sandbox_left(
    template, namespace, baseline_namespace, baked_image, system, tmp_path
):
    kubectl = baseline_namespace if template == "baseline" else namespace
    scoring = {
        "hiddenFiles": [{"path": "test_trusting.py", "content": TRUSTING}],
        "failToPass": [f"test_trusting.py::{name}" for name in NAMES],
    }
    # Programs run as root in the image of "baseline".
    holder = {"image": baked_image} if template == "baseline" else {"source": inline_source()}
    wait = "until [ -e /tmp/go ]; do sleep 0.2; done"
    calls = [program(LEAVE), "echo yes > /dev/shm/answer", HOSTS, program(FOUND), "ls /dev/shm; id -u", wait]
    task = task_spec(**holder, scoring=scoring, solution=None, podTemplate=template)
    kubectl.apply(episode("leaving", agent=replay(*map(shell, calls), SUBMIT), task=task, backoffLimit=0))
    kubectl.reason("leaving", "Running")
    pod = kubectl.status("leaving")["podName"]
    # The containers share the objects: the verifier finds them while the sandbox is running.
    look = ("exec", pod, "-c", "verifier", "--", "python3", "-c", FOUND)
    until(lambda: f"found {COUNT}" in kubectl(*look, check=False), what="the objects in the verifier")
    kubectl("exec", pod, "-c", "sandbox", "--", "touch", "/tmp/go")
    status = kubectl.finished("leaving")
    assert (status["reason"], status["outcome"]["score"], status["outcome"]["maxScore"]) == ("Unresolved", 0, 4), (
        kubectl.explain("leaving")
    )
    texts, result = steps_of(kubectl, "leaving", system, tmp_path)
    # The sandbox itself has found all of them.
    assert f"found {COUNT}" in texts[4]
    assert texts[5].split()[:2] == ["answer", "0" if template == "baseline" else "10001"]
    assert texts[3].count(": Permission denied") + texts[3].count(": Read-only file system") == 3
    assert "wrote" not in texts[3]
    removed = f"removed before the tests: {COUNT} System V objects and message queues that the sandbox left"
    assert removed in result["notes"]


def test_a_read_only_image_can_still_run_what_writes_temporary_files(namespace, system, tmp_path):
    calls = [
        "python3 -c 'import tempfile; print(tempfile.mkstemp()[1])'",
        "touch /var/tmp/x /opt/x /usr/x; echo $HOME > $HOME/home && cat $HOME/home && echo on > /tmp/on && cat /tmp/on",
        "mount | grep -c ' / .*[(,]ro[,)]'",
    ]
    task = task_spec(inline_source())
    namespace.apply(episode("writing", agent=replay(*map(shell, calls), SUBMIT), task=task))
    namespace.finished("writing")
    texts, _ = steps_of(namespace, "writing", system, tmp_path)
    assert texts[1].startswith("/tmp/")
    assert texts[2].count("Read-only file system") == 3
    assert texts[2].endswith("on\n") or texts[2].rstrip().endswith("on")
    assert texts[3].split()[0] == "1"


@pytest.mark.attack("egress")
def test_a_sandbox_cannot_connect_to_any_address(namespace, system, sources, tmp_path):
    service = run("kubectl", "get", "service", "kubernetes", "-n", "default", "-o", "jsonpath={.spec.clusterIP}")
    node = run("kubectl", "get", "nodes", "-o", "jsonpath={.items[0].status.addresses[0].address}")
    repositories = sources.git["url"].split("/")[2]
    operators = system.items("pods", "app.kubernetes.io/component=operator")
    operator = f"{operators[0]['status']['podIP']}:8080"
    places = [f"{node}:6443", f"{service}:443", f"{node}:10250", repositories, operator]
    reach = f"{program(REACH)} {' '.join(places)}"

    # Another kind of pod reaches them, as far as its policies allow it. So the attack itself works.
    others = Kubectl(service_namespace(repositories))
    (outside,) = (each["metadata"]["name"] for each in others.items("pods", "app=repositories"))
    seen = reached(others("exec", outside, "--", "python3", "-c", REACH, *places))
    assert {f"{service}:443", repositories} <= seen

    namespace.apply(episode("reaching", agent=replay(shell(reach), SUBMIT), task=task_spec(inline_source())))
    namespace.finished("reaching")
    texts, _ = steps_of(namespace, "reaching", system, tmp_path)
    assert reached(texts[1]) == set()


def service_namespace(place):
    """The namespace of the Service with this address."""
    services = json.loads(run("kubectl", "get", "services", "--all-namespaces", "-o", "json"))["items"]
    (found,) = (each for each in services if each["spec"].get("clusterIP") == place.split(":")[0])
    return found["metadata"]["namespace"]


def reached(text):
    """The addresses in the program's output."""
    (line,) = (line for line in text.splitlines() if line.startswith("reached "))
    return set(json.loads(line.removeprefix("reached ")))
