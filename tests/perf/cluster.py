"""Benchmark on a real node: stages of a pod from its creation to the first observation, steps against ``kubectl exec``.

The pod is rendered as by the operator. The operator and agent pods do not run, so they do not affect the stages.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dgym.api import DebugTask
from dgym.env import AsyncRepoEnv, prepare
from dgym.session import EpisodeLimits
from dgym.wire.client import PodClient
from dgym.wire.http import Role, token_digest
from dgym.workspace.sources import pack_source
from dgym_operator.render import PodContext, Renderer
from dgym_operator.settings import Settings
from tests.e2e.cluster.support import Kubectl, new_namespace, until
from tests.perf.measure import Figure, figure
from tests.perf.steps import PROGRAM, TEST, make_task
from tests.support.calc import FIXED

PODS = 6
STEPS = 60
TOOLS = ("view", "bash", "pdb", "eval", "rewrite", "submit")
STAGES = ("scheduled", "init containers done", "ready", "prepared", "first observation")


def cluster_figures(scratch: Path) -> list[Figure]:
    """The figures. Empty if no cluster was prepared (``make perf`` prepares a cluster if possible)."""
    if "DGYM_E2E_SIDECAR_IMAGE" not in os.environ:
        print("the cluster is not measured: hack/e2e did not prepare one", file=sys.stderr)
        return []
    with new_namespace("perf") as kubectl:
        return asyncio.run(_measure(kubectl, scratch))


async def _measure(kubectl: Kubectl, scratch: Path) -> list[Figure]:
    files = {"prog.py": PROGRAM, "calc.py": FIXED, "test_calc.py": TEST}
    task = make_task(files, debugEntrypoint="python prog.py")
    source = await pack_source(task.spec.source, base=scratch, cache=scratch / "cache")
    stages: dict[str, list[float]] = defaultdict(list)
    figures: list[Figure] = []
    for number in range(PODS):
        name = f"perf-{number}"
        figures += await _one_pod(kubectl, name, task, source, stages, measure_steps=number == PODS - 1)
        kubectl("delete", "pod", name, "--wait=true", "--grace-period=1")
    # The first pod is not counted: the node has nothing cached for it.
    aims = {STAGES[-1]: 2500.0}
    return [figure(f"pod: {stage}", stages[stage][1:], aim=aims.get(stage)) for stage in STAGES] + figures


async def _one_pod(
    kubectl: Kubectl, name: str, task: DebugTask, source: Path, stages: dict[str, list[float]], *, measure_steps: bool
) -> list[Figure]:
    tokens = {role: f"{role}-{name}" for role in Role}
    context = PodContext(
        name=name,
        namespace=kubectl.namespace,
        episode=name,
        episode_uid=name,
        attempt=1,
        task=task.spec,
        delivered=True,
        digests={role.value: token_digest(token) for role, token in tokens.items()},
        active_deadline_seconds=600,
        settings=Settings(
            sandbox_image=os.environ["DGYM_E2E_SANDBOX_IMAGE"], sidecar_image=os.environ["DGYM_E2E_SIDECAR_IMAGE"]
        ),
    )
    pod = Renderer().render("restricted", context)
    with _watching(kubectl) as seen:
        kubectl.apply(pod)
        address = await asyncio.to_thread(lambda: until(lambda: seen.get("address"), what="the pod", pause=0.005))
        url = f"http://{address}:8080"
        client = PodClient(url, tokens[Role.PREPARE])
        await prepare(client, task, source=source, tools=TOOLS, limits=EpisodeLimits(max_steps=10_000))
        prepared = time.perf_counter()
        async with AsyncRepoEnv.connect(url, tokens[Role.DRIVE]) as env:
            await env.reset()
            observed = time.perf_counter()
            times = {**seen["times"], "prepared": prepared, "first observation": observed}
            for stage in STAGES:
                stages[stage].append((times[stage] - times["created"]) * 1000)
            figures = await _steps(env, kubectl, name) if measure_steps else []
        await client.close()
    return figures


async def _steps(env: AsyncRepoEnv, kubectl: Kubectl, pod: str) -> list[Figure]:
    """Compare each tool with the same work by ``kubectl exec``."""
    await env.step("pdb b prog.py:7")
    await env.step("pdb c")
    work = {
        "view 12 lines": ("view prog.py 1 12", "sed -n 1,12p prog.py", STEPS),
        "bash true": ("bash true", "true", STEPS),
        "pdb command": ("pdb p total", "printf 'p 1\\nq\\n' | python3 -m pdb prog.py", STEPS),
        "eval (pytest, one test)": ("eval", "python3 -m pytest -q", 5),
    }
    figures = []
    for name, (action, command, repeat) in work.items():
        ours = await _times(lambda action=action: env.step(action), repeat)
        shell = ("exec", pod, "-c", "sandbox", "--", "sh", "-c", f"cd /workspace && {command}")
        theirs = await _times(lambda shell=shell: asyncio.to_thread(kubectl, *shell, check=False), min(repeat, 10))
        baseline = statistics.median(theirs)
        figures.append(figure(f"through the pod: {name}", ours, baseline=baseline, baseline_name="kubectl exec"))
    return figures


async def _times(action: Callable[[], Awaitable[object]], repeat: int) -> list[float]:
    durations = []
    for _ in range(repeat + 1):
        started = time.perf_counter()
        await action()
        durations.append((time.perf_counter() - started) * 1000)
    return durations[1:]


@contextmanager
def _watching(kubectl: Kubectl) -> Iterator[dict[str, Any]]:
    """The times at which a watch reported each stage of the only pod."""
    path = f"/api/v1/namespaces/{kubectl.namespace}/pods?watch=1"
    seen: dict[str, Any] = {"times": {}}
    with subprocess.Popen(["kubectl", "get", "--raw", path], stdout=subprocess.PIPE, text=True) as process:

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                _note(json.loads(line)["object"], seen)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            yield seen
        finally:
            process.terminate()
            reader.join(timeout=10)


def _note(pod: dict[str, Any], seen: dict[str, Any]) -> None:
    now = time.perf_counter()
    conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", ())}
    seen["times"].setdefault("created", now)
    names = {"PodScheduled": "scheduled", "Initialized": "init containers done", "Ready": "ready"}
    for condition, stage in names.items():
        if conditions.get(condition) == "True":
            seen["times"].setdefault(stage, now)
    if conditions.get("Ready") == "True":
        seen["address"] = pod["status"]["podIP"]
