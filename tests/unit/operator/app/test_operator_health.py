from random import Random

import aiohttp
import pytest

from dgym.kube import ClusterAccess, Credentials, SystemClock
from dgym_operator.app import Operator
from dgym_operator.app._health import Watchdog, serving
from dgym_operator.app._metrics import Metrics, Snapshot
from dgym_operator.settings import Settings


@pytest.fixture
def metrics():
    return Metrics(
        lambda: Snapshot(
            episodes={("team", "active", "Running"): 3, ("team", "finished", "Resolved"): 2},
            agent_pods={"ready": 1},
            slots_used=3,
            slots_free=5,
            queue_depth=4,
            queue_oldest_seconds=0.5,
            watch_staleness_seconds={("episodes", ""): 2.0},
            is_leader=True,
        )
    )


async def get(port, path):
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, await answer.text()


async def test_readiness_follows_the_checks(metrics):
    stale = []
    ready = (lambda: stale[0] if stale else None,)
    async with serving(metrics, "127.0.0.1", 0, ready=ready) as port:
        assert await get(port, "/healthz") == (200, "ok\n")
        assert await get(port, "/readyz") == (200, "ok\n")
        stale.append("pods were last heard of 300 s ago")
        assert await get(port, "/healthz") == (200, "ok\n")
        assert await get(port, "/readyz") == (503, "pods were last heard of 300 s ago\n")


async def test_a_failed_liveness_check_also_fails_readiness(metrics):
    async with serving(metrics, "127.0.0.1", 0, live=(lambda: "a worker hangs",)) as port:
        assert await get(port, "/healthz") == (503, "a worker hangs\n")
        assert await get(port, "/readyz") == (503, "a worker hangs\n")


def test_a_worker_hangs_only_beyond_the_limit():
    now = [0.0]
    watchdog = Watchdog(lambda: now[0], 60.0)
    watchdog.begin(1, "episode team/fix")
    now[0] = 59.0
    watchdog.begin(2, "episode team/other")
    assert watchdog.check() is None
    now[0] = 61.0
    assert watchdog.check() == "a worker hangs in episode team/fix"
    watchdog.end(1)
    assert watchdog.check() is None


async def test_metrics_show_gauges_and_counters(metrics):
    metrics.finished.labels("", "Resolved").inc()
    metrics.reconciles.labels(kind="Episode", result="ok").inc(2)
    async with serving(metrics, "127.0.0.1", 0) as port:
        status, text = await get(port, "/metrics")
    assert status == 200
    for line in (
        'dgym_episodes{episode_namespace="",reason="Running",state="active"} 3.0',
        'dgym_slots{state="free"} 5.0',
        'dgym_agents{state="ready"} 1.0',
        "dgym_operator_queue_depth 4.0",
        'dgym_operator_watch_staleness_seconds{namespace="",resource="episodes"} 2.0',
        "dgym_operator_is_leader 1.0",
        'dgym_episodes_finished_total{episode_namespace="",reason="Resolved"} 1.0',
        'dgym_operator_reconcile_total{kind="Episode",result="ok"} 2.0',
    ):
        assert line in text.splitlines(), line
    assert "process_resident_memory_bytes" in text


def test_a_replica_that_does_not_lead_counts_no_namespace_as_not_served():
    settings = Settings(watch_namespaces="team-a")
    access = ClusterAccess(server="http://127.0.0.1:1", credentials=Credentials(None))
    operator = Operator(settings, access, clock=SystemClock(), random=Random(1), random_bytes=bytes)
    assert b"dgym_operator_is_leader 0.0" in operator.metrics.text()
    assert b"dgym_operator_namespaces{" not in operator.metrics.text()
