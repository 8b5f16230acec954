"""The few blocking requests that starting a cluster takes."""

import json
import ssl
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Client:
    """Asks an API server as whoever the token stands for; what it refuses raises urllib.error.HTTPError."""

    url: str
    ca_file: Path
    token: str

    def request(self, method: str, path: str, body: Any = None, *, content_type: str = "application/json") -> Any:
        """One request; the JSON or text it was answered with."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, self._headers(content_type), method=method)  # noqa: S310
        with self._opener().open(request, timeout=30) as response:
            text = response.read()
        return json.loads(text) if text.startswith(b"{") else text.decode()

    def _headers(self, content_type: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}", "Content-Type": content_type, "Accept": "application/json"}

    def _opener(self) -> urllib.request.OpenerDirector:
        context = ssl.create_default_context(cafile=self.ca_file)
        # Proxies of the environment are not for this machine.
        handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
        return urllib.request.build_opener(*handlers)

    def watch(self, path: str) -> Iterator[Any]:
        """The events of a watch, until the server ends it."""
        request = urllib.request.Request(self.url + path, headers=self._headers("application/json"))  # noqa: S310
        with self._opener().open(request, timeout=300) as response:
            for line in response:
                yield json.loads(line)

    def ready(self) -> bool:
        """Whether the server answers, its first objects included."""
        try:
            self.request("GET", "/readyz")
            self.request("GET", "/api/v1/namespaces/default")
        except OSError:
            return False
        return True
