"""Helm releases of the chart for the tests."""

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.cluster.services import MODEL, REPOSITORIES, address
from tests.e2e.cluster.support import DEADLINE, ROOT, Kubectl, new_namespace, run, until

REGISTRY = "localhost"
MODEL_KEY = "scripted-model"
"""Secret with the scripted model's key. The key is new in every run, so a test finds it if it is not masked."""
CHART = str(ROOT / "charts" / "dgym")


class Release:
    """An installed release."""

    def __init__(self, name: str, namespace: str, values: dict[str, Any]) -> None:
        self.name = name
        self.kubectl = Kubectl(namespace)
        self._values = values

    def install(self) -> None:
        """``helm install`` and wait until everything is ready."""
        key = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": MODEL_KEY}}
        self.kubectl.apply({**key, "stringData": {"key": f"sk-{uuid.uuid4().hex}"}})
        # The CRDs of an earlier run may still exist, because uninstalling a release does not delete them.
        self._helm("install", self._values, "--take-ownership", "--force-conflicts")
        self.wait()

    def upgrade(self, values: dict[str, Any]) -> None:
        """``helm upgrade`` with some values changed."""
        self._helm("upgrade", merged(self._values, values))

    def uninstall(self) -> None:
        """``helm uninstall``, and wait until the last agent pod has released its episodes.

        Without the wait, the namespace controller would check the deleted namespace again only after half of the grace
        period of the agent pods, which is minutes.
        """
        wait = ("--wait", "--timeout", f"{DEADLINE:g}s")
        run("helm", "uninstall", self.name, "--namespace", self.kubectl.namespace, *wait, timeout=DEADLINE + 60)
        until(lambda: not self.kubectl.items("pods"), what="the release's pods to go")

    def wait(self) -> None:
        """Wait until all replicas are ready."""
        for workload in self.kubectl("get", "deployments,statefulsets", "-o", "name").split():
            self.kubectl("rollout", "status", workload, f"--timeout={DEADLINE:g}s", timeout=DEADLINE + 30)
        until(self.leader, what="a leader")

    def leader(self) -> str | None:
        """The operator pod that holds the lease."""
        for lease in self.kubectl.items("leases"):
            holder = lease["spec"].get("holderIdentity", "")
            for pod in self.kubectl.items("pods", "app.kubernetes.io/component=operator"):
                name: str = pod["metadata"]["name"]
                if holder.startswith(name):
                    return name
        return None

    def client_flags(self, namespace: str, *, system: bool = True) -> tuple[str, ...]:
        """Flags of dgym's client commands."""
        return ("-n", namespace, *(("--system-namespace", self.kubectl.namespace) if system else ()))

    def trajectory(
        self, kubectl: Kubectl, name: str, directory: Path, attempt: int | None = None
    ) -> list[dict[str, Any]]:
        """The recorded steps of an Episode, as ``dgym results`` fetches them. ``attempt`` is None if it has one."""
        run("dgym", "results", name, *self.client_flags(kubectl.namespace), "--directory", str(directory))
        (file,) = directory.rglob(f"{attempt or '*'}/trajectory.jsonl")
        return [json.loads(line) for line in file.read_text().splitlines()][1:]

    def _helm(self, verb: str, values: dict[str, Any], *flags: str) -> None:
        place = ("--namespace", self.kubectl.namespace, "--timeout", f"{DEADLINE:g}s", *flags)
        run("helm", verb, self.name, CHART, *place, "--values", "-", text=json.dumps(values), timeout=DEADLINE + 60)


def values_for_tests(*, watch: str | None, agents: int) -> dict[str, Any]:
    """Values of the chart: the loaded images, small resource requests, and a volume that two agent pods can share."""
    model = {"endpoint": f"http://{address(MODEL)}/v1", "api_key": "${SCRIPTED_KEY}"}
    little = {"requests": {"cpu": "10m", "memory": "64Mi"}}
    values: dict[str, Any] = {
        "imageRegistry": REGISTRY,
        "operator": {"image": {"tag": _tag("OPERATOR")}, "resources": little},
        "agents": {
            "image": {"tag": _tag("AGENT")},
            "resources": little,
            "replicas": agents,
            "drainSeconds": 60,
            "sourceHosts": [address(REPOSITORIES)],
            "llmConfig": {name: {"model": name, **model} for name in ("debugger", "rewriter", "scripted")},
            "extraEnv": [{"name": "SCRIPTED_KEY", "valueFrom": {"secretKeyRef": {"name": MODEL_KEY, "key": "key"}}}],
        },
        "sidecar": {"image": {"tag": _tag("SIDECAR")}},
        "sandboxes": {"image": {"tag": _tag("SANDBOX")}},
        "results": {"persistence": {"accessModes": ["ReadWriteMany"], "size": "1Gi"}},
    }
    if watch is not None:
        values |= {"watchNamespaces": [watch], "crds": {"enabled": False}}
    return values


def _tag(component: str) -> str:
    image, _, tag = os.environ[f"DGYM_E2E_{component}_IMAGE"].rpartition(":")
    assert image.startswith(f"{REGISTRY}/dgym/"), image
    return tag


def merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """``first`` with the values of ``second`` merged into it at any depth, as Helm does it."""
    result = dict(first)
    for key, value in second.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result


@contextmanager
def installed(name: str, *, watch: str | None, agents: int, values: dict[str, Any] | None = None) -> Iterator[Release]:
    """A release in a new namespace, with some values changed. It is uninstalled at the end."""
    with new_namespace(f"e2e-{name}") as kubectl:
        every = merged(values_for_tests(watch=watch, agents=agents), values or {})
        release = Release(name, kubectl.namespace, every)
        release.install()
        try:
            yield release
        finally:
            release.uninstall()
