"""Tests of the program of ``helm test``, against a real API server. The tests act as the operator."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

FILES = Path(__file__).parents[2] / "charts" / "dgym" / "files"
DEADLINE = 90.0


class Ready(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/readyz" else 404)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def operator_port():
    with ThreadingHTTPServer(("127.0.0.1", 0), Ready) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture
def start(definitions, api_server, api_namespace, operator_port, tmp_path):
    running = []

    def started(seconds=DEADLINE, **changes):
        (tmp_path / "token").write_text(api_server.token)
        (tmp_path / "ca.crt").write_bytes(api_server.ca_file.read_bytes())
        place = urlsplit(api_server.url)
        environment = {
            "PATH": os.environ["PATH"],
            "KUBERNETES_SERVICE_HOST": place.hostname,
            "KUBERNETES_SERVICE_PORT": str(place.port),
            "TEST_ACCOUNT": str(tmp_path),
            "TEST_NAMESPACE": api_namespace,
            "TEST_EPISODE_FILE": str(FILES / "test-episode.json"),
            "TEST_OPERATOR_HOST": "127.0.0.1",
            "TEST_OPERATOR_PORT": str(operator_port),
            "TEST_TIMEOUT_SECONDS": str(seconds),
            "TEST_NETWORK": "true",
            "TEST_NETWORK_FILE": str(FILES / "test_network.py"),
            "TEST_POD_IP": "127.0.0.1",
            **changes,
        }
        command = [sys.executable, FILES / "test_episode.py"]
        program = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        running.append(program)
        return program

    yield started
    for program in running:
        program.kill()
        program.communicate()


def test_a_resolved_episode_passes_the_test(start, api_server, api_namespace):
    program = start()
    _finish(api_server, api_namespace, "Resolved", resolved=True, score=1, maxScore=1)
    output, _ = program.communicate(timeout=DEADLINE)
    assert program.returncode == 0, output
    assert "Resolved: score 1 of 1" in output
    assert not _episodes(api_server, api_namespace)


def test_another_reason_fails_the_test_and_is_printed(start, api_server, api_namespace):
    program = start()
    _finish(api_server, api_namespace, "ImagePullFailed", message="no such image")
    output, _ = program.communicate(timeout=DEADLINE)
    assert program.returncode == 1
    assert "ImagePullFailed: no such image" in output
    assert not _episodes(api_server, api_namespace)


@pytest.mark.attack("unenforced")
def test_the_test_fails_if_the_sandbox_connects_to_the_test_pod(start, api_server, api_namespace):
    program = start()
    task = _begun(api_server, api_namespace)["spec"]["task"]
    (host, port), _ = places = json.loads(task["env"][0]["value"])
    assert places[1] == [urlsplit(api_server.url).hostname, urlsplit(api_server.url).port]
    # A connection from another client does not count as one from a sandbox.
    socket.create_connection((host, port), DEADLINE).close()
    assert "reached" in _run_test(task, json.dumps([[host, port]]))
    _finish(api_server, api_namespace, "Resolved", resolved=True, score=2, maxScore=2)
    output, _ = program.communicate(timeout=DEADLINE)
    assert program.returncode == 1
    assert output.count("a program of the sandbox has connected to this pod from 127.0.0.1") == 1
    assert "does not enforce NetworkPolicies" in output


@pytest.mark.attack("unenforced")
def test_a_sandbox_that_reaches_the_api_server_fails_the_test_of_its_episode(start, api_server, api_namespace):
    program = start()
    task = _begun(api_server, api_namespace)["spec"]["task"]
    (test,) = task["scoring"]["passToPass"]
    reached = _run_test(task, json.dumps(json.loads(task["env"][0]["value"])[1:]))
    assert "does not enforce NetworkPolicies: reached" in reached
    _finish(api_server, api_namespace, "Unresolved", resolved=False, score=1, maxScore=2)
    output, _ = program.communicate(timeout=DEADLINE)
    assert program.returncode == 1
    assert test in output


def test_the_task_passes_if_no_address_can_be_reached(start, api_server, api_namespace):
    start()
    task = _begun(api_server, api_namespace)["spec"]["task"]
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        nobody = json.dumps([bound.getsockname()])
        assert _run_test(task, nobody) == ""


def test_without_network_policies_the_network_is_not_tested(start, api_server, api_namespace):
    program = start(TEST_NETWORK="false")
    assert "env" not in _begun(api_server, api_namespace)["spec"]["task"]
    _finish(api_server, api_namespace, "Resolved", resolved=True, score=1, maxScore=1)
    output, _ = program.communicate(timeout=DEADLINE)
    assert program.returncode == 0, output


@pytest.mark.parametrize(
    ("changes", "tried"),
    [((), "true"), (("sandboxes.networkPolicy=disabled",), "false"), (("test.networkPolicies=false",), "false")],
)
def test_the_value_decides_whether_the_network_is_tested(render, changes, tried):
    (container,) = render("default", *changes).one("Pod", "dgym-test")["spec"]["containers"]
    assert {each["name"]: each.get("value") for each in container["env"]}["TEST_NETWORK"] == tried


def test_an_episode_that_does_not_end_is_deleted(start, api_server, api_namespace):
    program = start(seconds=5)
    output, _ = program.communicate(timeout=DEADLINE)
    assert program.returncode == 1
    assert "timed out waiting until episode" in output
    assert not _episodes(api_server, api_namespace)


def _episodes(server, namespace):
    return server.request("GET", f"/apis/dgym.dev/v1alpha1/namespaces/{namespace}/episodes")["items"]


def _begun(server, namespace):
    end = time.monotonic() + DEADLINE
    while not (found := _episodes(server, namespace)):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found[0]


def _run_test(task, places):
    """Run the network test of the task with these addresses. Returns its error output; empty if the test passes."""
    path, _, name = task["scoring"]["passToPass"][0].partition("::")
    (code,) = (each["content"] for each in task["source"]["files"] if each["path"] == path)
    variables = {each["name"]: each["value"] for each in task["env"]}
    environment = {"PATH": os.environ["PATH"], **variables, "PLACES": places}
    program = f"{code}\n\n{name}()\n"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    return done.stderr


def _finish(server, namespace, reason, **outcome):
    name = _begun(server, namespace)["metadata"]["name"]
    condition = {
        "type": "Finished",
        "status": "True",
        "reason": reason,
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    status = {"reason": reason, "conditions": [condition], "outcome": {"resolved": False, **outcome}}
    path = f"/apis/dgym.dev/v1alpha1/namespaces/{namespace}/episodes/{name}/status"
    server.request("PATCH", path, {"status": status}, content_type="application/merge-patch+json")
