"""Keeps the rules of iptables as the cluster's NetworkPolicies want them; ends with all of its rules removed.

A pod's policies are in force some milliseconds after its address is known: before anybody can ask the API for it.
"""

import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from hack.cluster import policies
from hack.cluster.client import Client
from hack.cluster.components import Files
from hack.cluster.machine import ClusterError, run

KINDS = {
    "policies": "/apis/networking.k8s.io/v1/networkpolicies",
    "pods": "/api/v1/pods",
    "namespaces": "/api/v1/namespaces",
}
_PAUSE_SECONDS = 0.2
_PATIENCE_SECONDS = 30


class Mirror:
    """The objects of one kind, as the API server shows them."""

    def __init__(self, client: Client, path: str, changed: threading.Event) -> None:
        self._client = client
        self._path = path
        self._changed = changed
        self._objects: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self.listed = threading.Event()

    def objects(self) -> list[dict[str, Any]]:
        """All of them, in the order of their identifiers."""
        with self._lock:
            return [self._objects[key] for key in sorted(self._objects)]

    def follow(self) -> None:
        """List and watch for ever."""
        while True:
            try:
                self._watch(self._list())
            except (OSError, ValueError, KeyError):
                # The API server is away, or the watch has missed something: all is listed again.
                time.sleep(_PAUSE_SECONDS)

    def _list(self) -> str:
        answer = self._client.request("GET", self._path)
        with self._lock:
            self._objects = {item["metadata"]["uid"]: item for item in answer["items"]}
        self.listed.set()
        self._changed.set()
        version: str = answer["metadata"]["resourceVersion"]
        return version

    def _watch(self, version: str) -> None:
        for event in self._client.watch(f"{self._path}?watch=true&resourceVersion={version}&timeoutSeconds=240"):
            item = event["object"]
            if event["type"] == "ERROR":
                raise ValueError(item)
            with self._lock:
                if event["type"] == "DELETED":
                    self._objects.pop(item["metadata"]["uid"], None)
                else:
                    self._objects[item["metadata"]["uid"]] = item
            self._changed.set()


def present_chains() -> list[str]:
    """The names of our chains in the table."""
    lines = run("iptables-save", "-t", "mangle").splitlines()
    names = (line[1:].split()[0] for line in lines if line.startswith(":"))
    return [name for name in names if name.startswith(policies.PREFIX)]


def hooked(hook: str) -> bool:
    """Whether the kernel asks our rules there."""
    rule = f"-A {hook} -j {policies.MAIN}"
    return rule in run("iptables-save", "-t", "mangle").splitlines()


def apply(wanted: policies.Chains) -> None:
    """Replace our chains by these."""
    run("iptables-restore", "--noflush", stdin=policies.restore_text(wanted, present_chains()))
    for hook in policies.HOOKS:
        if not hooked(hook):
            run("iptables", "-t", "mangle", "-I", hook, "-j", policies.MAIN)


def remove() -> None:
    """Leave no rule of ours."""
    for hook in policies.HOOKS:
        if hooked(hook):
            run("iptables", "-t", "mangle", "-D", hook, "-j", policies.MAIN)
    run("iptables-restore", "--noflush", stdin=policies.restore_text({}, present_chains()))


class Enforcer:
    """Applies the policies whenever something changes, until it is told to end."""

    def __init__(self, client: Client) -> None:
        self._changed = threading.Event()
        self._ending = False
        self._mirrors = {name: Mirror(client, path, self._changed) for name, path in KINDS.items()}

    def end(self) -> None:
        """Order the end."""
        self._ending = True
        self._changed.set()

    def serve(self) -> None:
        """Enforce until the end, and remove every rule then."""
        for mirror in self._mirrors.values():
            threading.Thread(target=mirror.follow, daemon=True).start()
        applied: policies.Chains = {}
        while not self._ending:
            self._changed.wait()
            self._changed.clear()
            if self._ending or not all(mirror.listed.is_set() for mirror in self._mirrors.values()):
                continue
            wanted = self._wanted()
            if wanted != applied:
                self._apply(wanted)
                applied = wanted
        remove()

    def _wanted(self) -> policies.Chains:
        namespaces = {
            each["metadata"]["name"]: each["metadata"].get("labels", {})
            for each in self._mirrors["namespaces"].objects()
        }
        pods = policies.isolated_pods(self._mirrors["pods"].objects())
        return policies.chains(self._mirrors["policies"].objects(), pods, namespaces)

    def _apply(self, wanted: policies.Chains) -> None:
        """Apply the chains; kube-proxy may have the table for a moment."""
        end = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return apply(wanted)
            except ClusterError as error:
                if time.monotonic() > end:
                    raise
                print(f"once more after: {error}", file=sys.stderr, flush=True)
                time.sleep(_PAUSE_SECONDS)


def main() -> None:
    """Enforce the policies of a cluster until SIGTERM."""
    enforcer = Enforcer(Files(Path(sys.argv[1])).client())
    signal.signal(signal.SIGTERM, lambda *_: enforcer.end())
    enforcer.serve()


if __name__ == "__main__":
    main()
