"""The program of ``helm test``, against a real API server on which the test plays the operator."""

import os
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

    def started(seconds=DEADLINE):
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


def test_an_episode_that_is_resolved_is_a_success(start, api_server, api_namespace):
    program = start()
    _finish(api_server, api_namespace, "Resolved", resolved=True, score=1, maxScore=1)
    output, _ = program.communicate(timeout=DEADLINE)
    assert program.returncode == 0, output
    assert "Resolved: score 1 of 1" in output
    assert not _episodes(api_server, api_namespace)


def test_any_other_end_is_a_failure_that_says_why(start, api_server, api_namespace):
    program = start()
    _finish(api_server, api_namespace, "ImagePullFailed", message="no such image")
    output, _ = program.communicate(timeout=DEADLINE)
    assert program.returncode == 1
    assert "ImagePullFailed: no such image" in output
    assert not _episodes(api_server, api_namespace)


def test_an_episode_that_does_not_end_is_deleted(start, api_server, api_namespace):
    program = start(seconds=5)
    output, _ = program.communicate(timeout=DEADLINE)
    assert program.returncode == 1
    assert "timed out waiting until episode" in output
    assert not _episodes(api_server, api_namespace)


def _episodes(server, namespace):
    return server.request("GET", f"/apis/dgym.dev/v1alpha1/namespaces/{namespace}/episodes")["items"]


def _finish(server, namespace, reason, **outcome):
    end = time.monotonic() + DEADLINE
    while not (found := _episodes(server, namespace)):
        assert time.monotonic() < end
    name = found[0]["metadata"]["name"]
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
