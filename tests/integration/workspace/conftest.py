"""Real git in a clean environment on trees that the tests write, and a web server on the loopback interface."""

import http.server
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

Git = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture(scope="session")
def git() -> Git:
    """Run git in a directory; its standard output and status come back."""
    program = shutil.which("git")
    if program is None:
        pytest.skip("git is not installed")
    environment = {
        "PATH": os.environ["PATH"],
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_AUTHOR_NAME": "t",
        "GIT_AUTHOR_EMAIL": "t@example.org",
        "GIT_COMMITTER_NAME": "t",
        "GIT_COMMITTER_EMAIL": "t@example.org",
        "LC_ALL": "C.UTF-8",
    }

    def run(directory: Path, *arguments: str, stdin: bytes = b"", check: bool = True):
        done = subprocess.run(
            [program, *arguments], cwd=directory, input=stdin, env=environment, capture_output=True, timeout=60
        )
        assert not check or done.returncode == 0, done.stderr.decode("utf-8", "replace")
        return done

    return run


@pytest.fixture
def web(tmp_path):
    """A directory served on the loopback interface, with a record of the requests."""
    root = tmp_path / "web"
    root.mkdir()
    requests: list[str] = []
    credentials: list[str | None] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, directory=str(root), **options)

        def do_GET(self):
            requests.append(self.path)
            credentials.append(self.headers.get("Authorization"))
            if self.path == "/elsewhere":
                self.send_response(302)
                self.send_header("Location", (root / "location").read_text())
                self.end_headers()
            elif self.path == "/broken":
                self.send_error(503)
            else:
                super().do_GET()

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        server.root, server.requests, server.credentials = root, requests, credentials
        server.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield server
        server.shutdown()
        thread.join()
