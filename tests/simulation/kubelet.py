"""A model of the kubelet. It starts and ends the pods of episodes and reports their status."""

import asyncio

from tests.simulation import reports
from tests.simulation.api_server import is_sandbox
from tests.simulation.sidecar import NAMESPACE, Sidecar
from tests.simulation.virtual import VirtualClock

TOLERATION_SECONDS = 40.0
"""The pods of a lost node are deleted after this time. Nothing on the node confirms the deletion."""


class Kubelet:
    """Starts and ends the pods of episodes and reports their status."""

    def __init__(self, world):
        self._world = world
        self._random = world.random
        self._deleted = {}
        self._lost = set()
        self._now = VirtualClock().now
        world.api.observers.append(self._observe)

    def lose_node(self, name):
        """Lose the pod's node. Nothing answers there, and the control plane deletes the pod later."""
        self._lost.add(self._uid(name))
        sidecar = self._world.sidecar_of(name)
        if sidecar is not None:
            sidecar.vanish()
        self._world.spawn(self._evict(name))

    async def reboot_node(self, name, seconds):
        """Reboot the pod's node. Afterwards its kubelet reports what it finds."""
        sidecar = self._world.sidecar_of(name)
        if sidecar is None or not sidecar.reachable:
            return
        sidecar.hung_until = float("inf")
        await asyncio.sleep(seconds / 3.0)
        sidecar.die_with_its_node(observed=int(seconds) % 2 == 0)

    def _uid(self, name):
        """Return the UID of the pod that has the name now."""
        pod = self._world.api.get("pods", NAMESPACE, name)
        return None if pod is None else pod["metadata"]["uid"]

    def report(self, name, **status):
        """Write the status of a pod if the pod exists."""
        if self._world.api.get("pods", NAMESPACE, name) is not None:
            self._world.api.patch("pods", NAMESPACE, name, {"status": status}, status=True)

    def report_running(self, sidecar):
        """Write the state of the sandbox's container. The other containers of the pod run."""
        states = dict.fromkeys(reports.CONTAINERS, reports.RUNNING) | {"sandbox": sidecar.sandbox}
        if sidecar.ending is None and self._uid(sidecar.pod) not in self._lost:
            self.report(sidecar.pod, **reports.status(states, self._now()))

    def _observe(self, kind, plural, pod):
        metadata = pod["metadata"]
        if plural != "pods" or not is_sandbox(pod):
            return
        if kind == "ADDED":
            self._deleted[metadata["uid"]] = asyncio.Event()
            self._world.spawn(self._live(metadata["name"], pod))
        elif kind == "DELETED" or "deletionTimestamp" in metadata:
            self._deleted[metadata["uid"]].set()

    async def _live(self, name, pod):
        world = self._world
        deleted = asyncio.ensure_future(self._deleted[pod["metadata"]["uid"]].wait())
        start = asyncio.ensure_future(asyncio.sleep(self._random.uniform(0.5, 20.0)))
        await asyncio.wait((deleted, start), return_when=asyncio.FIRST_COMPLETED)
        if deleted.done():
            self._remove(name, pod)
            return
        owner = pod["metadata"]["ownerReferences"][0]
        if owner["kind"] == "SandboxPool":
            sidecar = Sidecar(world, name)
        else:
            sidecar = Sidecar(world, name, owner["uid"], int(pod["metadata"]["labels"]["dgym.dev/attempt"]))
        self.report(name, **reports.running(world.listen(sidecar), self._now()))
        ended = asyncio.ensure_future(sidecar.ended.wait())
        await asyncio.wait((deleted, ended), return_when=asyncio.FIRST_COMPLETED)
        if pod["metadata"]["uid"] in self._lost:
            return
        if not ended.done():
            await self._terminate(sidecar)
        await asyncio.sleep(self._random.uniform(0.1, 3.0))
        if pod["metadata"]["uid"] in self._lost:
            return
        if sidecar.result is not None:
            world.shown.add((sidecar.uid, sidecar.attempt))
        states = {each: _last_state(sidecar, each) for each in reports.CONTAINERS}
        phase = "Failed" if sidecar.ending["exitCode"] else "Succeeded"
        self.report(name, phase=phase, **reports.status(states, self._now()))
        await deleted
        self._remove(name, pod)

    async def _terminate(self, sidecar):
        """Send SIGTERM to all containers. The sandbox may end before the sidecar."""
        await asyncio.sleep(self._random.uniform(0.1, 2.0))
        sidecar.terminate_sandbox()
        if self._random.random() < 0.5:
            self.report_running(sidecar)
        await asyncio.sleep(self._random.uniform(0.0, 1.0))
        sidecar.terminate()

    async def _evict(self, name):
        pod = self._world.api.get("pods", NAMESPACE, name)
        self.report(name, conditions=reports.conditions(self._now(), ready=False))
        await asyncio.sleep(TOLERATION_SECONDS)
        current = self._world.api.get("pods", NAMESPACE, name)
        if pod is None or current is None or current["metadata"]["uid"] != pod["metadata"]["uid"]:
            return
        now = self._now()
        target = reports.condition("DisruptionTarget", now) | {"reason": "DeletionByTaintManager"}
        self.report(name, conditions=[*reports.conditions(now, ready=False), target])
        self._world.api.delete("pods", NAMESPACE, name)
        await asyncio.sleep(self._random.uniform(5.0, 120.0))
        self._remove(name, pod)

    def _remove(self, name, pod):
        found = self._world.api.get("pods", NAMESPACE, name)
        if found is not None and found["metadata"]["uid"] == pod["metadata"]["uid"]:
            self._world.api.delete("pods", NAMESPACE, name, grace=False)


def _last_state(sidecar, container):
    """Return the state of a container in a pod whose sidecar has ended. Runners exit without the sidecar."""
    if container == "sidecar":
        return {"terminated": sidecar.ending}
    if container == "sandbox" and "terminated" in sidecar.sandbox:
        return sidecar.sandbox
    return {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": sidecar.ending["finishedAt"]}}
