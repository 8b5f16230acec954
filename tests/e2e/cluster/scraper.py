"""Prometheus in a pod of the cluster, with the scrape job that is documented for users and with the chart's rules."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from subprocess import Popen
from typing import Any

import aiohttp
import yaml

from tests.e2e.cluster.services import SECURITY
from tests.e2e.cluster.support import DEADLINE, Kubectl, run
from tests.integration.monitoring.conftest import FILES
from tests.integration.monitoring.server import TIMING, Prometheus, hasty_rules
from tests.support.required import absent

NAME = "prometheus"
PORT = 9090
SCRAPE_JOB = FILES / "monitoring" / "scrape.yaml"
_PLACE = "/etc/prometheus"


@asynccontextmanager
async def scraping(kubectl: Kubectl) -> AsyncIterator[Prometheus]:
    """Run Prometheus in the namespace. Yields once it answers."""
    image = os.environ.get("DGYM_E2E_PROMETHEUS_IMAGE")
    if not image:
        absent("prometheus", "no image of Prometheus: `hack/cluster/cluster build prometheus` builds it with Go")
    with discovering(kubectl):
        kubectl.apply(_configuration(), _pod(image))
        ready = ("wait", "--for=condition=Ready", f"pod/{NAME}", f"--timeout={DEADLINE:g}s")
        await asyncio.to_thread(kubectl, *ready, timeout=DEADLINE + 30)
        with _forwarded(kubectl) as port:
            async with aiohttp.ClientSession() as session:
                prometheus = Prometheus(session, f"http://127.0.0.1:{port}")
                await eventually(prometheus.ready, "Prometheus answers")
                yield prometheus


async def eventually(look: Callable[[], Awaitable[Any]], what: object) -> None:
    """Wait until ``look`` returns a true value. ``what`` is the message if the deadline passes."""
    end = time.monotonic() + DEADLINE
    while not await look():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.5)


@contextmanager
def discovering(kubectl: Kubectl) -> Iterator[None]:
    """A ServiceAccount that may list the pods of all namespaces, as docs/observability.md requires."""
    name = f"{kubectl.namespace}-discovery"
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    subject = {"kind": "ServiceAccount", "name": NAME, "namespace": kubectl.namespace}
    group = "rbac.authorization.k8s.io"
    kubectl.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME}},
        {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [subject],
        },
    )
    try:
        yield
    finally:
        run("kubectl", "delete", "clusterrole,clusterrolebinding", name)


def _configuration() -> dict[str, Any]:
    """A ConfigMap with the files of the chart. Only the time after which alerts fire is changed."""
    every = {
        "global": TIMING,
        "rule_files": [f"{_PLACE}/rules.yaml"],
        "scrape_config_files": [f"{_PLACE}/scrape.yaml"],
    }
    files = {
        "prometheus.yaml": yaml.safe_dump(every),
        "rules.yaml": hasty_rules(),
        "scrape.yaml": SCRAPE_JOB.read_text("utf-8"),
    }
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME}, "data": files}


def _pod(image: str) -> dict[str, Any]:
    flags = [f"--config.file={_PLACE}/prometheus.yaml", "--storage.tsdb.path=/data", f"--web.listen-address=:{PORT}"]
    container = {
        "name": NAME,
        "image": image,
        "args": flags,
        "securityContext": SECURITY,
        "readinessProbe": {"httpGet": {"path": "/-/ready", "port": PORT}, "periodSeconds": 1},
        "volumeMounts": [{"name": "configuration", "mountPath": _PLACE}, {"name": "data", "mountPath": "/data"}],
    }
    spec = {
        "serviceAccountName": NAME,
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": [{"name": "configuration", "configMap": {"name": NAME}}, {"name": "data", "emptyDir": {}}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": NAME}, "spec": spec}


@contextmanager
def _forwarded(kubectl: Kubectl) -> Iterator[int]:
    """A local port that is forwarded to the pod's port. The forwarding restarts if it breaks."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        local = free.getsockname()[1]
    command = ("kubectl", "--namespace", kubectl.namespace, "port-forward", f"pod/{NAME}", f"{local}:{PORT}")
    with Popen(("sh", "-c", 'while :; do "$@"; sleep 0.2; done', "sh", *command), start_new_session=True) as process:
        try:
            yield local
        finally:
            os.killpg(process.pid, signal.SIGTERM)
