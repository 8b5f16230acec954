"""A fake of Kueue's integration of plain pods: it gates, admits and evicts pods as Kueue does.

A webhook adds a scheduling gate, a finalizer and a label to each pod with the label of a queue. The controller admits
as many of these pods as the quota allows, oldest first: it removes the gate and adds the node labels of a flavour.
Each pod is a separate workload. An evicted pod gets the condition TerminationTarget and is deleted.

Source: https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods/ and KEP-976 of kubernetes-sigs/kueue.
"""

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from hack.cluster.controlplane import Authority
from tests.integration.operator.peers import MERGE, Api, until
from tests.simulation.reports import condition

QUEUE = "kueue.x-k8s.io/queue-name"
MANAGED = "kueue.x-k8s.io/managed"
GATE = "kueue.x-k8s.io/admission"
FLAVOR = {"flavor": "spot"}
_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


class Kueue:
    """The queues of one namespace. ``quota`` is the number of pods that may be admitted at the same time."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._pods: dict[str, dict[str, Any]] = {}
        self.quota = 0

    @contextlib.asynccontextmanager
    async def serving(self, directory: Path) -> AsyncIterator[None]:
        """Serve the webhook and admit pods inside this context."""
        authority = Authority(directory / "kueue")
        authority.create()
        certificate, key = authority.issue("webhook", "/CN=kueue", ["IP:127.0.0.1"])
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)
        application = web.Application()
        application.router.add_post("/mutate", self._mutate)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        name = f"kueue-{self._namespace}"
        port = runner.addresses[0][1]
        await self._api.call("POST", _CONFIGURATIONS, self._configuration(name, port, authority.certificate))
        controller = asyncio.ensure_future(self._run())
        try:
            await until(self._gates, "the webhook is called")
            yield
        finally:
            controller.cancel()
            await asyncio.gather(controller, return_exceptions=True)
            await self._api.call("DELETE", f"{_CONFIGURATIONS}/{name}")
            await runner.cleanup()

    async def admit(self, quota: int) -> None:
        """Set the quota, and admit pods up to it."""
        self.quota = quota
        await self._admit()

    async def evict(self, name: str) -> None:
        """Evict the pod as if a pod of a higher priority preempted it."""
        target = condition("TerminationTarget", datetime.now(UTC)) | {
            "reason": "WorkloadEvictedDueToPreempted",
            "message": "Preempted to accommodate a workload of a higher priority",
        }
        conditions = [*self._pods[name]["status"]["conditions"], target]
        await self._api.call("PATCH", f"{self._path}/{name}/status", {"status": {"conditions": conditions}}, MERGE)
        await self._api.call("DELETE", f"{self._path}/{name}")

    def _configuration(self, name: str, port: int, authority: Path) -> dict[str, Any]:
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": name},
            "webhooks": [
                {
                    "name": "mpod.kb.io",
                    "admissionReviewVersions": ["v1"],
                    "sideEffects": "None",
                    "failurePolicy": "Fail",
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self._namespace}},
                    "rules": [
                        {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
                    ],
                    "clientConfig": {
                        "url": f"https://127.0.0.1:{port}/mutate",
                        "caBundle": base64.b64encode(authority.read_bytes()).decode(),
                    },
                }
            ],
        }

    async def _mutate(self, request: web.Request) -> web.Response:
        review = await request.json()
        metadata = review["request"]["object"]["metadata"]
        response: dict[str, Any] = {"uid": review["request"]["uid"], "allowed": True}
        if QUEUE in metadata.get("labels", {}):
            changes = [
                {"op": "add", "path": "/metadata/finalizers", "value": [MANAGED]},
                {"op": "add", "path": f"/metadata/labels/{MANAGED.replace('/', '~1')}", "value": "true"},
                {"op": "add", "path": "/spec/schedulingGates", "value": [{"name": GATE}]},
            ]
            response["patchType"] = "JSONPatch"
            response["patch"] = base64.b64encode(json.dumps(changes).encode()).decode()
        return web.json_response({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response})

    async def _gates(self) -> bool:
        body = {
            "metadata": {"generateName": "probe-", "labels": {QUEUE: "any"}},
            "spec": {"containers": [{"name": "a", "image": "a"}]},
        }
        made = await self._api.call("POST", f"{self._path}?dryRun=All", body)
        return bool(made["spec"].get("schedulingGates"))

    async def _run(self) -> None:
        async with contextlib.aclosing(self._api.watch(self._path)) as events:
            async for kind, pod in events:
                name = pod["metadata"]["name"]
                if kind == "DELETED":
                    self._pods.pop(name, None)
                elif MANAGED in pod["metadata"].get("labels", {}):
                    self._pods[name] = pod
                    await self._finalize(pod)
                await self._admit()

    async def _finalize(self, pod: dict[str, Any]) -> None:
        metadata = pod["metadata"]
        is_over = pod["status"].get("phase") in ("Succeeded", "Failed") or "deletionTimestamp" in metadata
        if is_over and metadata.get("finalizers"):
            await self._patch(metadata["name"], {"metadata": {"finalizers": None}})

    async def _admit(self) -> None:
        queued = [pod for pod in self._pods.values() if pod["spec"].get("schedulingGates")]
        room = self.quota - (len(self._pods) - len(queued))
        for pod in sorted(queued, key=lambda pod: pod["metadata"]["creationTimestamp"])[: max(0, room)]:
            name = pod["metadata"]["name"]
            admitted = await self._patch(name, {"spec": {"schedulingGates": None, "nodeSelector": FLAVOR}})
            if admitted is not None:
                self._pods[name] = admitted

    async def _patch(self, name: str, patch: dict[str, Any]) -> dict[str, Any] | None:
        """Patch the pod and return it, or None if the pod no longer exists."""
        try:
            changed: dict[str, Any] = await self._api.call("PATCH", f"{self._path}/{name}", patch, MERGE)
        except aiohttp.ClientResponseError:
            return None
        return changed
