"""``helm test``: the operator answers, one episode is resolved, and its sandbox cannot reach other pods.

A program of the episode tries to connect to this pod, which listens, and to the API server. A cluster accepts
NetworkPolicies even if its network does not enforce them. This pod first makes the same connections itself, so a
failure of the sandbox's attempts comes from the policies.

The program runs in the operator's image. It needs only the standard library and the pod's own token.
"""

import contextlib
import json
import os
import secrets
import socket
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

ACCOUNT = Path(os.environ.get("TEST_ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount"))
NAMESPACE = os.environ["TEST_NAMESPACE"]
EPISODES = f"/apis/dgym.dev/v1alpha1/namespaces/{NAMESPACE}/episodes"
END = time.monotonic() + float(os.environ["TEST_TIMEOUT_SECONDS"])
NETWORK_TEST = "test_network.py::test_a_program_of_a_sandbox_reaches_nobody"


def main() -> int:
    """Return 0 if the episode is resolved and its sandbox has connected to neither place."""
    until("the operator is ready", operator_is_ready)
    manifest = json.loads(Path(os.environ["TEST_EPISODE_FILE"]).read_text("utf-8"))
    listener = None
    if os.environ.get("TEST_NETWORK") == "true":
        listener = Listener()
        watch_network(manifest["spec"]["task"], listener)
    episode = call("POST", EPISODES, manifest)["metadata"]["name"]
    print(f"episode {episode} in {NAMESPACE}", flush=True)
    shown: list[str] = []
    try:
        status = until(f"episode {episode} is finished", lambda: finished(episode, shown))
    finally:
        call("DELETE", f"{EPISODES}/{episode}")
    outcome = status.get("outcome") or {}
    print(f"{status['reason']}: {outcome.get('message') or 'score {score} of {maxScore}'.format(**outcome)}")
    if listener is not None and listener.reached:
        print(f"a program of the sandbox has connected to this pod from {listener.reached[0]}")
    if listener is not None and (listener.reached or outcome.get("score") != outcome.get("maxScore")):
        print(
            f"If {NETWORK_TEST} has failed, sandboxes reach other pods: the network of this cluster does not enforce "
            "NetworkPolicies. Use one that does, or set test.networkPolicies=false to accept it."
        )
    return 0 if outcome.get("resolved") and not (listener and listener.reached) else 1


class Listener:
    """Listens at this pod's address, and records the addresses of clients that send ``word``."""

    def __init__(self) -> None:
        family = socket.AF_INET6 if ":" in os.environ["TEST_POD_IP"] else socket.AF_INET
        self._server = socket.create_server((os.environ["TEST_POD_IP"], 0), family=family)
        self.port: int = self._server.getsockname()[1]
        self.word = secrets.token_hex(8)
        self.reached: list[str] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, address = self._server.accept()
            with contextlib.suppress(OSError), connection:
                connection.settimeout(5)
                # Scanners of ports connect as well.
                if connection.recv(64).decode(errors="replace") == self.word:
                    self.reached.append(address[0])


def watch_network(task: dict[str, Any], listener: Listener) -> None:
    """Add a test to the task that tries to connect to the places that this pod has connected to."""
    api = (os.environ["KUBERNETES_SERVICE_HOST"], int(os.environ["KUBERNETES_SERVICE_PORT"]))
    places = [(os.environ["TEST_POD_IP"], listener.port), api]
    for host, port in places:
        with socket.create_connection((host, port), 15) as connection:
            connection.sendall(listener.word.encode())
    until("this pod has reached itself", lambda: listener.reached)
    listener.reached.clear()
    task["env"] = [{"name": "PLACES", "value": json.dumps(places)}, {"name": "WORD", "value": listener.word}]
    code = Path(os.environ["TEST_NETWORK_FILE"]).read_text("utf-8")
    path, _, _ = NETWORK_TEST.partition("::")
    task["source"]["files"].append({"path": path, "content": code})
    task["scoring"]["passToPass"] = [NETWORK_TEST]


def operator_is_ready() -> bool:
    """Return whether a replica of the operator is ready."""
    operator = place(os.environ["TEST_OPERATOR_HOST"], os.environ["TEST_OPERATOR_PORT"])
    with urllib.request.urlopen(f"http://{operator}/readyz", timeout=5) as answer:
        return answer.status == 200


def finished(name: str, shown: list[str]) -> dict[str, Any] | None:
    """Return the status of an episode that has finished, else None. Print each new reason once."""
    status: dict[str, Any] = call("GET", f"{EPISODES}/{name}").get("status") or {}
    reason = status.get("reason") or "Pending"
    if shown[-1:] != [reason]:
        print(reason, flush=True)
        shown.append(reason)
    ended = any(each["type"] == "Finished" and each["status"] == "True" for each in status.get("conditions", ()))
    return status if ended else None


def until(what: str, look: Callable[[], Any]) -> Any:
    """Return the first true value that ``look`` returns. Exit with an error at the deadline."""
    why = ""
    while time.monotonic() < END:
        try:
            if answer := look():
                return answer
        except OSError as error:
            why = f": {error}"
        time.sleep(1)
    sys.exit(f"timed out waiting until {what}{why}")


def place(host: str, port: str) -> str:
    """Return an address and a port in the form of URLs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def call(method: str, path: str, body: Any = None) -> Any:
    """Send a request to the API server and return the JSON of its answer."""
    request = urllib.request.Request(
        f"https://{place(os.environ['KUBERNETES_SERVICE_HOST'], os.environ['KUBERNETES_SERVICE_PORT'])}{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Authorization": f"Bearer {(ACCOUNT / 'token').read_text('ascii')}",
            "Content-Type": "application/json",
        },
    )
    trust = ssl.create_default_context(cafile=ACCOUNT / "ca.crt")
    while True:
        try:
            with urllib.request.urlopen(request, timeout=15, context=trust) as answer:  # noqa: S310 - https, always
                return json.load(answer)
        except urllib.error.HTTPError as error:
            # The API server answers so for a kind that was defined a moment ago.
            if error.code != 429 or time.monotonic() > END:
                sys.exit(f"{method} {path}: {error.code} {error.read().decode(errors='replace')[:1000]}")
            time.sleep(1)


if __name__ == "__main__":
    sys.exit(main())
