"""``helm test``: the operator answers, and one episode comes to its end, with its bug repaired.

Runs in the operator's image, with nothing but the standard library and the pod's own token.
"""

import json
import os
import ssl
import sys
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


def main() -> int:
    """0 when the episode is resolved."""
    until("the operator is ready", operator_is_ready)
    manifest = json.loads(Path(os.environ["TEST_EPISODE_FILE"]).read_text("utf-8"))
    episode = call("POST", EPISODES, manifest)["metadata"]["name"]
    print(f"episode {episode} in {NAMESPACE}", flush=True)
    shown: list[str] = []
    try:
        status = until(f"episode {episode} is finished", lambda: finished(episode, shown))
    finally:
        call("DELETE", f"{EPISODES}/{episode}")
    outcome = status.get("outcome") or {}
    print(f"{status['reason']}: {outcome.get('message') or 'score {score} of {maxScore}'.format(**outcome)}")
    return 0 if outcome.get("resolved") else 1


def operator_is_ready() -> bool:
    """Whether a replica says so."""
    operator = place(os.environ["TEST_OPERATOR_HOST"], os.environ["TEST_OPERATOR_PORT"])
    with urllib.request.urlopen(f"http://{operator}/readyz", timeout=5) as answer:
        return answer.status == 200


def finished(name: str, shown: list[str]) -> dict[str, Any] | None:
    """The status of an episode that has its end; on the way there, each reason is shown once."""
    status: dict[str, Any] = call("GET", f"{EPISODES}/{name}").get("status") or {}
    reason = status.get("reason") or "Pending"
    if shown[-1:] != [reason]:
        print(reason, flush=True)
        shown.append(reason)
    ended = any(each["type"] == "Finished" and each["status"] == "True" for each in status.get("conditions", ()))
    return status if ended else None


def until(what: str, look: Callable[[], Any]) -> Any:
    """What ``look`` says once it says something."""
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
    """An address and a port as a URL has them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def call(method: str, path: str, body: Any = None) -> Any:
    """A request to the API server."""
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
            # A kind that was defined a moment ago is answered for so.
            if error.code != 429 or time.monotonic() > END:
                sys.exit(f"{method} {path}: {error.code} {error.read().decode(errors='replace')[:1000]}")
            time.sleep(1)


if __name__ == "__main__":
    sys.exit(main())
