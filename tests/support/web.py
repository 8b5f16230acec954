"""HTTP server of a directory on the loopback interface."""

import contextlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path


class WebServer(http.server.ThreadingHTTPServer):
    """Serves ``root``, and records requests and credentials.

    ``/elsewhere`` redirects to the address in the file ``location``. ``/broken`` answers with status 503.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.requests: list[str] = []
        self.credentials: list[str | None] = []
        self.host = f"127.0.0.1:{self.server_address[1]}"
        self.url = f"http://{self.host}"


class _Handler(http.server.SimpleHTTPRequestHandler):
    server: WebServer

    def __init__(self, request, address, server: WebServer) -> None:
        super().__init__(request, address, server, directory=str(server.root))

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        self.server.credentials.append(self.headers.get("Authorization"))
        if self.path == "/elsewhere":
            self.send_response(302)
            self.send_header("Location", (self.server.root / "location").read_text())
            self.end_headers()
        elif self.path == "/broken":
            self.send_error(503)
        else:
            super().do_GET()

    def log_message(self, *arguments: object) -> None:
        """Do not log."""


@contextlib.contextmanager
def serve_directory(root: Path) -> Iterator[WebServer]:
    """Serve a directory, which is created, until the context ends."""
    root.mkdir()
    with WebServer(root) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
