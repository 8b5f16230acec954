"""Fixtures: a real S3 server on the loopback interface."""

import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path

import pytest

from tests.support.required import absent

VERSION = "v1.8.0"
ACCESS = {"AWS_ACCESS_KEY_ID": "dgym", "AWS_SECRET_ACCESS_KEY": "dgym-secret", "AWS_REGION": "us-east-1"}


def find_program():
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    built = cache / "dgym" / "cluster" / f"versitygw-{VERSION}" / "versitygw"
    return str(built) if built.exists() else shutil.which("versitygw")


class S3Server:
    """Serves directories of ``root`` as buckets."""

    def __init__(self, program, root):
        self.root = root
        self._program = program
        self._process = None
        self._port = 0

    def start(self):
        """Start the server. A restart uses the same port."""
        for _ in range(20):
            port = self._port or _free_port()
            command = [self._program, "--port", f"127.0.0.1:{port}", "--quiet", "posix", str(self.root)]
            keys = {"ROOT_ACCESS_KEY": ACCESS["AWS_ACCESS_KEY_ID"], "ROOT_SECRET_KEY": ACCESS["AWS_SECRET_ACCESS_KEY"]}
            self._process = subprocess.Popen(
                command, env={**os.environ, **keys}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            if self._answers(port):
                self._port = port
                return self
            self.stop()
        raise RuntimeError("versitygw does not start")

    def stop(self):
        self._process.terminate()
        self._process.wait(90)

    @property
    def environment(self):
        return {**ACCESS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._port}", "AWS_ALLOW_HTTP": "true"}

    def bucket(self):
        name = f"results-{uuid.uuid4().hex[:12]}"
        (self.root / name).mkdir()
        return name

    def _answers(self, port):
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
            except urllib.error.HTTPError as error:
                error.close()
                return True
            except OSError:
                time.sleep(0.02)
        return False


def _free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory):
    program = find_program()
    if program is None:
        absent("s3", "versitygw is not there, so S3 is not tested: hack/versitygw builds it")
    server = S3Server(program, tmp_path_factory.mktemp("s3")).start()
    yield server
    server.stop()
