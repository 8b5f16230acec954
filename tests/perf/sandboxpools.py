"""Benchmark on a real node: time of an Episode to its first observation, with and without a sandbox pool.

The baseline is ``kubectl exec`` in a running pod.
"""

import asyncio
import json
import os
import statistics
import sys
from datetime import datetime
from pathlib import Path
from random import Random
from time import perf_counter, time
from typing import Any

from dgym.kube import EPISODES, SANDBOX_POOLS, Client, SystemClock, load_access
from tests.e2e.cluster.episodes import debug_task, episode, inline_source, replay, shell, task_spec
from tests.e2e.cluster.release import installed
from tests.e2e.cluster.services import addresses, deploy
from tests.e2e.cluster.support import Kubectl, new_namespace, until
from tests.perf.measure import Figure, figure

WITH_A_POOL = 20
WITHOUT = 6
_WATCHED = replay(shell("sleep 5"), shell("true"))
"""Agent of the Episodes. It waits, so that the sidecar's log can be read before the pod is deleted."""


def sandboxpool_figures(_scratch: Path) -> list[Figure]:
    """The figures. Empty if no cluster was prepared."""
    if "DGYM_E2E_SIDECAR_IMAGE" not in os.environ:
        print("pools are not measured: hack/e2e did not prepare a cluster", file=sys.stderr)
        return []
    with new_namespace("perf-services") as services:
        os.environ["DGYM_E2E_SERVICES"] = json.dumps(addresses(services))
        images = {name: os.environ[f"DGYM_E2E_{name.upper()}_IMAGE"] for name in ("sandbox", "agent")}
        deploy(services, sandbox_image=images["sandbox"], agent_image=images["agent"])
        with installed("perf", watch=None, agents=1), new_namespace("perf") as kubectl:
            return asyncio.run(_measure(kubectl))


async def _measure(kubectl: Kubectl) -> list[Figure]:
    kubectl.apply(debug_task("bug", task_spec(inline_source())))
    async with Client(await load_access(), clock=SystemClock(), random=Random(1)) as client:
        # The very first episode is not counted: nothing is cached for it.
        cold = [await _first_observation(client, kubectl, f"cold-{number}") for number in range(WITHOUT + 1)][1:]
        spec = {"taskRef": {"name": "bug"}, "minIdle": 2}
        kubectl.apply(SANDBOX_POOLS.manifest(metadata={"name": "warm"}, spec=spec))
        warm = []
        for number in range(WITH_A_POOL):
            await asyncio.to_thread(lambda: until(lambda: _idle(kubectl), what="idle sandboxes"))
            warm.append(await _first_observation(client, kubectl, f"warm-{number}"))
        waiting = await asyncio.to_thread(lambda: until(lambda: _idle(kubectl), what="idle sandboxes"))
        pod = waiting[0]["metadata"]["name"]
        reached = [_exec(kubectl, pod) for _ in range(6)][1:]
    name, exec_ms = "an Episode's creation to its first observation", statistics.median(reached)
    return [
        figure(f"{name}, from a pool", warm, aim=350.0, baseline=exec_ms, baseline_name="kubectl exec"),
        figure(f"{name}, without", cold, baseline=statistics.median(warm), baseline_name="from a pool"),
    ]


def _idle(kubectl: Kubectl) -> list[dict[str, Any]]:
    """The ready pods of the sandbox pool. Empty unless exactly two are ready."""
    pods = kubectl.items("pods", "dgym.dev/sandbox-pool=warm,!dgym.dev/episode")
    ready = [each for each in pods if _is_ready(each)]
    return ready if len(ready) == 2 else []


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)


async def _first_observation(client: Client, kubectl: Kubectl, name: str) -> float:
    """Milliseconds until the sidecar has answered the reset, by its log. Both clocks are those of this machine."""
    manifest = episode(name, agent=_WATCHED, taskRef={"name": "bug"})
    created = time()
    await client.create(EPISODES, manifest, decode=dict[str, Any], namespace=kubectl.namespace, field_manager="perf")
    answered = await asyncio.to_thread(lambda: until(lambda: _reset_at(kubectl, name), what="the reset", pause=0.5))
    kubectl("patch", "episode", name, "--type=merge", "-p", '{"spec": {"cancel": true}}')
    await asyncio.to_thread(kubectl.finished, name)
    return (answered - created) * 1000


def _reset_at(kubectl: Kubectl, name: str) -> float | None:
    pod = kubectl.status(name).get("podName")
    if not pod:
        return None
    for line in kubectl("logs", pod, "-c", "sidecar", check=False).splitlines():
        if '"/v1/reset"' in line:
            return datetime.fromisoformat(json.loads(line)["time"]).timestamp()
    return None


def _exec(kubectl: Kubectl, pod: str) -> float:
    started = perf_counter()
    kubectl("exec", pod, "-c", "sandbox", "--", "ls", "/")
    return (perf_counter() - started) * 1000
