"""Replicas of the operator. Each is started again when it ends."""

import asyncio
from contextlib import asynccontextmanager
from functools import cache

from dgym.kube import ClusterAccess, Credentials
from dgym_operator.app import Operator
from dgym_operator.app._operator import Network
from dgym_operator.chart_values import NamespacePolicies, NamespacePolicy
from dgym_operator.controllers import Policy
from dgym_operator.render import Renderer
from dgym_operator.settings import Settings
from tests.simulation import virtual
from tests.simulation.api_server import ReplicaTransport
from tests.simulation.cluster import Caller
from tests.simulation.sidecar import NAMESPACE

WORKERS = 4
POLICY = Policy(workers=WORKERS, lease_retry_seconds=4.0)


class Replica:
    """An operator process. Its kubelet starts it again when it ends."""

    def __init__(self, world, number, max_active):
        self._world = world
        self._max_active = max_active
        self._number = number
        self._operator = None
        self._task = None
        self._stop = None
        self.transport = None

    @property
    def leads(self):
        return self._operator is not None and self._operator.elector.is_leader()

    def kill(self):
        """Send SIGKILL. Requests that the process sends while it ends do not arrive."""
        self.transport.cut_until = float("inf")
        self._task.cancel()

    def stop(self):
        """Send SIGTERM."""
        self._stop.set()

    async def run(self):
        while True:
            self._start()
            try:
                await asyncio.wait((self._task,))
            except asyncio.CancelledError:
                self.kill()
                await asyncio.gather(self._task, return_exceptions=True)
                raise
            if not self._task.cancelled():
                self._task.exception()
            await asyncio.sleep(self._world.random.uniform(1.0, 10.0))

    def _start(self):
        random = self._world.random
        self.transport = type(
            "Cut", (ReplicaTransport,), {"server": self._world.api, "replica": f"operator-{self._number}"}
        )
        self._stop = asyncio.Event()
        self._operator = Operator(
            _settings(self._number, self._max_active),
            ClusterAccess(server="http://api", namespace=NAMESPACE, credentials=Credentials()),
            clock=virtual.ProcessClock(self.transport.thaw), random=random, random_bytes=random.randbytes,
            network=_network(self._world, self.transport), renderer=_renderer(), policy=POLICY,
        )  # fmt: skip
        self._task = asyncio.ensure_future(self._operator.run(self._stop))


@cache
def _renderer():
    """Return the renderer of all runs. Compiling the templates takes as long as a fifth of a run."""
    return Renderer()


@cache
def _settings(number, max_active):
    return Settings(
        namespace=NAMESPACE, watch_namespaces=(NAMESPACE,), sandbox_image="sandbox", sidecar_image="sidecar",
        pod_name=f"operator-{number}",
        namespace_policies=NamespacePolicies(defaults=NamespacePolicy(max_active=max_active)),
    )  # fmt: skip


def _network(world, transport):
    class Simulated(Network):
        @asynccontextmanager
        async def pods(self):
            yield lambda seconds: Caller(world, transport, seconds)

        @staticmethod
        @asynccontextmanager
        async def serve(*_args, **_options):
            yield 0

    network = Simulated()
    network.transport = transport
    return network
