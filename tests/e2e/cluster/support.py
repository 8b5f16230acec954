"""Helpers for the tests of a real cluster: kubectl as a user types it, and waiting for conditions with a deadline."""

import json
import os
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[3]
DEADLINE = 180.0
T = TypeVar("T")


class Failed(AssertionError):
    """A command has an unexpected exit status, or a wait has timed out."""


def run(*arguments: str, text: str | None = None, check: bool = True, timeout: float = DEADLINE) -> str:
    """Run a program and return its output. Without ``check`` the output includes stderr."""
    done = subprocess.run(arguments, input=text, capture_output=True, text=True, timeout=timeout, check=False)
    if check and done.returncode != 0:
        raise Failed(f"{' '.join(arguments)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout if check else done.stdout + done.stderr


def until(look: Callable[[], T], *, what: str, seconds: float = DEADLINE, pause: float = 0.3) -> T:
    """Call ``look`` until it returns a true value. Raises Failed with the last value after ``seconds``."""
    end = time.monotonic() + seconds
    while True:
        answer = look()
        if answer:
            return answer
        if time.monotonic() > end:
            raise Failed(f"waited {seconds:g} s for {what}; last seen: {answer!r}")
        time.sleep(pause)


def unique(stem: str) -> str:
    """A name that is unique among all tests and runs."""
    return f"{stem}-{uuid.uuid4().hex[:8]}"


class Kubectl:
    """kubectl in one namespace."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace

    def __call__(self, *arguments: str, text: str | None = None, check: bool = True, timeout: float = DEADLINE) -> str:
        return run("kubectl", "--namespace", self.namespace, *arguments, text=text, check=check, timeout=timeout)

    def apply(self, *documents: dict[str, Any], check: bool = True) -> str:
        """``kubectl apply`` of documents."""
        return self("apply", "-f", "-", text="\n---\n".join(json.dumps(each) for each in documents), check=check)

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """The object, or None if it does not exist."""
        text = self("get", kind, name, "--ignore-not-found", "-o", "json")
        return json.loads(text) if text.strip() else None

    def items(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        """All objects of a kind."""
        arguments = ("-l", selector) if selector else ()
        return json.loads(self("get", kind, *arguments, "-o", "json"))["items"]

    def status(self, name: str) -> dict[str, Any]:
        """An Episode's status."""
        return (self.get("episode", name) or {}).get("status", {})

    def finished(self, name: str, seconds: float = DEADLINE) -> dict[str, Any]:
        """Wait with ``kubectl wait`` until the Episode has finished. Returns the status."""
        try:
            self("wait", "--for=condition=Finished", f"episode/{name}", f"--timeout={seconds:g}s", timeout=seconds + 30)
        except Failed as error:
            raise Failed(f"{error}\n{self.explain(name)}") from None
        return self.status(name)

    def explain(self, name: str) -> str:
        """Diagnostics for an episode that does not finish: its description, pods, Events and the sidecar's log."""
        looks = (
            ("describe", "episode", name),
            ("get", "pods", "-o", "wide"),
            ("get", "events", "--sort-by=.lastTimestamp"),
        )
        texts = [self(*look, check=False) for look in looks]
        pod = self.status(name).get("podName")
        if pod:
            texts += [self("logs", pod, "-c", "sidecar", "--tail=30", check=False)]
        return "\n".join(texts)

    def reason(self, name: str, wanted: str, seconds: float = DEADLINE) -> dict[str, Any]:
        """Wait until ``status.reason`` is ``wanted``. Returns the status."""

        def look() -> dict[str, Any] | None:
            status = self.status(name)
            return status if status.get("reason") == wanted else None

        try:
            return until(look, what=f"reason {wanted} of {name}", seconds=seconds)
        except Failed as error:
            raise Failed(f"{error}\n{self.explain(name)}") from None


def condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    """The condition of that type, or an empty dict."""
    return next((each for each in status.get("conditions", ()) if each["type"] == kind), {})


@contextmanager
def new_namespace(stem: str, security: str = "restricted", *, name: str = "") -> Iterator[Kubectl]:
    """A namespace with Pod Security enforced. It is deleted afterwards, and a failed deletion raises Failed."""
    name = name or unique(stem)
    labels = {f"pod-security.kubernetes.io/{mode}": security for mode in ("enforce", "warn")}
    kubectl = Kubectl(name)
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    try:
        yield kubectl
    finally:
        if not os.environ.get("E2E_KEEP"):
            run(
                "kubectl",
                "delete",
                "namespace",
                name,
                "--ignore-not-found",
                f"--timeout={DEADLINE:g}s",
                timeout=DEADLINE + 30,
            )
